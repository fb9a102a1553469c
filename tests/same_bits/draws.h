// Draws that all kinds of problems share: sizes, layouts, tensors of random numbers.
#ifndef FOVEA_TESTS_SAME_BITS_DRAWS_H_
#define FOVEA_TESTS_SAME_BITS_DRAWS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "fovea/tensor.h"
#include "support/random.h"
#include "tensor.h"

namespace fovea::same_bits {

using test::Random;

constexpr DType kFloats[] = {DType::kF32, DType::kF16, DType::kBF16};

struct Sizes {
  int64_t B = 1, Hq = 1, Hkv = 1, Tq = 1, Tk = 1, dk = 1, dv = 1;
};

template <class T, size_t N>
T Pick(Random& random, const T (&from)[N]) {
  return from[random.Below(static_cast<int64_t>(N))];
}

// 1 … most, small numbers as often as large ones.
int64_t DrawSize(Random& random, int64_t most);

Storage DrawStorage(Random& random, bool may_repeat);

// 1e-40 … 3e38, each decade as often as another.
double DrawMagnitude(Random& random);
// The largest finite value of f32, f16 or bf16.
double LargestOf(DType type);

// Normal numbers times `size`.
Tensor Normal(Random& random, DType dtype, std::vector<int64_t> shape, const Storage& storage = {},
              double size = 1);

// k and v [B, H, T, d] by patterns of scores and values; q is all 1, and each key has one channel
// that is not 0.
struct Patterned {
  Tensor k, v;
};
Patterned DrawPatterned(Random& random, DType k_type, const std::vector<int64_t>& k_shape,
                        DType v_type, const std::vector<int64_t>& v_shape, double size);

}  // namespace fovea::same_bits

#endif  // FOVEA_TESTS_SAME_BITS_DRAWS_H_
