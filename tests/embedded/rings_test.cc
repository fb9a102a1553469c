// Keys of the header-only edition in a ring buffer, against the library on the same keys in order.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "embedded/support.h"
#include "fovea/attention.h"
#include "reference/element.h"
#include "reference/reference.h"
#include "support/check.h"
#include "support/random.h"

namespace fovea::test {
namespace {

using embedded::Ring;

TEST(EmbeddedRing, PushOverwritesTheOldest) {
  Ring ring{3};
  const int64_t want[] = {0, 1, 2, 0, 1, 2, 0};
  for (int64_t n = 0; n < 7; ++n) {
    EXPECT_EQ(ring.Push(), want[n]);
    EXPECT_EQ(ring.length, n + 1);
    EXPECT_EQ(ring.count(), std::min<int64_t>(n + 1, 3));
    EXPECT_EQ(ring.first(), std::max<int64_t>(n - 2, 0));
  }
}

struct RingSpec {
  int64_t capacity, pushes, queries;
  int64_t Hq, Hkv, dk, dv;
  DType type;
  Causal causal = Causal::kNone;
  int64_t window_left = -1;
  bool bias = false;
  // positions beside those of causal and window
  bool ranges = false, function = false;
};

// Tokens pushed one by one, each followed by a call over a ring that the library has too. Rows of
// the ring that hold no key are NaN.
void ExpectRing(const RingSpec& s, uint64_t seed) {
  Random random(seed);
  OwnedTensor k(s.type, {1, s.Hkv, s.capacity, s.dk}), v(s.type, {1, s.Hkv, s.capacity, s.dv});
  Ring ring{s.capacity};
  for (int64_t n = 0; n < s.pushes; ++n) {
    const int64_t row = ring.Push();
    for (int64_t h = 0; h < s.Hkv; ++h) {
      for (int64_t c = 0; c < s.dk; ++c) k.SetAt({0, h, row, c}, random.Normal());
      for (int64_t c = 0; c < s.dv; ++c) v.SetAt({0, h, row, c}, random.Normal());
    }
    if (n % 7 != 0 && n + 3 < s.pushes) continue;
    ProblemSpec spec;
    spec.Hq = s.Hq, spec.Hkv = s.Hkv, spec.Tq = s.queries, spec.Tk = s.capacity, spec.dk = s.dk,
    spec.dv = s.dv;
    spec.q_type = spec.k_type = spec.v_type = s.type;
    spec.causal = s.causal, spec.window.left = s.window_left;
    if (s.causal == Causal::kNone) spec.query_offset = ring.length - s.queries;
    if (s.bias) spec.bias = Axes::kHQK;
    if (s.ranges) spec.key_ranges = DType::kI64;
    spec.function = s.function;
    RandomProblem p(spec, random.Bits());
    p.problem.ring = true;
    p.problem.score.kv_lengths = View(static_cast<const int64_t*>(&ring.length), {1});
    p.problem.k = k.view(), p.problem.v = v.view();
    const reference::ForwardResult expected = reference::Forward(p.problem);
    const Status status = Attention(p.problem);
    ASSERT_TRUE(status.ok()) << status.message();
    const std::vector<double> library = reference::ReadAll(p.problem.out);
    p.ResetOutputs();
    const auto converted = Convert(p.problem);
    ASSERT_EQ(converted->problem.rings->length, ring.length);
    ASSERT_EQ(Compute(converted->problem), Error::kOk);
    EXPECT_TRUE(Matches(p.problem, expected)) << "after " << n + 1 << " pushes";
    EXPECT_TRUE(AgreesWithLibrary(p.problem, library, expected)) << "after " << n + 1 << " pushes";
  }
}

TEST_F(Embedded, DecodingOverARing) {
  uint64_t seed = BaseSeed();
  for (DType type : {DType::kF32, DType::kF16}) {
    ExpectRing({1, 4, 1, 1, 1, 8, 8, type}, ++seed);
    ExpectRing({5, 17, 1, 2, 1, 20, 12, type}, ++seed);
    ExpectRing({64, 150, 1, 4, 2, 32, 32, type}, ++seed);
    ExpectRing({100, 260, 1, 8, 2, 33, 17, type, Causal::kNone, 30}, ++seed);
    ExpectRing({100, 260, 1, 12, 1, 16, 40, type, Causal::kBottomRight, -1, true}, ++seed);
    ExpectRing({130, 300, 1, 32, 2, 64, 64, type, Causal::kBottomRight, 70, true}, ++seed);
  }
  ExpectRing({40, 130, 1, 2, 1, 8, 8, DType::kF32, Causal::kNone, -1, false, true, true}, ++seed);
  // A chunk of several queries over a ring.
  ExpectRing({90, 200, 20, 2, 1, 24, 24, DType::kF32, Causal::kBottomRight, 40, false}, ++seed);
}

}  // namespace
}  // namespace fovea::test
