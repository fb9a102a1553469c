#include "grids.h"

#include <cmath>
#include <iterator>
#include <string>
#include <vector>

#include "draws.h"

namespace fovea::same_bits {
namespace {

constexpr int64_t kQueries[] = {0,  1,  2,  3,  4,  5,  7,  8,  9,  13,
                                15, 16, 17, 23, 31, 32, 33, 47, 64, 65};
constexpr int64_t kKeys[] = {0,  1,  2,  3,  5,  7,  8,   15,  16,  17,  31, 32,
                             33, 47, 63, 64, 65, 97, 127, 128, 129, 191, 257};
constexpr int64_t kHeads[] = {1,  2,  3,  4,  7,  8,  15, 16,  17,  31,  32,  33, 40,
                              63, 64, 65, 72, 80, 96, 97, 127, 128, 129, 192, 256};
constexpr int64_t kGroups[] = {1, 3, 4, 8, 2, 5, 16};
constexpr int64_t kManyKeys[] = {513, 1024, 2049, 4099, 9001};
constexpr int64_t kFewQueries[] = {1, 3, 5, 16, 33};
constexpr int64_t kShortCount = static_cast<int64_t>(std::size(kQueries) * std::size(kKeys));
constexpr int64_t kTypeCount = static_cast<int64_t>(std::size(kFloats));

template <size_t N>
int64_t Turn(const int64_t (&sizes)[N], int64_t n) {
  return sizes[n % static_cast<int64_t>(N)];
}

Case PlainCase(const Sizes& s, DType type, Causal causal, bool swapped, uint64_t seed) {
  Random random(seed);
  Storage storage;
  if (swapped) storage.order = {3, 1, 2, 0};  // [B, T, H, d] in memory
  Case c;
  c.problem.q = c.Own(Normal(random, type, {s.B, s.Hq, s.Tq, s.dk}, storage));
  c.problem.k = c.Own(Normal(random, type, {s.B, s.Hkv, s.Tk, s.dk}, storage));
  c.problem.v = c.Own(Normal(random, type, {s.B, s.Hkv, s.Tk, s.dv}, storage));
  c.problem.score.causal = causal;
  c.OwnOutputs(Tensor(type, {s.B, s.Hq, s.Tq, s.dv}, storage),
               Tensor(DType::kF32, {s.B, s.Hq, s.Tq}),
               seed % 4 == 0 ? Tensor(DType::kF32, {s.B, s.Hq, s.Tq, s.Tk}) : Tensor(), Tensor());
  return c;
}

}  // namespace

int64_t GridCount() {
  return kTypeCount *
         (kShortCount + static_cast<int64_t>(std::size(kManyKeys) * std::size(kFewQueries)));
}

Case GridCase(int64_t index) {
  const DType type = kFloats[index % kTypeCount];
  int64_t n = index / kTypeCount;
  Sizes s;
  if (n < kShortCount) {
    s.Tq = Turn(kQueries, n);
    s.Tk = kKeys[n / static_cast<int64_t>(std::size(kQueries))];
    // Steps without a common divisor with the lengths of the lists, so that all pairs come.
    s.dk = Turn(kHeads, 7 * n + index);
    s.dv = n % 3 == 0 ? Turn(kHeads, 11 * n) : s.dk;
    s.Hkv = s.Tq < 20 ? 2 : 1;
    s.Hq = s.Hkv * (s.Tq < 20 ? Turn(kGroups, n) : 1);
  } else {
    n -= kShortCount;
    s.Tq = Turn(kFewQueries, n);
    s.Tk = kManyKeys[n / static_cast<int64_t>(std::size(kFewQueries))];
    s.dk = s.dv = n % 2 == 0 ? 64 : 128;
    s.Hq = s.Tq < 8 ? 4 : 1;
  }
  constexpr Causal kCausal[] = {Causal::kNone, Causal::kBottomRight, Causal::kTopLeft};
  Case c = PlainCase(s, type, kCausal[n % 3], n % 2 == 1, static_cast<uint64_t>(index));
  c.name = "grid/" + std::to_string(index);
  return c;
}

Case LongCase(int64_t index) {
  Random random(0x1046u + static_cast<uint64_t>(index));
  const DType type = Pick(random, kFloats);
  // As many of a thousand keys as of a million, the longest first.
  const double exponent = 20 - 10.0 * static_cast<double>(index) / (kLongCount - 1);
  const int64_t Tk = static_cast<int64_t>(std::exp2(exponent)) - (index % 3 == 0 ? 0 : index);
  const int64_t Hq = random.Between(1, 3), Tq = Pick(random, kFewQueries) % 17;
  const int64_t dk = random.Between(1, 3), dv = random.Between(1, 3);
  Case c;
  c.name = "long/" + std::to_string(index);
  Tensor q(type, {1, Hq, Tq, dk});
  q.Fill([] { return 1.0; });
  c.problem.q = c.Own(std::move(q));
  Patterned keys = DrawPatterned(random, type, {1, 1, Tk, dk}, type, {1, 1, Tk, dv},
                                 type == DType::kF32 ? DrawMagnitude(random) : 1);
  c.problem.k = c.Own(std::move(keys.k));
  c.problem.v = c.Own(std::move(keys.v));
  c.problem.score.scale = 1.0f;
  if (random.Chance(0.3)) c.problem.score.causal = Causal::kBottomRight;
  if (random.Chance(0.3)) c.options.split_keys = DrawSize(random, 1 << 16);
  c.OwnOutputs(Tensor(DType::kF32, {1, Hq, Tq, dv}), Tensor(DType::kF32, {1, Hq, Tq}), Tensor(),
               Tensor());
  return c;
}

}  // namespace fovea::same_bits
