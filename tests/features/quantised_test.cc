// Quantised K and V: every type, every way to share scales, layouts of engines, and each type with
// each other. What a kernel makes of codes is exactly the formula's number: the bits are those of
// the same numbers as f32 tensors.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "fovea/attention.h"
#include "reference/reference.h"
#include "support/check.h"
#include "support/random_problem.h"
#include "support/thin.h"

namespace fovea {
namespace {

using test::CodesSpec;
using test::ExpectMatchesReference;
using test::Kernel;
using test::kQuantisedTypes;
using test::Layout;
using test::OwnedTensor;
using test::Placement;
using test::ProblemSpec;
using test::RandomProblem;
using test::RunOn;
using test::Shared;
using test::Thinned;

std::vector<DType> AllTypes() {
  std::vector<DType> types = {DType::kF32, DType::kF16, DType::kBF16};
  types.insert(types.end(), std::begin(kQuantisedTypes), std::end(kQuantisedTypes));
  return types;
}

// Another one for every n: all ways to share, all types of scales and zeros.
CodesSpec Varied(uint64_t n) {
  constexpr DType kScales[] = {DType::kF32, DType::kF16, DType::kF32Z4, DType::kBF16};
  constexpr DType kZeros[] = {DType::kNone, DType::kF32, DType::kI32, DType::kF16,
                              DType::kU8,   DType::kI8,  DType::kBF16};
  CodesSpec s;
  s.scale = test::kAllShared[n % 7];
  s.scale_type = kScales[n % 4];
  s.zero = test::kAllShared[n / 4 % 7];
  s.zero_type = s.scale_type == DType::kF32Z4 ? DType::kNone : kZeros[n / 3 % 7];
  return s;
}

TEST(QuantisedTest, EachTypeOfKeysWithEachOfValues) {
  uint64_t n = 0;
  for (DType k_type : AllTypes()) {
    for (DType v_type : Thinned(AllTypes(), 5)) {
      ProblemSpec s;
      s.B = 2, s.Hq = 3, s.Hkv = 1, s.Tq = n % 2 == 0 ? 1 : 9, s.Tk = 75, s.dk = 32, s.dv = 96;
      s.k_codes = Varied(n), s.v_codes = Varied(n + 11);
      s.kv_lengths = n % 3 == 0 ? DType::kI32 : DType::kNone;
      s.causal = n % 5 == 0 ? Causal::kBottomRight : Causal::kNone;
      SetKType(s, k_type);
      SetVType(s, v_type);
      ExpectMatchesReference(s, n++);
    }
  }
}

TEST(QuantisedTest, HeadSizesAndGroups) {
  uint64_t n = 0;
  for (DType type : kQuantisedTypes) {
    for (int64_t d : Thinned({32, 64, 80, 96, 128, 160, 256, 288}, 3)) {
      for (int64_t group : Thinned({1, 3, 5, 7, 8, 9, 12}, 3)) {
        ProblemSpec s;
        s.Hq = 2 * group, s.Hkv = 2, s.Tq = n % 3 == 0 ? 5 : 1, s.Tk = 130, s.dk = s.dv = d;
        s.k_codes = Varied(n), s.v_codes = Varied(n + 5), s.weights = n % 4 == 0;
        SetKType(s, type);
        SetVType(s, type);
        ExpectMatchesReference(s, n++);
      }
    }
  }
}

TEST(QuantisedTest, OddHeadSizesOfWholeBytes) {
  for (DType type : {DType::kI8, DType::kU8, DType::kF8E4M3FN, DType::kF8E5M2, DType::kU4}) {
    for (int64_t d : {1, 2, 7, 15, 17, 33, 127, 129, 131}) {
      ProblemSpec s;
      s.Hq = 2, s.Tq = 3, s.Tk = 19, s.dk = d, s.dv = d + 1;
      s.k_codes = Varied(static_cast<uint64_t>(d)),
      s.v_codes = Varied(static_cast<uint64_t>(d) + 3);
      SetKType(s, type);
      SetVType(s, type);
      ExpectMatchesReference(s, static_cast<uint64_t>(d));
    }
  }
}

TEST(QuantisedTest, LayoutsAndPlaces) {
  uint64_t n = 0;
  for (DType type : kQuantisedTypes) {
    for (Layout layout : test::kLayouts) {
      for (Placement placement : test::kPlacements) {
        ProblemSpec s;
        s.B = 2, s.Hq = 4, s.Hkv = 2, s.Tq = n % 2 == 0 ? 1 : 6, s.Tk = 37, s.dk = s.dv = 32;
        s.k = s.v = {layout, placement};
        s.k_codes = Varied(n), s.v_codes = Varied(n + 1);
        SetKType(s, type);
        SetVType(s, type);
        if (n % static_cast<uint64_t>(test::GridStep()) == 0) ExpectMatchesReference(s, n);
        ++n;
      }
    }
  }
}

TEST(QuantisedTest, ManyBlocksSplitsMasksAndPackedBatches) {
  uint64_t n = 0;
  for (DType type : Thinned(test::kQuantisedTypes, 3)) {
    for (int how = 0; how < 5; ++how) {
      ProblemSpec s;
      s.B = 2, s.Hq = 4, s.Hkv = 2, s.Tq = how == 0 ? 1 : 35, s.Tk = 515, s.dk = 64, s.dv = 32;
      s.k_codes = Varied(n), s.v_codes = Varied(n + 2);
      PlanOptions options;
      if (how == 0) s.Tk = 2003, options.split_keys = 300;
      if (how == 1) s.causal = Causal::kBottomRight, s.window = {100, -1};
      if (how == 2) s.mask = test::Axes::kBHQK, s.bias = test::Axes::kQK, s.bias_removes = 0.3;
      if (how == 3) s.cu_seqlens_k = DType::kI32, s.cu_seqlens_q = DType::kI64;
      if (how == 4) s.scores = ScoreStage::kScaled, s.weights = true, s.q_type = DType::kBF16;
      SetKType(s, type);
      SetVType(s, type);
      ExpectMatchesReference(s, n++, options);
    }
  }
}

// k and v of `p` as f32 tensors of the same numbers.
void Dequantise(RandomProblem& p) {
  const Problem coded = p.problem;
  for (const bool of_k : {true, false}) {
    const TensorView& from = of_k ? coded.k : coded.v;
    if (!IsQuantised(from.dtype)) continue;
    OwnedTensor plain(DType::kF32, {from.shape[0], from.shape[1], from.shape[2], from.shape[3]});
    int64_t n = 0;
    for (int64_t b = 0; b < from.shape[0]; ++b) {
      for (int64_t h = 0; h < from.shape[1]; ++h) {
        for (int64_t j = 0; j < from.shape[2]; ++j) {
          for (int64_t c = 0; c < from.shape[3]; ++c)
            plain.Set(n++, of_k ? reference::KeyAt(coded, b, h, j, c)
                                : reference::ValueAt(coded, b, h, j, c));
        }
      }
    }
    (of_k ? p.k : p.v) = plain;
    (of_k ? p.k_scale : p.v_scale) = (of_k ? p.k_zero : p.v_zero) = OwnedTensor();
  }
  p.Refresh();
}

TEST(QuantisedTest, DequantisingBeforehandGivesTheSameBits) {
  uint64_t n = 0;
  for (DType type : kQuantisedTypes) {
    for (int64_t Tq : {1, 40}) {
      for (int how = 0; how < (HasScaleViews(type) ? 28 : 1); ++how, ++n) {
        if (n % static_cast<uint64_t>(test::GridStep()) != 0) continue;
        ProblemSpec s = test::SmallSpec();
        s.Tq = Tq, s.Tk = 200, s.dk = 64, s.dv = 96, s.weights = false;
        s.causal = how % 2 == 0 ? Causal::kBottomRight : Causal::kNone;
        s.k_codes = Varied(n), s.v_codes = Varied(n + 9);
        SetKType(s, type);
        SetVType(s, type);
        RandomProblem coded(s, test::BaseSeed() + n), plain = coded;
        plain.Refresh();
        Dequantise(plain);
        plain.out = OwnedTensor(DType::kF32, {s.B, s.Hq, s.Tq, s.dv});
        plain.lse = OwnedTensor(DType::kF32, {s.B, s.Hq, s.Tq});
        plain.Refresh();
        PlanOptions options;
        options.split_keys = 1 << 20;  // else the bytes of a type decide
        for (const Kernel& kernel : Thinned(test::Kernels(), 4)) {
          RunOn(kernel, coded, options);
          RunOn(kernel, plain, options);
          EXPECT_EQ(coded.out.Bytes(), plain.out.Bytes()) << ToString(kernel) << ToString(s);
          EXPECT_EQ(coded.lse.Bytes(), plain.lse.Bytes()) << ToString(kernel) << ToString(s);
        }
      }
    }
  }
}

// Whether got is what a row of one key with the value `want` gives.
bool Same(double got, double want) { return std::isnan(want) ? std::isnan(got) : got == want; }

TEST(QuantisedTest, EveryCodeOfVIsItsNumber) {
  // With one key, out is its value, without any rounding in between. Each byte stands at each place
  // of a unit; four scales, zeros in the middle of nowhere.
  for (DType type : kQuantisedTypes) {
    ProblemSpec s;
    s.Hq = s.Hkv = 64, s.dk = 1, s.dv = 256 * UnitElements(type);
    s.v_codes.scale = Shared::kGroup, s.v_codes.zero = Shared::kHead;
    if (HasScaleViews(type) && type != DType::kU4) s.v_codes.zero_type = DType::kF32;
    s.v_type = type;
    RandomProblem p(s, test::BaseSeed());
    for (int64_t h = 0; h < s.Hkv; ++h) {
      for (int64_t unit = 0; unit < 256; ++unit) {
        unsigned char* const bytes = p.v.Unit(h * s.dv + unit * UnitElements(type));
        // of blocks the scales, random, come first
        const int64_t first = HasScaleViews(type)                            ? 0
                              : type == DType::kQ4_1 || type == DType::kQ5_1 ? 4
                                                                             : 2;
        for (int64_t x = first; x < UnitBytes(type); ++x)
          bytes[x] = static_cast<unsigned char>(unit + (x - first) * (2 * h + 1));
      }
      if (p.v_zero.present()) p.v_zero.Set(h, std::ldexp(1.0 + 0.37 * h, static_cast<int>(h) - 20));
    }
    p.Refresh();
    for (const Kernel& kernel : test::Kernels()) {
      RunOn(kernel, p);
      int64_t wrong = 0;
      for (int64_t h = 0; h < s.Hkv; ++h) {
        for (int64_t c = 0; c < s.dv; ++c) {
          const double want = reference::ValueAt(p.problem, 0, h, 0, c);
          wrong += !Same(p.out.At({0, h, 0, c}), want);
        }
      }
      EXPECT_EQ(wrong, 0) << ToString(kernel) << " " << Name(type);
    }
  }
}

TEST(QuantisedTest, EveryCodeOfKIsItsNumber) {
  // Query c is 1 at channel c and 0 elsewhere: with one key, lse is that channel.
  for (DType type : kQuantisedTypes) {
    ProblemSpec s;
    s.Hq = s.Hkv = 16, s.Tq = s.dk = 32, s.dv = 1, s.scale = 1.0f;
    s.k_codes.scale = Shared::kChannel, s.k_codes.zero = Shared::kRow;
    if (HasScaleViews(type)) s.k_codes.zero_type = DType::kF16;
    s.k_type = type;
    RandomProblem p(s, test::BaseSeed());
    p.q.Fill([] { return 0.0; });
    for (int64_t h = 0; h < s.Hq; ++h) {
      for (int64_t c = 0; c < s.dk; ++c) p.q.SetAt({0, h, c, c}, 1);
    }
    if (UnitElements(type) < 32) {
      for (int64_t h = 0; h < s.Hkv; ++h) {
        for (int64_t c = 0; c < s.dk; ++c) {
          unsigned char* const unit = p.k.Unit(h * s.dk + c);
          *unit = static_cast<unsigned char>(h * s.dk + c);
          if (!std::isfinite(p.k.Get(h * s.dk + c))) *unit = 0;  // times 0 it is NaN
        }
      }
    }
    p.Refresh();
    for (const Kernel& kernel : test::Kernels()) {
      RunOn(kernel, p);
      int64_t wrong = 0;
      for (int64_t h = 0; h < s.Hkv; ++h) {
        for (int64_t c = 0; c < s.dk; ++c)
          wrong += !Same(p.lse.At({0, h, c}), reference::KeyAt(p.problem, 0, h, 0, c));
      }
      EXPECT_EQ(wrong, 0) << ToString(kernel) << " " << Name(type);
    }
  }
}

TEST(QuantisedTest, ZerosFarOutOfRangeDoNotCancel) {
  for (DType type : {DType::kI8, DType::kU8, DType::kU4, DType::kI4High}) {
    for (int64_t Tq : {1, 12}) {
      ProblemSpec s;
      s.Hq = 2, s.Hkv = 1, s.Tq = Tq, s.Tk = 90, s.dk = s.dv = 64;
      s.k_codes.zero_type = s.v_codes.zero_type = DType::kF32;
      s.k_type = s.v_type = type;
      RandomProblem p(s, test::BaseSeed());
      for (int64_t j = 0; j < s.Tk; ++j) {
        // around a million; numbers of about 1, of which K's are near each other
        p.k_zero.Set(j, 1e6 + static_cast<double>(j)), p.v_zero.Set(j, -1e6);
        p.k_scale.Set(j, 1e-6), p.v_scale.Set(j, 1e-6);
      }
      p.Refresh();
      ExpectMatchesReference(p);
    }
  }
}

TEST(QuantisedTest, NanScaleSpoilsTheRowsThatSeeIt) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (int how = 0; how < 4; ++how) {  // K or V; in a visible or a removed key
    for (int64_t Tq : {1, 20}) {
      ProblemSpec s;
      s.Hq = 4, s.Hkv = 2, s.Tq = Tq, s.Tk = 70, s.dk = 32, s.dv = 64;
      s.mask = test::Axes::kK, s.mask_allows = 1;
      s.k_type = DType::kI8, s.v_type = DType::kU4;
      RandomProblem p(s, test::BaseSeed());
      (how % 2 == 0 ? p.k_scale : p.v_scale).SetAt({0, 1, 33, 0}, nan);
      p.mask.Set(33, how < 2 ? 1 : 0);
      p.Refresh();
      ExpectMatchesReference(p);
    }
  }
}

TEST(QuantisedTest, ScalesInTheBytesOfTheCodes) {
  // Slots of K codes, K scale, V codes, V scale, side by side, at an odd address; and rows that
  // begin with a scale, four unused bytes, then codes.
  for (int how = 0; how < 2; ++how) {
    const int64_t d = 96, T = 53, H = 2;
    const int64_t slot = how == 0 ? 2 * (d + 4) : 2 * (d + 8);
    std::vector<unsigned char> memory(static_cast<size_t>(1 + H * T * slot), 0xff);
    test::Random random(test::BaseSeed());
    ProblemSpec s;
    s.Hq = 2 * H, s.Hkv = H, s.Tq = 3, s.Tk = T, s.dk = s.dv = d;
    RandomProblem p(s, test::BaseSeed());
    const auto view = [&](int64_t offset, DType type, int64_t channels) {
      TensorView v;
      v.data = memory.data() + 1 + offset, v.dtype = type, v.rank = 4;
      const int64_t shape[] = {1, H, T, channels}, stride[] = {0, T * slot, slot, UnitBytes(type)};
      for (int a = 0; a < 4; ++a) v.shape[a] = shape[a], v.stride[a] = stride[a];
      return v;
    };
    const int64_t codes = how == 0 ? 0 : 8, scale = how == 0 ? d : 0;
    Problem& problem = p.problem;
    problem.k = view(codes, DType::kI8, d), problem.k_scale = view(scale, DType::kF32, 1);
    problem.v = view(slot / 2 + codes, DType::kI8, d);
    problem.v_scale = view(slot / 2 + scale, DType::kF32, 1);
    for (int64_t n = 0; n < 2 * H * T; ++n) {
      unsigned char* const row = memory.data() + 1 + n * slot / 2;
      for (int64_t c = 0; c < d; ++c) row[codes + c] = static_cast<unsigned char>(random.Bits());
      const float x = static_cast<float>(0.01 + 0.01 * random.Uniform());
      std::memcpy(row + scale, &x, sizeof(x));
    }
    const auto expected = reference::Forward(problem);
    for (const Kernel& kernel : test::Kernels()) {
      p.ResetOutputs();
      const Status status = Attention(problem, test::Options(kernel), SerialExecutor());
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_TRUE(test::Matches(problem, expected)) << ToString(kernel) << " layout " << how;
    }
  }
}

TEST(QuantisedTest, ScalesBetweenTheGroupsOfARow) {
  // Rows of groups: scale, zero, codes of g channels, again and again.
  for (DType type : {DType::kU8, DType::kU4High, DType::kI8, DType::kI4}) {
    for (int64_t g : {4, 16, 32, 64, 160}) {
      const int64_t groups = g == 160 ? 2 : 3, d = g * groups, T = 45, H = 2;
      const int64_t step = 8 + BytesOf(type, g), row = groups * step + 3;
      std::vector<unsigned char> memory(static_cast<size_t>(1 + 2 * H * T * row), 0xff);
      test::Random random(test::BaseSeed());
      ProblemSpec s;
      s.Hq = 2 * H, s.Hkv = H, s.Tq = g % 3 == 0 ? 1 : 7, s.Tk = T, s.dk = s.dv = d;
      RandomProblem p(s, test::BaseSeed());
      for (int64_t n = 0; n < 2 * H * T; ++n) {
        for (int64_t x = 0; x < groups; ++x) {
          unsigned char* const group = memory.data() + 1 + n * row + x * step;
          const float numbers[] = {static_cast<float>(0.01 + 0.01 * random.Uniform()),
                                   static_cast<float>(10 * random.Normal())};
          std::memcpy(group, numbers, sizeof(numbers));
          for (int64_t c = 8; c < step; ++c) group[c] = static_cast<unsigned char>(random.Bits());
        }
      }
      const auto view = [&](int64_t offset, DType of, int64_t channels, int64_t stride) {
        TensorView v;
        v.data = memory.data() + 1 + offset, v.dtype = of, v.rank = 4;
        const int64_t shape[] = {1, H, T, channels}, strides[] = {0, T * row, row, stride};
        for (int a = 0; a < 4; ++a) v.shape[a] = shape[a], v.stride[a] = strides[a];
        return v;
      };
      Problem& problem = p.problem;
      const int64_t of_v = H * T * row;
      problem.k = view(8, type, d, 1), problem.v = view(of_v + 8, type, d, 1);
      problem.k_scale = view(0, DType::kF32, groups, step);
      problem.k_zero = view(4, DType::kF32, groups, step);
      problem.v_scale = view(of_v, DType::kF32, groups, step);
      problem.v_zero = view(of_v + 4, DType::kF32, groups, step);
      problem.k_group_stride = problem.v_group_stride = step;
      const auto expected = reference::Forward(problem);
      for (const Kernel& kernel : test::Kernels()) {
        p.ResetOutputs();
        const Status status = Attention(problem, test::Options(kernel), SerialExecutor());
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_TRUE(test::Matches(problem, expected)) << ToString(kernel) << " " << Name(type);
      }
    }
  }
}

}  // namespace
}  // namespace fovea
