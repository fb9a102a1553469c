// T5's relative position bias (Raffel et al. 2020, "Exploring the Limits of Transfer Learning",
// §2.1) by a score function: no bias tensor of heads × queries × keys, only a row of numbers for
// each head. Checked against that tensor.
//
//   t5_bias [tokens]     512 by default; prints how long attention takes with either and without
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "fovea/fovea.h"
#include "pool.h"

// Half of the buckets are for exact distances, the others are ever wider, the last one for all that
// is further than kFarthest. Keys behind the query have buckets of their own.
constexpr int64_t kBuckets = 32, kFarthest = 128;

int64_t BucketOf(int64_t distance) {
  const int64_t side = kBuckets / 2, exact = side / 2, first = distance < 0 ? side : 0;
  distance = std::abs(distance);
  if (distance < exact) return first + distance;
  const double wide = std::log(static_cast<double>(distance) / exact) /
                      std::log(static_cast<double>(kFarthest) / exact) * (side - exact);
  return first + std::min(exact + static_cast<int64_t>(wide), side - 1);
}

// The bias of each head by the distance from the key to the query, −(T − 1) … T − 1.
struct T5Bias {
  int64_t tokens;
  std::vector<float> by_distance;  // [heads][2·tokens − 1]

  T5Bias(int64_t heads, int64_t T, const std::vector<float>& buckets) : tokens(T) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t distance = 1 - T; distance < T; ++distance)
        by_distance.push_back(buckets[h * kBuckets + BucketOf(distance)]);
    }
  }
  // That of distance 0; greater distances follow.
  const float* OfHead(int64_t h) const {
    return by_distance.data() + h * (2 * tokens - 1) + tokens - 1;
  }
};

// The score function. Fovea calls it on blocks of scores in place, from all its threads.
void AddT5Bias(void* context, const fovea::ScoreBlock* block) noexcept {
  const T5Bias& t5 = *static_cast<const T5Bias*>(context);
  const int64_t *head = block->heads, *position = block->query_positions;
  for (int64_t r = 0, end = 0; r < block->rows; r = end) {
    // rows [r, end): queries of one head that follow each other
    for (end = r + 1;
         end < block->rows && head[end] == head[r] && position[end] == position[r] + end - r;)
      ++end;
    // of row r and key 0 of the block: a row further it is one more, a key further one less
    const float* bias = t5.OfHead(head[r]) + position[r] - block->first_key_position;
    float* scores = block->scores + r * block->row_stride;
    if (block->row_stride == 1) {  // rows lie side by side
      for (int64_t c = 0; c < block->keys; ++c) {
        float* s = scores + c * block->key_stride;
        for (int64_t n = 0; n < end - r; ++n) s[n] += bias[n - c];
      }
    } else {  // keys do
      for (int64_t n = 0; n < end - r; ++n) {
        float* s = scores + n * block->row_stride;
        for (int64_t c = 0; c < block->keys; ++c) s[c] += bias[n - c];
      }
    }
  }
}

int main(int arguments, char** argument) {
  const int64_t B = 1, H = 8, T = arguments > 1 ? std::atoll(argument[1]) : 512, d = 64;
  if (T < 1) {
    std::printf("t5_bias [tokens]\n");
    return 1;
  }
  const std::vector<float> q = Numbers(B * H * T * d, 1), k = Numbers(B * H * T * d, 2),
                           v = Numbers(B * H * T * d, 3), buckets = Numbers(H * kBuckets, 4);
  std::vector<float> out(q.size()), expected(q.size());
  fovea::Problem problem;
  problem.q = fovea::View(q.data(), {B, H, T, d});
  problem.k = fovea::View(k.data(), {B, H, T, d});
  problem.v = fovea::View(v.data(), {B, H, T, d});
  problem.score.scale = 1.0f;  // T5 does not scale
  problem.score.causal = fovea::Causal::kTopLeft;

  const auto run = [&](const char* how, std::vector<float>* into) {
    problem.out = fovea::View(into->data(), {B, H, T, d});
    const auto start = std::chrono::steady_clock::now();
    const fovea::Status status = fovea::Attention(problem);
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
    if (!status.ok()) {
      std::printf("%s: %s\n", how, status.message());
      std::exit(1);
    }
    std::printf("%-22s %8.2f ms\n", how, time.count());
  };
  run("without a bias", &out);

  const T5Bias t5(H, T, buckets);
  problem.score.function = {AddT5Bias, const_cast<T5Bias*>(&t5)};
  run("by a score function", &out);
  problem.score.function = {};

  std::vector<float> bias(H * T * T);
  for (int64_t h = 0; h < H; ++h) {
    for (int64_t i = 0; i < T; ++i) {
      for (int64_t j = 0; j < T; ++j) bias[(h * T + i) * T + j] = t5.OfHead(h)[i - j];
    }
  }
  const std::vector<float>& tensor = bias;
  problem.score.bias = fovea::View(tensor.data(), {H, T, T});
  run("by a bias tensor", &expected);

  float worst = 0;
  for (size_t n = 0; n < out.size(); ++n) worst = std::max(worst, std::fabs(out[n] - expected[n]));
  std::printf("largest difference     %g\n", static_cast<double>(worst));
  return worst <= 1e-5f ? 0 : 1;
}
