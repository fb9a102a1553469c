// The tests' own judge: what it must accept and what it must not let pass.
#include "support/check.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/thin.h"

namespace fovea {
namespace {

using test::Matches;
using test::ProblemSpec;
using test::RandomProblem;

// A problem whose outputs hold the reference's answer, rounded.
struct Answered {
  RandomProblem p;
  reference::ForwardResult expected;

  explicit Answered(const ProblemSpec& spec = Spec())
      : p(spec, test::BaseSeed()), expected(reference::Forward(p.problem)) {
    for (int64_t n = 0; n < p.out.size(); ++n) p.out.Set(n, expected.out[static_cast<size_t>(n)]);
    for (int64_t n = 0; n < p.lse.size(); ++n) p.lse.Set(n, expected.lse[static_cast<size_t>(n)]);
    for (int64_t n = 0; n < p.weights.size(); ++n)
      p.weights.Set(n, expected.weights[static_cast<size_t>(n)]);
    for (int64_t n = 0; n < p.scores.size(); ++n)
      p.scores.Set(n, expected.stage.scores[static_cast<size_t>(n)]);
  }
  static ProblemSpec Spec() {
    ProblemSpec s;
    s.B = 2, s.Hq = 2, s.Tq = 6, s.Tk = 9, s.dk = 4, s.dv = 3, s.Hkv = 1, s.weights = true,
    s.scores = ScoreStage::kMasked;
    s.causal = Causal::kTopLeft, s.query_offset = -2;  // two empty rows in each head
    return s;
  }
};

TEST(CheckTest, AcceptsTheRoundedReference) {
  Answered a;
  EXPECT_TRUE(Matches(a.p.problem, a.expected));
  for (ScoreStage stage : {ScoreStage::kScaled, ScoreStage::kSoftcapped, ScoreStage::kWeights}) {
    ProblemSpec s = Answered::Spec();
    s.scores = stage;
    Answered other(s);
    EXPECT_TRUE(Matches(other.p.problem, other.expected));
  }
}

TEST(CheckTest, RejectsAnErrorOfTwiceTheBoundInAnyElement) {
  Answered a;
  const int64_t row = 5;  // the last of the first head: four visible keys
  const double t = a.expected.relative_tolerance[row], largest = a.expected.max_abs_value[row];
  const struct {
    test::OwnedTensor& tensor;
    int64_t element;
    double bound;
  } places[] = {{a.p.out, row * 3 + 1, t * largest},
                {a.p.lse, row, t + 1e-6 * std::fabs(a.expected.lse[row])},
                {a.p.weights, row * 9 + 2, t},
                {a.p.scores, row * 9 + 2, 1e-5}};
  for (const auto& place : places) {
    const double right = place.tensor.Get(place.element);
    for (double wrong :
         {right + 2 * place.bound, right - 2 * place.bound,
          std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
      place.tensor.Set(place.element, wrong);
      EXPECT_FALSE(Matches(a.p.problem, a.expected)) << wrong;
    }
    place.tensor.Set(place.element, right + 0.5 * place.bound);
    EXPECT_TRUE(Matches(a.p.problem, a.expected));
    place.tensor.Set(place.element, right);
  }
}

TEST(CheckTest, OutputsOf16BitsMayBeRoundedOnceMore) {
  for (DType type : {DType::kF16, DType::kBF16}) {
    ProblemSpec s = Answered::Spec();
    s.out_type = type;
    Answered a(s);
    EXPECT_TRUE(Matches(a.p.problem, a.expected));
    // A neighbour of the right answer is wrong, unless the bound reaches beyond the middle between
    // them.
    int wrong = 0;
    for (int64_t n = 5 * s.dv; n < 6 * s.dv; ++n) {  // the last row of the first head
      unsigned char* const element = static_cast<unsigned char*>(a.p.problem.out.data) + 2 * n;
      const unsigned char right = *element;
      for (int step : {-1, 1}) {
        *element = static_cast<unsigned char>(right + step);
        wrong += Matches(a.p.problem, a.expected) ? 0 : 1;
      }
      *element = right;
    }
    EXPECT_GE(wrong, 2 * s.dv - 1) << Name(type);
    EXPECT_TRUE(Matches(a.p.problem, a.expected));
  }
}

TEST(CheckTest, OverflowOf16BitsIsInfinity) {
  ProblemSpec s;
  s.out_type = DType::kF16, s.lse = false;
  RandomProblem p(s, 1);
  // 65520 is the middle between the largest number and what comes behind it
  for (double value : {65519.0, 65520.0, 65521.0, -65521.0}) {
    p.v.Set(0, value);
    const reference::ForwardResult expected = reference::Forward(p.problem);
    const double bound = expected.relative_tolerance[0] * std::fabs(value);  // 0.66
    for (double got : {65504.0, 65472.0, std::numeric_limits<double>::infinity()}) {
      p.out.Set(0, std::copysign(got, value));
      const bool right = std::isinf(got) ? std::fabs(value) + bound >= 65520
                                         : got == 65504 && std::fabs(value) - bound < 65520;
      EXPECT_EQ(static_cast<bool>(Matches(p.problem, expected)), right) << value << " " << got;
    }
  }
}

TEST(CheckTest, EmptyRowsAndRemovedPairsAreExact) {
  Answered a;
  ASSERT_EQ(a.expected.lse[0], -std::numeric_limits<double>::infinity());
  a.p.out.Set(0, 1e-30);
  EXPECT_FALSE(Matches(a.p.problem, a.expected));
  a.p.out.Set(0, 0);
  a.p.lse.Set(0, -1e30);
  EXPECT_FALSE(Matches(a.p.problem, a.expected));
  a.p.lse.Set(0, -std::numeric_limits<double>::infinity());
  a.p.weights.Set(5 * 9 + 8, 1e-30);  // in a row with visible keys, but not this one
  EXPECT_FALSE(Matches(a.p.problem, a.expected));
  a.p.weights.Set(5 * 9 + 8, 0);
  EXPECT_TRUE(Matches(a.p.problem, a.expected));
  a.p.scores.Set(5 * 9 + 8, static_cast<double>(std::numeric_limits<float>::lowest()));
  EXPECT_FALSE(Matches(a.p.problem, a.expected));
}

TEST(CheckTest, PackedRowsAreLookedAtWhereTheyLie) {
  ProblemSpec s = Answered::Spec();
  s.B = 3, s.cu_seqlens_q = DType::kI32, s.cu_seqlens_k = DType::kI64, s.causal = Causal::kNone,
  s.query_offset.reset(), s.bias = test::Axes::kBHQK;
  Answered a(s);
  for (int64_t n = 0; n < a.p.out.size(); ++n) {
    // outside of every sequence: nobody's business here
    if (std::isnan(a.expected.out[static_cast<size_t>(n)])) a.p.out.Set(n, 7);
  }
  EXPECT_TRUE(Matches(a.p.problem, a.expected));
  int64_t sequences = 0;
  for (int64_t b = 0; b < s.B; ++b) {
    const RandomProblem::Rows queries = a.p.QueriesOf(b);
    if (queries.count == 0) continue;
    ++sequences;
    const int64_t element = a.p.out.Number({0, 1, queries.first + queries.count - 1, 2});
    const double right = a.p.out.Get(element);
    a.p.out.Set(element, right + 1);
    EXPECT_FALSE(Matches(a.p.problem, a.expected)) << b;
    a.p.out.Set(element, right);
  }
  EXPECT_GT(sequences, 1);
  // The rows and keys that a sequence lacks are 0 in weights and −inf in scores.
  for (int64_t b = 0; b < s.B; ++b) {
    const int64_t i = a.p.QueriesOf(b).count, j = a.p.KeysOf(b).count;
    if (i < s.Tq) {
      a.p.weights.SetAt({b, 0, i, 0}, 1e-30);
      EXPECT_FALSE(Matches(a.p.problem, a.expected)) << b;
      a.p.weights.SetAt({b, 0, i, 0}, 0);
    }
    if (j < s.Tk) {
      a.p.scores.SetAt({b, 0, 0, j}, 0);
      EXPECT_FALSE(Matches(a.p.problem, a.expected)) << b;
      a.p.scores.SetAt({b, 0, 0, j}, -std::numeric_limits<double>::infinity());
    }
  }
  EXPECT_TRUE(Matches(a.p.problem, a.expected));
}

TEST(CheckTest, NaNMustBeThereWhereItIsExpected) {
  Answered a;
  a.expected.out[5 * 3] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(Matches(a.p.problem, a.expected));
  a.p.out.Set(5 * 3, std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(Matches(a.p.problem, a.expected));
}

TEST(CheckTest, ReportsWritesOutsideTheElements) {
  ProblemSpec s = Answered::Spec();
  s.out.layout = test::Layout::kPadded;
  RandomProblem p(s, 1);
  EXPECT_TRUE(p.OutputPaddingUntouched());
  static_cast<unsigned char*>(p.problem.out.data)[3 * 4 + 1] = 0;  // behind the first row
  EXPECT_FALSE(p.OutputPaddingUntouched());
}

TEST(CheckTest, ReportsWritesToRowsOutsideOfEverySequence) {
  ProblemSpec s = Answered::Spec();
  s.cu_seqlens_q = DType::kI32;
  // Seeds are tried until there are rows before the first and behind the last sequence.
  for (uint64_t seed = test::BaseSeed();; ++seed) {
    RandomProblem p(s, seed);
    const int64_t rows = p.out.view().shape[2], first = p.QueriesOf(0).first,
                  end = static_cast<int64_t>(p.cu_seqlens_q.Get(s.B));
    if (first == 0 || end == rows) continue;
    EXPECT_TRUE(p.OutputPaddingUntouched());
    for (int64_t t : {first, end - 1}) p.out.SetAt({0, 1, t, 2}, 0), p.lse.SetAt({0, 1, t}, 0);
    EXPECT_TRUE(p.OutputPaddingUntouched());
    for (int64_t t : {first - 1, end}) {
      p.ResetOutputs();
      p.out.SetAt({0, 1, t, 2}, 0);
      EXPECT_FALSE(p.OutputPaddingUntouched()) << t;
      p.ResetOutputs();
      p.lse.SetAt({0, 1, t}, 0);
      EXPECT_FALSE(p.OutputPaddingUntouched()) << t;
    }
    break;
  }
}

TEST(CheckTest, RandomProblemsHideNothingThatTheReferenceReads) {
  // Rows outside of every sequence, and K and V behind the lengths, are NaN; a result without NaN
  // has not read them.
  uint64_t seed = test::BaseSeed();
  for (int packed = 0; packed < 4; ++packed) {
    for (int lengths = 0; lengths < 4; ++lengths) {
      ProblemSpec s = Answered::Spec();
      s.B = 3, s.causal = Causal::kBottomRight, s.query_offset.reset();
      if (packed & 1) s.cu_seqlens_q = DType::kI32;
      if (packed & 2) s.cu_seqlens_k = DType::kI64;
      if (lengths & 1) s.q_lengths = DType::kI64;
      if (lengths & 2) s.kv_lengths = DType::kI32;
      for (int n = 0; n < 10; ++n) {
        RandomProblem p(s, ++seed);
        const reference::Sizes sizes = reference::SizesOf(p.problem);
        EXPECT_EQ(sizes.B, s.B);
        EXPECT_EQ(sizes.Tq, s.Tq);
        EXPECT_EQ(sizes.Tk, s.Tk);
        const reference::ForwardResult r = reference::Forward(p.problem);
        for (double w : r.weights) ASSERT_FALSE(std::isnan(w)) << seed << "\n" << ToString(s);
        for (int64_t b = 0; b < s.B; ++b) {
          const RandomProblem::Rows queries = p.QueriesOf(b);
          for (int64_t i = 0; i < queries.count; ++i) {
            const int64_t row = queries.batch * s.Hq * p.q.view().shape[2] + queries.first + i;
            ASSERT_FALSE(std::isnan(r.lse[static_cast<size_t>(row)])) << seed << "\n"
                                                                      << ToString(s);
          }
        }
      }
    }
  }
}

TEST(CheckTest, RandomProblemsAndTheReferenceAgreeOnWhatIsVisible) {
  uint64_t seed = test::BaseSeed();
  for (int n = 0; n < 60; ++n) {
    ProblemSpec s;
    s.B = 2, s.Hq = 2, s.Hkv = 1, s.Tq = 7, s.Tk = 11,
    s.causal = n % 2 == 0 ? Causal::kBottomRight : Causal::kNone;
    s.parents = n % 3 == 0 ? DType::kI32 : DType::kNone;
    s.block_map = test::kAllAxes[n % 9], s.block_map_type = n % 4 == 0 ? DType::kBit : DType::kBool,
    s.block_queries = 1 + n % 3, s.block_keys = 1 + n % 5;
    s.mask = test::kAllAxes[n / 3 % 9], s.mask_type = n % 5 == 0 ? DType::kBit : DType::kBool;
    s.cu_seqlens_k = n % 7 == 0 ? DType::kI32 : DType::kNone,
    s.cu_seqlens_q = n % 6 == 0 ? DType::kI64 : DType::kNone;
    RandomProblem p(s, ++seed);
    for (int64_t b = 0; b < s.B; ++b) {
      for (int64_t h = 0; h < s.Hq; ++h) {
        for (int64_t i = 0; i < s.Tq; ++i) {
          for (int64_t j = 0; j < s.Tk; ++j) {
            ASSERT_EQ(p.Visible(b, h, i, j), reference::Visible(p.problem, b, h, i, j))
                << b << h << i << " " << j << "\n"
                << ToString(s);
          }
        }
      }
    }
  }
}

// Sets FOVEA_TEST_EVERY for as long as it lives.
class Every {
 public:
  explicit Every(int n) {
    if (const char* before = std::getenv(kName)) before_ = before, set_ = true;
    setenv(kName, std::to_string(n).c_str(), 1);
  }
  ~Every() {
    if (set_) {
      setenv(kName, before_.c_str(), 1);
    } else {
      unsetenv(kName);
    }
  }

 private:
  static constexpr const char* kName = "FOVEA_TEST_EVERY";
  std::string before_;
  bool set_ = false;
};

TEST(ThinnedTest, UnthinnedListsAreWhole) {
  const Every every(1);
  EXPECT_EQ(test::Thinned({3, 1, 2}), (std::vector<int>{3, 1, 2}));
  EXPECT_EQ(test::Thinned(test::Numbers(1, 10, 4)), (std::vector<int64_t>{1, 5, 9}));
}

TEST(ThinnedTest, OneOfAFewAndEveryNthOfMany) {
  const Every every(8);
  EXPECT_EQ(test::Thinned({7}), std::vector<int>{7});
  EXPECT_TRUE(test::Thinned(std::vector<int>()).empty());
  for (const auto& [count, most, step] : std::vector<std::array<int64_t, 3>>{
           {5, 8, 5}, {8, 8, 8}, {9, 8, 8}, {70, 8, 8}, {70, 100, 8}, {70, 3, 3}}) {
    const std::vector<int64_t> some = test::Thinned(test::Numbers(0, count - 1), most);
    ASSERT_FALSE(some.empty());
    EXPECT_LT(some[0], step);
    for (size_t n = 1; n < some.size(); ++n) EXPECT_EQ(some[n] - some[n - 1], step);
    EXPECT_GE(some.back() + step, count) << "ends early";
  }
}

TEST(ThinnedTest, LoopsMeetEveryItemAndInTheEndEveryPair) {
  const Every every(8);
  std::set<std::pair<int, int>> pairs;
  for (int round = 0; round < 200; ++round) {
    std::set<int> items, others;
    for (int outer = 0; outer < 6; ++outer) {  // as many as the longer list
      for (int item : test::Thinned({0, 1, 2, 3, 4, 5})) {
        items.insert(item);
        for (int other : test::Thinned({0, 1, 2}))
          others.insert(other), pairs.insert({item, other});
      }
    }
    ASSERT_EQ(items.size(), 6u);
    ASSERT_EQ(others.size(), 3u);
  }
  EXPECT_EQ(pairs.size(), 18u);
}

}  // namespace
}  // namespace fovea
