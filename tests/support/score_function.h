// Score functions for tests.
#ifndef FOVEA_TESTS_SUPPORT_SCORE_FUNCTION_H_
#define FOVEA_TESTS_SUPPORT_SCORE_FUNCTION_H_

#include <cstdint>
#include <limits>

#include "fovea/score.h"
#include "support/random.h"

namespace fovea::test {

// Every score becomes f(score, b, h, position of the query, position of the key). Looks at *f for
// as long as the function is used.
template <class F>
ScoreFunction EachScore(const F& f) {
  return {[](void* context, const ScoreBlock* block) noexcept {
            const F& each = *static_cast<const F*>(context);
            for (int64_t r = 0; r < block->rows; ++r) {
              for (int64_t c = 0; c < block->keys; ++c) {
                float& s = block->scores[r * block->row_stride + c * block->key_stride];
                s = each(s, block->sequence, block->heads[r], block->query_positions[r],
                         block->first_key_position + c);
              }
            }
          },
          const_cast<F*>(&f)};
}

// Adds a number in [−1, 1) that differs from pair to pair, or −inf to a share of `removes` of them.
struct HashedBias {
  uint64_t seed = 0;
  double removes = 0;

  float Added(int64_t b, int64_t h, int64_t position, int64_t j) const {
    Random random(seed);
    for (const int64_t x : {b, h, position, j})
      random = Random(random.Bits() ^ static_cast<uint64_t>(x));
    if (random.Chance(removes)) return -std::numeric_limits<float>::infinity();
    return static_cast<float>(2 * random.Uniform() - 1);
  }
  float operator()(float s, int64_t b, int64_t h, int64_t position, int64_t j) const {
    const float added = Added(b, h, position, j);
    return added == -std::numeric_limits<float>::infinity() ? added : s + added;
  }
};

}  // namespace fovea::test

#endif  // FOVEA_TESTS_SUPPORT_SCORE_FUNCTION_H_
