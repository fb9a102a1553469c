#include "cli/awkward_problem.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "measure/workload_tensors.h"

namespace fovea::cli {
namespace {

// Around vectors of 4 … 16 lanes, tiles of 32 rows and blocks of 64 keys.
constexpr int64_t kSizes[] = {1,  2,  3,  4,  5,  7,  8,  9,  12, 15, 16,
                              17, 23, 31, 32, 33, 47, 63, 64, 65, 67};
constexpr int64_t kChannels[] = {1, 2, 3, 5, 8, 13, 16, 17, 32, 40, 64, 65, 80};
constexpr int64_t kLongKeys = 1100;
constexpr char kPoison = 0x7f;  // in every byte: above 1e38 or a NaN

// Score options by their number in the sequence: each alone, then all together.
enum Options : unsigned {
  kPlain = 0,
  kTopLeft = 1,
  kBottomRight = 2,
  kWindow = 4,
  kOffset = 8,
  kLengths = 16,
  kMask = 32,
  kBias = 64,
  kScale = 128,
  kSoftcap = 256,
  kAlibi = 512,
  kSinks = 1024,
  kHeadScales = 2048,
  kBiasScales = 4096,
  kKeyRanges = 8192,
  kPages = 16384,
  kKeyOffsets = 32768,
  kRing = 65536,  // not with the two before
  kAll = 65535,
};
constexpr unsigned kCombinations[] = {
    kPlain,
    kTopLeft,
    kBottomRight,
    kWindow,
    kOffset | kTopLeft,
    kLengths,
    kMask,
    kBias,
    kScale,
    kSoftcap,
    kAlibi,
    kSinks,
    kHeadScales,
    kBias | kBiasScales,
    kKeyRanges,
    kLengths | kBottomRight | kWindow,
    kMask | kBias | kSinks,
    kSoftcap | kAlibi | kTopLeft,
    kKeyRanges | kTopLeft | kHeadScales,
    kPages | kLengths | kBottomRight,
    kKeyOffsets | kBottomRight | kWindow | kMask,
    kRing | kLengths | kBottomRight | kAlibi | kBias,
    kAll & ~(kTopLeft | kOffset | kPages),
    kAll & ~(kTopLeft | kOffset),
};
constexpr int kCombinationCount = sizeof(kCombinations) / sizeof(kCombinations[0]);

}  // namespace

AwkwardProblem::AwkwardProblem(uint64_t seed, int index)
    : state_(seed * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(index) + 1) {
  for (int warm_up = 0; warm_up < 8; ++warm_up) Draw(2);
  DrawSizes(index);
  DrawTypes();
  const bool bthd = Draw(2) == 1;
  MakeTensors(bthd);
  DrawScore(index);
  DrawCache(index);
  const auto text = [](int64_t n) { return std::to_string(n); };
  description_ = "problem " + text(index) + " of seed " + std::to_string(seed) + ": B " + text(B_) +
                 ", Hq/Hkv " + text(Hq_) + "/" + text(Hkv_) + ", Tq " + text(Tq_) + ", Tk " +
                 text(Tk_) + ", dk " + text(dk_) + ", dv " + text(dv_) + (bthd ? ", BTHD" : "") +
                 ", q " + Name(q_type_) + ", k " + Name(k_type_) + ", v " + Name(v_type_) +
                 ", out " + Name(out_type_);
}

void AwkwardProblem::DrawSizes(int index) {
  constexpr size_t kSizeCount = sizeof(kSizes) / sizeof(kSizes[0]),
                   kChannelCount = sizeof(kChannels) / sizeof(kChannels[0]);
  B_ = 1 + static_cast<int64_t>(Draw(2));
  Hkv_ = 1 + static_cast<int64_t>(Draw(2));
  Hq_ = Hkv_ * (1 + static_cast<int64_t>(Draw(3)));
  Tq_ = kSizes[Draw(kSizeCount)];
  Tk_ = kSizes[Draw(kSizeCount)];
  dk_ = kChannels[Draw(kChannelCount)];
  dv_ = Draw(2) == 0 ? dk_ : kChannels[Draw(kChannelCount)];
  // Every fourth round through the options is decode over keys long enough to be split.
  if (index / kCombinationCount % 4 == 3)
    Tq_ = 1 + static_cast<int64_t>(Draw(2)), Tk_ = kLongKeys + static_cast<int64_t>(Draw(64));
}

// f32 half of the time, then bf16 (which products exist for) as often as mixed.
void AwkwardProblem::DrawTypes() {
  constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
  const uint64_t draw = Draw(4);
  for (DType* type : {&q_type_, &k_type_, &v_type_, &out_type_})
    *type = draw < 2 ? DType::kF32 : draw == 2 ? DType::kBF16 : kTypes[Draw(3)];
  // Of mixed ones K and V are quantised half of the time, in whole units.
  constexpr int32_t kFirst = static_cast<int32_t>(DType::kI8),
                    kLast = static_cast<int32_t>(DType::kIQ4NL);
  for (const bool of_k : {true, false}) {
    if (draw != 3 || Draw(2) == 0) continue;
    const DType type = static_cast<DType>(kFirst + static_cast<int32_t>(Draw(kLast - kFirst + 1)));
    const bool fits = (of_k ? dk_ : dv_) % UnitElements(type) == 0;
    (of_k ? k_type_ : v_type_) = fits ? type : DType::kI8;
  }
}

void AwkwardProblem::MakeTensors(bool bthd) {
  lse_.resize(static_cast<size_t>(B_ * Hq_ * Tq_));
  weights_.resize(static_cast<size_t>(B_ * Hq_ * Tq_ * Tk_));
  const auto tensor = [&](std::vector<char>* values, DType type, int64_t H, int64_t T, int64_t d) {
    const size_t count = static_cast<size_t>(B_ * H * T * d);
    values->resize(static_cast<size_t>(B_ * H * T * BytesOf(type, d)));
    const uint64_t seed = Draw(uint64_t{1} << 32);
    if (IsQuantised(type)) {
      measure::FillCodes(values->data(), type, values->size(), seed);
    } else {
      measure::FillNormal(values->data(), type, count, seed);
    }
    void* const data = values->data();
    return bthd ? SwapAxes(View(data, type, {B_, T, H, d}), 1, 2) : View(data, type, {B_, H, T, d});
  };
  problem_.q = tensor(&q_, q_type_, Hq_, Tq_, dk_);
  problem_.k = tensor(&k_, k_type_, Hkv_, Tk_, dk_);
  problem_.v = tensor(&v_, v_type_, Hkv_, Tk_, dv_);
  // A scale for each row, and a zero for each channel.
  const auto factors = [&](const TensorView& codes, std::vector<float>* values, bool of_rows) {
    if (!HasScaleViews(codes.dtype)) return TensorView();
    const int64_t T = of_rows ? Tk_ : 1, n = of_rows ? 1 : codes.shape[3];
    FillFloats(values, Hkv_ * T * n);
    for (float& x : *values) x = of_rows ? x * 0x1p-6f : x * 16;
    return View(static_cast<const float*>(values->data()), {int64_t{1}, Hkv_, T, n});
  };
  problem_.k_scale = factors(problem_.k, &k_scale_, true);
  problem_.k_zero = factors(problem_.k, &k_zero_, false);
  problem_.v_scale = factors(problem_.v, &v_scale_, true);
  problem_.v_zero = factors(problem_.v, &v_zero_, false);
  problem_.out = tensor(&out_, out_type_, Hq_, Tq_, dv_);
  problem_.lse = View(lse_.data(), {B_, Hq_, Tq_});
  problem_.weights = View(weights_.data(), {B_, Hq_, Tq_, Tk_});
}

void AwkwardProblem::DrawScore(int index) {
  const unsigned options = kCombinations[index % kCombinationCount];
  Score& score = problem_.score;
  if (options & kTopLeft) score.causal = Causal::kTopLeft;
  if (options & kBottomRight) score.causal = Causal::kBottomRight;
  if (options & kWindow)
    score.window = {static_cast<int64_t>(Draw(40)) - 1, static_cast<int64_t>(Draw(20)) - 1};
  if (options & kOffset)
    score.query_offset = static_cast<int64_t>(Draw(2 * static_cast<uint64_t>(Tk_))) - Tk_ / 2;
  if (options & kScale) score.scale = Draw(2) == 0 ? -0.3f : 0.7f;
  if (options & kSoftcap) score.softcap = 1.5f;
  if (options & kLengths) {
    for (int64_t b = 0; b < B_; ++b) {
      q_lengths_.push_back(static_cast<int32_t>(Draw(static_cast<uint64_t>(Tq_) + 1)));
      kv_lengths_.push_back(static_cast<int32_t>(Draw(static_cast<uint64_t>(Tk_) + 1)));
    }
    score.q_lengths = View(static_cast<const int32_t*>(q_lengths_.data()), {B_});
    score.kv_lengths = View(static_cast<const int32_t*>(kv_lengths_.data()), {B_});
  }
  if (options & kMask) {
    for (int64_t n = 0; n < Tq_ * Tk_; ++n) mask_.push_back(Draw(4) != 0);
    std::fill_n(mask_.begin(), Tk_, uint8_t{0});  // the first query sees nothing
    score.mask = View(static_cast<const void*>(mask_.data()), DType::kBool, {Tq_, Tk_});
  }
  if (options & kBias) {
    FillFloats(&bias_, Hq_ * Tq_ * Tk_);
    for (size_t n = 0; n < bias_.size(); n += 11)
      bias_[n] = -std::numeric_limits<float>::infinity();
    score.bias = View(static_cast<const float*>(bias_.data()), {int64_t{1}, Hq_, Tq_, Tk_});
  }
  const auto scales = [&](std::vector<float>* values) {
    FillFloats(values, Hq_);
    (*values)[0] = 0;
    return View(static_cast<const float*>(values->data()), {Hq_});
  };
  if (options & kHeadScales) score.head_scales = scales(&head_scales_);
  if (options & kBiasScales) score.bias_scales = scales(&bias_scales_);
  if (options & kKeyRanges) {
    for (int64_t n = 0; n < B_ * Tq_; ++n) {
      const int64_t first = static_cast<int64_t>(Draw(static_cast<uint64_t>(Tk_))) - 2;
      const int64_t keys = static_cast<int64_t>(Draw(static_cast<uint64_t>(Tk_) + 4)) - 1;
      key_ranges_.push_back(static_cast<int32_t>(first));
      key_ranges_.push_back(static_cast<int32_t>(first + keys));
    }
    score.key_ranges = View(static_cast<const int32_t*>(key_ranges_.data()), {B_, Tq_, int64_t{2}});
  }
  if (options & kAlibi) {
    for (int64_t h = 0; h < Hq_; ++h) slopes_.push_back(std::ldexp(1.0f, -static_cast<int>(h) - 2));
    score.alibi_slopes = View(static_cast<const float*>(slopes_.data()), {Hq_});
  }
  if (options & kSinks) {
    FillFloats(&sinks_, Hq_);
    score.sinks = View(static_cast<const float*>(sinks_.data()), {Hq_});
  }
}

void AwkwardProblem::DrawCache(int index) {
  const unsigned options = kCombinations[index % kCombinationCount];
  const uint64_t keys = static_cast<uint64_t>(Tk_);
  if (options & kKeyOffsets) {
    for (int64_t b = 0; b < B_; ++b) key_offsets_.push_back(static_cast<int64_t>(Draw(3 * keys)));
    problem_.score.key_offsets = View(static_cast<const int64_t*>(key_offsets_.data()), {B_});
  }
  if (options & kRing) {  // any phase: what lies in a row is noise anyway
    problem_.ring = true;
    for (int32_t& length : kv_lengths_) length = static_cast<int32_t>(Draw(3 * keys));
  }
  if (options & kPages) MoveToPages();
}

// Pages in descending order, with one between those of two sequences that is nobody's.
void AwkwardProblem::MoveToPages() {
  const int64_t page = 1 + static_cast<int64_t>(Draw(40)), width = (Tk_ + page - 1) / page,
                pages = B_ * (width + 1);
  for (int64_t b = 0; b < B_; ++b) {
    for (int64_t x = 0; x < width; ++x)
      page_table_.push_back(static_cast<int32_t>(pages - 1 - b * (width + 1) - x));
  }
  const auto move = [&](auto* values, TensorView* view) {
    const int64_t bytes = BytesOf(view->dtype, view->shape[3]);
    const int64_t of_sequence = view->shape[0] == 1 ? 0 : view->stride[0];
    std::decay_t<decltype(*values)> moved(static_cast<size_t>(pages * Hkv_ * page * bytes) /
                                          sizeof((*values)[0]));
    std::memset(moved.data(), kPoison, moved.size() * sizeof(moved[0]));
    char* const to = reinterpret_cast<char*>(moved.data());
    for (int64_t b = 0; b < B_; ++b) {
      for (int64_t h = 0; h < Hkv_; ++h) {
        for (int64_t j = 0; j < Tk_; ++j) {
          const int64_t number = page_table_[static_cast<size_t>(b * width + j / page)];
          std::memcpy(to + ((number * Hkv_ + h) * page + j % page) * bytes,
                      static_cast<const char*>(view->data) + b * of_sequence + h * view->stride[1] +
                          j * view->stride[2],
                      static_cast<size_t>(bytes));
        }
      }
    }
    *values = std::move(moved);
    *view = View(static_cast<const void*>(values->data()), view->dtype,
                 {pages, Hkv_, page, view->shape[3]});
  };
  move(&k_, &problem_.k);
  move(&v_, &problem_.v);
  // Scales of rows go with them; zeros are those of channels.
  if (problem_.k_scale.present()) move(&k_scale_, &problem_.k_scale);
  if (problem_.v_scale.present()) move(&v_scale_, &problem_.v_scale);
  problem_.pages.table = View(static_cast<const int32_t*>(page_table_.data()), {B_, width});
  problem_.pages.keys = Tk_;
}

void AwkwardProblem::ClearOutputs() {
  std::memset(out_.data(), kPoison, out_.size());
  for (std::vector<float>* values : {&lse_, &weights_})
    std::memset(values->data(), kPoison, values->size() * sizeof(float));
}

uint64_t AwkwardProblem::Draw(uint64_t below) {
  // xorshift64* (Vigna 2016)
  state_ ^= state_ >> 12, state_ ^= state_ << 25, state_ ^= state_ >> 27;
  return (state_ * 0x2545f4914f6cdd1du >> 32) % below;
}

void AwkwardProblem::FillFloats(std::vector<float>* values, int64_t count) {
  values->resize(static_cast<size_t>(count));
  measure::FillNormal(values->data(), values->size(), Draw(uint64_t{1} << 32));
}

}  // namespace fovea::cli
