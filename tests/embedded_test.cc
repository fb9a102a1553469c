// The header-only edition, held against the double reference and the library: one program for each
// instruction set that it is compiled for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "embedded/instance.h"
#include "fovea/attention.h"
#include "reference/element.h"
#include "reference/reference.h"
#include "support/cases.h"
#include "support/check.h"
#include "support/compare.h"
#include "support/random.h"
#include "support/random_problem.h"

namespace fovea::test {
namespace {

using embedded::Error;
using embedded::Ring;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

const EmbeddedInstance& Instance() { return kEmbeddedUnderTest; }

// The target of the library that this CPU must be able to run for the instance to run.
bool IsUsable() {
  const std::string isa = Instance().isa;
  const auto has = [](Target target) {
    for (Target usable : UsableTargets()) {
      if (usable == target) return true;
    }
    return false;
  };
  if (isa == "avx512") return has(Target::kAvx512);
  if (isa == "avx2_fma") return has(Target::kAvx2);
  return true;
}

class Embedded : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!IsUsable()) GTEST_SKIP() << "this CPU cannot run " << Instance().isa;
  }
};

// ---- a problem of the library as one of the header-only edition

struct Converted {
  embedded::Problem problem;
  std::vector<int32_t> q_lengths, kv_lengths;
  std::vector<int64_t> offsets;
};

bool IsType(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF16; }

// Whether the header-only edition covers it.
bool IsCovered(const Problem& p) {
  const Score& s = p.score;
  return IsType(p.q.dtype) && IsType(p.k.dtype) && IsType(p.v.dtype) &&
         (!p.out.present() || IsType(p.out.dtype)) && s.softcap == 0 && !s.alibi_slopes.present() &&
         (!s.bias.present() || IsType(s.bias.dtype)) && !s.mask.present() &&
         !s.block_map.visible.present() && !s.parents.present() && !s.sinks.present() &&
         !p.cu_seqlens_q.present() && !p.cu_seqlens_k.present();
}

template <class To, class From>
To TensorOf(const From& view) {
  To tensor;
  tensor.data = view.data;
  tensor.type = view.dtype == DType::kF16 ? embedded::Type::kF16 : embedded::Type::kF32;
  for (int a = 0; a < view.rank; ++a) tensor.stride[a] = view.stride[a];
  return tensor;
}

std::unique_ptr<Converted> Convert(const Problem& p) {
  auto converted = std::make_unique<Converted>();
  embedded::Problem& e = converted->problem;
  const Score& s = p.score;
  e.B = p.q.shape[0], e.Hq = p.q.shape[1], e.Hkv = p.k.shape[1], e.Tq = p.q.shape[2],
  e.Tk = p.k.shape[2], e.dk = p.q.shape[3];
  e.dv = p.v.shape[3];
  e.q = TensorOf<embedded::Tensor>(p.q), e.k = TensorOf<embedded::Tensor>(p.k),
  e.v = TensorOf<embedded::Tensor>(p.v);
  e.out = TensorOf<embedded::MutableTensor>(p.out),
  e.lse = TensorOf<embedded::MutableTensor>(p.lse);
  if (s.bias.present()) {
    e.bias.data = s.bias.data;
    e.bias.type = s.bias.dtype == DType::kF16 ? embedded::Type::kF16 : embedded::Type::kF32;
    for (int a = 0; a < s.bias.rank; ++a)
      e.bias.stride[4 - s.bias.rank + a] = s.bias.shape[a] == 1 ? 0 : s.bias.stride[a];
  }
  e.has_scale = s.scale.has_value();
  e.scale = s.scale.value_or(0);
  e.causal = static_cast<embedded::Causal>(s.causal);
  e.window_left = s.window.left, e.window_right = s.window.right;
  e.query_offset = s.query_offset.value_or(embedded::kNoOffset);
  const auto read = [&](const TensorView& view, auto& to) {
    for (double x : reference::ReadAll(view))
      to.push_back(static_cast<typename std::decay_t<decltype(to)>::value_type>(x));
    return to.data();
  };
  if (s.q_lengths.present()) e.q_lengths = read(s.q_lengths, converted->q_lengths);
  if (s.kv_lengths.present()) e.kv_lengths = read(s.kv_lengths, converted->kv_lengths);
  if (s.query_offsets.present()) e.query_offsets = read(s.query_offsets, converted->offsets);
  return converted;
}

// With scratch of exactly the bytes asked for, full of NaN, behind or before which no memory is
// accessible.
enum class Scratch { kFast, kLeast };
Error Compute(const embedded::Problem& p, Scratch kind = Scratch::kFast,
              Placement placement = Placement::kBeforeGuard) {
  const int64_t group = p.Hkv > 0 ? p.Hq / p.Hkv : 1;
  const auto bytes =
      kind == Scratch::kFast ? Instance().scratch_bytes : Instance().least_scratch_bytes;
  const Memory scratch(bytes(p.dk, p.dv, p.Tq * group), placement, 1);
  std::memset(scratch.data(), 0xFF, scratch.bytes());
  return Instance().attention(p, scratch.data(), scratch.bytes());
}

// Whether the library's results and these lie within both their tolerances of one another, with the
// same NaN and infinities.
testing::AssertionResult AgreesWithLibrary(const Problem& p, const std::vector<double>& library,
                                           const reference::ForwardResult& expected) {
  const std::vector<double> got = reference::ReadAll(p.out);
  const size_t dv = static_cast<size_t>(p.v.shape[3]);
  for (size_t n = 0; n < got.size(); ++n) {
    const size_t row = n / dv;
    if (std::isinf(expected.relative_tolerance[row]) ||
        (std::isnan(got[n]) && std::isnan(library[n])) || got[n] == library[n])
      continue;
    const double bound = expected.relative_tolerance[row] * expected.max_abs_value[row] +
                         static_cast<double>(std::numeric_limits<float>::min());
    const double both = reference::StoredBound(p.out.dtype, got[n], expected.out[n], bound) +
                        reference::StoredBound(p.out.dtype, library[n], expected.out[n], bound);
    if (!(std::fabs(got[n] - library[n]) <= both)) {
      return testing::AssertionFailure() << "out element " << n << " is " << got[n]
                                         << ", the library's " << library[n] << " ± " << both;
    }
  }
  return testing::AssertionSuccess();
}

// Against the reference with the contract's bounds, and the library.
void ExpectMatches(RandomProblem& p) {
  const reference::ForwardResult expected = reference::Forward(p.problem);
  p.ResetOutputs();
  const Status status = Attention(p.problem);
  ASSERT_TRUE(status.ok()) << status.message() << "\n" << ToString(p.spec);
  const std::vector<double> library = reference::ReadAll(p.problem.out);
  std::vector<unsigned char> bits;
  for (Scratch scratch : {Scratch::kFast, Scratch::kLeast}) {
    p.ResetOutputs();
    const Placement placement =
        scratch == Scratch::kFast ? Placement::kBeforeGuard : Placement::kAfterGuard;
    ASSERT_EQ(Compute(Convert(p.problem)->problem, scratch, placement), Error::kOk)
        << ToString(p.spec);
    EXPECT_TRUE(Matches(p.problem, expected)) << ToString(p.spec);
    EXPECT_TRUE(AgreesWithLibrary(p.problem, library, expected)) << ToString(p.spec);
    EXPECT_TRUE(p.OutputPaddingUntouched()) << "wrote outside its outputs\n" << ToString(p.spec);
    if (scratch == Scratch::kFast) bits = p.out.Bytes();
  }
  EXPECT_TRUE(p.out.Bytes() == bits) << "results depend on scratch\n" << ToString(p.spec);
}

// ---- sizes

int64_t Lanes() { return Instance().lanes; }

TEST_F(Embedded, QueriesAndKeysAroundTilesAndBlocks) {
  uint64_t seed = BaseSeed();
  int64_t n = 0;
  for (int64_t Tq : {int64_t{1}, int64_t{4}, int64_t{5}, Lanes() / 2 + 1, Lanes(), Lanes() + 1,
                     2 * Lanes(), 2 * Lanes() + 1, int64_t{64}, int64_t{65}, int64_t{131}}) {
    for (int64_t Tk : {1, 2, 11, 12, 13, 63, 64, 65, 129, 200}) {
      for (Causal causal : {Causal::kNone, Causal::kBottomRight}) {
        if (++n % GridStep() != 0) continue;
        ProblemSpec spec;
        spec.Hq = 2, spec.Tq = Tq, spec.Tk = Tk, spec.dk = 20, spec.dv = 13, spec.causal = causal;
        RandomProblem p(spec, ++seed);
        ExpectMatches(p);
      }
    }
  }
}

TEST_F(Embedded, HeadSizes) {
  uint64_t seed = BaseSeed();
  int64_t n = 0;
  for (int64_t dk : {1, 3, 7, 8, 15, 16, 17, 33, 64, 65, 127, 128, 129, 257}) {
    for (int64_t dv : {1, 5, 12, 13, 31, 64, 100, 130}) {
      for (int64_t Tq : {1, 37}) {
        if (++n % GridStep() != 0) continue;
        ProblemSpec spec;
        spec.Tq = Tq, spec.Tk = 70, spec.dk = dk, spec.dv = dv;
        RandomProblem p(spec, ++seed);
        ExpectMatches(p);
      }
    }
  }
}

TEST_F(Embedded, NothingToDo) {
  for (int64_t ProblemSpec::* size : {&ProblemSpec::B, &ProblemSpec::Tq, &ProblemSpec::Tk}) {
    ProblemSpec spec;
    spec.B = 2, spec.Hq = 2, spec.Tq = 9, spec.Tk = 10, spec.dk = 6, spec.dv = 7;
    spec.*size = 0;
    RandomProblem p(spec, BaseSeed());
    ExpectMatches(p);
  }
}

// ---- everything at once

ProblemSpec RandomSpec(Random& random) {
  const auto size = [&] {
    return random.Pick(std::vector<int64_t>{1, 2, 3, 5, 8, 13, 16, 17, 31, 33, 48, 67});
  };
  const auto type = [&] { return random.Chance(0.7) ? DType::kF32 : DType::kF16; };
  const auto lengths = [&] {
    return random.Chance(0.6) ? DType::kNone : random.Chance(0.5) ? DType::kI32 : DType::kI64;
  };
  const auto storage = [&] {
    Storage x;
    if (random.Chance(0.5))
      x.layout = random.Pick(std::vector<Layout>(std::begin(kLayouts), std::end(kLayouts)));
    x.placement =
        random.Pick(std::vector<Placement>(std::begin(kPlacements), std::end(kPlacements)));
    return x;
  };
  ProblemSpec s;
  s.B = random.Between(1, 3), s.Hkv = random.Between(1, 3),
  s.Hq = s.Hkv * random.Pick(std::vector<int64_t>{1, 1, 2, 3, 5, 8});
  s.Tq = random.Chance(0.3) ? 1 : size() * random.Between(1, 2);
  s.Tk = size() * random.Between(1, 3), s.dk = size(), s.dv = size();
  if (random.Chance(0.3)) s.scale = static_cast<float>(random.Normal());
  if (random.Chance(0.4))
    s.bias = random.Pick(std::vector<Axes>(std::begin(kAllAxes), std::end(kAllAxes)));
  s.bias_type = type();
  s.bias_removes = random.Chance(0.5) ? 0.3 : 0;
  s.causal =
      random.Pick(std::vector<Causal>{Causal::kNone, Causal::kTopLeft, Causal::kBottomRight});
  if (random.Chance(0.4)) s.window.left = random.Below(40);
  if (random.Chance(0.3)) s.window.right = random.Below(40);
  if (random.Chance(0.2)) {
    s.query_offset = random.Between(-30, 60);
  } else if (random.Chance(0.2)) {
    s.query_offsets = DType::kI64;
  }
  s.q_lengths = lengths(), s.kv_lengths = lengths();
  s.q_type = type(), s.k_type = type(), s.v_type = type(), s.out_type = type();
  s.lse = random.Chance(0.7);
  s.q = storage(), s.k = storage(), s.v = storage(), s.out = storage(), s.rest = storage();
  return s;
}

TEST_F(Embedded, RandomProblems) {
  Random random(BaseSeed());
  for (int n = 0; n < 600; ++n) {
    const ProblemSpec spec = RandomSpec(random);
    const uint64_t seed = random.Bits();
    if (n % GridStep() != 0) continue;
    SCOPED_TRACE("problem " + std::to_string(n) + " of seed " + std::to_string(BaseSeed()));
    RandomProblem p(spec, seed);
    ExpectMatches(p);
    if (HasFailure()) return;
  }
}

// ---- the conformance suites

const auto kValid = [](const Suite& suite, size_t index) { return !suite.ExpectsError(index); };

class EmbeddedConformance : public ::testing::TestWithParam<CaseId> {};

TEST_P(EmbeddedConformance, StoredAnswer) {
  if (!IsUsable()) GTEST_SKIP();
  const Case c = GetParam().Load();
  if (!c.unavailable.empty() || !IsCovered(c.problem)) return;
  SCOPED_TRACE(c.about);
  Problem problem = c.problem;
  const Outputs outputs(&problem, c.token_major, false);
  ASSERT_EQ(Compute(Convert(problem)->problem), Error::kOk);
  EXPECT_TRUE(Near("out", outputs.out(), c.expect.at("out")));
  EXPECT_TRUE(Near("lse", outputs.lse(), c.expect.at("lse")));
  EXPECT_TRUE(Matches(problem, reference::Forward(problem)));
}

INSTANTIATE_TEST_SUITE_P(Onnx, EmbeddedConformance, ::testing::ValuesIn(CasesOf("onnx", kValid)),
                         CaseTestName);
INSTANTIATE_TEST_SUITE_P(Edge, EmbeddedConformance, ::testing::ValuesIn(CasesOf("edge", kValid)),
                         CaseTestName);

TEST(EmbeddedConformance, CoversManyCases) {
  int covered = 0;
  for (const char* suite : {"onnx", "edge"}) {
    for (const CaseId& id : CasesOf(suite, kValid)) {
      const Case c = id.Load();
      covered += c.unavailable.empty() && IsCovered(c.problem) ? 1 : 0;
    }
  }
  EXPECT_GE(covered, 100);
}

// ---- edges

TEST_F(Embedded, NonFiniteValuesReachTheRowsThatSeeThem) {
  Random random(BaseSeed());
  for (int n = 0; n < 200; ++n) {
    ProblemSpec spec = RandomSpec(random);
    spec.kv_lengths = DType::kNone;
    // no weight is so small that f32 has it as 0, and its product with infinity as NaN
    spec.scale.reset();
    const uint64_t seed = random.Bits();
    if (n % GridStep() != 0) continue;
    RandomProblem p(spec, seed);
    // In K or in V: of rows that see scores of −inf alone the reference gives no bound beside
    // infinite values.
    Random places(seed);
    OwnedTensor& tensor = places.Chance(0.5) ? p.v : p.k;
    for (int x = 0; x < 3; ++x)
      tensor.Set(places.Below(tensor.size()), places.Pick(std::vector<double>{kNan, kInf, -kInf}));
    ExpectMatches(p);
    if (HasFailure()) return;
  }
}

// Every key but the last two holds NaN and is removed by causal, window or bias.
TEST_F(Embedded, RemovedKeysMayHoldNan) {
  for (int removal = 0; removal < 3; ++removal) {
    for (int64_t Tq : {1, 40}) {
      ProblemSpec spec;
      spec.Hq = 4, spec.Hkv = 2, spec.Tq = Tq, spec.Tk = 140, spec.dk = 24, spec.dv = 18;
      if (removal == 0)
        spec.window = {1, 0}, spec.query_offset = 139, spec.causal = Causal::kTopLeft;
      // sees the first keys only
      if (removal == 1) spec.query_offset = -1000, spec.window = {-1, 1000 - Tq + 1};
      if (removal == 2) spec.bias = Axes::kK;
      RandomProblem p(spec, BaseSeed());
      for (int64_t h = 0; h < 2; ++h) {
        for (int64_t j = 0; j < 140; ++j) {
          const bool alive = removal == 1 ? j < 2 : j >= 138;
          if (alive) continue;
          if (removal == 2) p.bias.Set(j, -kInf);
          for (int64_t c = 0; c < 24; ++c) p.k.SetAt({0, h, j, c}, c % 2 == 0 ? kNan : kInf);
          for (int64_t c = 0; c < 18; ++c) p.v.SetAt({0, h, j, c}, c % 2 == 0 ? kNan : -kInf);
        }
      }
      ExpectMatches(p);
      const std::vector<double> out = p.out.Dense();
      if (removal == 2) {
        EXPECT_TRUE(std::all_of(out.begin(), out.end(), [](double x) { return std::isfinite(x); }));
      }
    }
  }
}

TEST_F(Embedded, EmptyRowsAreZero) {
  ProblemSpec spec;
  // 33 rows see nothing
  spec.B = 2, spec.Hq = 2, spec.Tq = 40, spec.Tk = 7, spec.dk = 9, spec.dv = 10,
  spec.causal = Causal::kBottomRight;
  RandomProblem p(spec, BaseSeed());
  ExpectMatches(p);
  EXPECT_EQ(p.out.At({1, 1, 32, 9}), 0);
  EXPECT_EQ(p.lse.At({1, 1, 32}), -kInf);
  EXPECT_NE(p.out.At({1, 1, 33, 9}), 0);
}

TEST_F(Embedded, ExtremeQueries) {
  const struct {
    double q, k, scale;
  } sizes[] = {{1e30, 1e-30, 1e10}, {1e-30, 1e30, 1e-20}, {3e38, 1e-38, 2.0}, {1e-36, 1e36, 0.1}};
  for (const auto& size : sizes) {
    for (int64_t Tq : {1, 35}) {
      ProblemSpec spec;
      spec.Tq = Tq, spec.Tk = 30, spec.dk = 8, spec.dv = 8,
      spec.scale = static_cast<float>(size.scale);
      RandomProblem p(spec, BaseSeed());
      Random random(BaseSeed());
      p.q.Fill([&] { return size.q * (random.Uniform() - 0.5); });
      p.k.Fill([&] { return size.k * (random.Uniform() - 0.5); });
      ExpectMatches(p);
    }
  }
}

TEST_F(Embedded, ASequenceHasTheSameBitsInAnyBatch) {
  for (int64_t Tq : {1, 3, 50}) {
    ProblemSpec spec;
    spec.B = 3, spec.Hq = 4, spec.Hkv = 2, spec.Tq = Tq, spec.Tk = 150, spec.dk = 40, spec.dv = 24,
    spec.causal = Causal::kBottomRight;
    spec.kv_lengths = DType::kI32, spec.q_lengths = DType::kI32;
    RandomProblem p(spec, BaseSeed());
    auto all = Convert(p.problem);
    ASSERT_EQ(Compute(all->problem), Error::kOk);
    const std::vector<unsigned char> want = p.out.Bytes();
    for (int64_t b = 0; b < 3; ++b) {
      auto one = Convert(p.problem);
      embedded::Problem& e = one->problem;
      const auto advance = [&](auto& tensor) {
        using Byte =
            std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(tensor.data)>>,
                               const char, char>;
        tensor.data = static_cast<Byte*>(tensor.data) + b * tensor.stride[0];
      };
      advance(e.q), advance(e.k), advance(e.v), advance(e.out), advance(e.lse);
      e.B = 1, e.q_lengths += b, e.kv_lengths += b;
      const size_t bytes = want.size() / 3;
      std::memset(e.out.data, 0xFF, bytes);
      ASSERT_EQ(Compute(e), Error::kOk);
      const std::vector<unsigned char> got = p.out.Bytes();
      EXPECT_TRUE(got == want) << "sequence " << b << " of " << Tq << " queries";
    }
  }
}

TEST_F(Embedded, QueriesBehindALengthChangeNoBits) {
  for (double bad :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN(), 1.0}) {
    for (int64_t length : {1, 3, 20}) {
      std::vector<double> want;
      for (int64_t more : {0, 1, 12, 40}) {
        ProblemSpec spec;
        spec.Tq = length, spec.Tk = 48, spec.dk = 16, spec.dv = 16;
        RandomProblem p(spec, BaseSeed());
        p.v.SetAt({0, 0, 5, 3}, bad);
        // The same queries, and behind them others that are NaN.
        OwnedTensor q(DType::kF32, {1, 1, length + more, 16}),
            out(DType::kF32, {1, 1, length + more, 16});
        q.Fill([] { return std::numeric_limits<double>::quiet_NaN(); });
        for (int64_t n = 0; n < length * 16; ++n) q.Set(n, p.q.Get(n));
        p.problem.q = q.view(), p.problem.out = out.mutable_view(), p.problem.lse = {};
        auto converted = Convert(p.problem);
        const int32_t q_length = static_cast<int32_t>(length);
        converted->problem.q_lengths = &q_length;
        ASSERT_EQ(Compute(converted->problem), Error::kOk);
        std::vector<double> got = out.Dense();
        for (int64_t n = length * 16; n < out.size(); ++n)
          ASSERT_EQ(got[static_cast<size_t>(n)], 0);
        got.resize(static_cast<size_t>(length * 16));
        for (double& x : got) x = std::isnan(x) ? 12345.0 : x;
        if (more == 0) want = got;
        EXPECT_TRUE(got == want) << length << " queries and " << more << " behind them, " << bad
                                 << " in V";
      }
    }
  }
}

TEST_F(Embedded, StridesOfAxesOfOneElementAreNotLookedAt) {
  struct Sizes {
    int64_t Tq, Tk, d;
  };
  for (const Sizes sizes :
       {Sizes{1, 1, 1}, Sizes{1, 300, 1}, Sizes{40, 1, 20}, Sizes{40, 300, 1}}) {
    ProblemSpec spec;
    spec.Tq = sizes.Tq, spec.Tk = sizes.Tk, spec.dk = spec.dv = sizes.d;
    RandomProblem p(spec, BaseSeed());
    for (const int64_t stride : {INT64_MAX, -(int64_t{1} << 62)}) {
      for (TensorView* view : {&p.problem.q, &p.problem.k, &p.problem.v}) {
        for (int a = 0; a < view->rank; ++a) {
          if (view->shape[a] == 1) view->stride[a] = stride;
        }
      }
      ExpectMatches(p);
    }
  }
}

// ---- rings

TEST(EmbeddedRing, PushOverwritesTheOldest) {
  Ring ring{3};
  const int64_t want[] = {0, 1, 2, 0, 1, 2, 0};
  for (int64_t n = 0; n < 7; ++n) {
    EXPECT_EQ(ring.Push(), want[n]);
    EXPECT_EQ(ring.count, std::min<int64_t>(n + 1, 3));
    EXPECT_EQ(ring.head, n < 3 ? 0 : (n - 2) % 3);
  }
}

struct RingSpec {
  int64_t capacity, pushes, queries;
  int64_t Hq, Hkv, dk, dv;
  DType type;
  Causal causal = Causal::kNone;
  int64_t window_left = -1;
  bool bias = false;
};

// Tokens pushed one by one, each followed by a call whose keys the library sees in order. Rows of
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
    spec.Hq = s.Hq, spec.Hkv = s.Hkv, spec.Tq = s.queries, spec.Tk = ring.count, spec.dk = s.dk,
    spec.dv = s.dv;
    spec.q_type = spec.k_type = spec.v_type = s.type;
    spec.causal = s.causal, spec.window.left = s.window_left;
    if (s.causal == Causal::kNone) spec.query_offset = ring.count - s.queries;
    if (s.bias) spec.bias = Axes::kHQK;
    RandomProblem p(spec, random.Bits());
    for (int64_t h = 0; h < s.Hkv; ++h) {
      for (int64_t j = 0; j < ring.count; ++j) {
        const int64_t from = (ring.head + j) % s.capacity;
        for (int64_t c = 0; c < s.dk; ++c) p.k.SetAt({0, h, j, c}, k.At({0, h, from, c}));
        for (int64_t c = 0; c < s.dv; ++c) p.v.SetAt({0, h, j, c}, v.At({0, h, from, c}));
      }
    }
    const reference::ForwardResult expected = reference::Forward(p.problem);
    const Status status = Attention(p.problem);
    ASSERT_TRUE(status.ok()) << status.message();
    const std::vector<double> library = reference::ReadAll(p.problem.out);
    p.ResetOutputs();
    auto converted = Convert(p.problem);
    embedded::Problem& e = converted->problem;
    e.query_offset = embedded::kNoOffset;
    e.Tk = s.capacity;
    e.k = TensorOf<embedded::Tensor>(k.view()), e.v = TensorOf<embedded::Tensor>(v.view());
    e.rings = &ring;
    ASSERT_EQ(Compute(e), Error::kOk);
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
  // A chunk of several queries over a ring.
  ExpectRing({90, 200, 20, 2, 1, 24, 24, DType::kF32, Causal::kBottomRight, 40, false}, ++seed);
}

// ---- errors

struct Sound {
  std::vector<float> q = std::vector<float>(2 * 4 * 5 * 6), k = std::vector<float>(2 * 2 * 9 * 6),
                     v = std::vector<float>(2 * 2 * 9 * 7);
  std::vector<float> out = std::vector<float>(2 * 4 * 5 * 7, 77.0f),
                     lse = std::vector<float>(2 * 4 * 5, 77.0f);
  std::vector<float> bias = std::vector<float>(9);
  embedded::Problem p;
  std::vector<int32_t> lengths = {5, 5}, kv_lengths = {9, 9};
  std::vector<int64_t> offsets = {4, 4};
  std::vector<Ring> rings = {{9, 3, 9}, {9, 0, 2}};

  Sound() {
    p.B = 2, p.Hq = 4, p.Hkv = 2, p.Tq = 5, p.Tk = 9, p.dk = 6, p.dv = 7;
    p.q = embedded::Rows(static_cast<const float*>(q.data()), 5, 6, 4);
    p.k = embedded::Rows(static_cast<const float*>(k.data()), 9, 6, 2);
    p.v = embedded::Rows(static_cast<const float*>(v.data()), 9, 7, 2);
    p.out = embedded::Rows(out.data(), 5, 7, 4);
    p.lse = embedded::Rows(lse.data(), 5, 1, 4);
    p.bias.data = bias.data();
    p.bias.stride[3] = 4;
    p.causal = embedded::Causal::kBottomRight;
    p.q_lengths = lengths.data();
    p.kv_lengths = kv_lengths.data();
  }
  bool Untouched() const {
    const auto same = [](float x) { return x == 77.0f; };
    return std::all_of(out.begin(), out.end(), same) && std::all_of(lse.begin(), lse.end(), same);
  }
};

TEST_F(Embedded, EveryError) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const embedded::Type unknown = static_cast<embedded::Type>(7);
  const struct {
    Error error;
    const char* what;
    void (*change)(Sound&);
  } cases[] = {
      {Error::kOk, "sound", [](Sound&) {}},
      {Error::kOk, "rings", [](Sound& s) { s.p.rings = s.rings.data(), s.p.kv_lengths = nullptr; }},
      {Error::kSize, "B", [](Sound& s) { s.p.B = -1; }},
      {Error::kSize, "Hq", [](Sound& s) { s.p.Hq = -4; }},
      {Error::kSize, "Hkv", [](Sound& s) { s.p.Hkv = -2; }},
      {Error::kSize, "Tq", [](Sound& s) { s.p.Tq = -1; }},
      {Error::kSize, "Tk", [](Sound& s) { s.p.Tk = -1; }},
      {Error::kSize, "dk", [](Sound& s) { s.p.dk = 0; }},
      {Error::kSize, "dv", [](Sound& s) { s.p.dv = 0; }},
      {Error::kSize, "no query heads", [](Sound& s) { s.p.Hq = 0; }},
      {Error::kSize, "no key heads", [](Sound& s) { s.p.Hkv = 0; }},
      {Error::kHeads, "5 over 2", [](Sound& s) { s.p.Hq = 5; }},
      {Error::kUnsupported, "dk", [](Sound& s) { s.p.dk = embedded::kMostChannels + 1; }},
      {Error::kUnsupported, "dv", [](Sound& s) { s.p.dv = embedded::kMostChannels + 1; }},
      {Error::kStride, "q", [](Sound& s) { s.p.q.stride[1] = kMost / 2; }},
      {Error::kStride, "k", [](Sound& s) { s.p.k.stride[2] = kMost / 2; }},
      {Error::kStride, "v", [](Sound& s) { s.p.v.stride[3] = -kMost; }},
      {Error::kStride, "out", [](Sound& s) { s.p.out.stride[0] = kMost; }},
      {Error::kStride, "lse", [](Sound& s) { s.p.lse.stride[2] = kMost / 2; }},
      {Error::kStride, "bias", [](Sound& s) { s.p.bias.stride[0] = kMost; }},
      {Error::kStride, "elements",
       [](Sound& s) {
         s.p.B = kMost / 2;
         for (auto* tensor : {&s.p.q, &s.p.k, &s.p.v}) std::fill_n(tensor->stride, 4, 0);
       }},
      {Error::kScale, "infinite",
       [](Sound& s) { s.p.has_scale = true, s.p.scale = std::numeric_limits<float>::infinity(); }},
      {Error::kScale, "NaN",
       [](Sound& s) { s.p.has_scale = true, s.p.scale = std::numeric_limits<float>::quiet_NaN(); }},
      {Error::kCausal, "3", [](Sound& s) { s.p.causal = static_cast<embedded::Causal>(3); }},
      {Error::kCausal, "-1", [](Sound& s) { s.p.causal = static_cast<embedded::Causal>(-1); }},
      {Error::kWindow, "left", [](Sound& s) { s.p.window_left = -2; }},
      {Error::kWindow, "right", [](Sound& s) { s.p.window_right = -2; }},
      {Error::kOffset, "beyond", [](Sound& s) { s.p.query_offset = embedded::kMostOffset + 1; }},
      {Error::kOffset, "one of them",
       [](Sound& s) {
         s.offsets[1] = -embedded::kMostOffset - 1, s.p.query_offsets = s.offsets.data();
       }},
      {Error::kOffset, "both",
       [](Sound& s) { s.p.query_offset = 0, s.p.query_offsets = s.offsets.data(); }},
      {Error::kLength, "queries", [](Sound& s) { s.lengths[1] = 6; }},
      {Error::kLength, "negative queries", [](Sound& s) { s.lengths[1] = -1; }},
      {Error::kLength, "keys", [](Sound& s) { s.kv_lengths[1] = 10; }},
      {Error::kLength, "negative keys", [](Sound& s) { s.kv_lengths[0] = -1; }},
      {Error::kRing, "with lengths", [](Sound& s) { s.p.rings = s.rings.data(); }},
      {Error::kRing, "capacity",
       [](Sound& s) {
         s.p.rings = s.rings.data(), s.p.kv_lengths = nullptr, s.rings[1].capacity = 10;
       }},
      {Error::kRing, "head",
       [](Sound& s) { s.p.rings = s.rings.data(), s.p.kv_lengths = nullptr, s.rings[1].head = 9; }},
      {Error::kRing, "negative head",
       [](Sound& s) {
         s.p.rings = s.rings.data(), s.p.kv_lengths = nullptr, s.rings[0].head = -1;
       }},
      {Error::kRing, "count",
       [](Sound& s) {
         s.p.rings = s.rings.data(), s.p.kv_lengths = nullptr, s.rings[1].count = 10;
       }},
      {Error::kRing, "negative count",
       [](Sound& s) {
         s.p.rings = s.rings.data(), s.p.kv_lengths = nullptr, s.rings[0].count = -1;
       }},
      {Error::kNullData, "q", [](Sound& s) { s.p.q.data = nullptr; }},
      {Error::kNullData, "k", [](Sound& s) { s.p.k.data = nullptr; }},
      {Error::kNullData, "v", [](Sound& s) { s.p.v.data = nullptr; }},
      {Error::kNullData, "out", [](Sound& s) { s.p.out.data = nullptr; }},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(std::string(Name(c.error)) + ": " + c.what);
    Sound s;
    c.change(s);
    std::vector<char> scratch(Instance().scratch_bytes(6, 7, INT64_MAX));
    EXPECT_EQ(Instance().attention(s.p, scratch.data(), scratch.size()), c.error);
    EXPECT_EQ(s.Untouched(), c.error != Error::kOk);
  }
  for (embedded::Type embedded::Tensor::* type : {&embedded::Tensor::type}) {
    for (embedded::Tensor embedded::Problem::* tensor :
         {&embedded::Problem::q, &embedded::Problem::k, &embedded::Problem::v,
          &embedded::Problem::bias}) {
      Sound s;
      s.p.*tensor.*type = unknown;
      EXPECT_EQ(Compute(s.p), Error::kType);
      EXPECT_TRUE(s.Untouched());
    }
  }
  for (embedded::Type type : {unknown, embedded::Type::kF16}) {
    Sound s;
    s.p.lse.type = type;
    EXPECT_EQ(Compute(s.p), Error::kType);
    s.p.lse.type = embedded::Type::kF32;
    s.p.out.type = unknown;
    EXPECT_EQ(Compute(s.p), Error::kType);
    EXPECT_TRUE(s.Untouched());
  }
}

TEST_F(Embedded, ScratchIsExact) {
  Sound s;
  const size_t bytes = Instance().least_scratch_bytes(6, 7, 5 * 2);
  std::vector<char> scratch(bytes);
  EXPECT_EQ(Instance().attention(s.p, scratch.data(), bytes - 1), Error::kScratch);
  EXPECT_EQ(Instance().attention(s.p, nullptr, bytes), Error::kScratch);
  EXPECT_TRUE(s.Untouched());
  EXPECT_EQ(Instance().attention(s.p, scratch.data(), bytes), Error::kOk);
  // Whatever Tq and Tk are; and never less for more rows, since sequences may be shorter.
  for (const auto bytes_of : {Instance().scratch_bytes, Instance().least_scratch_bytes}) {
    size_t before = 0;
    for (int64_t rows = 0; rows < 300; ++rows) {
      const size_t now = bytes_of(64, 80, rows);
      EXPECT_GE(now, before) << rows << " rows";
      before = now;
    }
    EXPECT_EQ(before, bytes_of(64, 80, std::numeric_limits<int64_t>::max()));
  }
}

TEST(EmbeddedErrors, HaveNames) {
  EXPECT_STREQ(Name(Error::kOk), "ok");
  EXPECT_STREQ(Name(Error::kScratch), "scratch");
  EXPECT_STREQ(Name(static_cast<Error>(14)), "unknown");
  EXPECT_STREQ(Name(static_cast<Error>(-1)), "unknown");
}

// ---- f16

TEST_F(Embedded, EveryHalfIsWidenedExactly) {
  std::vector<uint16_t> all(65536);
  for (size_t n = 0; n < all.size(); ++n) all[n] = static_cast<uint16_t>(n);
  std::vector<float> vectors(all.size());
  Instance().load_row(embedded::Type::kF16, reinterpret_cast<const char*>(all.data()), 2, 65536,
                      vectors.data());
  for (size_t n = 0; n < all.size(); ++n) {
    const double want = DecodeElement(DType::kF16, &all[n]);
    for (float got : {Instance().widened(all[n]), vectors[n]}) {
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(got)) << n;
      } else {
        EXPECT_EQ(static_cast<double>(got), want) << n;
        EXPECT_EQ(std::signbit(got), std::signbit(want)) << n;
      }
    }
  }
}

// Every half and both neighbours of every middle between two: ties go to even.
TEST_F(Embedded, NarrowingRoundsToNearestEven) {
  for (uint32_t n = 0; n < 65536; ++n) {
    const uint16_t h = static_cast<uint16_t>(n);
    const float x = Instance().widened(h);
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(Instance().widened(Instance().narrowed(x))));
      continue;
    }
    EXPECT_EQ(Instance().narrowed(x), h);
    if ((n & 0x7FFF) >= 0x7C00) continue;
    const double above =
        (n & 0x7FFF) == 0x7BFF
            ? std::copysign(65536.0, x)
            : static_cast<double>(Instance().widened(static_cast<uint16_t>(n + 1)));
    const float middle = static_cast<float>((static_cast<double>(x) + above) / 2);
    EXPECT_EQ(Instance().narrowed(middle), n % 2 == 0 ? h : h + 1) << n;
    EXPECT_EQ(Instance().narrowed(std::nextafterf(middle, 0)), h) << n;
    EXPECT_EQ(Instance().narrowed(std::nextafterf(middle, std::copysign(1e9f, x))), h + 1) << n;
  }
}

}  // namespace
}  // namespace fovea::test
