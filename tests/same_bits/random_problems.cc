#include "random_problems.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "draws.h"

namespace fovea::same_bits {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Sizes whose product stays small.
Sizes DrawSizes(Random& random) {
  Sizes s;
  int64_t group = 1;
  std::vector<std::pair<int64_t*, int64_t>> axes = {{&s.B, 4},    {&s.Hkv, 3},  {&group, 17},
                                                    {&s.Tq, 260}, {&s.Tk, 700}, {&s.dk, 260}};
  random.Shuffle(axes);
  if (random.Chance(0.5))
    std::partition(axes.begin(), axes.end(), [&](const auto& axis) { return axis.first == &s.Tk; });
  int64_t room = static_cast<int64_t>(std::exp2(5 + 13 * random.Uniform()));
  for (const auto& [size, most] : axes) {
    *size = DrawSize(random, std::min(most, room));
    room = std::max<int64_t>(room / *size, 1);
  }
  s.dv = random.Chance(0.4) ? s.dk : DrawSize(random, 2 * s.dk);
  s.Hq = s.Hkv * group;
  if (random.Chance(0.03)) {
    int64_t* const empty[] = {&s.B, &s.Tq, &s.Tk};
    *Pick(random, empty) = 0;
  }
  return s;
}

DType DrawIntegers(Random& random, double chance) {
  if (!random.Chance(chance)) return DType::kNone;
  return random.Chance(0.5) ? DType::kI32 : DType::kI64;
}

// Axes of [B, Hq, Tq, Tk] that a bias or mask has, each of its full size or 1.
std::vector<int64_t> DrawShape(Random& random, const std::vector<int64_t>& full) {
  const int64_t rank = random.Between(1, 4);
  std::vector<int64_t> shape(full.end() - rank, full.end());
  for (int64_t& size : shape) size = random.Chance(0.25) ? 1 : size;
  return shape;
}

// How far to look past a position: near, far, or far beyond all keys.
int64_t DrawDistance(Random& random, int64_t most) {
  constexpr int64_t kFar[] = {(1 << 24) + 1, (int64_t{1} << 31) + 1, int64_t{1} << 62};
  const double kind = random.Uniform();
  if (kind < 0.3) return random.Below(4);
  return kind < 0.95 ? random.Between(0, most + 2) : Pick(random, kFar);
}

// Draws a problem; what one part makes the next ones use.
class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed), s_(DrawSizes(random_)) {}

  Case Make() {
    DrawSequences();
    DrawInputs();
    DrawScore();
    DrawPositions();
    DrawOutputs();
    DrawPlan();
    return std::move(c_);
  }

 private:
  Tensor Integers(DType dtype, int64_t count, int64_t first, int64_t last) {
    Tensor tensor(dtype, {count});
    tensor.Fill([&] { return static_cast<double>(random_.Between(first, last)); });
    return tensor;
  }

  // Begins of B sequences in a packed tensor, one of them of T rows; *rows counts all rows.
  TensorView Begins(DType dtype, int64_t T, std::vector<int64_t>* lengths, int64_t* rows) {
    Tensor begins(dtype, {s_.B + 1});
    const int64_t longest = random_.Below(s_.B);
    int64_t end = random_.Between(0, 3);
    lengths->clear();
    for (int64_t b = 0; b <= s_.B; ++b) {
      begins.Set(b, static_cast<double>(end));
      if (b == s_.B) break;
      lengths->push_back(b == longest ? T : random_.Chance(0.2) ? 0 : random_.Between(0, T));
      end += lengths->back();
    }
    *rows = end + random_.Between(0, 3);
    return c_.Own(std::move(begins));
  }

  void DrawSequences() {
    q_rows_ = s_.Tq, k_rows_ = s_.Tk;
    q_lengths_.assign(static_cast<size_t>(s_.B), s_.Tq);
    k_lengths_.assign(static_cast<size_t>(s_.B), s_.Tk);
    if (s_.B == 0) return;
    if (const DType type = DrawIntegers(random_, 0.15); type != DType::kNone)
      c_.problem.cu_seqlens_q = Begins(type, s_.Tq, &q_lengths_, &q_rows_);
    if (const DType type = DrawIntegers(random_, 0.15); type != DType::kNone)
      c_.problem.cu_seqlens_k = Begins(type, s_.Tk, &k_lengths_, &k_rows_);
  }

  // Sets a few elements to values from the edges.
  void Spoil(Tensor* tensor) {
    constexpr double kValues[] = {kNaN, kInf, -kInf, 3e35, -3e35, 1e-40, 0.0, -0.0, -3.4028235e38};
    if (!extremes_ || tensor->size() == 0 || random_.Chance(0.6)) return;
    tensor->Set(random_.Below(tensor->size()), Pick(random_, kValues));
  }

  TensorView Input(DType type, std::vector<int64_t> shape, double size) {
    Tensor tensor = Normal(random_, type, std::move(shape), DrawStorage(random_, true), size);
    Spoil(&tensor);
    return c_.Own(std::move(tensor));
  }

  void DrawInputs() {
    extremes_ = random_.Chance(0.2);
    const double types = random_.Uniform();
    DType type[] = {DType::kF32, DType::kF32, DType::kF32, DType::kF32};
    for (DType& t : type) t = types < 0.35 ? DType::kBF16 : types < 0.5 ? DType::kF16 : t;
    for (DType& t : type) t = types > 0.75 ? Pick(random_, kFloats) : t;
    if (random_.Chance(0.2)) type[3] = DType::kF32;
    out_type_ = type[3];

    constexpr double kSizes[] = {1, 1, 1, 1, 1, 1, 1e-3, 30, 1000, 1e18};
    const double v_size = random_.Chance(0.7) ? 1 : DrawMagnitude(random_);
    Problem& p = c_.problem;
    const int64_t k_batch = p.cu_seqlens_k.present() ? 1 : s_.B;
    const bool v_in_k = random_.Chance(0.06);
    const bool patterned = !v_in_k && random_.Chance(0.15);
    if (v_in_k) s_.dv = std::min(s_.dv, s_.dk);
    const std::vector<int64_t> q_shape = {p.cu_seqlens_q.present() ? 1 : s_.B, s_.Hq, q_rows_,
                                          s_.dk};
    const std::vector<int64_t> k_shape = {k_batch, s_.Hkv, k_rows_, s_.dk};
    const std::vector<int64_t> v_shape = {k_batch, s_.Hkv, k_rows_, s_.dv};
    if (patterned) {
      Tensor q(type[0], q_shape, DrawStorage(random_, true));
      q.Fill([] { return 1.0; });
      Patterned keys = DrawPatterned(random_, type[1], k_shape, type[2], v_shape, v_size);
      p.q = c_.Own(std::move(q));
      p.k = c_.Own(std::move(keys.k));
      p.v = c_.Own(std::move(keys.v));
      return;
    }
    p.q = Input(type[0], q_shape, Pick(random_, kSizes));
    p.k = Input(type[1], k_shape, random_.Chance(0.05) ? 1e18 : 1);
    p.v = v_in_k ? p.k : Input(type[2], v_shape, v_size);
    p.v.shape[3] = s_.dv;
  }

  TensorView Mask(std::vector<int64_t> shape) {
    constexpr double kAllow[] = {0, 0.1, 0.5, 0.9, 0.97, 1};
    const double allows = Pick(random_, kAllow);
    Storage storage = DrawStorage(random_, true);
    Tensor mask(random_.Chance(0.4) ? DType::kBit : DType::kBool, std::move(shape), storage);
    if (random_.Chance(0.3)) {  // runs, so that whole blocks are removed or kept
      bool on = true;
      mask.Fill([&] { return (on = random_.Chance(0.02) ? !on : on) ? 1.0 : 0.0; });
    } else {
      mask.Fill([&] { return random_.Chance(allows) ? 1.0 : 0.0; });
    }
    return c_.Own(std::move(mask));
  }

  void DrawScore() {
    Score& score = c_.problem.score;
    const double scale = random_.Uniform();
    if (scale < 0.2) score.scale = static_cast<float>(std::exp2(random_.Between(-6, 3)));
    if (scale < 0.1) score.scale = -*score.scale;
    if (scale < 0.03) score.scale = 0.0f;
    constexpr float kSoftcaps[] = {0.1f, 1, 10, 50};
    if (random_.Chance(0.2)) score.softcap = Pick(random_, kSoftcaps);
    if (random_.Chance(0.2)) {
      Tensor slopes(DType::kF32, {s_.Hq});
      slopes.Fill([&] { return std::exp2(-8 * random_.Uniform()); });
      Spoil(&slopes);
      score.alibi_slopes = c_.Own(std::move(slopes));
    }
    if (random_.Chance(0.2)) {
      Tensor sinks = Normal(random_, DType::kF32, {s_.Hq}, {}, 2);
      Spoil(&sinks);
      score.sinks = c_.Own(std::move(sinks));
    }
    const std::vector<int64_t> full = {s_.B, s_.Hq, s_.Tq, s_.Tk};
    if (random_.Chance(0.3)) {
      constexpr double kRemoves[] = {0, 0, 0.3, 0.9};
      const double removes = Pick(random_, kRemoves);
      Tensor bias(Pick(random_, kFloats), DrawShape(random_, full), DrawStorage(random_, true));
      bias.Fill([&] { return random_.Chance(removes) ? -kInf : random_.Normal(); });
      Spoil(&bias);
      score.bias = c_.Own(std::move(bias));
    }
    if (random_.Chance(0.35)) score.mask = Mask(DrawShape(random_, full));
    if (random_.Chance(0.15)) {
      BlockMap& map = score.block_map;
      map.queries = DrawSize(random_, 70), map.keys = DrawSize(random_, 140);
      map.visible = Mask(DrawShape(random_, {s_.B, s_.Hq, (s_.Tq + map.queries - 1) / map.queries,
                                             (s_.Tk + map.keys - 1) / map.keys}));
    }
  }

  TensorView Lengths(DType type, const std::vector<int64_t>& most) {
    Tensor lengths(type, {s_.B});
    for (int64_t b = 0; b < s_.B; ++b)
      lengths.Set(b, static_cast<double>(random_.Between(0, most[static_cast<size_t>(b)])));
    return c_.Own(std::move(lengths));
  }

  void DrawPositions() {
    Score& score = c_.problem.score;
    constexpr Causal kCausal[] = {Causal::kNone, Causal::kNone, Causal::kTopLeft,
                                  Causal::kBottomRight};
    score.causal = Pick(random_, kCausal);
    if (random_.Chance(0.2)) score.window.left = DrawDistance(random_, s_.Tk);
    if (random_.Chance(0.2)) score.window.right = DrawDistance(random_, s_.Tk);
    if (random_.Chance(0.2)) {
      const int64_t offset = DrawDistance(random_, std::max(s_.Tq, s_.Tk));
      score.query_offset = random_.Chance(0.7) ? offset : -offset;
    } else if (const DType type = DrawIntegers(random_, 0.15); type != DType::kNone) {
      score.query_offsets = c_.Own(Integers(type, s_.B, -s_.Tq, s_.Tk));
    }
    if (const DType type = DrawIntegers(random_, 0.2); type != DType::kNone)
      score.q_lengths = Lengths(type, q_lengths_);
    if (const DType type = DrawIntegers(random_, 0.3); type != DType::kNone)
      score.kv_lengths = Lengths(type, k_lengths_);
    if (const DType type = DrawIntegers(random_, 0.1); type != DType::kNone) {
      Tensor parents(type, {s_.B, s_.Tq});
      for (int64_t n = 0; n < parents.size(); ++n) {
        const int64_t i = n % s_.Tq;
        parents.Set(n,
                    static_cast<double>(random_.Chance(0.5) ? i - 1 : random_.Between(-1, i - 1)));
      }
      score.parents = c_.Own(std::move(parents));
    }
  }

  void DrawOutputs() {
    Problem& p = c_.problem;
    const int64_t batch = p.q.shape[0];
    const std::vector<int64_t> pairs = {s_.B, s_.Hq, s_.Tq, s_.Tk};
    constexpr ScoreStage kStages[] = {ScoreStage::kScaled, ScoreStage::kSoftcapped,
                                      ScoreStage::kMasked, ScoreStage::kWeights};
    Tensor lse, weights, scores;
    if (random_.Chance(0.7)) lse = Tensor(DType::kF32, {batch, s_.Hq, q_rows_});
    if (random_.Chance(0.3)) weights = Tensor(DType::kF32, pairs, DrawStorage(random_, false));
    if (random_.Chance(0.3)) {
      scores = Tensor(DType::kF32, pairs, DrawStorage(random_, false));
      p.score_stage = Pick(random_, kStages);
    }
    c_.OwnOutputs(Tensor(out_type_, {batch, s_.Hq, q_rows_, s_.dv}, DrawStorage(random_, false)),
                  std::move(lse), std::move(weights), std::move(scores));
  }

  int64_t Hook(int64_t most) { return random_.Chance(0.5) ? 0 : DrawSize(random_, most); }

  void DrawPlan() {
    PlanOptions& options = c_.options;
    options.fixed_mask = random_.Chance(0.2);
    if (random_.Chance(0.5)) {
      options.tile_rows = static_cast<int32_t>(Hook(32));
      options.block_keys = static_cast<int32_t>(Hook(128));
      options.split_keys = Hook(256);
    }
    if (random_.Chance(0.2)) {
      options.max_queries = s_.Tq + random_.Below(50);
      options.max_keys = s_.Tk + random_.Below(50);
    }
    constexpr Way kWays[] = {Way::kRun, Way::kRun, Way::kOneShot, Way::kUpdate, Way::kTasks};
    c_.way = Pick(random_, kWays);
    if (c_.way == Way::kUpdate) c_.MakeBefore();
  }

  Random random_;
  Sizes s_;
  Case c_;
  // Rows of q and k, of all sequences together where they are packed; rows of each sequence.
  int64_t q_rows_ = 0, k_rows_ = 0;
  std::vector<int64_t> q_lengths_, k_lengths_;
  DType out_type_ = DType::kF32;
  bool extremes_ = false;
};

}  // namespace

Case RandomCase(int64_t index) {
  Case c = Draw(0x5EED0000u + static_cast<uint64_t>(index)).Make();
  c.name = "random/" + std::to_string(index);
  return c;
}

Case MergeCase(int64_t index) {
  Random random(static_cast<uint64_t>(index));
  const int64_t H = random.Between(1, 3), T = DrawSize(random, 40), dv = DrawSize(random, 130);
  Case c;
  c.name = "merge/" + std::to_string(index);
  for (int64_t n = random.Between(1, 5); n > 0; --n) {
    Tensor lse = Normal(random, DType::kF32, {2, H, T}, {}, 5);
    for (int64_t i = 0; i < lse.size(); ++i) {
      constexpr double kEdges[] = {-kInf, -kInf, -kInf, kInf, kNaN, 80, -3e38};
      if (random.Chance(0.2)) lse.Set(i, Pick(random, kEdges));
    }
    c.parts.push_back({c.Own(Normal(random, DType::kF32, {2, H, T, dv}, DrawStorage(random, true))),
                       c.Own(std::move(lse))});
  }
  c.OwnOutputs(Tensor(DType::kF32, {2, H, T, dv}, DrawStorage(random, false)),
               Tensor(DType::kF32, {2, H, T}), Tensor(), Tensor());
  return c;
}

}  // namespace fovea::same_bits
