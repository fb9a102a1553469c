// The library against every case of tests/data/conformance, on every usable target and with each
// engine forced; and against the reference when the cases are made harder: larger scores, tiny
// tiles and splits, NaN wherever nobody may look.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "fovea/fovea.h"
#include "reference/element.h"
#include "reference/reference.h"
#include "support/cases.h"
#include "support/check.h"
#include "support/compare.h"
#include "support/configurations.h"
#include "support/manifest.h"
#include "support/thin.h"

namespace fovea::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class Conformance : public ::testing::TestWithParam<CaseId> {
 protected:
  void SetUp() override {
    case_ = GetParam().Load();
    if (!case_.unavailable.empty()) GTEST_SKIP() << case_.unavailable;
  }

  // Computes `problem` in every configuration and compares with the reference under the contract's
  // precision.
  void ExpectReferenceEverywhere(Problem problem, const reference::ForwardResult& want,
                                 const PlanOptions& options, bool with_weights) const {
    ForEachConfiguration(problem, options, [&](const PlanOptions& configuration) {
      const Outputs outputs(&problem, case_.token_major, with_weights, problem.q.dtype);
      const Status status = PlanAndRun(problem, configuration);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_TRUE(Matches(problem, want, reference::WeightTolerance(configuration.product)));
    });
  }

  bool HasCodes() const {
    return IsQuantised(case_.problem.k.dtype) || IsQuantised(case_.problem.v.dtype);
  }

  Case case_;
};

// ---- the stored answers

using ConformanceAnswers = Conformance;

// With out of f32, and of the type of q.
TEST_P(ConformanceAnswers, StoredAnswer) {
  SCOPED_TRACE(case_.about);
  Problem problem = case_.problem;
  const bool with_weights = case_.expect.count("weights") != 0;
  const auto expect_answer = [&](const Outputs& outputs) {
    EXPECT_TRUE(Near("out", outputs.out(), case_.expect.at("out")));
    EXPECT_TRUE(Near("lse", outputs.lse(), case_.expect.at("lse")));
    if (with_weights) {
      EXPECT_TRUE(Near("weights", outputs.weights(), case_.expect.at("weights")));
    }
  };
  for (const DType out_type : {DType::kF32, problem.q.dtype}) {
    ForEachConfiguration(problem, {}, [&](const PlanOptions& configuration) {
      const Outputs outputs(&problem, case_.token_major, with_weights, out_type);
      const Status status = PlanAndRun(problem, configuration);
      ASSERT_TRUE(status.ok()) << status.message();
      expect_answer(outputs);
    });

    SCOPED_TRACE("one-shot");
    const Outputs outputs(&problem, case_.token_major, with_weights, out_type);
    const Status status = Attention(problem);
    ASSERT_TRUE(status.ok()) << status.message();
    expect_answer(outputs);
    if (problem.q.dtype == DType::kF32) break;
  }
}

// ---- the same cases, harder

TEST_P(Conformance, Weights) {
  ExpectReferenceEverywhere(case_.problem, reference::Forward(case_.problem), {},
                            /*with_weights=*/true);
}

TEST_P(Conformance, LogitsTimes1000) {
  Problem problem = case_.problem;
  const float scale =
      problem.score.scale
          ? *problem.score.scale
          : static_cast<float>(1 / std::sqrt(static_cast<double>(problem.q.shape[3])));
  problem.score.scale = 1000 * scale;
  ExpectReferenceEverywhere(problem, reference::Forward(problem), {}, /*with_weights=*/true);
}

TEST_P(Conformance, SmallTiles) {
  const reference::ForwardResult want = reference::Forward(case_.problem);
  const std::pair<int32_t, int32_t> sizes[] = {{1, 4}, {2, 3}, {3, 2}, {4, 1}};
  for (const auto& [tile_rows, block_keys] : Thinned(sizes)) {
    SCOPED_TRACE("tile_rows " + std::to_string(tile_rows) + ", block_keys " +
                 std::to_string(block_keys));
    PlanOptions options;
    options.tile_rows = tile_rows;
    options.block_keys = block_keys;
    ExpectReferenceEverywhere(case_.problem, want, options, /*with_weights=*/false);
  }
}

TEST_P(Conformance, SmallSplits) {
  const reference::ForwardResult want = reference::Forward(case_.problem);
  for (const int64_t split_keys : Thinned({5, 64})) {
    SCOPED_TRACE("split_keys " + std::to_string(split_keys));
    PlanOptions options;
    options.split_keys = split_keys;
    ExpectReferenceEverywhere(case_.problem, want, options, /*with_weights=*/false);
  }
}

// What the case lacks is added: sinks, ALiBi, a softcap, a 16-bit bias, shorter lengths. Few cases
// combine these.
TEST_P(Conformance, WithEverythingElse) {
  const reference::Sizes n = reference::SizesOf(case_.problem);
  Problem problem = case_.problem;
  Score& score = problem.score;
  std::vector<float> sinks, slopes;
  for (int64_t h = 0; h < n.Hq; ++h) {
    sinks.push_back(h % 3 == 2 ? -kInf : static_cast<float>(h) / 2);
    slopes.push_back(std::ldexp(1.0f, static_cast<int>(-h - 1)));
  }
  std::vector<int32_t> q_lengths, kv_lengths;
  for (int64_t b = 0; b < n.B; ++b) {
    q_lengths.push_back(static_cast<int32_t>(n.Tq - (b + 1) % 3 * (n.Tq > 2 ? 1 : 0)));
    kv_lengths.push_back(static_cast<int32_t>(n.Tk - (b + 2) % 4 * (n.Tk > 4 ? 1 : 0)));
  }
  // −0.5 in f16: on the sink it has no effect, so it shows
  const std::vector<uint16_t> bias(static_cast<size_t>(n.Hq), 0xb800);
  if (!score.sinks.present()) score.sinks = View(sinks.data(), {n.Hq});
  if (!score.alibi_slopes.present()) score.alibi_slopes = View(slopes.data(), {n.Hq});
  if (!score.bias.present())
    score.bias = View(static_cast<const void*>(bias.data()), DType::kF16, {n.Hq, 1, 1});
  if (!score.q_lengths.present()) score.q_lengths = View(q_lengths.data(), {n.B});
  if (!score.kv_lengths.present()) score.kv_lengths = View(kv_lengths.data(), {n.B});
  if (score.softcap == 0) score.softcap = 6;
  ExpectReferenceEverywhere(problem, reference::Forward(problem), {}, /*with_weights=*/true);
}

// ---- removed pairs

// Dense copies of K and V to be spoilt: the views of a case may share memory.
class Spoilt {
 public:
  explicit Spoilt(const Problem& source)
      : problem(source),
        sizes_(reference::SizesOf(source)),
        k_(Copied(source.k)),
        v_(Copied(source.v)) {
    problem.k = k_.view();
    problem.v = v_.view();
  }
  Spoilt(const Spoilt&) = delete;
  Spoilt& operator=(const Spoilt&) = delete;

  void SetKey(const reference::Place& place, int64_t hkv, float value) {
    SetRow(k_, place, hkv, sizes_.dk, value);
  }
  // The first `channels` of a row of V.
  void SetValue(const reference::Place& place, int64_t hkv, int64_t channels, float value) {
    SetRow(v_, place, hkv, channels, value);
  }

  Problem problem;

 private:
  static OwnedTensor Copied(const TensorView& view) {
    OwnedTensor copy(view.dtype, std::vector<int64_t>(view.shape, view.shape + view.rank));
    copy.Fill([values = reference::ReadAll(view), n = size_t{0}]() mutable { return values[n++]; });
    return copy;
  }
  static void SetRow(OwnedTensor& tensor, const reference::Place& place, int64_t hkv,
                     int64_t channels, float value) {
    for (int64_t c = 0; c < channels; ++c)
      tensor.SetAt({place.batch, hkv, place.row, c}, static_cast<double>(value));
  }

  reference::Sizes sizes_;
  OwnedTensor k_, v_;
};

// Which rows see which keys. A key of a page that sequences share is one for each of them.
class Sight {
 public:
  explicit Sight(const Problem& problem) : n(reference::SizesOf(problem)), problem_(problem) {
    for (int64_t b = 0; b < n.B; ++b) {
      for (int64_t h = 0; h < n.Hq; ++h) {
        for (int64_t i = 0; i < n.Tq; ++i) {
          for (int64_t j = 0; j < n.Tk; ++j)
            visible_.push_back(reference::Visible(problem, b, h, i, j));
        }
      }
    }
  }

  bool Sees(int64_t b, int64_t h, int64_t i, int64_t j) const {
    return visible_[static_cast<size_t>(((b * n.Hq + h) * n.Tq + i) * n.Tk + j)];
  }
  // The query rows, over all heads of the group, that see key j of a KV head.
  int64_t Viewers(int64_t b, int64_t hkv, int64_t j) const {
    const int64_t group = n.Hq / n.Hkv;
    int64_t viewers = 0;
    for (int64_t h = hkv * group; h < (hkv + 1) * group; ++h) {
      for (int64_t i = 0; i < n.Tq; ++i) viewers += Sees(b, h, i, j) ? 1 : 0;
    }
    return viewers;
  }
  bool Exists(int64_t b, int64_t j) const {
    return j < reference::SequenceOf(problem_, b).kv_length;
  }
  reference::Place PlaceOf(int64_t b, int64_t j) const {
    return reference::PlaceOf(problem_, reference::SequenceOf(problem_, b), b, j);
  }
  // Calls f(b, j) for all keys that lie where key j of sequence b does: that one, and those of
  // sequences that share its page.
  template <class F>
  void ForEachSharing(int64_t b, int64_t j, const F& f) const {
    if (!problem_.pages.present()) return f(b, j);
    const reference::Place place = PlaceOf(b, j);
    for (int64_t other = 0; other < n.B; ++other) {
      for (int64_t key = 0; key < n.Tk && Exists(other, key); ++key) {
        const reference::Place there = PlaceOf(other, key);
        if (there.batch == place.batch && there.row == place.row) f(other, key);
      }
    }
  }
  // Calls f(place, hkv) for the rows of K and V that nobody sees.
  template <class F>
  void ForEachDeadPlace(const F& f) const {
    const int64_t batches = problem_.k.shape[0], rows = problem_.k.shape[2];
    std::vector<bool> seen(static_cast<size_t>(batches * n.Hkv * rows));
    const auto number = [&](const reference::Place& place, int64_t hkv) {
      return static_cast<size_t>((place.batch * n.Hkv + hkv) * rows + place.row);
    };
    for (int64_t b = 0; b < n.B; ++b) {
      for (int64_t j = 0; j < n.Tk && Exists(b, j); ++j) {
        for (int64_t hkv = 0; hkv < n.Hkv; ++hkv) {
          if (Viewers(b, hkv, j) != 0) seen[number(PlaceOf(b, j), hkv)] = true;
        }
      }
    }
    for (int64_t batch = 0; batch < batches; ++batch) {
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t hkv = 0; hkv < n.Hkv; ++hkv) {
          if (!seen[number({batch, row}, hkv)]) f(reference::Place{batch, row}, hkv);
        }
      }
    }
  }
  // The key with the fewest viewers, one at least, but not seen by all rows; −1 if there is none.
  int64_t RarelySeenKey(int64_t b, int64_t hkv) const {
    const int64_t rows = n.Hq / n.Hkv * n.Tq;
    int64_t best = -1, fewest = rows;
    for (int64_t j = 0; j < n.Tk; ++j) {
      const int64_t viewers = Viewers(b, hkv, j);
      if (viewers > 0 && viewers < fewest) best = j, fewest = viewers;
    }
    return best;
  }

  const reference::Sizes n;

 private:
  const Problem& problem_;
  std::vector<bool> visible_;
};

TEST_P(Conformance, NanInDeadKeys) {
  if (HasCodes()) GTEST_SKIP() << "codes hold no such numbers";
  const Sight sight(case_.problem);
  Spoilt spoilt(case_.problem);
  sight.ForEachDeadPlace([&](const reference::Place& place, int64_t hkv) {
    spoilt.SetKey(place, hkv, kNan);
    spoilt.SetValue(place, hkv, sight.n.dv, kNan);
  });
  Problem problem = spoilt.problem;
  ForEachConfiguration(problem, {}, [&](const PlanOptions& configuration) {
    const Outputs outputs(&problem, case_.token_major, /*with_weights=*/false, problem.q.dtype);
    const Status status = PlanAndRun(problem, configuration);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(Near("out", outputs.out(), case_.expect.at("out")));
    EXPECT_TRUE(Near("lse", outputs.lse(), case_.expect.at("lse")));
  });
}

// In each KV head one key that some rows see and others do not: what it holds reaches the former
// and not the latter.
TEST_P(Conformance, NanInRemovedPairs) {
  if (HasCodes()) GTEST_SKIP() << "codes hold no such numbers";
  const Sight sight(case_.problem);
  Spoilt key_and_value(case_.problem), one_channel(case_.problem);
  for (int64_t b = 0; b < sight.n.B; ++b) {
    for (int64_t hkv = 0; hkv < sight.n.Hkv; ++hkv) {
      const int64_t j = sight.RarelySeenKey(b, hkv);
      if (j < 0) continue;
      const reference::Place place = sight.PlaceOf(b, j);
      key_and_value.SetKey(place, hkv, kNan);
      key_and_value.SetValue(place, hkv, sight.n.dv, kNan);
      one_channel.SetValue(place, hkv, 1, kNan);
    }
  }
  for (const Spoilt* spoilt : Thinned({&key_and_value, &one_channel})) {
    SCOPED_TRACE(spoilt == &one_channel ? "NaN in channel 0 of v" : "NaN in k and v");
    ExpectReferenceEverywhere(spoilt->problem, reference::Forward(spoilt->problem), {},
                              /*with_weights=*/true);
  }
}

TEST_P(Conformance, InfinityInRemovedPairs) {
  if (HasCodes()) GTEST_SKIP() << "codes hold no such numbers";
  const Sight sight(case_.problem);
  Spoilt spoilt(case_.problem);
  reference::ForwardResult want = reference::Forward(case_.problem);
  for (int64_t b = 0; b < sight.n.B; ++b) {
    for (int64_t hkv = 0; hkv < sight.n.Hkv; ++hkv) {
      const int64_t j = sight.RarelySeenKey(b, hkv);
      if (j < 0) continue;
      spoilt.SetKey(sight.PlaceOf(b, j), hkv, kInf);
      spoilt.SetValue(sight.PlaceOf(b, j), hkv, sight.n.dv, kInf);
      sight.ForEachSharing(b, j, [&](int64_t of, int64_t key) {
        const int64_t group = sight.n.Hq / sight.n.Hkv;
        for (int64_t h = hkv * group; h < (hkv + 1) * group; ++h) {
          for (int64_t i = 0; i < sight.n.Tq; ++i) {
            // Rows that do see an infinite key or value are the textbook's affair: only the others
            // are looked at.
            if (sight.Sees(of, h, i, key))
              want.relative_tolerance[static_cast<size_t>((of * sight.n.Hq + h) * sight.n.Tq + i)] =
                  kInf;
          }
        }
      });
    }
  }
  ExpectReferenceEverywhere(spoilt.problem, want, {}, /*with_weights=*/false);
}

// ---- the same problem said in other words

// `x` without its leading axes of size one.
TensorView DropLeadingOnes(TensorView x) {
  while (x.rank > 1 && x.shape[0] == 1) {
    for (int a = 1; a < x.rank; ++a) {
      x.shape[a - 1] = x.shape[a];
      x.stride[a - 1] = x.stride[a];
    }
    --x.rank;
  }
  return x;
}

TEST_P(Conformance, EquivalentArgumentsGiveTheSameBits) {
  const Score& score = case_.problem.score;
  const int64_t B = case_.problem.q.shape[0];
  std::vector<int64_t> q_lengths, kv_lengths, offsets;
  for (int64_t b = 0; b < B; ++b) {
    const reference::Sequence sequence = reference::SequenceOf(case_.problem, b);
    q_lengths.push_back(sequence.q_length);
    kv_lengths.push_back(sequence.kv_length + (case_.problem.ring ? sequence.position : 0));
    offsets.push_back(sequence.offset);
  }
  Problem plain = case_.problem, other = case_.problem;
  if (score.bias.present()) other.score.bias = DropLeadingOnes(score.bias);
  if (score.mask.present()) other.score.mask = DropLeadingOnes(score.mask);
  if (score.q_lengths.present()) other.score.q_lengths = View(q_lengths.data(), {B});
  if (score.kv_lengths.present()) other.score.kv_lengths = View(kv_lengths.data(), {B});
  other.score.query_offset.reset();
  other.score.query_offsets = View(offsets.data(), {B});
  // an explicit offset decides, whatever the alignment
  if (score.causal != Causal::kNone) other.score.causal = Causal::kTopLeft;

  ForEachConfiguration(plain, {}, [&](const PlanOptions& configuration) {
    const Outputs want(&plain, case_.token_major, /*with_weights=*/true, plain.q.dtype),
        got(&other, case_.token_major, /*with_weights=*/true, other.q.dtype);
    ASSERT_TRUE(PlanAndRun(plain, configuration).ok());
    const Status status = PlanAndRun(other, configuration);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(got.SameBits(want));
  });
}

INSTANTIATE_TEST_SUITE_P(Onnx, ConformanceAnswers, ::testing::ValuesIn(CasesOf("onnx", IsValid)),
                         CaseTestName);
INSTANTIATE_TEST_SUITE_P(Edge, ConformanceAnswers, ::testing::ValuesIn(CasesOf("edge", IsValid)),
                         CaseTestName);
INSTANTIATE_TEST_SUITE_P(Extra, ConformanceAnswers, ::testing::ValuesIn(CasesOf("extra", IsValid)),
                         CaseTestName);
INSTANTIATE_TEST_SUITE_P(KvCache, ConformanceAnswers,
                         ::testing::ValuesIn(CasesOf("kvcache", IsValid)), CaseTestName);
// The derived tests compute the reference again and again.
INSTANTIATE_TEST_SUITE_P(Onnx, Conformance, ::testing::ValuesIn(Thinned(CasesOf("onnx", IsValid))),
                         CaseTestName);
INSTANTIATE_TEST_SUITE_P(Edge, Conformance, ::testing::ValuesIn(Thinned(CasesOf("edge", IsValid))),
                         CaseTestName);
INSTANTIATE_TEST_SUITE_P(Extra, Conformance,
                         ::testing::ValuesIn(Thinned(CasesOf("extra", IsValid))), CaseTestName);
INSTANTIATE_TEST_SUITE_P(KvCache, Conformance,
                         ::testing::ValuesIn(Thinned(CasesOf("kvcache", IsValid))), CaseTestName);

TEST(ConformanceCases, AreAllThere) {
  EXPECT_EQ(CasesOf("onnx", IsValid).size(), 64u);
  EXPECT_EQ(CasesOf("edge", IsValid).size() + CasesOf("edge", IsRefused).size(), 248u);
  EXPECT_EQ(CasesOf("extra", IsValid).size(), 45u);
  EXPECT_EQ(CasesOf("extra", IsRefused).size(), 5u);
  EXPECT_EQ(CasesOf("kvcache", IsValid).size(), 110u);
  EXPECT_EQ(CasesOf("kvcache", IsRefused).size(), 2u);
}

// ---- calls that must be refused

using ConformanceErrors = Conformance;

TEST_P(ConformanceErrors, AreRefusedBeforeAnythingIsWritten) {
  SCOPED_TRACE(case_.error);
  Problem problem = case_.problem;
  const Outputs outputs(&problem, case_.token_major, /*with_weights=*/true);
  ForEachConfiguration(problem, {}, [&](const PlanOptions& configuration) {
    const Status status = PlanAndRun(problem, configuration);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
    EXPECT_STRNE(status.message(), "");
  });
  EXPECT_EQ(Attention(problem).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(outputs.Untouched());
}

INSTANTIATE_TEST_SUITE_P(Edge, ConformanceErrors, ::testing::ValuesIn(CasesOf("edge", IsRefused)),
                         CaseTestName);
INSTANTIATE_TEST_SUITE_P(Extra, ConformanceErrors, ::testing::ValuesIn(CasesOf("extra", IsRefused)),
                         CaseTestName);
INSTANTIATE_TEST_SUITE_P(KvCache, ConformanceErrors,
                         ::testing::ValuesIn(CasesOf("kvcache", IsRefused)), CaseTestName);

}  // namespace
}  // namespace fovea::test
