// The header-only edition as some set of compiler flags makes it, after macros of other headers: it
// is right, or a call says that it cannot be (Error::kArithmetic) and writes nothing. Compiled and
// run by flags.sh with each set. Its own arithmetic must be right under all of them: in integers
// and double, without infinities.
#include <cstdio>
#include <cstring>
#include <vector>

#define None 0L
#define Bool int
#define Status int
#define Success 0
#define True 1
#define False 0
#define Always 2
#define near
#define far
#define small char
#define interface struct
#define IN
#define OUT
#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))
#define abs(x) ((x) > 0 ? (x) : -(x))
#define round(x) ((long)(x))
#define I _Complex_I
#define B 1
#define F(x) x

#include "fovea/embedded.h"

static_assert(None == 0L && max(1, 2) == 2 && abs(-3) == 3 && B == 1 && sizeof(small) == 1,
              "the caller's macros are his again");
#undef B
#undef I
#undef F
#undef min
#undef max
#undef abs
#undef round

namespace {

using fovea::embedded::Attention;
using fovea::embedded::Error;
using fovea::embedded::Problem;
using fovea::embedded::Rows;

constexpr uint32_t kRemoved = 0xFF800000u;  // −inf
constexpr uint32_t kUntouched = 0x12345678u;

uint32_t state = 1;
float Noise() {
  state = state * 1664525u + 1013904223u;
  return static_cast<float>(static_cast<int32_t>(state >> 8) - (1 << 23)) / (1 << 23);
}
// e^x for −40 ≤ x ≤ 0.
double Exp(double x) {
  double sum = 1, term = 1;
  for (int n = 1; n < 30; ++n) term *= x / 64 / n, sum += term;
  for (int n = 0; n < 6; ++n) sum *= sum;
  return sum;
}
bool IsNear(double a, double b) { return a - b < 1e-5 && b - a < 1e-5; }
uint32_t BitsOf(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

// Whether a call is right, or refuses and writes nothing; `refused` tells which.
bool Check(int64_t Tq, int64_t Tk, int64_t d, bool* refused) {
  std::vector<float> q(static_cast<size_t>(Tq * d)), k(static_cast<size_t>(Tk * d)), v(k.size()),
      bias(static_cast<size_t>(Tq * Tk)), out(q.size()), lse(static_cast<size_t>(Tq));
  for (auto* x : {&q, &k, &v}) {
    for (float& y : *x) y = Noise();
  }
  // Removes pairs, all of row 1, and a key whose V is 3e38.
  for (int64_t i = 0; i < Tq; ++i) {
    for (int64_t j = 0; j < Tk; ++j) {
      const bool removes = i == 1 || j == 2 || (i + 3 * j) % 5 == 0;
      if (removes && Tk > 1)
        std::memcpy(&bias[static_cast<size_t>(i * Tk + j)], &kRemoved, sizeof(kRemoved));
    }
  }
  for (int64_t c = 0; c < d && Tk > 2; ++c) v[static_cast<size_t>(2 * d + c)] = 3e38f;
  for (auto* x : {&out, &lse}) {
    for (float& y : *x) std::memcpy(&y, &kUntouched, sizeof(y));
  }
  Problem p;
  p.Tq = Tq, p.Tk = Tk, p.dk = d, p.dv = d;
  p.q = Rows(static_cast<const float*>(q.data()), Tq, d);
  p.k = Rows(static_cast<const float*>(k.data()), Tk, d);
  p.v = Rows(static_cast<const float*>(v.data()), Tk, d);
  p.out = Rows(out.data(), Tq, d), p.lse = Rows(lse.data(), Tq, 1);
  p.bias.data = bias.data(), p.bias.stride[2] = 4 * Tk, p.bias.stride[3] = 4;
  p.has_scale = true, p.scale = 1;
  std::vector<char> scratch(fovea::embedded::ScratchBytes(d, d));
  const Error error = Attention(p, scratch.data(), scratch.size());
  *refused = error == Error::kArithmetic;
  if (*refused) {
    for (float y : out) {
      if (BitsOf(y) != kUntouched) return false;
    }
    return true;
  }
  if (error != Error::kOk) return false;
  for (int64_t i = 0; i < Tq; ++i) {
    std::vector<double> scores, sums(static_cast<size_t>(d));
    std::vector<int64_t> keys;
    double most = -1e9, l = 0;
    for (int64_t j = 0; j < Tk; ++j) {
      if (BitsOf(bias[static_cast<size_t>(i * Tk + j)]) == kRemoved) continue;
      double s = 0;
      for (int64_t c = 0; c < d; ++c)
        s += static_cast<double>(q[static_cast<size_t>(i * d + c)]) *
             static_cast<double>(k[static_cast<size_t>(j * d + c)]);
      scores.push_back(s), keys.push_back(j);
      if (s > most) most = s;
    }
    for (size_t n = 0; n < keys.size(); ++n) {
      const double weight = Exp(scores[n] - most);
      l += weight;
      for (int64_t c = 0; c < d; ++c)
        sums[static_cast<size_t>(c)] +=
            weight * static_cast<double>(v[static_cast<size_t>(keys[n] * d + c)]);
    }
    for (int64_t c = 0; c < d; ++c) {
      const double got = static_cast<double>(out[static_cast<size_t>(i * d + c)]);
      // NaN is far from everything, in bits too
      if ((BitsOf(out[static_cast<size_t>(i * d + c)]) & 0x7F800000u) == 0x7F800000u) return false;
      if (!IsNear(got, keys.empty() ? 0 : sums[static_cast<size_t>(c)] / l)) return false;
    }
    if (keys.empty() != (BitsOf(lse[static_cast<size_t>(i)]) == kRemoved)) return false;
  }
  return true;
}

}  // namespace

int main() {
  int refusals = 0, calls = 0;
  for (int64_t Tq : {1, 3, 50}) {
    for (int64_t Tk : {1, 70, 1500}) {
      for (int64_t d : {3, 40}) {
        bool refused = false;
        if (!Check(Tq, Tk, d, &refused)) {
          std::printf("wrong: %d queries, %d keys, %d channels\n", static_cast<int>(Tq),
                      static_cast<int>(Tk), static_cast<int>(d));
          return 1;
        }
        ++calls, refusals += refused;
      }
    }
  }
  if (refusals != 0 && refusals != calls) return 1;
  std::puts(refusals != 0 ? "refused by the call" : "right");
  return 0;
}
