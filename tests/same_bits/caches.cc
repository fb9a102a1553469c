#include "caches.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "draws.h"

namespace fovea::same_bits {

#if __has_include("fovea/cache.h")
namespace {

// Numbers of pages in an order of the seed's, some of them shared.
TensorView Table(Random& random, const std::vector<int64_t>& shape, int64_t pages, Case* c) {
  Tensor table(random.Chance(0.5) ? DType::kI32 : DType::kI64, shape);
  table.Fill([&] { return static_cast<double>(random.Below(pages)); });
  return c->Own(std::move(table));
}

TensorView Integers(Random& random, int64_t B, int64_t most, Case* c) {
  Tensor numbers(random.Chance(0.5) ? DType::kI32 : DType::kI64, {B});
  numbers.Fill([&] { return static_cast<double>(random.Between(0, most)); });
  return c->Own(std::move(numbers));
}

}  // namespace

Case CacheCase(int64_t index) {
  Random random(0xCAC4E000u + static_cast<uint64_t>(index));
  const int64_t B = random.Between(1, 4), Hkv = random.Between(1, 2),
                Hq = Hkv * random.Between(1, 5), Tq = random.Chance(0.5) ? 1 : DrawSize(random, 40),
                dk = DrawSize(random, 130), dv = DrawSize(random, 130);
  const DType type = Pick(random, kFloats);
  Case c;
  c.name = "cache/" + std::to_string(index);
  Problem& p = c.problem;
  Score& score = p.score;
  int64_t Tk = DrawSize(random, random.Chance(0.1) ? 3000 : 400), batch = B, rows = Tk;
  const bool ring = index % 3 == 0;
  if (!ring) {
    const int64_t page = DrawSize(random, 140), width = (Tk + page - 1) / page;
    batch = B * width + 1, rows = page;
    if (index % 3 == 1) {
      p.pages.table = Table(random, {B, width}, batch, &c);
    } else {
      p.pages.table = Table(random, {B * width}, batch, &c);
      Tensor begins(DType::kI32, {B + 1});
      begins.Fill([at = -width, width]() mutable { return static_cast<double>(at += width); });
      p.pages.begins = c.Own(std::move(begins));
    }
    p.pages.keys = Tk;
    if (random.Chance(0.4)) score.key_offsets = Integers(random, B, 500, &c);
  }
  p.ring = ring;
  p.q = c.Own(Normal(random, type, {B, Hq, Tq, dk}, DrawStorage(random, false)));
  p.k = c.Own(Normal(random, type, {batch, Hkv, rows, dk}, DrawStorage(random, false)));
  p.v = c.Own(Normal(random, type, {batch, Hkv, rows, dv}, DrawStorage(random, false)));
  score.kv_lengths = Integers(random, B, ring ? 3 * Tk : Tk, &c);
  if (random.Chance(0.7)) score.causal = Causal::kBottomRight;
  if (random.Chance(0.3)) score.window.left = DrawSize(random, Tk);
  if (random.Chance(0.3)) {
    Tensor bias(DType::kF32, {Hq, Tq, Tk});
    bias.Fill([&] { return random.Normal(); });
    score.bias = c.Own(std::move(bias));
  }
  if (random.Chance(0.3)) {
    Tensor mask(DType::kBool, {B, 1, Tq, Tk});
    mask.Fill([&] { return random.Chance(0.7) ? 1.0 : 0.0; });
    score.mask = c.Own(std::move(mask));
  }
  Tensor weights;
  if (random.Chance(0.3)) weights = Tensor(DType::kF32, {B, Hq, Tq, Tk});
  c.OwnOutputs(Tensor(type, {B, Hq, Tq, dv}), Tensor(DType::kF32, {B, Hq, Tq}), std::move(weights),
               Tensor());
  return c;
}
#else
Case CacheCase(int64_t) { return {}; }
#endif

}  // namespace fovea::same_bits
