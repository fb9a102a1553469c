// f16 and bf16 in q, k, v and out: inputs are widened exactly, everything between is f32, and only
// the stored output is rounded. So results are held to the bound of f32 against the stored inputs,
// plus that one rounding (Matches does), not to a looser one of 16 bits. Where q, k and v are bf16,
// kernels with dot products of bf16 take part, which round weights too; what they alone promise is
// in products_test.cc.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "fovea/attention.h"
#include "reference/element.h"
#include "support/check.h"
#include "support/executors.h"
#include "support/random_problem.h"
#include "support/thin.h"

namespace fovea {
namespace {

using test::Axes;
using test::Kernel;
using test::Layout;
using test::OwnedTensor;
using test::Placement;
using test::ProblemSpec;
using test::RandomProblem;

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr DType kAll[] = {DType::kF32, DType::kF16, DType::kBF16};
constexpr DType kNarrow[] = {DType::kF16, DType::kBF16};
constexpr DType ProblemSpec::* kTypesOf[] = {&ProblemSpec::q_type, &ProblemSpec::k_type,
                                             &ProblemSpec::v_type, &ProblemSpec::out_type};

double ValueOf(DType type, uint16_t bits) {
  return type == DType::kF16 ? reference::FromF16(bits) : reference::FromBF16(bits);
}
double Largest(DType type) { return type == DType::kF16 ? 65504 : 0x1.FEp127; }

ProblemSpec WithTypes(ProblemSpec s, DType type) {
  for (DType ProblemSpec::* which : kTypesOf) s.*which = type;
  return s;
}

ProblemSpec Spec() {
  ProblemSpec s;
  s.B = 2, s.Hq = 4, s.Hkv = 2, s.Tq = 19, s.Tk = 70, s.dk = 20, s.dv = 18, s.weights = true;
  return s;
}

void RunOn(const Kernel& kernel, RandomProblem& p, const PlanOptions& options = {}) {
  p.ResetOutputs();
  const Status status = Attention(p.problem, test::Options(kernel, options), SerialExecutor());
  ASSERT_TRUE(status.ok()) << ToString(kernel) << ": " << status.message();
}

void Check(const ProblemSpec& spec, uint64_t number, const PlanOptions& options = {}) {
  const uint64_t seed = test::BaseSeed() + number;
  SCOPED_TRACE("seed " + std::to_string(seed));
  RandomProblem p(spec, seed);
  test::ExpectMatchesReference(p, options);
}

// ---- every type of every tensor ----

TEST(TypesTest, EveryCombinationOfTypes) {
  // 4: no power of 3, so each tensor still has each type
  for (int64_t n : test::Thinned(test::Numbers(0, 80), 4)) {
    for (int64_t Tq : test::Thinned({1, 6})) {
      ProblemSpec s;
      s.Hq = 3, s.Tq = Tq, s.Tk = 45, s.dk = 20, s.dv = 37, s.causal = Causal::kBottomRight;
      int64_t rest = n;
      for (int which = 0; which < 4; ++which, rest /= 3) s.*kTypesOf[which] = kAll[rest % 3];
      PlanOptions options;
      options.split_keys = Tq == 1 ? 16 : 0;
      Check(s, static_cast<uint64_t>(n), options);
    }
  }
}

TEST(TypesTest, EveryHeadSizeFromOneToForty) {
  for (DType type : kNarrow) {
    for (int64_t d : test::Thinned(test::Numbers(1, 40), 5)) {
      ProblemSpec s;
      s.Hq = 2, s.Tq = 3, s.Tk = 11, s.dk = d, s.dv = 41 - d;
      Check(WithTypes(s, type), static_cast<uint64_t>(d));
    }
  }
}

TEST(TypesTest, ManyBlocksTilesAndSplits) {
  for (DType type : kNarrow) {
    ProblemSpec s;
    s.Hq = 4, s.Hkv = 2, s.Tq = test::GridStep() > 1 ? 35 : 75, s.Tk = 515, s.dk = 64, s.dv = 80,
    s.causal = Causal::kBottomRight;
    Check(WithTypes(s, type), 1);
    s.Tq = 1, s.Tk = 2003;
    Check(WithTypes(s, type), 2);
    s.Hkv = 4, s.dk = 128, s.dv = 128;  // rows that fall into one set of L1 in 16 bits
    s.k.layout = s.v.layout = Layout::kPage;
    s.Tk = 150;
    Check(WithTypes(s, type), 3);
  }
}

TEST(TypesTest, EveryLayoutAndPlaceOfEachTensor) {
  for (DType type : kNarrow) {
    for (Layout layout : test::kLayouts) {
      for (Placement placement : test::kPlacements) {
        for (test::Storage ProblemSpec::* which : test::Thinned(
                 {&ProblemSpec::q, &ProblemSpec::k, &ProblemSpec::v, &ProblemSpec::out})) {
          ProblemSpec s;
          s.B = 2, s.Hq = 4, s.Hkv = 2, s.Tq = 3, s.Tk = 17, s.dk = 9, s.dv = 10, s.lse = false;
          s.*which = {layout, placement};
          Check(WithTypes(s, type), 1);
        }
      }
    }
  }
}

TEST(TypesTest, RowsAtAnyByteAddressUpToAnInaccessiblePage) {
  // Rows of size·d + 1 bytes put elements at odd addresses, whole vectors and tails alike; one byte
  // before or behind them is no memory.
  for (DType type : kAll) {
    for (Placement placement : {Placement::kBeforeGuard, Placement::kAfterGuard}) {
      for (int64_t d : {1, 16, 35}) {
        for (int64_t Tq : test::Thinned({1, 9})) {
          ProblemSpec s;
          s.Hq = 2, s.Hkv = 1, s.Tq = Tq, s.Tk = 37, s.dk = s.dv = d;
          RandomProblem p(WithTypes(s, type), test::BaseSeed());
          const auto expected = reference::Forward(p.problem);
          std::vector<test::Memory> memories;
          const auto moved = [&](auto view) {
            const int64_t bytes = SizeOf(type) * d, rows = view.shape[1] * view.shape[2];
            const test::Memory& memory = memories.emplace_back(
                static_cast<size_t>(rows * (bytes + 1) - (placement == Placement::kBeforeGuard)),
                placement, 1);
            unsigned char* const first =
                memory.data() + (placement == Placement::kBeforeGuard ? 0 : 1);
            for (int64_t r = 0; r < rows; ++r) {
              const char* from = static_cast<const char*>(view.data) +
                                 r / view.shape[2] * view.stride[1] +
                                 r % view.shape[2] * view.stride[2];
              std::memcpy(first + r * (bytes + 1), from, static_cast<size_t>(bytes));
            }
            view.data = first;
            view.stride[1] = view.shape[2] * (bytes + 1);
            view.stride[2] = bytes + 1;
            return view;
          };
          p.problem.q = moved(p.problem.q);
          p.problem.k = moved(p.problem.k);
          p.problem.v = moved(p.problem.v);
          p.problem.out = moved(p.problem.out);
          for (const Kernel& kernel : test::KernelsFor(p.problem)) {
            const Status status = Attention(p.problem, test::Options(kernel), SerialExecutor());
            ASSERT_TRUE(status.ok()) << status.message();
            EXPECT_TRUE(
                test::Matches(p.problem, expected, reference::WeightTolerance(kernel.product)))
                << ToString(kernel) << " " << Name(type) << " d " << d;
          }
        }
      }
    }
  }
}

TEST(TypesTest, WideningBeforehandGivesTheSameBits) {
  // The same values as f32 tensors: widening is exact, and sums go in the same order.
  for (DType type : kNarrow) {
    for (int64_t Tq : {1, 40}) {
      ProblemSpec s = Spec();
      s.Tq = Tq, s.Tk = 300, s.weights = false, s.causal = Causal::kBottomRight;
      s.q_type = s.k_type = s.v_type = type;
      RandomProblem narrow(s, test::BaseSeed());
      s.q_type = s.k_type = s.v_type = DType::kF32;
      RandomProblem wide(s, test::BaseSeed());
      const auto widen = [](const OwnedTensor& from, OwnedTensor& to) {
        for (int64_t n = 0; n < from.size(); ++n) to.Set(n, from.Get(n));
      };
      widen(narrow.q, wide.q);
      widen(narrow.k, wide.k);
      widen(narrow.v, wide.v);
      PlanOptions options;
      options.split_keys = 1 << 20;  // else the bytes of a type decide
      for (const Kernel& kernel : test::Thinned(test::Kernels(), 4)) {
        RunOn(kernel, narrow, options);
        RunOn(kernel, wide, options);
        EXPECT_EQ(narrow.out.Bytes(), wide.out.Bytes())
            << ToString(kernel) << " " << Name(type) << " Tq " << Tq;
        EXPECT_EQ(narrow.lse.Bytes(), wide.lse.Bytes())
            << ToString(kernel) << " " << Name(type) << " Tq " << Tq;
      }
    }
  }
}

// ---- every value ----

// With one key, out is its value and lse its score, without any rounding in between. A value for
// each of 2^16 patterns.
constexpr int64_t kHeads = 64, kChannels = 1024;

ProblemSpec OneKey() {
  ProblemSpec s;
  s.Hq = s.Hkv = kHeads, s.dk = 1, s.dv = kChannels, s.scale = 1.0f;
  return s;
}

TEST(EveryValueTest, OfVIsWidenedExactly) {
  for (DType type : kNarrow) {
    for (Layout layout : {Layout::kDense, Layout::kSparse}) {
      ProblemSpec s = OneKey();
      s.v_type = type, s.v.layout = layout;
      RandomProblem p(s, 1);
      for (int64_t n = 0; n < p.v.size(); ++n) {
        const uint16_t bits = static_cast<uint16_t>(n);
        const int64_t head = n / kChannels, channel = n % kChannels;
        char* const at = static_cast<char*>(p.v.mutable_view().data) + head * p.v.view().stride[1] +
                         channel * p.v.view().stride[3];
        std::memcpy(at, &bits, sizeof(bits));
      }
      for (const Kernel& kernel : test::Thinned(test::Kernels(), 2)) {
        RunOn(kernel, p);
        for (int64_t n = 0; n < p.v.size(); ++n) {
          const double want = ValueOf(type, static_cast<uint16_t>(n)), got = p.out.Get(n);
          ASSERT_TRUE(got == want || (std::isnan(got) && std::isnan(want)))
              << ToString(kernel) << " " << Name(type) << " " << std::hex << n << std::dec << " = "
              << got << ", expected " << want;
        }
      }
    }
  }
}

TEST(EveryValueTest, OfQAndKIsWidenedExactly) {
  // Head h has value h in one channel of 33, so that it stands in vectors and in tails; a one in
  // the other tensor picks it.
  const int64_t heads = 1 << 14, d = 33;
  for (DType type : kNarrow) {
    for (bool in_q : {false, true}) {
      for (int64_t part : test::Thinned(test::Numbers(0, 3))) {
        ProblemSpec s;
        s.Hq = s.Hkv = heads, s.dk = d, s.scale = 1.0f;
        (in_q ? s.q_type : s.k_type) = type;
        RandomProblem p(s, 1);
        p.q.Fill([] { return 0; });
        p.k.Fill([] { return 0; });
        for (int64_t h = 0; h < heads; ++h) {
          const double value = ValueOf(type, static_cast<uint16_t>(part * heads + h));
          (in_q ? p.q : p.k).SetAt({0, h, 0, h % d}, std::isfinite(value) ? value : 0);
          (in_q ? p.k : p.q).SetAt({0, h, 0, h % d}, 1);
        }
        for (const Kernel& kernel : test::Kernels()) {
          RunOn(kernel, p);
          for (int64_t h = 0; h < heads; ++h) {
            ASSERT_EQ(p.lse.Get(h), (in_q ? p.q : p.k).At({0, h, 0, h % d}))
                << ToString(kernel) << " " << Name(type) << (in_q ? " q " : " k ") << std::hex
                << part * heads + h;
          }
        }
      }
    }
  }
}

TEST(EveryValueTest, OfOutIsRoundedToNearestEven) {
  // Each value, the middle between it and its successor, and the floats beside the middle: NaN,
  // infinities, subnormals and overflow among them.
  for (DType type : kNarrow) {
    for (Layout layout : {Layout::kDense, Layout::kSparse}) {
      for (int shift : test::Thinned({0, 1, 2, 3})) {
        ProblemSpec s = OneKey();
        s.out_type = type, s.out.layout = layout;
        RandomProblem p(s, 1);
        for (int64_t n = 0; n < p.v.size(); ++n) {
          const uint16_t bits = static_cast<uint16_t>(n);
          double x = ValueOf(type, bits);
          if (shift > 0 && std::isfinite(x)) {
            double next = ValueOf(type, static_cast<uint16_t>(bits + 1));
            if (!std::isfinite(next)) next = 2 * x - ValueOf(type, static_cast<uint16_t>(bits - 1));
            x = (x + next) / 2;
            if (shift == 2)
              x = static_cast<double>(
                  std::nextafter(static_cast<float>(x), std::numeric_limits<float>::infinity()));
            if (shift == 3)
              x = static_cast<double>(
                  std::nextafter(static_cast<float>(x), -std::numeric_limits<float>::infinity()));
          }
          p.v.Set(n, x);
        }
        std::vector<double> wanted;
        for (double x : p.v.Dense()) wanted.push_back(reference::Rounded(type, x));
        for (const Kernel& kernel : test::Kernels()) {
          RunOn(kernel, p);
          for (int64_t n = 0; n < p.v.size(); ++n) {
            const double want = wanted[static_cast<size_t>(n)], got = p.out.Get(n);
            ASSERT_TRUE(got == want || (std::isnan(got) && std::isnan(want)))
                << ToString(kernel) << " " << Name(type) << " of " << p.v.Get(n) << " = " << got
                << ", expected " << want;
          }
        }
        EXPECT_TRUE(p.OutputPaddingUntouched());
      }
    }
  }
}

TEST(EveryValueTest, RoundedIsWhatTheTestsStore) {
  // Two implementations that know nothing of each other.
  test::Random random(test::BaseSeed());
  for (DType type : kAll) {
    for (int64_t n = 0; n < 100000; n += test::GridStep()) {
      const uint32_t bits = static_cast<uint32_t>(random.Bits());
      float x;
      std::memcpy(&x, &bits, sizeof(x));
      if (std::isnan(x)) continue;
      char stored[4];
      test::EncodeElement(type, static_cast<double>(x), stored);
      ASSERT_EQ(test::DecodeElement(type, stored), reference::Rounded(type, static_cast<double>(x)))
          << Name(type) << " " << x;
    }
  }
}

// ---- sizes of numbers ----

TEST(MagnitudeTest, ScoresBeyondTheLargestF16StayFinite) {
  for (DType type : kNarrow) {
    ProblemSpec s = Spec();
    s.scale = 1.0f;
    RandomProblem p(WithTypes(s, type), test::BaseSeed());
    for (OwnedTensor* tensor : {&p.q, &p.k}) {
      for (int64_t n = 0; n < tensor->size(); ++n) tensor->Set(n, tensor->Get(n) * 300);
    }
    const auto expected = reference::Forward(p.problem);
    double largest = 0;
    for (double x : expected.scores) largest = std::max(largest, std::fabs(x));
    ASSERT_GT(largest, 65504);
    test::ExpectMatchesReference(p);
    for (const Kernel& kernel : test::KernelsFor(p.problem)) {
      RunOn(kernel, p);
      for (double x : p.out.Dense())
        ASSERT_TRUE(std::isfinite(x)) << ToString(kernel) << " " << Name(type);
      for (double x : p.lse.Dense())
        ASSERT_TRUE(std::isfinite(x)) << ToString(kernel) << " " << Name(type);
    }
  }
}

TEST(MagnitudeTest, SubnormalAndLargestInputs) {
  // From the smallest subnormal to the largest number of each type, in q or in k, and a scale that
  // makes scores near 1.
  for (DType type : kNarrow) {
    const double smallest = type == DType::kF16 ? 0x1p-24 : 0x1p-133;
    for (double size : {smallest, 4 * smallest, 300 * smallest, 2000 * smallest, 1.0,
                        Largest(type) / 1000, Largest(type)}) {
      for (bool in_q : test::Thinned({0, 1})) {
        ProblemSpec s = Spec();
        s.scale = static_cast<float>(std::min(1 / size, 0x1p126));
        s = WithTypes(s, type);
        // Where dot products of bf16 flush subnormal numbers, small K and V are no part of this:
        // f32 values leave them out, and beside a small q values are of usual size.
        if (type == DType::kBF16 && !in_q && size < 0x1p-100) s.v_type = DType::kF32;
        RandomProblem p(s, test::BaseSeed());
        test::Random random(test::BaseSeed());
        const auto sized = [&](double most) {
          return std::min(size, most) * std::fmin(1, std::fmax(-1, random.Normal()));
        };
        (in_q ? p.q : p.k).Fill([&] { return sized(kInf); });
        // Σ p·v is no larger than Tk times that
        p.v.Fill([&] { return in_q && size < 1 ? random.Normal() : sized(1e30); });
        SCOPED_TRACE(std::string(Name(type)) + " 2^" + std::to_string(std::log2(size)) +
                     (in_q ? " q" : " k"));
        test::ExpectMatchesReference(p);
      }
    }
  }
}

TEST(MagnitudeTest, TheLargestValuesAreReturned) {
  for (DType type : kNarrow) {
    ProblemSpec s = Spec();
    s.Tk = 1, s.weights = false;
    for (double sign : {1.0, -1.0}) {
      RandomProblem p(WithTypes(s, type), test::BaseSeed());
      p.v.Fill([&] { return sign * Largest(type); });
      for (const Kernel& kernel : test::KernelsFor(p.problem)) {
        RunOn(kernel, p);
        for (double x : p.out.Dense())
          ASSERT_EQ(x, sign * Largest(type)) << ToString(kernel) << " " << Name(type);
      }
    }
  }
}

TEST(MagnitudeTest, ConstantVGivesTheConstant) {
  // To the bit: f32 sums of a few hundred keys err by far less than half a unit of 16 bits.
  for (DType type : kNarrow) {
    for (double constant : test::Thinned({1.0, -3.7, 1000.0, 3e-5, 6e-8}, 3)) {
      ProblemSpec s = Spec();
      s.weights = false, s.causal = Causal::kTopLeft, s.Tk = 259, s.Tq = 40;
      RandomProblem p(WithTypes(s, type), test::BaseSeed());
      p.v.Fill([&] { return constant; });
      for (const Kernel& kernel : test::KernelsFor(p.problem)) {
        RunOn(kernel, p);
        for (double x : p.out.Dense())
          ASSERT_EQ(x, p.v.Get(0)) << ToString(kernel) << " " << Name(type);
      }
    }
  }
}

// ---- NaN and infinities ----

TEST(NonFiniteTypesTest, BadValuesInRemovedKeysNeverReachTheRow) {
  for (DType type : kNarrow) {
    for (double bad : {kNaN, kInf, -kInf, Largest(type)}) {
      for (bool causal : {false, true}) {
        ProblemSpec s = Spec();
        s.Tq = s.Tk = 70;
        if (causal) {
          s.causal = Causal::kTopLeft, s.query_offset = -30;  // the last 30 keys see nobody
        } else {
          s.mask = Axes::kK;
        }
        for (int64_t Tq : test::Thinned({int64_t{1}, s.Tk})) {
          s.Tq = Tq;
          RandomProblem p(WithTypes(s, type), test::BaseSeed());
          if (!causal) p.mask.Fill([n = 0]() mutable { return n++ < 40 ? 1.0 : 0.0; });
          for (int64_t b = 0; b < s.B; ++b) {
            for (int64_t h = 0; h < s.Hkv; ++h) {
              for (int64_t j = 40; j < s.Tk; ++j) {
                p.k.SetAt({b, h, j, j % s.dk}, bad);
                p.v.SetAt({b, h, j, j % s.dv}, bad);
              }
            }
          }
          SCOPED_TRACE(std::string(Name(type)) + " " + std::to_string(bad));
          test::ExpectMatchesReference(p);
          for (const Kernel& kernel : test::KernelsFor(p.problem)) {
            RunOn(kernel, p);
            for (double x : p.out.Dense()) ASSERT_TRUE(std::isfinite(x)) << ToString(kernel);
          }
        }
      }
    }
  }
}

TEST(NonFiniteTypesTest, SomeRowsSeeTheBadKeyAndOthersDoNot) {
  // Keys in whole vectors of a row and in its tail; for one query in each head, two heads share K
  // and V and a mask tells them apart.
  for (DType type : kNarrow) {
    for (double bad : {kNaN, kInf, -kInf}) {
      for (int64_t channel : {2, 17}) {
        for (int64_t key : test::Thinned({0, 18, 69})) {
          for (int64_t Tq : test::Thinned({1, 70})) {
            ProblemSpec s = Spec();
            s.Tq = Tq, s.Tk = 70, s.mask = Axes::kHQK, s.weights = false;
            RandomProblem p(WithTypes(s, type), test::BaseSeed());
            p.mask.Fill([] { return 1; });
            for (int64_t h = 0; h < s.Hq; ++h) {
              for (int64_t i = 0; i < Tq; ++i) p.mask.SetAt({h, i, key}, (h + i) % 2 == 0 ? 1 : 0);
            }
            for (int64_t h = 0; h < s.Hkv; ++h) p.v.SetAt({0, h, key, channel}, bad);
            for (const Kernel& kernel : test::KernelsFor(p.problem)) {
              RunOn(kernel, p);
              for (int64_t row = 0; row < s.B * s.Hq * Tq; ++row) {
                const bool sees = row / (s.Hq * Tq) == 0 && (row / Tq % s.Hq + row % Tq) % 2 == 0;
                for (int64_t c = 0; c < s.dv; ++c) {
                  ASSERT_EQ(std::isfinite(p.out.Get(row * s.dv + c)), !(sees && c == channel))
                      << ToString(kernel) << " " << Name(type) << " key " << key << " row " << row
                      << " channel " << c << " " << bad;
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST(NonFiniteTypesTest, VisibleNaNInAnyInputReachesItsRows) {
  for (DType type : kNarrow) {
    ProblemSpec s = Spec();
    s.weights = false;
    for (const Kernel& kernel : test::KernelsFor(RandomProblem(WithTypes(s, type), 1).problem)) {
      RandomProblem q(WithTypes(s, type), test::BaseSeed()),
          k(WithTypes(s, type), test::BaseSeed()), v(WithTypes(s, type), test::BaseSeed());
      q.q.SetAt({1, 2, 3, 19}, kNaN);
      k.k.SetAt({1, 1, 33, 19}, kNaN);
      v.v.SetAt({1, 1, 33, 17}, kNaN);
      RunOn(kernel, q);
      RunOn(kernel, k);
      RunOn(kernel, v);
      for (int64_t row = 0; row < s.B * s.Hq * s.Tq; ++row) {
        const int64_t b = row / (s.Hq * s.Tq), h = row / s.Tq % s.Hq, i = row % s.Tq;
        ASSERT_EQ(std::isnan(q.lse.Get(row)), b == 1 && h == 2 && i == 3)
            << ToString(kernel) << " " << Name(type);
        ASSERT_EQ(std::isnan(k.lse.Get(row)), b == 1 && h >= 2)
            << ToString(kernel) << " " << Name(type);
        ASSERT_FALSE(std::isnan(v.lse.Get(row))) << ToString(kernel) << " " << Name(type);
        for (int64_t c = 0; c < s.dv; ++c) {
          ASSERT_EQ(std::isnan(q.out.Get(row * s.dv + c)), b == 1 && h == 2 && i == 3)
              << ToString(kernel) << " " << Name(type);
          ASSERT_EQ(std::isnan(k.out.Get(row * s.dv + c)), b == 1 && h >= 2)
              << ToString(kernel) << " " << Name(type);
          ASSERT_EQ(std::isnan(v.out.Get(row * s.dv + c)), b == 1 && h >= 2 && c == 17)
              << ToString(kernel) << " " << Name(type);
        }
      }
    }
  }
}

}  // namespace
}  // namespace fovea
