// Where Append puts new tokens: slots, tables, positions, rings, packed and padded batches, caches
// of any layout; on any threads, in any floating-point state, without allocating.
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

#include "fovea/kv_cache.h"
#include "support/allocations.h"
#include "support/append_case.h"
#include "support/float_states.h"
#include "support/thin.h"

namespace fovea {
namespace {

using test::Format;
using test::OwnedCache;
using test::OwnedRows;
using test::Random;
using test::Values;

const std::vector<Values> kUsual = {Values::kNormal, Values::kFar, Values::kZero};
constexpr Format kMixed[][2] = {{{DType::kQ8_0}, {DType::kQ4_0}},
                                {{DType::kI8}, {DType::kU4High}},
                                {{DType::kF8E5M2}, {DType::kI4, true, DType::kF32}},
                                {{DType::kBF16}, {DType::kF32}}};

// New tokens [B, Hkv, n, d] with slots, lengths and tables of their own.
struct Tokens {
  Tokens(int64_t B, int64_t H, int64_t n, int64_t dk, int64_t dv, Random& random)
      : k(DType::kF32, B, H, n, dk, random.Chance(0.5), kUsual, random),
        v(DType::kBF16, B, H, n, dv, random.Chance(0.5), kUsual, random) {
    all.k = k.view, all.v = v.view;
  }
  Tokens(const Tokens&) = delete;

  OwnedRows k, v;
  std::vector<int64_t> slots, table;
  std::vector<int32_t> narrow, begins, lengths, cu_seqlens;
  std::vector<int64_t> past;
  NewTokens all;
};

// Appends on the usual target and by the reference, to caches whose every byte is 0xA5.
void ExpectAsByReference(const CacheShape& shape, const Format (&formats)[2],
                         const NewTokens& tokens, const char* what) {
  OwnedCache want(shape, formats[0], formats[1], 1), got(shape, formats[0], formats[1], 1);
  want.cache.ring = got.cache.ring = shape.ring;
  reference::Append(want.cache, tokens);
  const Status status = Append(got.cache, tokens);
  ASSERT_TRUE(status.ok()) << what << ": " << status.message();
  EXPECT_TRUE(SameCaches(got, want)) << what << ", " << ToString(formats[0]);
}

CacheShape Pages(int64_t pages, int64_t page, int64_t heads = 2) {
  CacheShape shape;
  shape.pages = pages, shape.page = page, shape.heads = heads, shape.dk = 64, shape.dv = 32;
  return shape;
}

TEST(AppendTest, SlotsOfAnyOrderDuplicatesAndSkips) {
  Random random(test::BaseSeed());
  for (const auto& formats : kMixed) {
    for (int64_t n : test::Thinned({0, 1, 5, 31, 32, 33, 100, 300})) {
      for (bool packed : {false, true}) {
        const int64_t B = packed ? 1 : 2;
        const CacheShape shape = Pages(7, 16, n > 100 ? 1 : 3);
        Tokens t(B, shape.heads, n, shape.dk, shape.dv, random);
        for (int64_t i = 0; i < B * n; ++i) t.slots.push_back(random.Between(-3, 7 * 16 - 1));
        t.all.slots = packed ? View(t.slots.data(), {n}) : View(t.slots.data(), {B, n});
        if (packed) {
          t.cu_seqlens = {0, static_cast<int32_t>(n / 3), static_cast<int32_t>(n)};
          t.all.cu_seqlens = View(t.cu_seqlens.data(), {3});
        }
        ExpectAsByReference(shape, formats, t.all, "i64 slots");
        t.narrow.assign(t.slots.begin(), t.slots.end());
        t.all.slots = packed ? View(t.narrow.data(), {n}) : View(t.narrow.data(), {B, n});
        ExpectAsByReference(shape, formats, t.all, "i32 slots");
        if (packed || n == 0) continue;
        t.lengths = {static_cast<int32_t>(n / 2), static_cast<int32_t>(n)};
        t.all.lengths = View(t.lengths.data(), {2});
        t.narrow[static_cast<size_t>(n - 1)] = 1 << 30;  // behind the length: names nothing
        ExpectAsByReference(shape, formats, t.all, "slots with lengths");
      }
    }
  }
}

TEST(AppendTest, PositionsInPagesOfEverySize) {
  Random random(test::BaseSeed());
  for (const auto& formats : kMixed) {
    for (int64_t page : test::Thinned({1, 2, 7, 16, 33})) {
      for (bool sparse : {false, true}) {
        const int64_t B = 3, n = 20, width = (50 + page - 1) / page;
        const CacheShape shape = Pages(B * width + 2, page);
        Tokens t(B, shape.heads, n, shape.dk, shape.dv, random);
        std::vector<int64_t> free(static_cast<size_t>(shape.pages));
        std::iota(free.begin(), free.end(), 0);
        random.Shuffle(free);
        t.table.assign(free.begin(), free.begin() + B * width);
        t.past = {0, 13, 30};
        t.lengths = {20, 0, 17};
        t.all.past_lengths = View(t.past.data(), {B});
        t.all.lengths = View(t.lengths.data(), {B});
        // Numbers of pages that no token needs name nothing.
        for (int64_t b = 0; b < B; ++b) {
          for (int64_t m = 0; m < width; ++m) {
            const int64_t first = t.past[static_cast<size_t>(b)],
                          end = first + t.lengths[static_cast<size_t>(b)];
            if ((m + 1) * page <= first || m * page >= end)
              t.table[static_cast<size_t>(b * width + m)] = random.Chance(0.5) ? -1 : 1 << 20;
          }
        }
        if (sparse) {
          for (int64_t b = 0; b <= B; ++b) t.begins.push_back(static_cast<int32_t>(b * width));
          t.all.pages.begins = View(t.begins.data(), {B + 1});
          t.all.pages.table = View(t.table.data(), {B * width});
        } else {
          t.all.pages.table = View(t.table.data(), {B, width});
        }
        ExpectAsByReference(shape, formats, t.all, sparse ? "begins" : "table");
      }
    }
  }
}

TEST(AppendTest, RowsOfSequencesAndRings) {
  Random random(test::BaseSeed());
  for (const auto& formats : kMixed) {
    for (bool ring : {false, true}) {
      for (int64_t past : test::Thinned(test::Numbers(0, 23))) {
        for (int64_t n : {1, 6, 12, 30}) {
          CacheShape shape = Pages(2, 12);
          shape.ring = ring;
          if (!ring && past + n > 12) continue;
          Tokens t(2, shape.heads, n, shape.dk, shape.dv, random);
          t.past = {past, past / 2};
          t.all.past_lengths = View(t.past.data(), {2});
          ExpectAsByReference(shape, formats, t.all, ring ? "ring" : "rows");
        }
      }
    }
  }
}

// Scales within the rows of codes, as engines have them: K, its scale, V, its scale in one slot.
TEST(AppendTest, ScalesInTheSameBytesAsCodes) {
  Random random(test::BaseSeed());
  const int64_t slots = 9, H = 2, d = 24, bytes = 2 * (d + 4) + 1;  // odd: no scale is aligned
  std::vector<unsigned char> want(static_cast<size_t>(slots * H * bytes), 0xA5), got = want;
  const auto cache_in = [&](std::vector<unsigned char>& memory) {
    const auto view = [&](int64_t offset, DType type, int64_t elements) {
      MutableTensorView x =
          View(static_cast<void*>(memory.data() + offset), type, {slots, H, 1, elements});
      x.stride[0] = H * bytes, x.stride[1] = bytes, x.stride[2] = bytes;
      return x;
    };
    KVCache cache;
    cache.k = view(0, DType::kI8, d), cache.k_scale = view(d, DType::kF32, 1);
    cache.v = view(d + 4, DType::kI8, d), cache.v_scale = view(2 * d + 4, DType::kF32, 1);
    return cache;
  };
  Tokens t(1, H, 6, d, d, random);
  t.slots = {3, 0, 8, 3, -1, 5};
  t.all.slots = View(t.slots.data(), {1, 6});
  reference::Append(cache_in(want), t.all);
  ASSERT_TRUE(Append(cache_in(got), t.all).ok());
  EXPECT_EQ(got, want);
}

// A scale and a zero before each group of codes, as engines have them.
TEST(AppendTest, ScalesBetweenGroupsOfCodes) {
  Random random(test::BaseSeed());
  const int64_t pages = 3, H = 2, P = 4, d = 24;
  struct Form {
    DType type;
    int64_t group;
  };
  for (const Form& form : {Form{DType::kU8, 8}, Form{DType::kU4High, 12}, Form{DType::kI8, 6}}) {
    const bool has_zero = form.type != DType::kI8;
    const int64_t step = 8 + BytesOf(form.type, form.group), row = d / form.group * step;
    std::vector<unsigned char> want(static_cast<size_t>(pages * H * P * row), 0xA5), got = want;
    const auto cache_in = [&](std::vector<unsigned char>& memory) {
      const auto view = [&](int64_t offset, DType type, int64_t elements, int64_t stride) {
        MutableTensorView x =
            View(static_cast<void*>(memory.data() + offset), type, {pages, H, P, elements});
        x.stride[0] = H * P * row, x.stride[1] = P * row, x.stride[2] = row, x.stride[3] = stride;
        return x;
      };
      KVCache cache;
      cache.k = view(8, form.type, d, 1);
      cache.k_scale = view(0, DType::kF32, d / form.group, step);
      if (has_zero) cache.k_zero = view(4, DType::kF32, d / form.group, step);
      cache.k_group_stride = step;
      return cache;
    };
    Tokens t(1, H, 7, d, d, random);
    t.all.v = TensorView();
    t.slots = {3, 0, 11, 3, -1, 5, 8};
    t.all.slots = View(t.slots.data(), {1, 7});
    reference::Append(cache_in(want), t.all);
    ASSERT_TRUE(Append(cache_in(got), t.all).ok());
    EXPECT_EQ(got, want) << Name(form.type);
    for (int64_t n = 0; n < row && !has_zero; ++n) {  // where the zeros of other types are
      if (n % step >= 4 && n % step < 8) {
        EXPECT_EQ(got[static_cast<size_t>(n)], 0xA5);
      }
    }
    KVCache broken = cache_in(got);
    broken.k_scale.shape[3] = 5;
    if (has_zero) broken.k_zero.shape[3] = 5;
    EXPECT_EQ(Append(broken, t.all).code(), StatusCode::kUnsupported);
  }
}

TEST(AppendTest, WithoutValues) {
  Random random(test::BaseSeed());
  CacheShape shape = Pages(1, 8);
  shape.dv = 0;
  Tokens t(1, 2, 5, shape.dk, 8, random);
  t.all.v = TensorView();
  ExpectAsByReference(shape, kMixed[0], t.all, "no v");
}

// ---- threads ----

// Every task in an order of its own, on so many threads.
void RunOnThreads(const BoundAppend& call, int workers, Random& random) {
  std::vector<int64_t> order(static_cast<size_t>(call.Tasks()));
  std::iota(order.begin(), order.end(), 0);
  random.Shuffle(order);
#if defined(__wasi__)
  (void)workers;
  for (int64_t task : order) call.RunTask(task);
#else
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t n; (n = next++) < order.size();) call.RunTask(order[n]);
  };
  std::vector<std::thread> threads;
  for (int n = 1; n < workers; ++n) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
#endif
}

TEST(AppendTest, AnyThreadsGiveTheSameBytes) {
  Random random(test::BaseSeed());
  for (const auto& formats : kMixed) {
    for (int64_t heads : {1, 4}) {
      CacheShape shape = Pages(60, 16, heads);
      shape.dk = shape.dv = 128;
      const int64_t n = 700;
      Tokens t(1, heads, n, shape.dk, shape.dv, random);
      for (int64_t i = 0; i < n; ++i) t.slots.push_back(random.Between(-1, 60 * 16 - 1));
      t.all.slots = View(t.slots.data(), {1, n});
      OwnedCache want(shape, formats[0], formats[1], 1);
      ASSERT_TRUE(Append(want.cache, t.all).ok());
      for (int workers : test::Thinned({1, 2, 3, 8})) {
        OwnedCache got(shape, formats[0], formats[1], 1);
        BoundAppend call;
        ASSERT_TRUE(BindAppend(got.cache, t.all, {}, nullptr, &call).ok());
        EXPECT_GT(call.Tasks(), 1);
        RunOnThreads(call, workers, random);
        EXPECT_EQ(got.Bytes(), want.Bytes()) << workers << " workers, " << ToString(formats[0]);
      }
    }
  }
}

TEST(AppendTest, ManyThreadsCountEveryLostNaN) {
  Random random(test::BaseSeed());
  const Format format = {DType::kI8, true};
  CacheShape shape = Pages(64, 16, 2);
  shape.dk = shape.dv = 128;
  Tokens t(1, 2, 1000, 128, 128, random);
  const OwnedRows k(DType::kF32, 1, 2, 1000, 128, false, {Values::kNaN}, random);
  t.all.k = k.view;
  t.past = {3};
  std::vector<int64_t> slots(1000);
  std::iota(slots.begin(), slots.end(), 0);
  t.all.slots = View(slots.data(), {1, 1000});
  OwnedCache want(shape, format, format, 1), got(shape, format, format, 1);
  const AppendResult expected = reference::Append(want.cache, t.all);
  EXPECT_GT(expected.lost_nans, 0);
  AppendResult result;
  result.lost_nans = 77;  // of a call before
  BoundAppend call;
  ASSERT_TRUE(BindAppend(got.cache, t.all, {}, &result, &call).ok());
  RunOnThreads(call, 4, random);
  EXPECT_EQ(result.lost_nans, expected.lost_nans);
  EXPECT_EQ(got.Bytes(), want.Bytes());
}

// What becomes of an executor that leaves tasks out, or calls others.
class Careless final : public Executor {
 public:
  explicit Careless(int64_t more) : more_(more) {}
  int Workers() const noexcept override { return 1; }
  void ForEach(int64_t tasks, Task task, void* context) noexcept override {
    for (int64_t n = 0; n < tasks + more_; ++n) task(context, n, 0);
  }

 private:
  int64_t more_;
};

TEST(AppendTest, ExecutorsAreCounted) {
  Random random(test::BaseSeed());
  Tokens t(1, 2, 5, 64, 32, random);
  OwnedCache cache(Pages(1, 16), {DType::kF32}, {DType::kF32}, 1);
  for (int64_t more : {-1, 1}) {
    Careless executor(more);
    const Status status = Append(cache.cache, t.all, nullptr, executor);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(status.message()).find("executor"), std::string::npos);
  }
}

// ---- state of the machine ----

TEST(AppendTest, NoFloatStateChangesABitOrIsChanged) {
  Random random(test::BaseSeed());
  const std::vector<Values> kinds(std::begin(test::kAllValues), std::end(test::kAllValues));
  for (const Format& format : test::WrittenFormats()) {
    CacheShape shape = Pages(1, 40);
    Tokens t(1, 2, 36, shape.dk, shape.dv, random);
    const OwnedRows k(DType::kF32, 1, 2, 36, shape.dk, false, kinds, random);
    t.all.k = k.view;
    OwnedCache want(shape, format, format, 1);
    ASSERT_TRUE(Append(want.cache, t.all).ok());
    for (const test::FloatState& state : test::FloatStates()) {
      for (Target target :
           test::Thinned(std::vector<Target>(UsableTargets().begin(), UsableTargets().end()))) {
        OwnedCache got(shape, format, format, 1);
        AppendOptions options;
        options.target = target;
        AppendResult result;
        bool entered, unchanged, ok;
        {
          test::InState in(state);
          entered = in.entered;
          ok = Append(got.cache, t.all, options, &result, SerialExecutor()).ok();
          unchanged = in.Unchanged();
        }
        if (!entered) continue;
        EXPECT_TRUE(ok);
        EXPECT_TRUE(unchanged) << state.name << " " << ToString(format);
        EXPECT_TRUE(SameCaches(got, want)) << state.name << " " << ToString(format);
      }
    }
  }
}

TEST(AppendTest, DoesNotAllocate) {
  Random random(test::BaseSeed());
  for (const Format& format : test::WrittenFormats()) {
    CacheShape shape = Pages(2, 40);
    shape.dk = 2048;
    Tokens t(2, 2, 36, shape.dk, shape.dv, random);
    OwnedCache cache(shape, format, format, 1);
    OwnedCache broken(shape, format, format, 1);
    broken.cache.k.shape[3] = 7;
    BoundAppend call;
    Executor& executor = SerialExecutor();
    ASSERT_TRUE(Append(cache.cache, t.all).ok());  // what a process does once is done
    const int64_t before = test::Allocations();
    const Status appended = Append(cache.cache, t.all, nullptr, executor);
    const Status bound = BindAppend(cache.cache, t.all, {}, nullptr, &call);
    call.RunTask(0);
    const Status refused = Append(broken.cache, t.all, nullptr, executor);
    const int64_t after = test::Allocations();
    EXPECT_TRUE(appended.ok() && bound.ok() && !refused.ok());
    EXPECT_EQ(after, before) << ToString(format);
  }
}

// ---- memory ----

TEST(CacheTest, BytesOfAPageAreTheSumOfItsRows) {
  CacheShape shape;
  shape.pages = 10, shape.page = 16, shape.heads = 8, shape.dk = shape.dv = 128;
  const auto bytes = [&](DType k, DType v) {
    shape.k.dtype = k, shape.v.dtype = v;
    int64_t n = -1;
    const Status status = CacheBytes(shape, &n);
    EXPECT_TRUE(status.ok()) << status.message();
    return n;
  };
  const int64_t rows = 10 * 16 * 8;
  EXPECT_EQ(bytes(DType::kF32, DType::kF32), rows * 128 * 8);
  EXPECT_EQ(bytes(DType::kBF16, DType::kF16), rows * 128 * 4);
  EXPECT_EQ(bytes(DType::kQ8_0, DType::kQ4_0), rows * (4 * 34 + 4 * 18));
  EXPECT_EQ(bytes(DType::kI8, DType::kU8), rows * (128 + 4 + 128 + 8));
  EXPECT_EQ(bytes(DType::kF8E4M3FN, DType::kU4), rows * (128 + 64 + 8));
  shape.v.group = 32;
  EXPECT_EQ(bytes(DType::kF8E4M3FN, DType::kU4), rows * (128 + 64 + 32));
  shape.v = CacheFormat();
  shape.dv = 0;
  EXPECT_EQ(bytes(DType::kF32, DType::kF32), rows * 128 * 4);
  shape.heads = 1, shape.page = 1, shape.dk = 3;  // a page takes whole lines
  EXPECT_EQ(bytes(DType::kF32, DType::kF32), 10 * 64);
}

// Each byte belongs to one tensor of one page, and to no other.
TEST(CacheTest, ViewsDoNotMeetAndPagesAreBlocks) {
  for (const Format& format : test::WrittenFormats()) {
    CacheShape shape = Pages(3, 5, 2);
    OwnedCache cache(shape, format, format, 1);
    const int64_t bytes = static_cast<int64_t>(cache.Bytes().size());
    std::vector<int> owner(static_cast<size_t>(bytes), -1);
    const char* const base = static_cast<const char*>(cache.cache.k.data);
    int number = 0;
    const auto claim = [&](const MutableTensorView& x, bool is_fixed) {
      ++number;
      if (!x.present() || is_fixed) return;
      for (int64_t b = 0; b < x.shape[0]; ++b) {
        for (int64_t h = 0; h < x.shape[1]; ++h) {
          for (int64_t r = 0; r < x.shape[2]; ++r) {
            const char* const row = static_cast<const char*>(x.data) + b * x.stride[0] +
                                    h * x.stride[1] + r * x.stride[2];
            for (int64_t n = 0; n < BytesOf(x.dtype, x.shape[3]); ++n) {
              const int64_t at = row + n - base;
              ASSERT_GE(at, b * bytes / 3);
              ASSERT_LT(at, (b + 1) * bytes / 3);
              EXPECT_EQ(owner[static_cast<size_t>(at)], -1);
              owner[static_cast<size_t>(at)] = number;
            }
          }
        }
      }
    };
    claim(cache.cache.k, false), claim(cache.cache.v, false);
    claim(cache.cache.k_scale, format.fixed), claim(cache.cache.v_scale, format.fixed);
    claim(cache.cache.k_zero, false), claim(cache.cache.v_zero, false);
  }
}

TEST(CacheTest, ProblemsReadWhatAppendWrites) {
  OwnedCache cache(Pages(3, 5, 2), {DType::kU8}, {DType::kI8, true}, 1);
  cache.cache.ring = true;
  Problem problem;
  SetCache(cache.cache, &problem);
  EXPECT_EQ(problem.k.data, cache.cache.k.data);
  EXPECT_EQ(problem.v.data, cache.cache.v.data);
  EXPECT_EQ(problem.k_scale.data, cache.cache.k_scale.data);
  EXPECT_EQ(problem.k_zero.data, cache.cache.k_zero.data);
  EXPECT_EQ(problem.v_scale.data, cache.cache.v_scale.data);
  EXPECT_FALSE(problem.v_zero.present());
  EXPECT_TRUE(problem.ring);
}

}  // namespace
}  // namespace fovea
