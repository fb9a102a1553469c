#include "fuzz/fuzz_spec.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <vector>

#include "support/float_states.h"

namespace fovea::fuzz {
namespace {

using test::Axes;
using test::CodesSpec;
using test::Layout;
using test::Random;
using test::Storage;

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

constexpr unsigned kChannels = 1u << 3;  // of Storage::broadcast: the last axis of q, k and v

unsigned DrawBroadcast(Random& random) {
  unsigned axes = 0;
  for (int a = 0; a < kMaxRank; ++a) axes |= random.Chance(0.04) ? 1u << a : 0u;
  return axes;
}

int32_t DrawHook(Random& random, int64_t most) {
  return random.Chance(0.5) ? 0 : static_cast<int32_t>(DrawSize(random, most));
}

// Each decade as often as another.
double DrawMagnitude(Random& random, double least, double most) {
  return least * std::pow(most / least, random.Uniform());
}

// Few rows of few channels over a thousand to a million keys, as many of each power of two.
void MakeLong(Random& random, FuzzSpec& spec) {
  test::ProblemSpec& s = spec.problem;
  s.B = s.Hkv = 1;
  s.Hq = random.Between(1, 3), s.Tq = random.Between(1, 3);
  s.Tk = static_cast<int64_t>(DrawMagnitude(random, 1 << 10, 1 << 20));
  s.dk = random.Between(1, 3);
  s.dv = spec.v_in_k ? s.dk : random.Between(1, 3);
  if (s.weights || s.scores) s.weights = false, s.scores.reset();
  for (Storage* storage : {&s.q, &s.k, &s.v, &s.out, &s.rest}) {
    if (storage->layout == Layout::kPage) storage->layout = Layout::kPadded;
  }
  spec.options.split_keys =
      random.Chance(0.5) ? 0 : static_cast<int64_t>(DrawMagnitude(random, 256, 1 << 20));
  spec.options.max_queries = spec.options.max_keys = 0;
}

// Scores and values by patterns, the scores exact.
void SetPatterns(Random& random, FuzzSpec& spec) {
  test::ProblemSpec& s = spec.problem;
  if (spec.v_in_k) return;
  spec.patterned = true;
  spec.scores = test::kScorePatterns[random.Below(std::size(test::kScorePatterns))];
  spec.values = test::kValuePatterns[random.Below(std::size(test::kValuePatterns))];
  for (Storage* storage : {&s.q, &s.k, &s.v}) storage->broadcast = 0;
  spec.q_size = spec.k_size = 1;
  s.scale = 1.0f;
}

CodesSpec DrawScales(Random& random) {
  constexpr DType kScales[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF32Z4};
  constexpr DType kZeros[] = {DType::kNone, DType::kF32, DType::kF16, DType::kBF16,
                              DType::kI32,  DType::kI8,  DType::kU8};
  CodesSpec s;
  s.scale = test::kAllShared[random.Below(std::size(test::kAllShared))];
  s.zero = test::kAllShared[random.Below(std::size(test::kAllShared))];
  s.scale_type = kScales[random.Below(std::size(kScales))];
  if (s.scale_type != DType::kF32Z4) s.zero_type = kZeros[random.Below(std::size(kZeros))];
  return s;
}

// K, V or both quantised; their heads grow to whole units.
void DrawCodes(Random& random, FuzzSpec& spec) {
  test::ProblemSpec& s = spec.problem;
  const int64_t which = random.Between(1, 3);
  const auto type = [&] {
    return test::kQuantisedTypes[random.Below(std::size(test::kQuantisedTypes))];
  };
  s.k_codes = DrawScales(random), s.v_codes = DrawScales(random);
  if (which % 2 != 0) SetKType(s, type());
  if (which >= 2) SetVType(s, type());
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
  if (s.patterned)
    text << ", " << test::Name(s.scores) << " scores, " << test::Name(s.values) << " values";
  if (s.bias_broadcast != 0) text << ", bias broadcast " << s.bias_broadcast;
  if (s.mask_broadcast != 0) text << ", mask broadcast " << s.mask_broadcast;
  if (s.v_in_k) text << ", V in K";
  if (s.extremes != 0) text << ", extremes " << s.extremes;
  text << "; tile " << s.options.tile_rows << ", block " << s.options.block_keys << ", split "
       << s.options.split_keys << ", room " << s.options.max_queries << "x" << s.options.max_keys
       << (s.update ? ", updated" : "") << ", " << Name(s.host) << " " << s.workers;
  if (s.float_state >= 0)
    text << ", " << test::FloatStates()[static_cast<size_t>(s.float_state)].name;
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
  spec.options.fixed_bias = random.Chance(0.2);
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
  // Products that are all the same round alike: the bound is that of products of mixed signs.
  if ((s.q.broadcast & s.k.broadcast & kChannels) != 0) s.k.broadcast &= ~kChannels;
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
  if (random.Chance(0.2)) spec.v_size = DrawMagnitude(random, 1e-40, 3e38);
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
  // Factors that undo each other.
  if (own.Chance(0.05) && f32 && spec.q_size == 1 && s.q.broadcast == 0 && s.k.broadcast == 0) {
    spec.q_size = DrawMagnitude(own, 1e-36, 1e36);
    spec.k_size = 1 / spec.q_size;
  }
  if (own.Chance(0.1))
    spec.float_state =
        static_cast<int>(own.Below(static_cast<int64_t>(test::FloatStates().size())));
  // Where keys lie.
  const double cache = own.Uniform();
  if (s.cu_seqlens_k == DType::kNone && s.k.broadcast == 0 && s.v.broadcast == 0) {
    if (cache < 0.12) {
      s.page_table = own.Chance(0.5) ? DType::kI32 : DType::kI64;
      s.page = DrawSize(own, 140);
      s.page_begins = own.Chance(0.3);
      spec.options.fixed_tables = own.Chance(0.3);
    }
    if (cache >= 0.06 && cache < 0.2) s.key_offsets = own.Chance(0.5) ? DType::kI32 : DType::kI64;
    s.ring = cache >= 0.2 && cache < 0.28;
  }
  // Each takes as long as thousands of small problems.
  const bool is_long = own.Chance(0.0005);
  if (is_long) MakeLong(own, spec);
  const bool as_drawn = spec.k_size == 1 && spec.v_size == 1 && spec.extremes == 0 && !spec.v_in_k;
  if (own.Chance(0.15) && as_drawn && !is_long) return DrawCodes(own, spec), spec;
  if (own.Chance(is_long ? 0.8 : 0.1)) SetPatterns(own, spec);
  return spec;
}

}  // namespace fovea::fuzz
