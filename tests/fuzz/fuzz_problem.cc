#include "fuzz/fuzz_problem.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <vector>

namespace fovea::fuzz {
namespace {

using test::Axes;
using test::Layout;
using test::OwnedTensor;
using test::Random;
using test::Storage;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Around the numbers of lanes, the rows of tiles and the keys of blocks; primes.
constexpr int64_t kAwkward[] = {1,  2,  3,  4,  5,   6,   7,   8,   9,   11,  13,  15,  16,
                                17, 19, 23, 24, 25,  31,  32,  33,  37,  47,  48,  49,  63,
                                64, 65, 67, 96, 113, 127, 128, 129, 131, 192, 255, 256, 257};

// 1 … most, small numbers as often as large ones.
int64_t LogUniform(Random& random, int64_t most) {
  return std::min(most, static_cast<int64_t>(
                            std::exp(random.Uniform() * std::log(static_cast<double>(most) + 1))));
}

int64_t DrawSize(Random& random, int64_t most) {
  most = std::max<int64_t>(most, 1);
  if (random.Chance(0.4)) return LogUniform(random, most);
  const auto* const end = std::upper_bound(std::begin(kAwkward), std::end(kAwkward), most);
  return kAwkward[random.Below(end - std::begin(kAwkward))];
}

// Sizes whose product, the multiply-adds of one side, stays small: most problems tiny, some of many
// tiles and blocks. Keys come first more often than by chance: where they are few, many rows see
// none.
void DrawSizes(Random& random, test::ProblemSpec& s) {
  int64_t group = 1;
  struct Axis {
    int64_t* size;
    int64_t most;
  };
  std::vector<Axis> axes = {{&s.B, 4},    {&s.Hkv, 3},  {&group, 17},
                            {&s.Tq, 260}, {&s.Tk, 600}, {&s.dk, 260}};
  random.Shuffle(axes);
  if (random.Chance(0.5))
    std::partition(axes.begin(), axes.end(), [&](const Axis& axis) { return axis.size == &s.Tk; });
  int64_t room = static_cast<int64_t>(std::exp2(5 + 11 * random.Uniform()));
  for (const Axis& axis : axes) {
    *axis.size = DrawSize(random, std::min(axis.most, room));
    room = std::max<int64_t>(room / *axis.size, 1);
  }
  s.dv = random.Chance(0.4) ? s.dk : DrawSize(random, 2 * s.dk);
  s.Hq = s.Hkv * group;
  if (random.Chance(0.03)) *random.Pick(std::vector<int64_t*>{&s.B, &s.Tq, &s.Tk}) = 0;
  if (random.Chance(0.003)) s.Hq = s.Hkv = s.Tq = 0;
}

// A number of keys or queries to look past, or back: near, far, or far beyond all of them.
int64_t DrawDistance(Random& random, int64_t most) {
  const double kind = random.Uniform();
  if (kind < 0.3) return random.Below(4);
  if (kind < 0.95) return random.Between(0, most + 2);
  return random.Pick(std::vector<int64_t>{(int64_t{1} << 24) + 1, (int64_t{1} << 31) - 1,
                                          (int64_t{1} << 31) + 1, int64_t{1} << 62});
}

constexpr DType kFloats[] = {DType::kF32, DType::kBF16, DType::kF16};

// f32 mostly, all bf16 (which products exist for) as often as mixed.
void DrawTypes(Random& random, test::ProblemSpec& s) {
  const double kind = random.Uniform();
  for (DType* type : {&s.q_type, &s.k_type, &s.v_type, &s.out_type}) {
    if (kind < 0.4) *type = kind < 0.2 ? DType::kBF16 : kFloats[random.Below(std::size(kFloats))];
  }
  if (kind < 0.1) s.out_type = DType::kF32;
}

// The largest finite value.
double LargestOf(DType type) {
  return type == DType::kF16    ? 65504
         : type == DType::kBF16 ? 0x1.fep127
                                : static_cast<double>(std::numeric_limits<float>::max());
}

DType DrawIntegers(Random& random, double chance) {
  if (!random.Chance(chance)) return DType::kNone;
  return random.Chance(0.5) ? DType::kI32 : DType::kI64;
}

Axes DrawAxes(Random& random, double chance) {
  if (!random.Chance(chance)) return Axes::kAbsent;
  return test::kAllAxes[1 + random.Below(std::size(test::kAllAxes) - 1)];
}

Storage DrawStorage(Random& random, int64_t rows) {
  Storage storage;
  if (random.Chance(0.6)) storage.layout = test::kLayouts[random.Below(std::size(test::kLayouts))];
  // 4 KiB a row
  if (storage.layout == Layout::kPage && rows > 12) storage.layout = Layout::kPadded;
  storage.placement = test::kPlacements[random.Below(std::size(test::kPlacements))];
  return storage;
}

unsigned DrawBroadcast(Random& random) {
  unsigned axes = 0;
  for (int a = 0; a < kMaxRank; ++a) axes |= random.Chance(0.04) ? 1u << a : 0u;
  return axes;
}

int32_t DrawHook(Random& random, int64_t most) {
  return random.Chance(0.5) ? 0 : static_cast<int32_t>(DrawSize(random, most));
}

// Multiplies what is stored once per element; a broadcast tensor stays as it is.
void Multiply(OwnedTensor& tensor, const Storage& storage, double factor) {
  if (factor == 1 || storage.broadcast != 0) return;
  for (int64_t n = 0; n < tensor.size(); ++n) tensor.Set(n, tensor.Get(n) * factor);
}

const char* Name(Host host) {
  static const char* const kNames[] = {"serial", "oneTBB", "threads"};
  return kNames[static_cast<int>(host)];
}

}  // namespace

std::string ToString(const FuzzSpec& s) {
  std::ostringstream text;
  text << test::ToString(s.problem) << ", sizes q " << s.q_size << " k " << s.k_size << " v "
       << s.v_size;
  if (s.bias_broadcast != 0) text << ", bias broadcast " << s.bias_broadcast;
  if (s.mask_broadcast != 0) text << ", mask broadcast " << s.mask_broadcast;
  if (s.v_in_k) text << ", V in K";
  if (s.extremes != 0) text << ", extremes " << s.extremes;
  text << "; tile " << s.options.tile_rows << ", block " << s.options.block_keys << ", split "
       << s.options.split_keys << ", room " << s.options.max_queries << "x" << s.options.max_keys
       << (s.update ? ", updated" : "") << ", " << Name(s.host) << " " << s.workers;
  return text.str();
}

FuzzSpec DrawSpec(Random& random) {
  FuzzSpec spec;
  test::ProblemSpec& s = spec.problem;
  DrawSizes(random, s);

  // The score.
  const double scale = random.Uniform();
  if (scale < 0.2) s.scale = static_cast<float>(std::exp2(random.Between(-6, 3)));
  if (scale < 0.1) s.scale = -*s.scale;
  if (scale < 0.03) s.scale = 0;
  if (random.Chance(0.2)) s.softcap = random.Pick(std::vector<float>{0.1f, 1, 10, 50});
  s.alibi = random.Chance(0.2);
  s.sinks = random.Chance(0.2);
  s.bias = DrawAxes(random, 0.3);
  s.bias_type = random.Pick(std::vector<DType>{DType::kF32, DType::kF16, DType::kBF16});
  s.bias_removes = random.Pick(std::vector<double>{0, 0, 0.3, 0.9});
  s.mask = DrawAxes(random, 0.3);
  s.mask_type = random.Chance(0.3) ? DType::kBit : DType::kBool;
  s.mask_allows = random.Pick(std::vector<double>{0.1, 0.5, 0.9, 0.97, 1});
  s.fixed_mask = spec.options.fixed_mask = random.Chance(0.2);
  s.block_map = DrawAxes(random, 0.15);
  s.block_map_type = random.Chance(0.3) ? DType::kBit : DType::kBool;
  s.block_map_allows = random.Pick(std::vector<double>{0.1, 0.5, 0.9});
  s.block_queries = DrawSize(random, 70);
  s.block_keys = DrawSize(random, 140);

  // Positions.
  if (random.Chance(0.5)) s.causal = random.Chance(0.5) ? Causal::kTopLeft : Causal::kBottomRight;
  if (random.Chance(0.2)) s.window.left = DrawDistance(random, s.Tk);
  if (random.Chance(0.2)) s.window.right = DrawDistance(random, s.Tk);
  if (random.Chance(0.2)) {
    s.query_offset = (random.Chance(0.7) ? 1 : -1) * DrawDistance(random, std::max(s.Tq, s.Tk));
  } else {
    s.query_offsets = DrawIntegers(random, 0.15);
  }
  s.q_lengths = DrawIntegers(random, 0.2);
  s.kv_lengths = DrawIntegers(random, 0.3);
  s.parents = DrawIntegers(random, 0.1);
  // without a sequence there is no longest one
  if (s.B > 0) s.cu_seqlens_q = DrawIntegers(random, 0.12);
  if (s.B > 0) s.cu_seqlens_k = DrawIntegers(random, 0.12);

  // Memory.
  s.lse = random.Chance(0.5);
  s.weights = random.Chance(0.3);
  if (random.Chance(0.15)) {
    s.scores = random.Pick(std::vector<ScoreStage>{ScoreStage::kScaled, ScoreStage::kSoftcapped,
                                                   ScoreStage::kMasked, ScoreStage::kWeights});
  }
  s.q = DrawStorage(random, s.B * s.Hq * s.Tq);
  s.k = DrawStorage(random, s.B * s.Hkv * s.Tk);
  s.v = DrawStorage(random, s.B * s.Hkv * s.Tk);
  s.out = DrawStorage(random, s.B * s.Hq * s.Tq);
  s.rest = DrawStorage(random, s.B * s.Hq * s.Tq);
  for (Storage* storage : {&s.q, &s.k, &s.v}) storage->broadcast = DrawBroadcast(random);
  // rows outside of sequences are NaN, and only they
  if (s.cu_seqlens_q != DType::kNone) s.q.broadcast = 0;
  spec.bias_broadcast = DrawBroadcast(random);
  spec.mask_broadcast = DrawBroadcast(random);
  spec.v_in_k = random.Chance(0.05);
  if (spec.v_in_k) s.dv = std::min(s.dv, s.dk);

  DrawTypes(random, s);
  if (spec.v_in_k) s.v_type = s.k_type;

  // Values. With the last of q's sizes either q·k overflows before it is scaled, and only then, or
  // scale·q, and not the scaled product.
  const double size = random.Uniform();
  spec.q_size = size < 0.7 ? 1 : size < 0.8 ? 1e-3 : size < 0.87 ? 30 : size < 0.97 ? 1000 : 1e20;
  const bool f32 = s.q_type == DType::kF32 && s.k_type == DType::kF32 && s.v_type == DType::kF32;
  // f16 has no such values, and products of bf16 no subnormal ones
  if (spec.q_size == 1e20 && !f32) spec.q_size = 1000;
  if (spec.q_size == 1e20 && s.q.broadcast == 0 && s.k.broadcast == 0) {
    if (random.Chance(0.5)) {
      spec.k_size = 1e20, s.scale = 1e-38f;
    } else {
      spec.q_size = 3e37, spec.k_size = 1e-38, s.scale = 16.0f;
    }
  }
  if (random.Chance(0.1)) spec.v_size = random.Pick(std::vector<double>{1e-40, 1e-20, 1e30});
  if (s.v_type == DType::kF16 || (spec.v_in_k && s.k_type == DType::kF16)) spec.v_size = 1;
  if (random.Chance(0.15)) spec.extremes = static_cast<int>(random.Between(1, 4));

  // The plan and who runs it.
  spec.options.tile_rows = DrawHook(random, 32);
  spec.options.block_keys = DrawHook(random, 128);
  spec.options.split_keys = DrawHook(random, 256);
  if (random.Chance(0.2))
    spec.options.max_queries = s.Tq + random.Below(50),
    spec.options.max_keys = s.Tk + random.Below(50);
  spec.update = random.Chance(0.2);
  if (random.Chance(0.4)) {
    spec.host = random.Chance(0.5) ? Host::kTbb : Host::kThreads;
    spec.workers = static_cast<int>(random.Between(2, 3));
  }

  // From numbers of their own, so that the rest of a seed's problem stays what it was.
  Random here = random, own(~here.Bits());
  s.head_scales = own.Chance(0.1);
  // +inf times a scale below 0 is a score of −inf of a pair that is not removed
  s.bias_scales = own.Chance(0.3) && spec.extremes == 0;
  s.key_ranges = DrawIntegers(own, 0.12);
  s.one_key_ranges = own.Chance(0.3);
  s.function = own.Chance(0.1);
  s.function_removes = own.Pick(std::vector<double>{0, 0.1, 0.5});
  return spec;
}

FuzzProblem::FuzzProblem(uint64_t seed) : FuzzProblem(seed, Random(seed)) {}

FuzzProblem::FuzzProblem(uint64_t seed, Random random)
    : spec_(DrawSpec(random)), tensors_(spec_.problem, seed) {
  const test::ProblemSpec& s = spec_.problem;
  test::RandomProblem& p = tensors_;
  Multiply(p.q, s.q, spec_.q_size);
  Multiply(p.k, s.k, spec_.k_size);
  Multiply(p.v, s.v, spec_.v_size);
  // Queries behind their length do not exist.
  for (int64_t b = 0; b < s.B && p.q_lengths.present() && s.q.broadcast == 0; ++b) {
    const test::RandomProblem::Rows rows = p.QueriesOf(b);
    for (int64_t h = 0; h < s.Hq; ++h) {
      for (int64_t i = p.QLength(b); i < rows.count; ++i)
        p.q.SetAt({rows.batch, h, rows.first + i, random.Below(s.dk)}, kNaN);
    }
  }
  for (const auto& [tensor, broadcast] :
       {std::pair(&p.bias, spec_.bias_broadcast), std::pair(&p.mask, spec_.mask_broadcast)}) {
    if (broadcast == 0) continue;
    Storage storage = s.rest;
    storage.broadcast = broadcast;
    *tensor = tensor->CopiedTo(storage);
  }
  SetExtremes(random);
  p.Refresh();
  if (spec_.v_in_k) {
    p.problem.v = p.problem.k;
    p.problem.v.shape[3] = s.dv;
  }
  zeros32_ = OwnedTensor(DType::kI32, {s.B});
  zeros64_ = OwnedTensor(DType::kI64, {s.B});
  for (OwnedTensor* zeros : {&zeros32_, &zeros64_}) zeros->Fill([] { return 0.0; });
}

void FuzzProblem::SetExtremes(Random& random) {
  // Not both kinds in one problem: a large score that overflows f32 beside an Inf makes NaN, which
  // double does not foresee. Even if every key has the largest of V its sum stays finite, which all
  // algorithms need that divide by the denominator last.
  const double lowest = static_cast<double>(std::numeric_limits<float>::lowest());
  const bool overflows = spec_.q_size > 1e30;  // scale·q does
  const std::vector<double> values =
      !overflows && random.Chance(0.5) ? std::vector<double>{kNaN, kInf, -kInf}
                                       : std::vector<double>{3e35, -3e35, 1e-40, 0.0, -0.0, lowest};
  test::RandomProblem& p = tensors_;
  const std::vector<std::pair<OwnedTensor*, const char*>> inputs = {
      {&p.q, "q"},       {&p.k, "k"},         {&p.v, "v"},
      {&p.bias, "bias"}, {&p.sinks, "sinks"}, {&p.alibi_slopes, "slopes"}};
  for (int n = 0; n < spec_.extremes; ++n) {
    const auto [tensor, name] = random.Pick(inputs);
    double value = random.Pick(values);
    if (tensor->size() == 0) continue;
    const bool is_lowest = value == lowest;
    const DType type = tensor->view().dtype;
    if (std::isfinite(value)) value = std::clamp(value, -LargestOf(type), LargestOf(type));
    // products of bf16 may take subnormal inputs for 0
    if (value == 1e-40 && type == DType::kBF16) value = 1e-36;
    if (is_lowest && (tensor == &p.v || (tensor == &p.k && spec_.v_in_k))) continue;
    const int64_t element = random.Below(tensor->size());
    tensor->Set(element, value);
    extremes_ += std::string(", ") + name + "[" + std::to_string(element) +
                 "] = " + std::to_string(tensor->Get(element));
  }
}

void FuzzProblem::LeaveOpen(int64_t b, int64_t h, int64_t i,
                            reference::ForwardResult* result) const {
  reference::ForwardResult& expected = *result;
  const test::ProblemSpec& s = spec_.problem;
  const test::RandomProblem::Rows queries = tensors_.QueriesOf(b);
  const int64_t heads_before = queries.batch * s.Hq + h;
  const int64_t row = heads_before * problem().q.shape[2] + queries.first + i;  // of out and lse
  // the first of the row
  const int64_t pair = ((b * s.Hq + h) * s.Tq + i) * s.Tk;
  const size_t r = static_cast<size_t>(row);
  const auto any_out = [&](const auto& is) {
    return std::any_of(expected.out.begin() + row * s.dv, expected.out.begin() + (row + 1) * s.dv,
                       is);
  };
  if (std::isnan(expected.lse[r])) {
    // The score of a removed pair is −inf to a kernel, so one that became −inf by itself looks the
    // same: its weight may be 0 in a NaN row.
    for (size_t n = static_cast<size_t>(pair); n < static_cast<size_t>(pair + s.Tk); ++n) {
      if (expected.scores[n] == -kInf) expected.visible[n] = false, expected.weights[n] = 0;
    }
    // What a sink of NaN or Inf makes of a row without keys is left open.
    const bool empty =
        std::none_of(expected.visible.begin() + pair, expected.visible.begin() + pair + s.Tk,
                     [](bool v) { return v; });
    if (empty) expected.relative_tolerance[r] = kInf;
  }
  // A weight that kernels take for 0 (exp does below −69) times an Inf in V is NaN, and Inf in
  // double.
  if (any_out([](double x) { return std::isinf(x); }) &&
      std::any_of(expected.weights.begin() + pair, expected.weights.begin() + pair + s.Tk,
                  [](double w) { return w > 0 && w < 1e-29; })) {
    expected.relative_tolerance[r] = kInf;
  }
  if (expected.lse[r] == -kInf && any_out([](double x) { return std::isnan(x); })) {
    // Every visible score became −inf by itself, and V there is NaN or Inf: 0·Inf is NaN by the
    // textbook, and nothing where the pair counts as removed.
    expected.lse[r] = kNaN;
    expected.relative_tolerance[r] = kInf;
  }
  // an exact row, even where the V of no weight is Inf
  if (expected.lse[r] == -kInf) expected.max_abs_value[r] = 0;
}

reference::ForwardResult FuzzProblem::Expected() const {
  reference::ForwardResult expected = reference::Forward(problem());
  const test::ProblemSpec& s = spec_.problem;
  for (int64_t b = 0; b < s.B; ++b) {
    for (int64_t h = 0; h < s.Hq; ++h) {
      for (int64_t i = 0; i < tensors_.QueriesOf(b).count; ++i) LeaveOpen(b, h, i, &expected);
    }
  }
  return expected;
}

Problem FuzzProblem::WithoutLengths() const {
  Problem problem = tensors_.problem;
  for (TensorView* view :
       {&problem.score.q_lengths, &problem.score.kv_lengths, &problem.score.query_offsets}) {
    if (view->present()) *view = (view->dtype == DType::kI32 ? zeros32_ : zeros64_).view();
  }
  return problem;
}

}  // namespace fovea::fuzz
