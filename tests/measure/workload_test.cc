// Workloads of the benchmarks: their arithmetic, their names, their tensors.
#include "measure/workload.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "measure/roofline.h"
#include "measure/workload_tensors.h"
#include "reference/element.h"
#include "reference/reference.h"

namespace fovea::measure {
namespace {

Workload Parsed(const std::string& text) {
  Workload workload;
  std::string error;
  EXPECT_TRUE(ParseWorkload(text, &workload, &error)) << error;
  return workload;
}

// More queries than keys, as many, and fewer (but too many for decode, whose copies of K and V take
// a second to make); sequences and groups of heads; dv < dk.
const std::vector<std::string> kShapes = {"1,2,9x7,3", "2,4/2,300,4", "1,2,20x290,6,2",
                                          "1,1,17x270,4,causal", "2,2,11,5,causal"};
const std::vector<std::string> kModifiers = {"softcap",
                                             "alibi",
                                             "sinks",
                                             "mask",
                                             "padmask",
                                             "trimask",
                                             "bandmask",
                                             "bias",
                                             "nan",
                                             "distbias",
                                             "keybias",
                                             "mla",
                                             "window=6",
                                             "window=1+mask",
                                             "softcap+alibi+sinks+bias+padmask+window=20",
                                             "ranges",
                                             "headscales",
                                             "ranges+headscales+mask+window=9",
                                             "trimask+additive",
                                             "padmask+additive",
                                             "mask+additive+alibi",
                                             "pages=4",
                                             "pages=16+alibi+window=7"};

TEST(WorkloadTest, CountsVisiblePairs) {
  EXPECT_EQ(Parsed("1,2,3x5,8").Pairs(), 2 * 15);
  EXPECT_EQ(Parsed("1,2,3x5,8,causal").Pairs(), 2 * (3 + 4 + 5));
  EXPECT_EQ(Parsed("1,1,5x3,8,causal").Pairs(), 1 + 2 + 3);  // the first two queries see nothing
  EXPECT_EQ(Parsed("1,1,2,8,4").Flops(), 2 * 4 * (8 + 4));
  EXPECT_EQ(Parsed("P1").Flops(), 4.0 * 12 * 512 * 512 * 64);
  EXPECT_EQ(Parsed("D1").KvBytes(), 8.0 * 4096 * 256 * 4);

  EXPECT_EQ(Parsed("1,2,4,8+trimask").Pairs(), 2 * (1 + 2 + 3 + 4));
  EXPECT_EQ(Parsed("1,1,5,8,causal+window=2").Pairs(), 1 + 4 * 2);
  EXPECT_EQ(Parsed("1,1,2x5,8+window=3").Pairs(), 3 + 3);
  EXPECT_EQ(Parsed("3,1,2x8,4+padmask").Pairs(), 3 * 2 * 4);  // at most half of the keys
  EXPECT_EQ(Parsed("X3").Pairs(), 8 * 1024 * (1024 - 100));
  EXPECT_EQ(Parsed("X16").Pairs(), 8 * (256 * 257 / 2 + (4096 - 256) * 256));
  EXPECT_EQ(Parsed("1,1,8,4+ranges").Pairs(), 4 * 2 * 2);
  EXPECT_EQ(Parsed("1,2,1x8,4+ranges").Pairs(), 2 * 2);
  EXPECT_EQ(Parsed("1,2,1x8,4+ranges").KvBytes(), 2.0 * 2 * 8 * 4);
  EXPECT_EQ(Parsed("X13").KvBytes(), 512.0 * 576 * 4);
  EXPECT_EQ(Parsed("1,1,3x20,8+window=5").KvBytes(), 7.0 * 16 * 4);
}

TEST(WorkloadTest, CountsTheReferencesVisiblePairs) {
  for (const std::string& shape : kShapes) {
    for (const std::string& modifiers : kModifiers) {
      const Workload w = Parsed(shape + "+" + modifiers);
      const WorkloadTensors tensors(w, 1);
      ASSERT_TRUE(tensors.ok());
      const Problem problem = tensors.At(0);
      double visible = 0;
      for (int64_t b = 0; b < w.B; ++b) {
        for (int64_t h = 0; h < w.Hq; ++h) {
          for (int64_t i = 0; i < w.Tq; ++i) {
            for (int64_t j = 0; j < w.Tk; ++j)
              visible += reference::Visible(problem, b, h, i, j) ? 1 : 0;
          }
        }
      }
      EXPECT_EQ(w.Pairs(), visible) << w.name;
    }
  }
}

TEST(WorkloadTest, MasksAndBiasesStandForPositions) {
  for (const auto& pair : std::vector<std::pair<std::string, std::string>>{
           {"1,2,9x7,3+trimask", "1,2,9x7,3,causal"},
           {"1,2,20x290,3+trimask", "1,2,20x290,3,causal"},
           {"1,2,300,3+bandmask", "1,2,300,3,causal+window=256"},
           {"1,2,20x290,3+bandmask", "1,2,20x290,3+window=256"},
           {"1,3,18x23,3+distbias", "1,3,18x23,3+alibi"},
           {"1,4,9x7,3,causal+distbias", "1,4,9x7,3,causal+alibi"},
       }) {
    const Workload w = Parsed(pair.first);
    const WorkloadTensors dense(w, 1), sparse(Parsed(pair.second), 1);
    for (int64_t h = 0; h < w.Hq; ++h) {
      for (int64_t i = 0; i < w.Tq; ++i) {
        const reference::Row row = reference::ForwardRow(dense.At(0), 0, h, i),
                             other = reference::ForwardRow(sparse.At(0), 0, h, i);
        ASSERT_EQ(row.visible, other.visible) << w.name << ", query " << i;
        // A slope times a distance below 2^9 rounds once when it is stored as f32.
        for (size_t j = 0; j < row.scores.size(); ++j) {
          if (!row.visible[j]) continue;
          ASSERT_NEAR(row.scores[j], other.scores[j], std::ldexp(512.0, -24)) << w.name;
        }
      }
    }
  }
}

TEST(WorkloadTest, TheRandomMaskRemovesATenth) {
  const double pairs = Parsed("1,1,1000x2000,4+mask").Pairs() / 2e6;
  EXPECT_NEAR(pairs, 0.9, 6 * std::sqrt(0.9 * 0.1 / 2e6));
}

TEST(WorkloadTest, ParsesCustomShapes) {
  const Workload w = Parsed("2,8/2,16x32,64,48,causal");
  EXPECT_EQ(w.B, 2);
  EXPECT_EQ(w.Hq, 8);
  EXPECT_EQ(w.Hkv, 2);
  EXPECT_EQ(w.Tq, 16);
  EXPECT_EQ(w.Tk, 32);
  EXPECT_EQ(w.dk, 64);
  EXPECT_EQ(w.dv, 48);
  EXPECT_TRUE(w.causal);
  EXPECT_FALSE(w.ModifiesScores());
}

TEST(WorkloadTest, TypesStandBehindNamesAndShapes) {
  EXPECT_EQ(Parsed("P1").type, DType::kF32);
  for (const DType type : {DType::kBF16, DType::kF16}) {
    const Workload w = Parsed(std::string("1,4/2,9x7,8,6+softcap+") + Name(type));
    EXPECT_EQ(w.type, type);
    EXPECT_EQ(w.modifiers, "softcap");
    EXPECT_EQ(w.KvBytes(), 2 * 7 * (8 + 6) * 2);
    EXPECT_EQ(BaseOf(w).type, DType::kF32);
    const WorkloadTensors tensors(w, 1);
    const Problem problem = tensors.At(0);
    for (const TensorView& x : {problem.q, problem.k, problem.v, TensorView(problem.out)})
      EXPECT_EQ(x.dtype, type);
    // Rounded from the values that f32 gets.
    const WorkloadTensors f32(Parsed("1,4/2,9x7,8,6"), 1);
    for (int64_t i = 0; i < 9; ++i) {
      EXPECT_EQ(reference::At(problem.q, 0, 3, i, 5),
                reference::Rounded(type, reference::At(f32.At(0).q, 0, 3, i, 5)));
    }
  }
  Workload w;
  std::string error;
  EXPECT_FALSE(ParseWorkload("P1+bf16+f16", &w, &error));
}

TEST(WorkloadTest, ParsesModifiers) {
  const Workload w = Parsed("P2+softcap+alibi+sinks+headscales+keybias+nan+ranges+window=100");
  EXPECT_TRUE(w.HasShapeOf(Parsed("P2")));
  EXPECT_TRUE(w.causal);
  EXPECT_EQ(w.softcap, 20);
  EXPECT_TRUE(w.alibi);
  EXPECT_TRUE(w.sinks);
  EXPECT_TRUE(w.head_scales);
  EXPECT_TRUE(w.documents);
  EXPECT_EQ(w.bias, BiasKind::kKeys);
  EXPECT_EQ(w.mask, MaskKind::kPadding);
  EXPECT_TRUE(w.nan);
  EXPECT_EQ(w.window, 100);
  EXPECT_EQ(w.modifiers, "softcap+alibi+sinks+headscales+keybias+nan+ranges+window=100");
  EXPECT_EQ(Parsed("X1+bias").modifiers, "trimask+bias");
  for (const std::string& modifiers : kModifiers) {
    EXPECT_EQ(Parsed("P1+" + modifiers).ModifiesScores(),
              modifiers != "mla" && modifiers != "pages=4")
        << modifiers;
  }
}

TEST(WorkloadTest, RefusesOtherText) {
  for (const char* text : {"",
                           "P0",
                           "1,2,3",
                           "1,2,3,4,5,6",
                           "0,1,1,1",
                           "1,0,1,1",
                           "1,2/0,1,1",
                           "1,1,1x2x3,1",
                           "1,1,-1,1",
                           "1,1,1,1,casual",
                           "a,b,c,d",
                           "1,3/2,1,1",
                           "99999999,1,1,1",
                           "P2+",
                           "P2+steam",
                           "+softcap",
                           "P2+softcap+softcap",
                           "P2+ranges+ranges",
                           "P2+mask+padmask",
                           "P2+nan+mask",
                           "P2+bias+keybias",
                           "P2+window",
                           "P2+window=",
                           "P2+window=0",
                           "P2+window=3+window=4",
                           "X3+mask",
                           "1,1,4,2,3+mla",
                           "X18",
                           "D1+pages=0",
                           "D1+pages=16+pages=16",
                           "D1+pages=16+nan",
                           "D1+nan+pages=16",
                           "1,1,1,1+window=-1",
                           "1,1,16777216,1+mask"}) {
    Workload workload;
    std::string error;
    EXPECT_FALSE(ParseWorkload(text, &workload, &error)) << text;
    EXPECT_FALSE(error.empty());
  }
}

TEST(WorkloadTest, NamesAreWhole) {
  EXPECT_EQ(NamedWorkloads().size(), 6u + 3u + 1u + 18u);
  std::set<std::string> names;
  for (const Workload& named : NamedWorkloads()) {
    EXPECT_TRUE(names.insert(named.name).second) << named.name;
    EXPECT_TRUE(named.B > 0 && named.Hkv > 0 && named.Hq % named.Hkv == 0 && named.Tq > 0 &&
                named.Tk > 0)
        << named.name;
    EXPECT_TRUE(named.dk > 0 && named.dv > 0) << named.name;
    const Workload parsed = Parsed(named.name);
    EXPECT_TRUE(parsed.HasShapeOf(named)) << named.name;
    EXPECT_EQ(parsed.Flops(), named.Flops()) << named.name;
  }
  EXPECT_EQ(WorkloadSet("variants").size(), 18u);
  const std::vector<Workload> modifiers = WorkloadSet("modifiers");
  ASSERT_EQ(modifiers.size(), 14u);
  for (size_t n = 0; n < modifiers.size(); ++n) {
    EXPECT_TRUE(modifiers[n].HasShapeOf(Parsed("P2"))) << modifiers[n].name;
    EXPECT_EQ(modifiers[n].ModifiesScores(), n > 0) << modifiers[n].name;
  }
  EXPECT_TRUE(WorkloadSet("P2").empty());
}

TEST(WorkloadTest, BasesDifferInWhatIsMeasured) {
  for (const auto& pair : std::vector<std::pair<std::string, std::string>>{
           {"P2", "P2"},
           {"P2+softcap", "P2"},
           {"P2+softcap+alibi", "P2"},
           {"P2+ranges", "P2"},
           {"P2+nan", "P2+padmask"},
           {"P2+sinks+nan+alibi", "P2+sinks+padmask+alibi"},
           {"X0", "X0"},
           {"X13", "X0"},
           {"X4+sinks", "X4"},
           {"1,1,4,8,causal+window=2", "1,1,4,8,causal"},
           {"1,1,4,8", "1,1,4,8"}}) {
    EXPECT_EQ(BaseOf(Parsed(pair.first)).name, pair.second);
  }
  EXPECT_EQ(BaseOf(Parsed("P2+nan")).Flops(), Parsed("P2+nan").Flops());
}

TEST(WorkloadTest, TensorsAreNormalAndRepeatable) {
  std::vector<float> values(40000), again(40000);
  FillNormal(values.data(), values.size(), 5);
  FillNormal(again.data(), again.size(), 5);
  EXPECT_EQ(values, again);
  double sum = 0, squares = 0;
  for (const float x : values) sum += x, squares += x * x;
  EXPECT_NEAR(sum / 40000, 0, 0.03);  // 6 standard errors
  EXPECT_NEAR(squares / 40000, 1, 0.05);
}

TEST(WorkloadTest, ShortFloatsAreTheNearest) {
  constexpr size_t kCount = 40000;
  std::vector<float> values(kCount);
  FillNormal(values.data(), kCount, 5);
  std::vector<uint16_t> bf16(kCount), f16(kCount);
  FillNormal(bf16.data(), DType::kBF16, kCount, 5);
  FillNormal(f16.data(), DType::kF16, kCount, 5);
  for (size_t n = 0; n < kCount; ++n) {
    // Half a unit in the last place: 8 and 11 bits of precision; f16 has no exponent below −14.
    EXPECT_LE(std::fabs(reference::FromBF16(bf16[n]) - values[n]),
              std::ldexp(1.0, std::ilogb(values[n]) - 8));
    EXPECT_LE(std::fabs(reference::FromF16(f16[n]) - values[n]),
              std::ldexp(1.0, std::max(std::ilogb(values[n]), -14) - 11));
  }
}

TEST(WorkloadTest, TensorsHaveTheTypeOfTheWorkload) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    Workload w = Parsed("2,4/2,17x20,8,6,causal");
    w.type = type;
    EXPECT_EQ(w.KvBytes(), 2.0 * 2 * 20 * (8 + 6) * static_cast<double>(SizeOf(type)));
    const WorkloadTensors tensors(w, 1);
    const Problem problem = tensors.At(0);
    for (const TensorView& view : {problem.q, problem.k, problem.v, TensorView(problem.out)}) {
      EXPECT_EQ(view.dtype, type);
      EXPECT_EQ(view.stride[3], SizeOf(type));
    }
    double squares = 0;
    for (const TensorView& view : {problem.q, problem.k, problem.v}) {
      for (const double x : reference::ReadAll(view)) squares += x * x;
    }
    const double count = 2 * 4 * 17 * 8 + 2 * 2 * 20 * (8 + 6);
    EXPECT_NEAR(squares / count, 1, 6 * std::sqrt(2 / count));  // of a χ² distribution
  }
}

TEST(WorkloadTest, NanStandsBehindThePaddingMaskAlone) {
  for (const char* text : {"2,4/2,17x20,8,6+nan", "1,2,20,8,6+mla+nan", "1,2,1x3,1100+nan"}) {
    const Workload w = Parsed(text);
    const WorkloadTensors tensors(w, 1);
    const Problem problem = tensors.At(tensors.copies() - 1);
    for (const TensorView& view : {problem.k, problem.v}) {
      for (int64_t b = 0; b < w.B; ++b) {
        for (int64_t h = 0; h < w.Hkv; ++h) {
          for (int64_t j = 0; j < w.Tk; ++j) {
            const bool visible = reference::Visible(problem, b, h, 0, j);
            for (int64_t c = 0; c < view.shape[3]; ++c)
              ASSERT_EQ(std::isnan(reference::At(view, b, h, j, c)), !visible) << text;
          }
        }
      }
    }
  }
}

TEST(WorkloadTest, PagesLieInNoOrderAndEachOnce) {
  const Workload w = Parsed("3,4/2,2x100,8+pages=16+kv=i8");
  EXPECT_EQ(w.KvBytes(), Parsed("3,4/2,2x100,8+kv=i8").KvBytes());
  const WorkloadTensors tensors(w, 1);
  const Problem problem = tensors.At(0);
  EXPECT_EQ(problem.k.shape[0], 3 * 7);
  EXPECT_EQ(problem.k_scale.shape[0], 3 * 7);
  EXPECT_EQ(problem.v.shape[2], 16);
  EXPECT_EQ(reference::SizesOf(problem).Tk, 100);
  std::set<double> pages;
  bool in_order = true;
  for (int64_t b = 0; b < 3; ++b) {
    for (int64_t n = 0; n < 7; ++n) {
      const double page = reference::At(problem.pages.table, b, n);
      EXPECT_TRUE(page >= 0 && page < 21 && pages.insert(page).second);
      in_order = in_order && page == static_cast<double>(7 * b + n);
    }
  }
  EXPECT_FALSE(in_order);
}

TEST(WorkloadTest, ValuesLieInKeys) {
  const WorkloadTensors tensors(Parsed("2,4/2,20,8,6+mla"), 1);
  const Problem problem = tensors.At(0);
  EXPECT_EQ(problem.v.data, problem.k.data);
  EXPECT_EQ(problem.v.shape[3], 6);
  for (int64_t c = 0; c < 6; ++c)
    EXPECT_EQ(reference::At(problem.v, 1, 1, 19, c), reference::At(problem.k, 1, 1, 19, c));
  EXPECT_EQ(tensors.kv_bytes(), 2u * 2 * 20 * 8 * 4) << "K alone";
}

TEST(WorkloadTest, VariantsOfAWorkloadShareItsTensors) {
  const WorkloadTensors base(Parsed("1,2,8,4"), 1);
  const WorkloadTensors masked(Parsed("1,2,8,4+mask"), 1, &base),
      poisoned(Parsed("1,2,8,4+nan"), 1, &base), wider(Parsed("1,2,8,5"), 1, &base);
  EXPECT_EQ(masked.At(0).q.data, base.At(0).q.data);
  EXPECT_EQ(masked.At(0).v.data, base.At(0).v.data);
  EXPECT_EQ(masked.At(0).out.data, base.At(0).out.data);
  EXPECT_NE(poisoned.At(0).q.data, base.At(0).q.data);
  EXPECT_NE(wider.At(0).q.data, base.At(0).q.data);
  EXPECT_EQ(reference::ReadAll(poisoned.At(0).q), reference::ReadAll(base.At(0).q));
}

TEST(WorkloadTest, DecodeRotatesOverCopies) {
  const Workload prefill = Parsed("1,1,32,8"), decode = Parsed("1,8,1x65536,128");
  EXPECT_FALSE(prefill.IsDecode());
  EXPECT_TRUE(decode.IsDecode());
  EXPECT_EQ(WorkloadTensors(prefill, 1).copies(), 1);
  const WorkloadTensors tensors(decode, 1);
  ASSERT_TRUE(tensors.ok());
  EXPECT_GE(tensors.kv_bytes(), StreamBytes());
  if (tensors.copies() > 1) {
    EXPECT_NE(tensors.At(0).k.data, tensors.At(1).k.data);
  }
  EXPECT_EQ(tensors.At(0).k.data, tensors.At(tensors.copies()).k.data);
}

}  // namespace
}  // namespace fovea::measure
