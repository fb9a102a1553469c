// f16 and bf16 in q, k, v and out: inputs are widened exactly, everything between is f32, and only
// the stored output is rounded. So results are held to the bound of f32 against the stored inputs,
// plus that one rounding (Matches does), not to a looser one of 16 bits. Where q, k and v are bf16,
// kernels with dot products of bf16 take part, which round weights too; what they alone promise is
// in products_test.cc.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "fovea/attention.h"
#include "support/check.h"
#include "support/executors.h"
#include "support/random_problem.h"
#include "support/thin.h"

namespace fovea {
namespace {

using test::ExpectMatchesReference;
using test::Kernel;
using test::kFloatTypes;
using test::kNarrowTypes;
using test::Layout;
using test::OwnedTensor;
using test::Placement;
using test::ProblemSpec;
using test::RandomProblem;
using test::RunOn;
using test::SmallSpec;
using test::WithTypes;

constexpr DType ProblemSpec::* kTypesOf[] = {&ProblemSpec::q_type, &ProblemSpec::k_type,
                                             &ProblemSpec::v_type, &ProblemSpec::out_type};

TEST(TypesTest, EveryCombinationOfTypes) {
  // 4: no power of 3, so each tensor still has each type
  for (int64_t n : test::Thinned(test::Numbers(0, 80), 4)) {
    for (int64_t Tq : test::Thinned({1, 6})) {
      ProblemSpec s;
      s.Hq = 3, s.Tq = Tq, s.Tk = 45, s.dk = 20, s.dv = 37, s.causal = Causal::kBottomRight;
      int64_t rest = n;
      for (int which = 0; which < 4; ++which, rest /= 3) s.*kTypesOf[which] = kFloatTypes[rest % 3];
      PlanOptions options;
      options.split_keys = Tq == 1 ? 16 : 0;
      ExpectMatchesReference(s, static_cast<uint64_t>(n), options);
    }
  }
}

TEST(TypesTest, EveryHeadSizeFromOneToForty) {
  for (DType type : kNarrowTypes) {
    for (int64_t d : test::Thinned(test::Numbers(1, 40), 5)) {
      ProblemSpec s;
      s.Hq = 2, s.Tq = 3, s.Tk = 11, s.dk = d, s.dv = 41 - d;
      ExpectMatchesReference(WithTypes(s, type), static_cast<uint64_t>(d));
    }
  }
}

TEST(TypesTest, ManyBlocksTilesAndSplits) {
  for (DType type : kNarrowTypes) {
    ProblemSpec s;
    s.Hq = 4, s.Hkv = 2, s.Tq = test::GridStep() > 1 ? 35 : 75, s.Tk = 515, s.dk = 64, s.dv = 80,
    s.causal = Causal::kBottomRight;
    ExpectMatchesReference(WithTypes(s, type), 1);
    s.Tq = 1, s.Tk = 2003;
    ExpectMatchesReference(WithTypes(s, type), 2);
    s.Hkv = 4, s.dk = 128, s.dv = 128;  // rows that fall into one set of L1 in 16 bits
    s.k.layout = s.v.layout = Layout::kPage;
    s.Tk = 150;
    ExpectMatchesReference(WithTypes(s, type), 3);
  }
}

TEST(TypesTest, EveryLayoutAndPlaceOfEachTensor) {
  for (DType type : kNarrowTypes) {
    for (Layout layout : test::kLayouts) {
      for (Placement placement : test::kPlacements) {
        for (test::Storage ProblemSpec::* which : test::Thinned(
                 {&ProblemSpec::q, &ProblemSpec::k, &ProblemSpec::v, &ProblemSpec::out})) {
          ProblemSpec s;
          s.B = 2, s.Hq = 4, s.Hkv = 2, s.Tq = 3, s.Tk = 17, s.dk = 9, s.dv = 10, s.lse = false;
          s.*which = {layout, placement};
          ExpectMatchesReference(WithTypes(s, type), 1);
        }
      }
    }
  }
}

TEST(TypesTest, RowsAtAnyByteAddressUpToAnInaccessiblePage) {
  // Rows of size·d + 1 bytes put elements at odd addresses, whole vectors and tails alike; one byte
  // before or behind them is no memory.
  for (DType type : kFloatTypes) {
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

// `from` as f32. With `lanes`: of each group of twice as many channels the even ones come first.
void Widen(const OwnedTensor& from, int64_t channels, int64_t lanes, OwnedTensor& to) {
  for (int64_t n = 0; n < from.size(); ++n) {
    const int64_t c = n % channels, x = lanes == 0 ? c : c % (2 * lanes);
    const int64_t place = lanes == 0 ? c : c - x + x / 2 + (x % 2) * lanes;
    to.Set(n - c + place, from.Get(n));
  }
}

// Floats in a vector of a target.
int64_t Lanes(Target target) {
  switch (target) {
    case Target::kAvx2:
      return 8;
    case Target::kAvx512:
    case Target::kAvx512Bf16:
    case Target::kAvx512Amx:
      return 16;
    default:
      return 4;
  }
}

TEST(TypesTest, WideningBeforehandGivesTheSameBits) {
  // The same values as f32 tensors: widening is exact, and sums go in the same order. The row
  // engine sums even and odd channels of bf16 keys apart, as it does halves of f32 ones.
  for (DType type : kNarrowTypes) {
    for (int64_t Tq : {1, 40}) {
      ProblemSpec s = SmallSpec();
      s.Tq = Tq, s.Tk = 300, s.weights = false, s.causal = Causal::kBottomRight;
      s.dk = 64;
      s.q_type = s.k_type = s.v_type = type;
      RandomProblem narrow(s, test::BaseSeed());
      s.q_type = s.k_type = s.v_type = DType::kF32;
      RandomProblem wide(s, test::BaseSeed());
      Widen(narrow.v, s.dv, 0, wide.v);
      PlanOptions options;
      options.split_keys = 1 << 20;  // else the bytes of a type decide
      for (const Kernel& kernel : test::Thinned(test::Kernels(), 4)) {
        const bool apart = kernel.engine == Engine::kRow && type == DType::kBF16;
        Widen(narrow.q, s.dk, apart ? Lanes(kernel.target) : 0, wide.q);
        Widen(narrow.k, s.dk, apart ? Lanes(kernel.target) : 0, wide.k);
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

}  // namespace
}  // namespace fovea
