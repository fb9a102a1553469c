// Small problems of the tests of the reference.
#ifndef FOVEA_TESTS_SPEC_EXAMPLE_H_
#define FOVEA_TESTS_SPEC_EXAMPLE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "reference/reference.h"

namespace fovea::reference {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kRounding = 1e-13;  // double arithmetic over a few dozen terms of order one

// Multiples of 1/64 in [−2, 2): sums and small steps of them are exact in float.
class Numbers {
 public:
  explicit Numbers(uint32_t seed) : state_(seed) {}
  std::vector<float> Take(int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& x : values) {
      state_ = 1664525u * state_ + 1013904223u;
      x = (static_cast<float>(state_ >> 24) - 128) / 64;
    }
    return values;
  }

 private:
  uint32_t state_;
};

// Views for reading of memory that the test may write: a float* does not deduce View's const T*.
template <size_t N>
TensorView Input(const float* data, const int64_t (&shape)[N]) {
  return View(data, shape);
}
template <size_t N>
TensorView Input(const float* data, const int64_t (&shape)[N],
                 const int64_t (&element_strides)[N]) {
  return View(data, shape, element_strides);
}

// A dense problem of its own tensors, to be modified by the tests.
struct Example {
  Sizes n;
  std::vector<float> q, k, v;
  Problem problem;

  explicit Example(const Sizes& sizes, uint32_t seed = 1) : n(sizes) {
    Numbers numbers(seed);
    q = numbers.Take(n.B * n.Hq * n.Tq * n.dk);
    k = numbers.Take(n.B * n.Hkv * n.Tk * n.dk);
    v = numbers.Take(n.B * n.Hkv * n.Tk * n.dv);
    problem.q = Input(q.data(), {n.B, n.Hq, n.Tq, n.dk});
    problem.k = Input(k.data(), {n.B, n.Hkv, n.Tk, n.dk});
    problem.v = Input(v.data(), {n.B, n.Hkv, n.Tk, n.dv});
  }
  Example(const Example&) = delete;
  Example& operator=(const Example&) = delete;
};

inline Sizes MakeSizes(int64_t B, int64_t Hq, int64_t Hkv, int64_t Tq, int64_t Tk, int64_t dk,
                       int64_t dv) {
  Sizes n;
  n.B = B, n.Hq = Hq, n.Hkv = Hkv, n.Tq = Tq, n.Tk = Tk, n.dk = dk, n.dv = dv;
  return n;
}

// B = 3: packed queries of lengths 2, 0 and 3, packed or dense keys.
struct Packed {
  Example e;
  std::vector<float> bias;
  int32_t cu_q[4] = {1, 3, 3, 6};
  int64_t cu_k[4] = {0, 4, 5, 6};
  int32_t q_lengths[3] = {2, 0, 2};
  int32_t parents[9] = {-1, 0, 0, -1, -1, -1, -1, -1, 0};

  explicit Packed(bool packed_keys)
      : e(packed_keys ? MakeSizes(1, 2, 1, 7, 7, 2, 3) : MakeSizes(1, 2, 1, 7, 12, 2, 3)) {
    if (packed_keys) {
      e.problem.cu_seqlens_k = View(const_cast<const int64_t*>(cu_k), {4});
    } else {
      e.problem.k = Input(e.k.data(), {3, 1, 4, 2});
      e.problem.v = Input(e.v.data(), {3, 1, 4, 3});
    }
    bias = Numbers(3).Take(3 * 2 * 3 * 4);
    e.problem.cu_seqlens_q = View(const_cast<const int32_t*>(cu_q), {4});
    e.problem.score.causal = Causal::kBottomRight;
    e.problem.score.bias = Input(bias.data(), {3, 2, 3, 4});
    e.problem.score.q_lengths = View(const_cast<const int32_t*>(q_lengths), {3});
    e.problem.score.parents = View(const_cast<const int32_t*>(parents), {3, 3});
  }
};

// One query whose score against key j is scores[j]: dk = 1, q = 1, scale = 1. v_j = j + 1.
struct OneRow {
  std::vector<float> q = {1}, k, v;
  Problem problem;

  explicit OneRow(std::vector<float> scores) : k(std::move(scores)), v(k.size()) {
    std::iota(v.begin(), v.end(), 1.0f);
    const int64_t Tk = static_cast<int64_t>(k.size());
    problem.q = Input(q.data(), {1, 1, 1, 1});
    problem.k = Input(k.data(), {1, 1, Tk, 1});
    problem.v = Input(v.data(), {1, 1, Tk, 1});
    problem.score.scale = 1.0f;
  }
};

inline void ExpectAllNear(const std::vector<double>& got, const std::vector<double>& want,
                          double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t n = 0; n < got.size(); ++n)
    EXPECT_NEAR(got[n], want[n], tolerance) << "element " << n;
}

}  // namespace fovea::reference

#endif  // FOVEA_TESTS_SPEC_EXAMPLE_H_
