// What Append refuses: by a message that names the field, and before a byte is written.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fovea/kv_cache.h"
#include "support/append_case.h"

namespace fovea {
namespace {

using test::Format;
using test::OwnedCache;
using test::OwnedRows;
using test::Random;
using test::Values;

// A legal call to break: two sequences of four tokens, pages of three rows.
struct Call {
  explicit Call(const Format& format)
      : random(1),
        cache(Shape(), format, format, 1),
        k(DType::kF32, 2, 2, 4, 32, false, {Values::kNormal}, random),
        v(DType::kF32, 2, 2, 4, 64, false, {Values::kNormal}, random) {
    tokens.k = k.view, tokens.v = v.view;
    tokens.past_lengths = View(past, {2});
    tokens.pages.table = View(table, {2, 3});
  }
  static CacheShape Shape() {
    CacheShape shape;
    shape.pages = 6, shape.page = 3, shape.heads = 2, shape.dk = 32, shape.dv = 64;
    return shape;
  }
  // Slots instead of positions.
  void UseSlots() {
    tokens.past_lengths = TensorView();
    tokens.pages = PageTable();
    tokens.slots = View(slots, {2, 4});
  }
  void Pack() {
    tokens.k.shape[0] = tokens.v.shape[0] = 1;
    tokens.cu_seqlens = View(cu_seqlens, {3});
  }

  Random random;
  OwnedCache cache;
  OwnedRows k, v;
  int64_t past[2] = {0, 5}, slots[8] = {0, 1, 2, 3, 8, 9, -1, 17};
  int32_t table[6] = {4, 2, 99, -1, 0, 1}, begins[3] = {0, 3, 6}, cu_seqlens[3] = {0, 1, 4};
  int32_t lengths[2] = {4, 3};
  NewTokens tokens;
};

struct Rule {
  const char* name;
  void (*break_it)(Call& call);
  const char* words;  // of the message
  StatusCode code = StatusCode::kInvalidArgument;
};

void ExpectRefused(const Format& format, const std::vector<Rule>& rules) {
  for (const Rule& rule : rules) {
    Call call(format);
    const Status legal = Append(call.cache.cache, call.tokens);
    ASSERT_TRUE(legal.ok()) << legal.message();
    call.cache.Clear();
    const std::vector<unsigned char> before = call.cache.Bytes();
    rule.break_it(call);
    AppendResult result;
    result.lost_nans = 7;
    const Status status = Append(call.cache.cache, call.tokens, &result);
    EXPECT_EQ(status.code(), rule.code) << rule.name << ": " << status.message();
    EXPECT_NE(std::string(status.message()).find(rule.words), std::string::npos)
        << rule.name << ": no \"" << rule.words << "\" in \"" << status.message() << "\"";
    EXPECT_EQ(call.cache.Bytes(), before) << rule.name;
    EXPECT_EQ(result.lost_nans, 7) << rule.name;
    BoundAppend bound;
    EXPECT_EQ(BindAppend(call.cache.cache, call.tokens, {}, nullptr, &bound).code(), rule.code);
    EXPECT_EQ(bound.Tasks(), 0);
  }
}

constexpr StatusCode kUnsupported = StatusCode::kUnsupported;

TEST(AppendErrorsTest, TokensAndPlaces) {
  ExpectRefused(
      {DType::kQ8_0},
      {
          {"k absent", [](Call& c) { c.tokens.k = TensorView(); }, "tokens.k.rank = 0"},
          {"k type", [](Call& c) { c.tokens.k.dtype = DType::kI32; }, "tokens.k.dtype = i32"},
          {"k heads", [](Call& c) { c.tokens.k.shape[1] = 3; }, "tokens.k.shape[1] = 3"},
          {"k size", [](Call& c) { c.tokens.k.shape[3] = 31; }, "tokens.k.shape[3] = 31"},
          {"k null", [](Call& c) { c.tokens.k.data = nullptr; }, "tokens.k.data = null"},
          {"v absent", [](Call& c) { c.tokens.v = TensorView(); }, "tokens.v is absent"},
          {"v given", [](Call& c) { c.cache.cache.v = MutableTensorView(); }, "tokens.v is given"},
          {"v batch", [](Call& c) { c.tokens.v.shape[0] = 1; }, "tokens.v.shape[0] = 1"},
          {"v tokens", [](Call& c) { c.tokens.v.shape[2] = 3; }, "tokens.v.shape[2] = 3"},
          {"v size", [](Call& c) { c.tokens.v.shape[3] = 32; }, "tokens.v.shape[3] = 32"},
          {"past negative", [](Call& c) { c.past[1] = -1; }, "tokens.past_lengths[1] = -1"},
          {"past too large", [](Call& c) { c.past[1] = 6; },
           "tokens.past_lengths[1] = 6 with 4 new tokens"},
          {"past far too large", [](Call& c) { c.past[1] = INT64_MAX; },
           "tokens.past_lengths[1] = 9223372036854775807"},
          {"past type", [](Call& c) { c.tokens.past_lengths.dtype = DType::kF32; },
           "tokens.past_lengths.dtype = f32"},
          {"past shape", [](Call& c) { c.tokens.past_lengths.shape[0] = 1; },
           "tokens.past_lengths.shape[0] = 1"},
          {"page number", [](Call& c) { c.table[4] = 6; }, "page 1 of sequence 1 = 6"},
          {"page negative", [](Call& c) { c.table[0] = -1; }, "page 0 of sequence 0 = -1"},
          {"keys", [](Call& c) { c.tokens.pages.keys = 8; }, "at most 8 together"},
          {"keys negative", [](Call& c) { c.tokens.pages.keys = -1; }, "tokens.pages.keys = -1"},
          {"table rank", [](Call& c) { c.tokens.pages.table.rank = 1; },
           "tokens.pages.table.rank = 1"},
          {"table type", [](Call& c) { c.tokens.pages.table.dtype = DType::kF32; },
           "tokens.pages.table.dtype = f32"},
          {"begins fall",
           [](Call& c) {
             c.begins[2] = 2;
             c.tokens.pages.table = View(c.table, {6});
             c.tokens.pages.begins = View(c.begins, {3});
           },
           "tokens.pages.begins[2] = 2"},
          {"begins beyond",
           [](Call& c) {
             c.begins[2] = 7;
             c.tokens.pages.table = View(c.table, {6});
             c.tokens.pages.begins = View(c.begins, {3});
           },
           "tokens.pages.begins[2] = 7"},
          {"too few pages",
           [](Call& c) {
             c.begins[2] = 5;
             c.tokens.pages.table = View(c.table, {6});
             c.tokens.pages.begins = View(c.begins, {3});
           },
           "at most 6 together"},
          {"begins without table",
           [](Call& c) {
             c.tokens.pages = PageTable();
             c.tokens.pages.begins = View(c.begins, {3});
           },
           "tokens.pages.begins is given"},
          {"ring and pages", [](Call& c) { c.cache.cache.ring = true; }, "tokens.pages is given"},
          {"sequences without pages", [](Call& c) { c.tokens.pages = PageTable(); },
           "cache.k.shape[0] = 6, expected 2"},
          {"length",
           [](Call& c) {
             c.lengths[1] = 5;
             c.tokens.lengths = View(c.lengths, {2});
           },
           "tokens.lengths[1] = 5"},
          {"length negative",
           [](Call& c) {
             c.lengths[0] = -1;
             c.tokens.lengths = View(c.lengths, {2});
           },
           "tokens.lengths[0] = -1"},
          {"slot",
           [](Call& c) {
             c.UseSlots();
             c.slots[7] = 18;
           },
           "tokens.slots[1, 3] = 18, expected less than 18"},
          {"slots and positions",
           [](Call& c) {
             c.UseSlots();
             c.tokens.past_lengths = View(c.past, {2});
           },
           "tokens.slots is given"},
          {"slots' shape",
           [](Call& c) {
             c.UseSlots();
             c.tokens.slots.shape[1] = 3;
           },
           "tokens.slots.shape[1] = 3"},
          {"slots' rank",
           [](Call& c) {
             c.UseSlots();
             c.tokens.slots = View(c.slots, {8});
           },
           "tokens.slots.rank = 1"},
          {"packed batch",
           [](Call& c) {
             c.Pack();
             c.tokens.k.shape[0] = c.tokens.v.shape[0] = 2;
           },
           "tokens.k.shape[0] = 2, expected 1"},
          {"packed falls",
           [](Call& c) {
             c.Pack();
             c.cu_seqlens[1] = 5;
           },
           "tokens.cu_seqlens[1] = 5"},
          {"packed slots' rank",
           [](Call& c) {
             c.UseSlots();
             c.Pack();
           },
           "tokens.slots.rank = 2"},
      });
}

TEST(AppendErrorsTest, Caches) {
  ExpectRefused(
      {DType::kU8},
      {
          {"k type", [](Call& c) { c.cache.cache.k.dtype = DType::kI32; }, "cache.k.dtype = i32"},
          {"only read", [](Call& c) { c.cache.cache.k.dtype = DType::kIQ4NL; },
           "cache.k.dtype = iq4_nl", kUnsupported},
          {"k null", [](Call& c) { c.cache.cache.k.data = nullptr; }, "cache.k.data = null"},
          {"codes apart", [](Call& c) { c.cache.cache.k.stride[3] = 2; }, "cache.k.stride[3] = 2",
           kUnsupported},
          {"v pages", [](Call& c) { c.cache.cache.v.shape[0] = 5; }, "cache.v_scale.shape[0] = 6"},
          {"v heads of blocks",
           [](Call& c) {
             c.cache.cache.v_scale = c.cache.cache.v_zero = MutableTensorView();
             c.cache.cache.v.dtype = DType::kF8E5M2, c.cache.cache.v.shape[1] = 1;
           },
           "cache.v.shape[1] = 1"},
          {"no scale", [](Call& c) { c.cache.cache.k_scale = MutableTensorView(); },
           "cache.k_scale is absent"},
          {"no zero", [](Call& c) { c.cache.cache.v_zero = MutableTensorView(); },
           "cache.v_zero is absent"},
          {"scale type", [](Call& c) { c.cache.cache.k_scale.dtype = DType::kF16; },
           "cache.k_scale.dtype = f16", kUnsupported},
          {"zero in the scale", [](Call& c) { c.cache.cache.k_scale.dtype = DType::kF32Z4; },
           "cache.k_scale.dtype = f32_z4", kUnsupported},
          {"scales by channel: those of a page",
           [](Call& c) { c.cache.cache.k_scale.shape[2] = 1; }, "cache.k_scale.shape[2] = 1",
           kUnsupported},
          {"scales of all pages", [](Call& c) { c.cache.cache.k_scale.stride[0] = 0; },
           "cache.k_scale.shape[0]", kUnsupported},
          {"scales' size", [](Call& c) { c.cache.cache.k_scale.shape[2] = 4; },
           "cache.k_scale.shape[2] = 4, expected 3"},
          {"zeros' groups", [](Call& c) { c.cache.cache.k_zero.shape[3] = 2; },
           "cache.k_zero.shape[3] = 2"},
          {"groups", [](Call& c) { c.cache.cache.k_scale.shape[3] = 33; },
           "cache.k_scale.shape[3] = 33"},
          {"groups far apart", [](Call& c) { c.cache.cache.k_group_stride = INT64_MIN; },
           "cache.k_group_stride = -9223372036854775808, expected -2^40"},
          {"fixed", [](Call& c) { c.cache.cache.k_scale_fixed = true; },
           "cache.k_scale_fixed = true", kUnsupported},
          {"i4 of its own scales",
           [](Call& c) {
             c.cache.cache.k.dtype = DType::kI4;
             c.cache.cache.k.stride[3] = 1;
           },
           "cache.k.dtype = i4", kUnsupported},
          {"i8 with zeros", [](Call& c) { c.cache.cache.k.dtype = DType::kI8; },
           "cache.k_zero is given", kUnsupported},
          {"f8 with zeros", [](Call& c) { c.cache.cache.k.dtype = DType::kF8E5M2; },
           "cache.k_zero is given", kUnsupported},
          {"scales of floats", [](Call& c) { c.cache.cache.k.dtype = DType::kF16; },
           "cache.k_scale is given"},
      });
  ExpectRefused({DType::kI4, true},
                {
                    {"no scale", [](Call& c) { c.cache.cache.k_scale = MutableTensorView(); },
                     "cache.k_scale is absent"},
                    {"a scale for each page", [](Call& c) { c.cache.cache.k_scale.shape[0] = 6; },
                     "cache.k_scale.shape[0] = 6", kUnsupported},
                    {"scale type", [](Call& c) { c.cache.cache.k_scale.dtype = DType::kI32; },
                     "cache.k_scale.dtype = i32"},
                    {"half a byte",
                     [](Call& c) {
                       c.cache.cache.k.shape[3] = c.tokens.k.shape[3] = 31;
                       c.cache.cache.k_scale.shape[3] = 1;
                     },
                     "cache.k.shape[3] = 31", kUnsupported},
                });
  ExpectRefused(
      {DType::kF32},
      {{"fixed", [](Call& c) { c.cache.cache.k_scale_fixed = true; }, "cache.k_scale_fixed = true"},
       {"groups of floats", [](Call& c) { c.cache.cache.v_group_stride = 8; },
        "cache.v_group_stride = 8, expected 0"},
       {"unknown", [](Call& c) { c.cache.cache.k.dtype = static_cast<DType>(77); },
        "cache.k.dtype = 77"}});
}

TEST(AppendErrorsTest, Targets) {
  Call call({DType::kF32});
  AppendOptions options;
  options.target = static_cast<Target>(99);
  const Status status = Append(call.cache.cache, call.tokens, options, nullptr, SerialExecutor());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(status.message()).find("options.target"), std::string::npos);
}

TEST(AppendErrorsTest, NothingToWriteIsLegal) {
  Call call({DType::kU8});
  call.tokens.k.shape[2] = call.tokens.v.shape[2] = 0;
  EXPECT_TRUE(Append(call.cache.cache, call.tokens).ok());
  Call batch({DType::kU8});
  batch.tokens.k.shape[0] = batch.tokens.v.shape[0] = 0;
  batch.tokens.past_lengths = TensorView();
  batch.tokens.pages.table.shape[0] = 0;
  EXPECT_TRUE(Append(batch.cache.cache, batch.tokens).ok());
}

TEST(CacheErrorsTest, Shapes) {
  struct ShapeRule {
    void (*break_it)(CacheShape& s);
    const char* words;
    StatusCode code = StatusCode::kInvalidArgument;
  };
  for (const ShapeRule& rule : std::vector<ShapeRule>{
           {[](CacheShape& s) { s.pages = -1; }, "shape.pages = -1"},
           {[](CacheShape& s) { s.page = 0; }, "shape.page = 0"},
           {[](CacheShape& s) { s.heads = 0; }, "shape.heads = 0"},
           {[](CacheShape& s) { s.dk = 0; }, "shape.dk = 0"},
           {[](CacheShape& s) { s.dv = -1; }, "shape.dv = -1"},
           {[](CacheShape& s) { s.dk = 1 << 25; }, "shape.dk = 33554432", kUnsupported},
           {[](CacheShape& s) { s.k.dtype = DType::kBool; }, "shape.k.dtype = bool"},
           {[](CacheShape& s) { s.v.dtype = static_cast<DType>(-3); }, "shape.v.dtype = unknown"},
           {[](CacheShape& s) { s.k.dtype = DType::kQ8_0, s.dk = 33; }, "shape.dk = 33"},
           {[](CacheShape& s) { s.v.dtype = DType::kU4, s.v.group = 5; }, "shape.v.group = 5"},
           {[](CacheShape& s) { s.v.dtype = DType::kQ4_0, s.v.group = 32; }, "shape.v.group = 32"},
           {[](CacheShape& s) { s.k.scale_fixed = true; }, "shape.k.scale_fixed"},
           {[](CacheShape& s) { s.k.dtype = DType::kI4; }, "shape.k.dtype = i4", kUnsupported},
           {[](CacheShape& s) { s.page = INT64_MAX / 4; }, "shape.page"},
           {[](CacheShape& s) { s.pages = INT64_MAX / 4; }, "shape.pages"},
       }) {
    CacheShape shape = Call::Shape();
    rule.break_it(shape);
    int64_t bytes = 7;
    const Status status = CacheBytes(shape, &bytes);
    EXPECT_EQ(status.code(), rule.code) << rule.words << ": " << status.message();
    EXPECT_NE(std::string(status.message()).find(rule.words), std::string::npos)
        << rule.words << ": " << status.message();
    EXPECT_EQ(bytes, 7);
  }
}

TEST(CacheErrorsTest, Memory) {
  const CacheShape shape = Call::Shape();
  int64_t bytes;
  ASSERT_TRUE(CacheBytes(shape, &bytes).ok());
  alignas(64) static char memory[1 << 15];
  ASSERT_LE(bytes, static_cast<int64_t>(sizeof(memory)));
  KVCache cache;
  EXPECT_EQ(MakeCache(shape, nullptr, bytes, &cache).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(MakeCache(shape, memory + 4, bytes, &cache).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(MakeCache(shape, memory, bytes - 1, &cache).code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(MakeCache(shape, memory, bytes, nullptr).code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(cache.k.present());
  EXPECT_TRUE(MakeCache(shape, memory, bytes, &cache).ok());
}

}  // namespace
}  // namespace fovea
