// The grid of everyday problems: head sizes of known models × masks × sinks × ALiBi × softcap ×
// groups × keys × queries × layouts, to a normalised mean square error Σ(x − ref)² / Σref² ≤ 1e-11
// against double; in pairs also × types of q, k and v.
//
// The double reference would take hours over it. RowsInDouble below is a fast double evaluation of
// the same formula, itself held against the reference, of up to kSampledRows rows of each problem,
// spread evenly over all heads and queries, others for every mask and modifier; small problems are
// compared whole.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fovea/attention.h"
#include "reference/reference.h"
#include "support/check.h"
#include "support/owned_tensor.h"
#include "support/pairwise.h"
#include "support/random.h"
#include "support/thin.h"

namespace fovea {
namespace {

using test::Layout;
using test::OwnedTensor;

// Weights that a product rounds by independent relative errors up to u move Σ w·v, whose values
// have the mean 0, by u² in the mean square; 0.4 of that for errors that are evenly distributed.
double MostError(Product product) {
  return 1e-11 + std::pow(reference::WeightTolerance(product), 2);
}
constexpr int64_t kSampledRows = 48;

struct HeadSize {
  int64_t dk, dv;
  bool v_in_k;  // V is the first dv channels of K, as in latent attention
};
constexpr HeadSize kHeadSizes[] = {{40, 40, false},   {64, 64, false},   {72, 72, false},
                                   {80, 80, false},   {96, 96, false},   {128, 128, false},
                                   {192, 192, false}, {256, 256, false}, {512, 512, false},
                                   {192, 128, true},  {320, 256, true},  {576, 512, true}};
enum class Removal { kNothing, kCausal, kMask };
constexpr Removal kRemovals[] = {Removal::kNothing, Removal::kCausal, Removal::kMask};
constexpr bool kSinks[] = {false, true};
constexpr bool kAlibi[] = {false, true};
constexpr double kMaxBias = 8;  // of ALiBi: the slope of the last head is 2^-8
constexpr float kSoftcaps[] = {0, 10};
constexpr int64_t kGroups[] = {1, 3, 4, 5, 8, 16};
constexpr int64_t kKeys[] = {113, 512, 1024};
constexpr int64_t kQueries[] = {1, 3, 32, 75};
// of q, k and v; out is f32
constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
// BHTD, BTHD, BHDT
constexpr Layout kGridLayouts[] = {Layout::kDense, Layout::kSwapped, Layout::kTransposed};

// Two KV heads where heads are few, so that their strides count too.
int64_t KvHeads(int64_t group) { return group <= 3 ? 2 : 1; }

// ---- a problem: tensors in every layout, and the ways to combine masks and modifiers ----

struct Shape {
  HeadSize d;
  int64_t group, Tk, Tq;
  DType type = DType::kF32;
  int64_t Hkv() const { return KvHeads(group); }
  int64_t Hq() const { return Hkv() * group; }
};

struct Modifiers {
  Removal removal;
  bool sinks;
  bool alibi;
  float softcap;
};

// The keys and values of a shape, and all that is as long as they are.
struct Keys {
  std::vector<double> k_transposed;  // [Hkv, dk, Tk]
  std::vector<double> v;             // [Hkv, Tk, dv]
  OwnedTensor k_in[3], v_in[3];      // by layout

  Keys(const Shape& s, test::Random& random)
      : k_transposed(static_cast<size_t>(s.Hkv() * s.d.dk * s.Tk)),
        v(static_cast<size_t>(s.Hkv() * s.Tk * s.d.dv)) {
    OwnedTensor k(s.type, {1, s.Hkv(), s.Tk, s.d.dk});
    OwnedTensor values(s.type, {1, s.Hkv(), s.Tk, s.d.dv});
    k.Fill([&] { return random.Normal(); });
    values.Fill([&] { return random.Normal(); });
    for (int64_t h = 0; h < s.Hkv(); ++h) {
      for (int64_t j = 0; j < s.Tk; ++j) {
        const int64_t row = h * s.Tk + j;
        for (int64_t c = 0; c < s.d.dk; ++c)
          k_transposed[static_cast<size_t>((h * s.d.dk + c) * s.Tk + j)] = k.Get(row * s.d.dk + c);
        for (int64_t c = 0; c < s.d.dv; ++c) {
          v[static_cast<size_t>(row * s.d.dv + c)] =
              s.d.v_in_k ? k.Get(row * s.d.dk + c) : values.Get(row * s.d.dv + c);
        }
      }
    }
    for (size_t n = 0; n < std::size(kGridLayouts); ++n) {
      k_in[n] = k.CopiedTo({kGridLayouts[n]});
      if (!s.d.v_in_k) v_in[n] = values.CopiedTo({kGridLayouts[n]});
    }
  }
};

struct Queries {
  OwnedTensor q_in[3], out_in[3];  // by layout
  OwnedTensor sinks, slopes, mask;

  Queries(const Shape& s, test::Random& random)
      : sinks(DType::kF32, {s.Hq()}),
        slopes(DType::kF32, {s.Hq()}),
        mask(DType::kBool, {s.Tq, s.Tk}) {
    q_in[0] = OwnedTensor(s.type, {1, s.Hq(), s.Tq, s.d.dk});
    q_in[0].Fill([&] { return random.Normal(); });
    for (size_t n = 0; n < std::size(kGridLayouts); ++n) {
      if (n > 0) q_in[n] = q_in[0].CopiedTo({kGridLayouts[n]});
      out_in[n] = OwnedTensor(DType::kF32, {1, s.Hq(), s.Tq, s.d.dv}, {kGridLayouts[n]});
    }
    sinks.Fill([&] { return random.Normal(); });
    slopes.Fill([h = 0, Hq = static_cast<double>(s.Hq())]() mutable {
      return std::exp2(-kMaxBias * ++h / Hq);
    });
    mask.Fill([&] { return random.Chance(0.7) ? 1.0 : 0.0; });
    for (int64_t i = 0; i < s.Tq; ++i)
      // no row without keys: its error has no norm to be divided by
      mask.SetAt({i, random.Below(s.Tk)}, 1);
  }
};

Problem ProblemOf(const Shape& s, const Modifiers& m, const Keys& keys, const Queries& queries,
                  size_t layout) {
  Problem p;
  p.q = queries.q_in[layout].view();
  p.k = keys.k_in[layout].view();
  p.v = s.d.v_in_k ? p.k : keys.v_in[layout].view();
  p.v.shape[3] = s.d.dv;
  p.out = queries.out_in[layout].mutable_view();
  p.score.softcap = m.softcap;
  if (m.sinks) p.score.sinks = queries.sinks.view();
  if (m.alibi) p.score.alibi_slopes = queries.slopes.view();
  if (m.removal == Removal::kCausal) p.score.causal = Causal::kBottomRight;
  if (m.removal == Removal::kMask) p.score.mask = queries.mask.view();
  return p;
}

// ---- the fast double evaluation ----

struct RowIndex {
  int64_t h, i;
};

// A row from each of as many equal parts of all rows as are compared, in order of heads.
std::vector<RowIndex> SampleRows(const Shape& s, test::Random& random) {
  const int64_t rows = s.Hq() * s.Tq, count = std::min(rows, kSampledRows);
  std::vector<RowIndex> sample;
  for (int64_t n = 0; n < count; ++n) {
    const int64_t first = rows * n / count, row = random.Between(first, rows * (n + 1) / count - 1);
    sample.push_back({row / s.Tq, row % s.Tq});
  }
  return sample;
}

// y += a·x
void AddMultiple(double a, const double* x, int64_t n, double* y) {
  for (int64_t c = 0; c < n; ++c) y[c] += a * x[c];
}

// out[row, dv]. Scores channel by channel and outputs key by key, several rows at a time, so that
// loops run along memory and a row of K or V is read once for them all.
std::vector<double> RowsInDouble(const Shape& s, const Modifiers& m, const Keys& keys,
                                 const Queries& queries, const std::vector<RowIndex>& rows) {
  constexpr size_t kAtATime = 8;
  const double scale = 1 / std::sqrt(static_cast<double>(s.d.dk));
  const int64_t offset = m.removal == Removal::kCausal ? s.Tk - s.Tq : 0;
  std::vector<double> out(rows.size() * static_cast<size_t>(s.d.dv), 0);
  std::vector<double> p(kAtATime * static_cast<size_t>(s.Tk));
  size_t first = 0;
  while (first < rows.size()) {
    const int64_t hkv = rows[first].h / s.group;
    size_t end = first;
    while (end < rows.size() && end < first + kAtATime && rows[end].h / s.group == hkv) ++end;
    const auto p_of = [&](size_t r) { return p.data() + (r - first) * static_cast<size_t>(s.Tk); };
    // 1. s = scale · (q_i · k_j)
    std::fill(p.begin(), p.end(), 0);
    for (int64_t c = 0; c < s.d.dk; ++c) {
      for (size_t r = first; r < end; ++r) {
        const double q = queries.q_in[0].Get((rows[r].h * s.Tq + rows[r].i) * s.d.dk + c);
        AddMultiple(scale * q, &keys.k_transposed[static_cast<size_t>((hkv * s.d.dk + c) * s.Tk)],
                    s.Tk, p_of(r));
      }
    }
    for (size_t r = first; r < end; ++r) {
      const auto [h, i] = rows[r];
      double* const score = p_of(r);
      // 2. to 5. softcap, ALiBi, masks
      const double sink = m.sinks ? queries.sinks.Get(h) : -std::numeric_limits<double>::infinity();
      const double slope = m.alibi ? queries.slopes.Get(h) : 0;
      double largest = sink;
      for (int64_t j = 0; j < s.Tk; ++j) {
        if (m.softcap > 0)
          score[j] =
              static_cast<double>(m.softcap) * std::tanh(score[j] / static_cast<double>(m.softcap));
        score[j] -= slope * static_cast<double>(std::abs(i + offset - j));
        const bool removed = (m.removal == Removal::kCausal && j > i + offset) ||
                             (m.removal == Removal::kMask && queries.mask.Get(i * s.Tk + j) == 0);
        if (removed) score[j] = -std::numeric_limits<double>::infinity();
        largest = std::max(largest, score[j]);
      }
      // 6. softmax
      double sum = std::exp(sink - largest);
      for (int64_t j = 0; j < s.Tk; ++j) sum += score[j] = std::exp(score[j] - largest);
      for (int64_t j = 0; j < s.Tk; ++j) score[j] /= sum;
    }
    // 7. out = Σ p_j·v_j
    for (int64_t j = 0; j < s.Tk; ++j) {
      for (size_t r = first; r < end; ++r) {
        AddMultiple(p_of(r)[j], &keys.v[static_cast<size_t>((hkv * s.Tk + j) * s.d.dv)], s.d.dv,
                    &out[r * static_cast<size_t>(s.d.dv)]);
      }
    }
    first = end;
  }
  return out;
}

// The fast evaluation against the specification, one row.
void ExpectIsTheReference(const Problem& problem, const RowIndex& row, const double* fast) {
  const reference::Row expected = reference::ForwardRow(problem, 0, row.h, row.i);
  for (size_t c = 0; c < expected.out.size(); ++c)
    ASSERT_NEAR(fast[c], expected.out[c], 1e-12 * expected.max_abs_value);
}

// Σ(x − ref)² / Σref² over the sampled rows.
double ErrorOf(const Shape& s, const OwnedTensor& out, const std::vector<RowIndex>& rows,
               const std::vector<double>& expected) {
  double error = 0, norm = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    for (int64_t c = 0; c < s.d.dv; ++c) {
      const double ref = expected[r * static_cast<size_t>(s.d.dv) + static_cast<size_t>(c)];
      const double difference = out.Get((rows[r].h * s.Tq + rows[r].i) * s.d.dv + c) - ref;
      error += difference * difference;
      norm += ref * ref;
    }
  }
  return error / norm;
}

std::string ToString(const Shape& s, const Modifiers& m, size_t layout) {
  static const char* const kRemovalNames[] = {"", ", causal", ", mask"};
  static const char* const kLayoutNames[] = {"BHTD", "BTHD", "BHDT"};
  std::ostringstream text;
  text << "d " << s.d.dk << "/" << s.d.dv << ", heads " << s.Hq() << "/" << s.Hkv() << ", T "
       << s.Tq << "x" << s.Tk << " " << Name(s.type) << kRemovalNames[static_cast<int>(m.removal)]
       << (m.sinks ? ", sinks" : "") << (m.alibi ? ", ALiBi" : "") << ", softcap " << m.softcap
       << ", " << kLayoutNames[layout];
  return text.str();
}

// ---- the tests ----

// Every pair of values of every two axes of the grid, on every target and engine.
TEST(GridTest, PairsOfValuesOnEveryKernel) {
  const auto levels = [](const auto& values) { return static_cast<int>(std::size(values)); };
  const std::vector<std::vector<int>> cover = test::CoverPairs(
      {levels(kHeadSizes), levels(kRemovals), levels(kSinks), levels(kAlibi), levels(kSoftcaps),
       levels(kGroups), levels(kKeys), levels(kQueries), levels(kGridLayouts), levels(kTypes)},
      test::BaseSeed());
  for (size_t n = 0; n < cover.size(); n += static_cast<size_t>(test::GridStep())) {
    const std::vector<int>& at = cover[n];
    const Shape s = {kHeadSizes[at[0]], kGroups[at[5]], kKeys[at[6]], kQueries[at[7]],
                     kTypes[at[9]]};
    const Modifiers m = {kRemovals[at[1]], kSinks[at[2]], kAlibi[at[3]], kSoftcaps[at[4]]};
    const auto layout = static_cast<size_t>(at[8]);
    test::Random random(test::BaseSeed() + n);
    const Keys keys(s, random);
    Queries queries(s, random);
    const Problem problem = ProblemOf(s, m, keys, queries, layout);
    const std::vector<RowIndex> rows = SampleRows(s, random);
    const std::vector<double> expected = RowsInDouble(s, m, keys, queries, rows);
    SCOPED_TRACE(ToString(s, m, layout) + ", seed " + std::to_string(test::BaseSeed() + n));
    ASSERT_NO_FATAL_FAILURE(ExpectIsTheReference(problem, rows[0], expected.data()));
    for (const test::Kernel& kernel : test::Thinned(test::KernelsFor(problem), 4)) {
      queries.out_in[layout].Reset();
      const Status status = Attention(problem, test::Options(kernel), SerialExecutor());
      ASSERT_TRUE(status.ok()) << ToString(kernel) << ": " << status.message();
      EXPECT_LE(ErrorOf(s, queries.out_in[layout], rows, expected), MostError(kernel.product))
          << ToString(kernel);
    }
  }
}

// All combinations of masks, modifiers and layouts for one shape, on the best target, with the
// engine of the plan's choice.
void CheckShape(const Shape& s, const Keys& keys, uint64_t seed) {
  test::Random random(seed);
  Queries queries(s, random);
  for (Removal removal : kRemovals) {
    for (bool sinks : kSinks) {
      for (bool alibi : kAlibi) {
        for (float softcap : kSoftcaps) {
          const Modifiers m = {removal, sinks, alibi, softcap};
          const std::vector<RowIndex> rows = SampleRows(s, random);
          const std::vector<double> expected = RowsInDouble(s, m, keys, queries, rows);
          for (size_t layout = 0; layout < std::size(kGridLayouts); ++layout) {
            const Problem problem = ProblemOf(s, m, keys, queries, layout);
            const auto where = [&] {
              return ToString(s, m, layout) + ", seed " + std::to_string(seed);
            };
            if (layout == 0 && random.Below(8) == 0) {
              const size_t r = static_cast<size_t>(random.Below(static_cast<int64_t>(rows.size())));
              ExpectIsTheReference(problem, rows[r], &expected[r * static_cast<size_t>(s.d.dv)]);
            }
            const Status status = Attention(problem);
            if (!status.ok()) ADD_FAILURE() << status.message() << "\n" << where();
            EXPECT_LE(ErrorOf(s, queries.out_in[layout], rows, expected), MostError(Product::kF32))
                << where();
          }
        }
      }
    }
  }
}

TEST(GridTest, SlowWholeGridOnTheBestTarget) {
  struct Part {
    HeadSize d;
    int64_t Tk, group;
    int64_t cost() const { return (d.dk + d.dv) * Tk * group * KvHeads(group); }
  };
  std::vector<Part> parts;
  for (const HeadSize& d : kHeadSizes) {
    for (int64_t Tk : kKeys) {
      for (int64_t group : kGroups) parts.push_back({d, Tk, group});
    }
  }
  // The costliest first; ties in the order above, which seeds follow.
  std::vector<std::pair<int64_t, size_t>> order;
  for (size_t n = 0; n < parts.size(); ++n) order.emplace_back(-parts[n].cost(), n);
  std::sort(order.begin(), order.end());
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t n; (n = next++) < parts.size() && !testing::Test::HasFailure();) {
      const uint64_t seed = test::BaseSeed() + 1000 * n;
      test::Random random(seed);
      const Part& part = parts[order[n].second];
      Shape s = {part.d, part.group, part.Tk, 0, DType::kF32};
      const Keys keys(s, random);
      for (int64_t Tq : kQueries) {
        s.Tq = Tq;
        CheckShape(s, keys, seed + static_cast<uint64_t>(Tq));
      }
    }
  };
  std::vector<std::thread> threads;
  for (unsigned n = 0; n < std::max(1u, std::thread::hardware_concurrency()); ++n)
    threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace fovea
