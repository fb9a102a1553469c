// Append, then attend: attention over a cache that was written token by token is attention over the
// numbers that the cache holds, and those are as near to the given ones as their type allows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "fovea/kv_cache.h"
#include "reference/reference.h"
#include "support/append_case.h"
#include "support/check.h"
#include "support/owned_tensor.h"
#include "support/thin.h"

namespace fovea {
namespace {

using test::Format;
using test::Kernel;
using test::OwnedCache;
using test::OwnedRows;
using test::OwnedTensor;
using test::Random;
using test::Values;

// How far the number that is read for x may be from it, of a group between lo and hi: half a step
// of its codes (a whole one where the codes of one sign end a step early), and what rounding of
// scales to f16 adds.
double BoundOf(DType type, double x, double lo, double hi) {
  const double most = std::max(std::fabs(lo), std::fabs(hi)), rounding = 0x1p-10 * most;
  switch (type) {
    case DType::kF32:
      return 0;
    case DType::kF16:
      return 0x1p-11 * std::fabs(x) + 0x1p-24;
    case DType::kBF16:
      return 0x1p-8 * std::fabs(x);
    case DType::kF8E4M3FN:
      return 0x1p-4 * std::fabs(x) + 0x1p-10;
    case DType::kF8E5M2:
      return 0x1p-3 * std::fabs(x) + 0x1p-17;
    case DType::kI8:
    case DType::kQ8_0:
      return 0.5 * most / 127 + rounding;
    case DType::kU8:
      return 0.5 * (hi - lo) / 255 + 0x1p-20 * most;
    case DType::kU4:
    case DType::kU4High:
    case DType::kQ4_1:
      return 0.5 * (hi - lo) / 15 + rounding;
    case DType::kQ5_1:
      return 0.5 * (hi - lo) / 31 + rounding;
    case DType::kQ4_0:
      return most / 8 + rounding;
    default:  // q5_0
      return most / 16 + rounding;
  }
}

// Channels that share a scale.
int64_t GroupOf(const Format& format, int64_t d) {
  const bool is_block = IsQuantised(format.type) && !HasScaleViews(format.type);
  return is_block ? 32 : HasOwnScale(format) ? d / 2 : d;
}

// How the keys of a cache lie.
enum class Way { kRows, kPages, kRing };

// A cache of 29 keys for each of two sequences, written in four calls, and a problem that reads it.
struct Scene {
  static constexpr int64_t kB = 2, kHkv = 2, kHq = 4, kNew[] = {20, 1, 7, 1};

  Scene(const Format& format, Values values, Way way, uint64_t seed)
      : random(seed), cache(Shape(format, way), format, format, seed) {
    SetCache(cache.cache, &problem);
    if (way == Way::kPages) problem.pages.table = View(table, {kB, 6});
    int64_t past = 0;
    for (int64_t n : kNew) {
      k.emplace_back(DType::kF32, kB, kHkv, n, 64, n % 2 == 0, std::vector<Values>{values}, random);
      v.emplace_back(DType::kBF16, kB, kHkv, n, 96, false, std::vector<Values>{values}, random);
      NewTokens tokens;
      const std::vector<int64_t> before(kB, past);
      tokens.k = k.back().view, tokens.v = v.back().view;
      tokens.past_lengths = View(before.data(), {kB});
      tokens.pages = problem.pages;
      const Status status = Append(cache.cache, tokens);
      EXPECT_TRUE(status.ok()) << status.message();
      past += n;
    }
    lengths.assign(kB, past);
    problem.score.kv_lengths = View(lengths.data(), {kB});
  }
  static CacheShape Shape(const Format& format, Way way) {
    CacheShape shape;
    shape.pages = way == Way::kPages ? 12 : kB;
    shape.page = way == Way::kPages ? 5 : way == Way::kRing ? 23 : 48;
    shape.heads = kHkv, shape.dk = 64, shape.dv = 96, shape.ring = way == Way::kRing;
    if (HasOwnScale(format)) shape.k.group = 32, shape.v.group = 48;
    return shape;
  }

  Random random;
  OwnedCache cache;
  std::vector<OwnedRows> k, v;
  std::vector<int64_t> lengths;
  int32_t table[12] = {7, 3, 11, 0, 5, 8, 1, 10, 2, 9, 4, 6};
  Problem problem;
};

TEST(AppendAttendTest, WhatIsReadIsNearWhatWasGiven) {
  for (const Format& format : test::WrittenFormats()) {
    if (format.fixed) continue;  // what lies beyond those scales is cut off
    for (Values values : {Values::kNormal, Values::kConstant, Values::kTies}) {
      const Scene scene(format, values, Way::kRows, test::BaseSeed());
      int64_t position = 0;
      for (size_t call = 0; call < scene.k.size(); ++call) {
        for (const bool of_k : {true, false}) {
          const TensorView& given = of_k ? scene.k[call].view : scene.v[call].view;
          const int64_t d = given.shape[3], group = GroupOf(format, d);
          for (int64_t b = 0; b < Scene::kB; ++b) {
            for (int64_t h = 0; h < Scene::kHkv; ++h) {
              for (int64_t i = 0; i < given.shape[2]; ++i) {
                for (int64_t c = 0; c < d; ++c) {
                  double lo = INFINITY, hi = -INFINITY;
                  for (int64_t a = c / group * group; a < (c / group + 1) * group; ++a) {
                    const double x = reference::At(given, b, h, i, a);
                    lo = std::min(lo, x), hi = std::max(hi, x);
                  }
                  const double x = reference::At(given, b, h, i, c);
                  const double read =
                      of_k ? reference::KeyAt(scene.problem, b, h, position + i, c)
                           : reference::ValueAt(scene.problem, b, h, position + i, c);
                  ASSERT_LE(std::fabs(read - x), BoundOf(format.type, x, lo, hi))
                      << ToString(format) << ": " << x << " is read as " << read << ", group of "
                      << lo << " to " << hi << ", channel " << c;
                }
              }
            }
          }
        }
        position += scene.k[call].view.shape[2];
      }
    }
  }
}

TEST(AppendAttendTest, AttentionOverTheCacheIsThatOverItsNumbers) {
  for (const Format& format : test::WrittenFormats()) {
    for (Way way : test::Thinned({Way::kRows, Way::kPages, Way::kRing})) {
      Scene scene(format, Values::kNormal, way, test::BaseSeed());
      for (int64_t Tq : test::Thinned({1, 9})) {
        const OwnedRows q(DType::kF32, Scene::kB, Scene::kHq, Tq, 64, false, {Values::kNormal},
                          scene.random);
        OwnedTensor out(DType::kF32, {Scene::kB, Scene::kHq, Tq, 96});
        Problem& problem = scene.problem;
        problem.q = q.view, problem.out = out.mutable_view();
        problem.score.causal = Causal::kBottomRight;
        const reference::ForwardResult expected = reference::Forward(problem);
        for (const Kernel& kernel : test::KernelsFor(problem)) {
          const Status status = Attention(problem, test::Options(kernel), SerialExecutor());
          ASSERT_TRUE(status.ok()) << status.message();
          EXPECT_TRUE(test::Matches(problem, expected))
              << ToString(kernel) << " " << ToString(format) << " " << static_cast<int>(way);
        }
      }
    }
  }
}

}  // namespace
}  // namespace fovea
