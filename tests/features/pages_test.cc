// Keys in pages: the bits of the same keys one after the other, for every size of page and every
// table; and what is wrong with a table is said before anything is written.
#include <gtest/gtest.h>

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "fovea/attention.h"
#include "support/feature_laws.h"
#include "support/outcome.h"
#include "support/random_problem.h"
#include "support/refusal.h"
#include "support/thin.h"

namespace fovea {
namespace {

using test::Axes;
using test::Kernel;
using test::OwnedTensor;
using test::ProblemSpec;
using test::RandomProblem;
using test::RunSerial;
using test::Same;

ProblemSpec Spec() {
  ProblemSpec s;
  s.B = 3, s.Hq = 6, s.Hkv = 2, s.Tq = 5, s.Tk = 300, s.dk = 20, s.dv = 18, s.weights = true;
  s.page_table = DType::kI32, s.kv_lengths = DType::kI32;
  return s;
}

// p with its keys one after the other; rows behind the lengths are NaN.
RandomProblem InOrder(const RandomProblem& p) {
  const ProblemSpec& s = p.spec;
  RandomProblem order = p;
  order.spec.page_table = DType::kNone;
  order.page_table = order.page_begins = OwnedTensor();
  order.k = OwnedTensor(s.k_type, {s.B, s.Hkv, s.Tk, s.dk});
  order.v = OwnedTensor(s.v_type, {s.B, s.Hkv, s.Tk, s.dv});
  for (int64_t b = 0; b < s.B; ++b) {
    for (int64_t j = 0; j < p.KvLength(b); ++j) {
      const RandomProblem::Place place = p.PlaceOf(b, j);
      for (int64_t h = 0; h < s.Hkv; ++h) {
        for (int64_t c = 0; c < s.dk; ++c)
          order.k.SetAt({b, h, j, c}, p.k.At({place.batch, h, place.row, c}));
        for (int64_t c = 0; c < s.dv; ++c)
          order.v.SetAt({b, h, j, c}, p.v.At({place.batch, h, place.row, c}));
      }
    }
  }
  order.Refresh();
  return order;
}

void ExpectTheBitsInOrder(RandomProblem& p, const PlanOptions& options = {}) {
  RandomProblem order = InOrder(p);
  std::vector<Kernel> kernels = test::KernelsAndAuto();
  for (const Kernel& kernel : test::KernelsFor(p.problem)) kernels.push_back(kernel);
  for (const Kernel& kernel : kernels) {
    PlanOptions with = options;
    with.product = kernel.product;
    EXPECT_TRUE(Same(RunSerial(kernel, p, with), RunSerial(kernel, order, with)))
        << ToString(kernel) << "\n"
        << ToString(p.spec);
  }
}

void ExpectRight(const ProblemSpec& s, uint64_t seed, const PlanOptions& options = {}) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  RandomProblem p(s, seed);
  ExpectTheBitsInOrder(p, options);
  test::ExpectMatchesReference(p, options);
}

TEST(PagesTest, EverySizeOfPage) {
  uint64_t seed = test::BaseSeed();
  for (int64_t page : {1, 2, 3, 5, 16, 32, 128, 1000}) {
    for (int64_t Tq : test::Thinned({1, 2, 33})) {
      for (DType type : test::Thinned({DType::kF32, DType::kF16, DType::kBF16}, 2)) {
        ProblemSpec s = test::WithTypes(Spec(), type);
        s.page = page, s.Tq = Tq;
        s.page_table = page % 2 == 0 ? DType::kI32 : DType::kI64;
        s.page_begins = Tq == 2;
        s.causal = Causal::kBottomRight;
        ExpectRight(s, ++seed);
      }
    }
  }
}

TEST(PagesTest, LengthsAroundWholePages) {
  for (int64_t page : test::Thinned({1, 4, 16, 64, 100}, 2)) {
    for (int64_t pages : {1, 3}) {
      ProblemSpec s = Spec();
      s.page = page, s.Tk = page * pages + 1, s.Tq = 2, s.B = 4;
      RandomProblem p(s, test::BaseSeed());
      // Of any lengths the same pages.
      const int64_t width = p.page_table.view().shape[1];
      for (int64_t n = 0; n < p.page_table.size(); ++n) p.page_table.Set(n, static_cast<double>(n));
      ASSERT_EQ(p.k.view().shape[0], s.B * width + 2);
      p.k.Fill([x = 0.0]() mutable { return x = x > 1 ? -1 : x + 0.07; });
      p.v.Fill([x = 0.0]() mutable { return x = x > 1 ? -1 : x + 0.03; });
      for (int64_t b = 0; b < s.B; ++b)
        p.kv_lengths.Set(b, static_cast<double>(std::max<int64_t>(page * pages - 2 + b, 0)));
      p.Refresh();
      ExpectTheBitsInOrder(p);
      test::ExpectMatchesReference(p);
    }
  }
}

TEST(PagesTest, AnyGroupOfHeads) {
  uint64_t seed = test::BaseSeed();
  for (int64_t group : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16}) {
    ProblemSpec s = Spec();
    s.Hq = 2 * group, s.Tq = 1, s.page = 16;
    s.k_type = s.v_type = group % 2 == 0 ? DType::kBF16 : DType::kF32;
    ExpectRight(s, ++seed);
  }
}

TEST(PagesTest, WithEverythingElse) {
  uint64_t seed = test::BaseSeed();
  for (int more = 0; more < 9; ++more) {
    for (int64_t page : test::Thinned({3, 16, 64}, 2)) {
      ProblemSpec s = Spec();
      s.page = page, s.Tq = 21, s.causal = more % 2 == 0 ? Causal::kBottomRight : Causal::kNone;
      s.page_begins = more % 3 == 0;
      if (more == 0) s.window = {70, 5}, s.q_lengths = DType::kI32;
      if (more == 1) s.mask = Axes::kBHQK, s.scores = ScoreStage::kMasked;
      if (more == 2) s.bias = Axes::kB11K, s.bias_removes = 0.2, s.sinks = true;
      if (more == 3) s.block_map = Axes::kQK, s.block_queries = 5, s.block_keys = 20;
      if (more == 4) s.parents = DType::kI32, s.query_offset = 80;
      if (more == 5) s.key_ranges = DType::kI64, s.alibi = true, s.softcap = 3;
      if (more == 6) s.function = true, s.function_removes = 0.1, s.scores = ScoreStage::kScaled;
      if (more == 7) s.cu_seqlens_q = DType::kI64, s.B = 5;
      if (more == 8) s.key_offsets = DType::kI64, s.bias = Axes::kBHQK, s.mask = Axes::kHQK;
      ExpectRight(s, ++seed);
    }
  }
}

TEST(PagesTest, TinyTilesBlocksAndSplits) {
  ProblemSpec s = Spec();
  s.Tk = 130, s.page = 5;
  test::ForTinyTilesBlocksAndSplits(s, [](RandomProblem& p, const PlanOptions& options) {
    ExpectTheBitsInOrder(p, options);
    test::ExpectMatchesReference(p, options);
  });
}

TEST(PagesTest, ManySplits) {
  uint64_t seed = test::BaseSeed();
  for (int64_t page : test::Thinned({1, 16, 48}, 2)) {
    ProblemSpec s = Spec();
    s.B = 2, s.Tq = 1, s.Tk = 5000, s.page = page, s.weights = false;
    PlanOptions options;
    options.split_keys = 512;
    ExpectRight(s, ++seed, options);
  }
}

// Prefill, chunks with a past and decode side by side.
TEST(PagesTest, MixedPackedBatch) {
  ProblemSpec s = Spec();
  s.B = 6, s.Tq = 90, s.Tk = 400, s.page = 16, s.cu_seqlens_q = DType::kI32, s.weights = false,
  s.causal = Causal::kBottomRight;
  RandomProblem p(s, test::BaseSeed());
  const int64_t queries[] = {90, 1, 1, 30, 0, 1}, keys[] = {90, 400, 17, 230, 9, 16};
  int64_t end = 0;
  p.q = OwnedTensor(s.q_type, {1, s.Hq, 123, s.dk});
  p.q.Fill([x = 0.0]() mutable { return x = x > 2 ? -2 : x + 0.11; });
  p.out = OwnedTensor(s.out_type, {1, s.Hq, 123, s.dv});
  p.lse = OwnedTensor(DType::kF32, {1, s.Hq, 123});
  for (int64_t b = 0; b < s.B; ++b) {
    p.cu_seqlens_q.Set(b, static_cast<double>(end));
    end += queries[b];
    p.kv_lengths.Set(b, static_cast<double>(keys[b]));
  }
  p.cu_seqlens_q.Set(s.B, static_cast<double>(end));
  for (int64_t n = 0; n < p.page_table.size(); ++n)
    p.page_table.Set(n, static_cast<double>((7 * n + 3) % p.k.view().shape[0]));
  p.k.Fill([x = 0.0]() mutable { return x = x > 1 ? -1 : x + 0.07; });
  p.v.Fill([x = 0.0]() mutable { return x = x > 1 ? -1 : x + 0.03; });
  p.Refresh();
  ExpectTheBitsInOrder(p);
  test::ExpectMatchesReference(p);
}

// K and V of a page side by side in one memory, rows before heads; and any other strides.
TEST(PagesTest, AnyPlaceInMemory) {
  ProblemSpec s = Spec();
  s.page = 8;
  RandomProblem p(s, test::BaseSeed());
  test::ExpectTheSameFromAnyPlace(p, &RandomProblem::k);
  test::ExpectTheSameFromAnyPlace(p, &RandomProblem::v);
  test::ExpectTheSameFromAnyPlace(p, &RandomProblem::page_table);

  const int64_t pages = p.k.view().shape[0];
  OwnedTensor both(DType::kF32, {pages * 2 * s.page * s.Hkv * (s.dk + 3)});
  const auto place = [&](OwnedTensor& from, int64_t d, int64_t which, TensorView& view) {
    for (int64_t n = 0; n < pages; ++n) {
      for (int64_t h = 0; h < s.Hkv; ++h) {
        for (int64_t t = 0; t < s.page; ++t) {
          for (int64_t c = 0; c < d; ++c)
            both.Set((((n * 2 + which) * s.page + t) * s.Hkv + h) * (s.dk + 3) + c,
                     from.At({n, h, t, c}));
        }
      }
    }
    view.data = static_cast<const float*>(both.view().data) + which * s.page * s.Hkv * (s.dk + 3);
    const int64_t row = 4 * (s.dk + 3), strides[] = {2 * s.page * s.Hkv * row, row, s.Hkv * row, 4};
    std::copy_n(strides, 4, view.stride);
  };
  RandomProblem one = p;
  place(p.k, s.dk, 0, one.problem.k);
  place(p.v, s.dv, 1, one.problem.v);
  for (const Kernel& kernel : test::Kernels())
    EXPECT_TRUE(Same(RunSerial(kernel, one), RunSerial(kernel, p))) << ToString(kernel);
}

TEST(PagesTest, BytesBeyond32Bits) {
  // Two pages eight gigabytes apart, of which little is touched.
  constexpr int64_t kApart = int64_t{1} << 33, kBytes = kApart + (1 << 20);
  void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "the system does not reserve 8 GiB of addresses";
  ProblemSpec s = Spec();
  s.B = 1, s.Hq = s.Hkv = 1, s.Tk = 40, s.page = 20, s.kv_lengths = DType::kNone, s.dv = 20;
  RandomProblem p(s, test::BaseSeed());
  p.v = p.k;
  p.Refresh();
  RandomProblem far = p;
  far.page_table = OwnedTensor(DType::kI32, {1, 2});
  far.page_table.Set(0, 1), far.page_table.Set(1, 0);
  far.Refresh();
  TensorView& k = far.problem.k;
  k.data = memory, k.stride[0] = kApart, k.shape[0] = 2;
  far.problem.v = k;
  for (int64_t j = 0; j < s.Tk; ++j) {
    for (int64_t c = 0; c < s.dk; ++c) {
      const RandomProblem::Place place = p.PlaceOf(0, j);
      const float x = static_cast<float>(p.k.At({place.batch, 0, place.row, c}));
      std::memcpy(static_cast<char*>(memory) + (1 - j / 20) * kApart + (j % 20) * 80 + 4 * c, &x,
                  4);
    }
  }
  for (const Kernel& kernel : test::Kernels())
    EXPECT_TRUE(Same(RunSerial(kernel, far), RunSerial(kernel, p))) << ToString(kernel);
  munmap(memory, kBytes);
}

TEST(PagesTest, TablesMayChangeFromRunToRun) {
  ProblemSpec s = Spec();
  RandomProblem p(s, test::BaseSeed());
  test::ExpectOnePlanServes(p, [&](int run) {
    // The pages move: every number by so many, around.
    const int64_t pages = p.k.view().shape[0];
    for (OwnedTensor* tensor : {&p.k, &p.v}) {
      const OwnedTensor before = tensor->CopiedTo({});
      const int64_t page = tensor->size() / pages;
      for (int64_t n = 0; n < tensor->size(); ++n)
        tensor->Set((n + run * page) % tensor->size(), before.Get(n));
    }
    for (int64_t b = 0; b < s.B; ++b) {
      for (int64_t x = 0; x < (p.KvLength(b) + s.page - 1) / s.page; ++x)
        p.page_table.SetAt(
            {b, x},
            static_cast<double>((static_cast<int64_t>(p.page_table.At({b, x})) + run) % pages));
    }
    p.Refresh();
  });
}

TEST(PagesTest, FixedTablesAreCheckedByPlans) {
  ProblemSpec s = Spec();
  RandomProblem p(s, test::BaseSeed());
  const int64_t pages = p.k.view().shape[0];
  PlanOptions options;
  options.fixed_tables = true;
  Plan plan;
  ASSERT_TRUE(Plan::Create(p.problem, options, &plan).ok());
  const test::Memory memory(plan.WorkspaceBytes(1), test::Placement::kAligned, 1);
  ASSERT_TRUE(fovea::Run(plan, p.problem, {memory.data(), memory.bytes()}).ok());
  const test::Outcome got = test::OutcomeOf(p);
  EXPECT_TRUE(Same(got, RunSerial({plan.target(), Engine::kAuto}, p)));

  RandomProblem fewer = p;
  fewer.problem.k.shape[0] = fewer.problem.v.shape[0] = pages - 1;
  Status status = fovea::Run(plan, fewer.problem, {memory.data(), memory.bytes()});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(status.message()).find("k.shape[0]"), std::string::npos);

  p.kv_lengths.Set(0, static_cast<double>(s.Tk));
  for (int64_t n = 0; n < p.page_table.view().shape[1]; ++n) p.page_table.SetAt({0, n}, 0);
  p.page_table.SetAt({0, 2}, static_cast<double>(pages));
  status = plan.Update(p.problem);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(status.message()).find("pages.table[0,2]"), std::string::npos)
      << status.message();
  Plan other;
  EXPECT_EQ(Plan::Create(p.problem, options, &other).code(), StatusCode::kInvalidArgument);
  p.problem.pages.table.data = nullptr;
  EXPECT_EQ(Plan::Create(p.problem, options, &other).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Plan::Create(p.problem, {}, &other).ok()) << "runs read it";
}

TEST(PagesTest, NothingOfNothing) {
  test::ExpectNothingOfNothing(Spec());
  ProblemSpec s = Spec();
  s.page_begins = true;
  test::ExpectNothingOfNothing(s);
}

TEST(PagesTest, ArePartOfThePlan) {
  ProblemSpec s = Spec();
  RandomProblem p(s, test::BaseSeed());
  RandomProblem other = InOrder(p);
  EXPECT_TRUE(test::RefusesToRun(p, other, "page"));
  EXPECT_TRUE(test::RefusesToRun(other, p, "page"));
  s.page = 8;
  RandomProblem smaller(s, test::BaseSeed());
  EXPECT_TRUE(test::RefusesToRun(p, smaller, "k.shape[2]"));
}

TEST(PagesTest, PlansTellThem) {
  RandomProblem p(Spec(), test::BaseSeed());
  Plan plan;
  ASSERT_TRUE(Plan::Create(p.problem, {}, &plan).ok());
  EXPECT_NE(plan.ToString().find("pages of 16 keys"), std::string::npos) << plan.ToString();
}

TEST(PagesTest, WrongOnesAreRefused) {
  ProblemSpec s = Spec();
  RandomProblem p(s, test::BaseSeed());
  p.kv_lengths.Fill([&] { return static_cast<double>(s.Tk); });
  for (int64_t n = 0; n < p.page_table.size(); ++n) p.page_table.Set(n, static_cast<double>(n % 4));
  p.k.Fill([] { return 0.5; });
  p.v.Fill([] { return 0.5; });
  p.Refresh();
  const std::string pages = std::to_string(p.k.view().shape[0]);
  const auto refuses = [&](std::initializer_list<const char*> words) {
    const testing::AssertionResult result = test::Refuses(p, words);
    p.Refresh();
    return result;
  };
  ASSERT_TRUE(Attention(p.problem).ok());
  for (const int64_t wrong :
       {int64_t{-1}, p.k.view().shape[0], int64_t{INT32_MAX}, int64_t{INT32_MIN}}) {
    const double was = p.page_table.At({1, 18});
    p.page_table.SetAt({1, 18}, static_cast<double>(wrong));
    EXPECT_TRUE(refuses({"pages.table[1,18]", std::to_string(wrong).c_str(), pages.c_str()}));
    p.page_table.SetAt({1, 18}, was);
  }
  Problem& x = p.problem;
  x.pages.table.data = nullptr;
  EXPECT_TRUE(refuses({"pages.table.data", "null"}));
  x.pages.table.rank = 1;
  EXPECT_TRUE(refuses({"pages.table.rank", "1", "2"}));
  x.pages.table.shape[0] = 2;
  EXPECT_TRUE(refuses({"pages.table.shape[0]", "2", "3", "B"}));
  x.pages.table.dtype = DType::kF32;
  EXPECT_TRUE(refuses({"pages.table.dtype", "f32"}));
  x.pages.table.shape[1] = 18;
  EXPECT_TRUE(refuses({"kv_lengths[0]", "300", "288"}));
  x.pages.table.shape[1] = 18, x.score.kv_lengths = TensorView();
  EXPECT_TRUE(refuses({"kv_lengths is absent", "288"}));
  x.pages.keys = 299;
  EXPECT_TRUE(refuses({"299"}));
  x.pages.keys = -1;
  EXPECT_TRUE(refuses({"pages.keys", "-1"}));
  x.pages.keys = INT64_MAX;
  EXPECT_TRUE(refuses({"pages.keys"}));
  x.k.shape[2] = x.v.shape[2] = 0;
  EXPECT_TRUE(refuses({"k.shape[2]", "0", "1"}));
  x.v.shape[0] -= 1;
  EXPECT_TRUE(refuses({"v.shape[0]", "k.shape[0]"}));
  x.v.shape[2] = 15;
  EXPECT_TRUE(refuses({"v.shape[2]", "15", "16"}));
  const int32_t starts[] = {0, 100, 200, 300};
  x.cu_seqlens_k = View(starts, {4});
  EXPECT_TRUE(refuses({"cu_seqlens_k", "pages"}));
  x.ring = true;
  EXPECT_TRUE(refuses({"ring", "pages.table"}));
  x.pages.table = TensorView();
  EXPECT_TRUE(refuses({"pages.keys", "300", "pages.table is absent"}));
  const int64_t begins[] = {0, 19, 38, 57};
  x.pages.table = TensorView(), x.pages.keys = 0, x.pages.begins = View(begins, {4});
  EXPECT_TRUE(refuses({"pages.begins", "pages.table is absent"}));
  x.pages.begins = View(begins, {4});
  EXPECT_TRUE(refuses({"pages.table.rank", "2", "1"}));

  const auto in_a_list = [&](const int64_t(&list)[4]) {
    x.pages.table.rank = 1, x.pages.table.shape[0] = 57, x.pages.table.stride[0] = 4;
    x.pages.begins = View(list, {4});
  };
  in_a_list(begins);
  ASSERT_TRUE(Attention(x).ok());
  x.pages.begins.shape[0] = 3;
  EXPECT_TRUE(refuses({"pages.begins.shape[0]", "3", "4"}));
  in_a_list(begins);
  x.pages.begins.data = nullptr;
  EXPECT_TRUE(refuses({"pages.begins.data", "null"}));
  const int64_t falling[] = {0, 19, 18, 57}, beyond[] = {0, 19, 38, 58},
                negative[] = {-1, 19, 38, 57}, few[] = {0, 19, 37, 56};
  in_a_list(falling);
  EXPECT_TRUE(refuses({"pages.begins[2]", "18", "19"}));
  in_a_list(beyond);
  EXPECT_TRUE(refuses({"pages.begins[3]", "58", "57"}));
  in_a_list(negative);
  EXPECT_TRUE(refuses({"pages.begins[0]", "-1"}));
  in_a_list(few);
  EXPECT_TRUE(refuses({"kv_lengths[1]", "300", "288"}));
  p.page_table.Set(30, 1000);
  in_a_list(begins);
  EXPECT_TRUE(refuses({"pages.table[30]", "1000", "page 11 of sequence 1"}));
}

TEST(PagesTest, UpdateToLongerSequencesAndOtherPages) {
  ProblemSpec s = Spec();
  s.B = 5, s.Tq = 1, s.weights = false;
  s.Tk = 40;
  RandomProblem first(s, test::BaseSeed());
  PlanOptions options;
  options.max_keys = 700;
  for (bool fixed : {false, true}) {
    options.fixed_tables = fixed;
    Plan plan;
    ASSERT_TRUE(Plan::Create(first.problem, options, &plan).ok());
    for (int64_t Tk : {60, 700, 1, 333}) {
      s.Tk = Tk;
      RandomProblem next(s, test::BaseSeed() + static_cast<uint64_t>(Tk));
      const Status status = plan.Update(next.problem);
      ASSERT_TRUE(status.ok()) << status.message();
      const test::Memory memory(plan.WorkspaceBytes(1), test::Placement::kAligned, 1);
      ASSERT_TRUE(fovea::Run(plan, next.problem, {memory.data(), memory.bytes()}).ok());
      const test::Outcome got = test::OutcomeOf(next);
      EXPECT_TRUE(Same(got, RunSerial({plan.target(), Engine::kAuto}, next)));
    }
    s.Tk = 701;
    EXPECT_EQ(plan.Update(RandomProblem(s, 1).problem).code(), StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace fovea
