// A small device: one attention layer that decodes token after token over the last kContext of
// them, in static memory alone.
//
// Keys and values lie in ring buffers in f16, the oldest overwritten by the newest; query heads
// share KV heads in pairs. There is no heap, no thread and no file here, and the arithmetic is that
// of fovea/embedded.h: the program runs the same on a Linux board and, with the printing taken out,
// on bare metal.
#include <cstdint>
#include <cstdio>

#include "fovea/embedded.h"

namespace {

using namespace fovea::embedded;

constexpr int64_t kHq = 4, kHkv = 2, kSize = 32;  // heads, and channels of each
constexpr int64_t kModel = kHq * kSize;
constexpr int64_t kContext = 48;
constexpr int kTokens = 200;

// All memory of the layer.
float embedding[kModel], query[kModel], attended[kModel];
float w_query[kModel][kModel], w_key[kHkv * kSize][kModel], w_value[kHkv * kSize][kModel];
uint16_t keys[kHkv][kContext][kSize], values[kHkv][kContext][kSize];
unsigned char scratch[ScratchBytes(kSize, kSize, kHq / kHkv)];

// Repeatable numbers in [−1, 1).
float Noise() {
  static uint32_t state = 1;
  state = state * 1664525u + 1013904223u;
  return static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
}

float Dot(const float* row, const float* x) {
  float sum = 0;
  for (int64_t c = 0; c < kModel; ++c) sum += row[c] * x[c];
  return sum;
}

// One token: its key and value into the ring, its query over all that the ring holds.
Error Step(Ring& ring) {
  const int64_t slot = ring.Push();
  for (int64_t n = 0; n < kModel; ++n) query[n] = Dot(w_query[n], embedding);
  for (int64_t n = 0; n < kHkv * kSize; ++n) {
    keys[n / kSize][slot][n % kSize] = ToF16(Dot(w_key[n], embedding));
    values[n / kSize][slot][n % kSize] = ToF16(Dot(w_value[n], embedding));
  }
  Problem p;
  p.Hq = kHq, p.Hkv = kHkv, p.Tq = 1, p.Tk = kContext, p.dk = p.dv = kSize;
  p.q = Rows(query, 1, kSize);
  p.k = Rows(&keys[0][0][0], kContext, kSize);
  p.v = Rows(&values[0][0][0], kContext, kSize);
  p.out = Rows(attended, 1, kSize);
  p.rings = &ring;
  return Attention(p, scratch, sizeof(scratch));
}

// Channel c of head h as the textbook has it. exp by its series: nothing here needs a mathematical
// library.
double Expected(const Ring& ring, int64_t h, int64_t c) {
  const auto exp = [](double x) {
    double sum = 1, term = 1;
    for (int n = 1; n < 60; ++n) sum += term *= x / 64 / n;
    for (int n = 0; n < 6; ++n) sum *= sum;
    return sum;
  };
  const int64_t g = h / (kHq / kHkv);
  double sum = 0, weights = 0;
  for (int64_t j = ring.first(); j < ring.length; ++j) {
    const int64_t row = j % ring.capacity;
    double score = 0;
    for (int64_t x = 0; x < kSize; ++x)
      score +=
          static_cast<double>(query[h * kSize + x]) * static_cast<double>(FromF16(keys[g][row][x]));
    const double weight = exp(score * 0.17677669529663687);  // 1/√32
    weights += weight;
    sum += weight * static_cast<double>(FromF16(values[g][row][c]));
  }
  return sum / weights;
}

}  // namespace

int main() {
  for (auto* matrix : {&w_query[0][0]}) {
    for (int64_t n = 0; n < kModel * kModel; ++n) matrix[n] = Noise() * 0.15f;
  }
  for (auto* matrix : {&w_key[0][0], &w_value[0][0]}) {
    for (int64_t n = 0; n < kHkv * kSize * kModel; ++n) matrix[n] = Noise() * 0.15f;
  }
  Ring ring{kContext};
  double worst = 0;
  for (int token = 0; token < kTokens; ++token) {
    // The next embedding is a mixture of what was attended to and of something new.
    for (int64_t c = 0; c < kModel; ++c) embedding[c] = 0.5f * attended[c] + Noise();
    if (const Error error = Step(ring); error != Error::kOk) {
      std::printf("token %d: %s\n", token, Name(error));
      return 1;
    }
    for (int64_t h = 0; h < kHq; ++h) {
      for (int64_t c = 0; c < kSize; ++c) {
        const double difference =
            static_cast<double>(attended[h * kSize + c]) - Expected(ring, h, c);
        const double size = difference < 0 ? -difference : difference;
        if (!(size <= worst)) worst = size;  // NaN stays
      }
    }
  }
  std::printf(
      "%d tokens over a ring of %d keys: largest error %.1e; scratch %zu bytes, keys and values "
      "%zu\n",
      kTokens, static_cast<int>(kContext), worst, sizeof(scratch), sizeof(keys) + sizeof(values));
  return worst < 1e-5 ? 0 : 1;
}
