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
