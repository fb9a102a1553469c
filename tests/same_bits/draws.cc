#include "draws.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "support/patterns.h"

namespace fovea::same_bits {

int64_t DrawSize(Random& random, int64_t most) {
  const double largest = std::log(static_cast<double>(std::max<int64_t>(most, 1)) + 1);
  const int64_t size = static_cast<int64_t>(std::exp(random.Uniform() * largest));
  if (random.Chance(0.5)) return std::min(size, most);
  // A neighbour of a power of two.
  int64_t power = 1;
  while (2 * power <= size) power *= 2;
  return std::clamp<int64_t>(power + random.Between(-1, 1), 1, std::max<int64_t>(most, 1));
}

Storage DrawStorage(Random& random, bool may_repeat) {
  Storage storage;
  const double kind = random.Uniform();
  if (kind < 0.2) storage.order = {3, 1, 2, 0};   // [B, T, H, d]
  if (kind > 0.85) storage.order = {2, 3, 1, 0};  // [B, H, d, T]
  if (random.Chance(0.1)) storage.step = 2;
  if (random.Chance(0.2)) storage.padding = random.Between(1, 5);
  if (random.Chance(0.03)) storage.padding = 1024;
  if (random.Chance(0.3)) storage.first = random.Between(1, 5);
  storage.reversed = random.Chance(0.1);
  for (int a = 0; a < kMaxRank && may_repeat; ++a)
    storage.broadcast |= random.Chance(0.04) ? 1u << a : 0u;
  return storage;
}

double DrawMagnitude(Random& random) { return std::pow(10, -40 + 78.5 * random.Uniform()); }

double LargestOf(DType type) {
  return type == DType::kF16 ? 65504 : type == DType::kBF16 ? 0x1.FEp127 : 0x1.FFFFFEp127;
}

Tensor Normal(Random& random, DType dtype, std::vector<int64_t> shape, const Storage& storage,
              double size) {
  Tensor tensor(dtype, std::move(shape), storage);
  tensor.Fill(
      [&] { return std::clamp(size * random.Normal(), -LargestOf(dtype), LargestOf(dtype)); });
  return tensor;
}

Patterned DrawPatterned(Random& random, DType k_type, const std::vector<int64_t>& k_shape,
                        DType v_type, const std::vector<int64_t>& v_shape, double size) {
  const test::ScorePattern scores = Pick(random, test::kScorePatterns);
  const test::ValuePattern values = Pick(random, test::kValuePatterns);
  Patterned made = {Tensor(k_type, k_shape), Tensor(v_type, v_shape)};
  const int64_t T = k_shape[2], dk = k_shape[3], dv = v_shape[3];
  made.k.Fill([] { return 0.0; });
  for (int64_t n = 0; n < made.k.size(); n += dk) {
    const int64_t j = n / dk % T;
    made.k.Set(n + j % dk, test::ScoreOf(scores, j, T, random));
  }
  std::vector<test::Channel> channels;
  for (int64_t c = 0; c < dv; ++c) channels.emplace_back(values, c == 0, random);
  int64_t n = 0;
  made.v.Fill([&] {
    const int64_t c = n % dv, j = n++ / dv % T;
    const double value = size * channels[static_cast<size_t>(c)].Value(j, random);
    return std::clamp(value, -LargestOf(v_type), LargestOf(v_type));
  });
  return made;
}

}  // namespace fovea::same_bits
