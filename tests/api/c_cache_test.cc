// The C interface of caches is the C++ interface: equal bytes, equal messages.
#include "fovea/c_cache.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "fovea/kv_cache.h"
#include "support/append_case.h"
#include "support/c_problem.h"

namespace fovea {
namespace {

using test::OwnedRows;
using test::Random;
using test::ToC;
using test::Values;

fovea_cache_shape ShapeToC(const CacheShape& shape) {
  fovea_cache_shape s;
  fovea_cache_shape_init(&s);
  s.pages = shape.pages, s.page = shape.page, s.heads = shape.heads;
  s.dk = shape.dk, s.dv = shape.dv, s.k_group = shape.k.group, s.v_group = shape.v.group;
  s.k_dtype = static_cast<fovea_dtype>(shape.k.dtype);
  s.v_dtype = static_cast<fovea_dtype>(shape.v.dtype);
  s.ring = shape.ring ? 1 : 0;
  return s;
}

CacheShape SomeShape() {
  CacheShape shape;
  shape.pages = 4, shape.page = 5, shape.heads = 2, shape.dk = 64, shape.dv = 32;
  shape.k.dtype = DType::kU8, shape.k.group = 16, shape.v.dtype = DType::kQ5_1;
  return shape;
}

struct Memory {
  alignas(64) unsigned char bytes[1 << 14];
  Memory() { std::memset(bytes, 0xA5, sizeof(bytes)); }
};

TEST(CCacheTest, GivesTheSameBytesOnEveryPath) {
  Random random(1);
  const OwnedRows k(DType::kF16, 1, 2, 6, 64, false, {Values::kNormal}, random),
      v(DType::kBF16, 1, 2, 6, 32, true, {Values::kFar}, random);
  const int64_t slots[] = {7, 0, -1, 19, 7, 3};
  const int32_t table[] = {3, 1};
  const CacheShape shape = SomeShape();
  const fovea_cache_shape c_shape = ShapeToC(shape);
  fovea_error error;
  int64_t bytes = 0, c_bytes = 0;
  ASSERT_TRUE(CacheBytes(shape, &bytes).ok());
  ASSERT_EQ(fovea_cache_bytes(&c_shape, &c_bytes, &error), FOVEA_OK) << error.message;
  EXPECT_EQ(c_bytes, bytes);
  for (bool by_slots : {true, false}) {
    Memory want, got, bound;
    KVCache cache;
    ASSERT_TRUE(MakeCache(shape, want.bytes, bytes, &cache).ok());
    NewTokens tokens;
    tokens.k = k.view, tokens.v = v.view;
    if (by_slots) {
      tokens.slots = View(slots, {1, 6});
    } else {
      tokens.pages.table = View(table, {1, 2});
    }
    ASSERT_TRUE(Append(cache, tokens).ok());

    fovea_kv_cache c_cache;
    fovea_kv_cache_init(&c_cache);
    ASSERT_EQ(fovea_make_cache(&c_shape, got.bytes, bytes, &c_cache, &error), FOVEA_OK)
        << error.message;
    fovea_new_tokens c_tokens;
    fovea_new_tokens_init(&c_tokens);
    c_tokens.k = ToC(tokens.k), c_tokens.v = ToC(tokens.v), c_tokens.slots = ToC(tokens.slots);
    c_tokens.page_table = ToC(tokens.pages.table);
    int64_t lost = -1;
    int calls = 0;
    const fovea_executor executor = test::HostLoop(&calls);
    ASSERT_EQ(fovea_append(&c_cache, &c_tokens, FOVEA_TARGET_AUTO, &executor, &lost, &error),
              FOVEA_OK)
        << error.message;
    EXPECT_EQ(lost, 0);
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(std::memcmp(got.bytes, want.bytes, sizeof(got.bytes)), 0);

    ASSERT_EQ(fovea_make_cache(&c_shape, bound.bytes, bytes, &c_cache, &error), FOVEA_OK);
    std::vector<char> memory(fovea_append_call_bytes() + 1);
    fovea_append_call* call = nullptr;
    ASSERT_EQ(fovea_bind_append(&c_cache, &c_tokens, FOVEA_TARGET_AUTO, memory.data() + 1,
                                memory.size() - 1, &call, &error),
              FOVEA_OK)
        << error.message;
    for (int64_t task = fovea_append_tasks(call); task-- > 0;)
      EXPECT_EQ(fovea_append_run_task(call, task), FOVEA_OK);
    EXPECT_EQ(fovea_append_run_task(call, fovea_append_tasks(call)), FOVEA_INVALID_ARGUMENT);
    EXPECT_EQ(fovea_append_lost_nans(call), 0);
    EXPECT_EQ(std::memcmp(bound.bytes, want.bytes, sizeof(bound.bytes)), 0);

    fovea_problem problem;
    fovea_problem_init(&problem);
    ASSERT_EQ(fovea_set_cache(&c_cache, &problem, &error), FOVEA_OK) << error.message;
    EXPECT_EQ(problem.k.data, c_cache.k.data);
    EXPECT_EQ(problem.k_zero.data, c_cache.k_zero.data);
    EXPECT_EQ(problem.v.stride[2], c_cache.v.stride[2]);
  }
}

TEST(CCacheTest, ErrorsAreNamed) {
  const CacheShape shape = SomeShape();
  fovea_cache_shape c_shape = ShapeToC(shape);
  fovea_error error;
  int64_t bytes = 7;
  EXPECT_EQ(fovea_cache_bytes(nullptr, &bytes, &error), FOVEA_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "shape = null");
  EXPECT_EQ(fovea_cache_bytes(&c_shape, nullptr, &error), FOVEA_INVALID_ARGUMENT);
  c_shape.ring = 2;
  EXPECT_EQ(fovea_cache_bytes(&c_shape, &bytes, &error), FOVEA_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error.message).find("shape.ring = 2"), std::string::npos);
  c_shape.ring = 0, c_shape.size = 3;
  EXPECT_EQ(fovea_cache_bytes(&c_shape, &bytes, nullptr), FOVEA_INVALID_ARGUMENT);
  EXPECT_EQ(bytes, 7);
  fovea_kv_cache cache;
  fovea_kv_cache_init(&cache);
  fovea_new_tokens tokens;
  fovea_new_tokens_init(&tokens);
  EXPECT_EQ(fovea_append(&cache, &tokens, FOVEA_TARGET_AUTO, nullptr, nullptr, &error),
            FOVEA_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error.message).find("cache.k.rank = 0"), std::string::npos)
      << error.message;
  EXPECT_EQ(fovea_append(&cache, nullptr, FOVEA_TARGET_AUTO, nullptr, nullptr, &error),
            FOVEA_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "tokens = null");
  cache.k_scale_fixed = -1;
  EXPECT_EQ(fovea_append(&cache, &tokens, FOVEA_TARGET_AUTO, nullptr, nullptr, &error),
            FOVEA_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error.message).find("cache.k_scale_fixed = -1"), std::string::npos);
  fovea_problem problem;
  fovea_problem_init(&problem);
  problem.size = 64;
  cache.k_scale_fixed = 0;
  EXPECT_EQ(fovea_set_cache(&cache, &problem, &error), FOVEA_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error.message).find("problem.size = 64"), std::string::npos);
  EXPECT_EQ(fovea_append_tasks(nullptr), 0);
  EXPECT_EQ(fovea_append_lost_nans(nullptr), 0);
  EXPECT_EQ(fovea_append_run_task(nullptr, 0), FOVEA_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace fovea
