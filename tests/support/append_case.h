// Caches of every format that Append writes, new tokens for them, and how their bytes are compared.
#ifndef FOVEA_TESTS_SUPPORT_APPEND_CASE_H_
#define FOVEA_TESTS_SUPPORT_APPEND_CASE_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "fovea/kv_cache.h"
#include "reference/append.h"
#include "reference/element.h"
#include "support/random.h"

namespace fovea::test {

// A format that is written; scales of their own in groups, or fixed ones of each head and channel.
struct Format {
  DType type;
  bool fixed = false;
  DType fixed_type = DType::kF32;
};

inline std::vector<Format> WrittenFormats() {
  return {{DType::kF32},
          {DType::kF16},
          {DType::kBF16},
          {DType::kI8},
          {DType::kU8},
          {DType::kU4},
          {DType::kU4High},
          {DType::kI8, true},
          {DType::kI4, true, DType::kBF16},
          {DType::kI4High, true},
          {DType::kF8E4M3FN},
          {DType::kF8E5M2},
          {DType::kF8E4M3FN, true},
          {DType::kF8E5M2, true, DType::kF16},
          {DType::kQ8_0},
          {DType::kQ4_0},
          {DType::kQ4_1},
          {DType::kQ5_0},
          {DType::kQ5_1}};
}

inline std::string ToString(const Format& f) {
  return std::string(Name(f.type)) + (f.fixed ? " fixed" : "");
}

// Least size of a row.
inline int64_t Unit(const Format& f) { return UnitElements(f.type); }

inline bool HasOwnScale(const Format& f) {
  return HasScaleViews(f.type) && !f.fixed && f.type != DType::kF8E4M3FN &&
         f.type != DType::kF8E5M2;
}

// A cache in memory of its own, every byte 0xA5 at first.
class OwnedCache {
 public:
  OwnedCache(const CacheShape& shape, const Format& k, const Format& v, uint64_t seed) {
    CacheShape s = shape;
    s.k.dtype = k.type, s.v.dtype = v.type;
    s.k.scale_fixed = k.fixed && !IsF8(k), s.v.scale_fixed = v.fixed && !IsF8(v);
    int64_t bytes = 0;
    Status status = CacheBytes(s, &bytes);
    EXPECT_TRUE(status.ok()) << status.message();
    memory_.resize(static_cast<size_t>(bytes) + 64);
    Random random(seed);
    status = MakeCache(s, Aligned(), bytes, &cache);
    EXPECT_TRUE(status.ok()) << status.message();
    bytes_ = bytes;
    if (k.fixed) cache.k_scale = FixedScales(k, s.heads, s.dk, random);
    if (v.fixed && s.dv != 0) cache.v_scale = FixedScales(v, s.heads, s.dv, random);
    Clear();
  }
  OwnedCache(const OwnedCache&) = delete;

  void Clear() { std::memset(Aligned(), 0xA5, static_cast<size_t>(bytes_)); }
  std::vector<unsigned char> Bytes() {
    return std::vector<unsigned char>(Aligned(), Aligned() + bytes_);
  }

  KVCache cache;

 private:
  static bool IsF8(const Format& f) {
    return f.type == DType::kF8E4M3FN || f.type == DType::kF8E5M2;
  }
  unsigned char* Aligned() {
    return reinterpret_cast<unsigned char*>((reinterpret_cast<uintptr_t>(memory_.data()) + 63) /
                                            64 * 64);
  }
  // Powers of two among them, so that ties come up, and others.
  MutableTensorView FixedScales(const Format& f, int64_t heads, int64_t d, Random& random) {
    scales_.emplace_back();
    std::vector<unsigned char>& bytes = scales_.back();
    bytes.resize(static_cast<size_t>(heads * d * SizeOf(f.fixed_type)));
    for (int64_t n = 0; n < heads * d; ++n) {
      const float x = random.Chance(0.5) ? 0.25f : static_cast<float>(0.01 + random.Uniform());
      reference::WriteRow(f.fixed_type, &x, 1, nullptr, 0, bytes.data() + n * SizeOf(f.fixed_type),
                          nullptr, nullptr);
    }
    return View(static_cast<void*>(bytes.data()), f.fixed_type, {1, heads, 1, d});
  }

  std::vector<unsigned char> memory_;
  int64_t bytes_ = 0;
  std::vector<std::vector<unsigned char>> scales_;
};

// What rows may hold.
enum class Values {
  kNormal,
  kConstant,
  kZero,
  kMinusZero,
  kSubnormal,
  kHuge,
  kTies,
  kEqualMagnitudes,
  kFar,  // a small range far from 0: zeros of codes far out of their range
  kInfinities,
  kNaN,
  kEverything,  // any bits
};
constexpr Values kAllValues[] = {
    Values::kNormal,    Values::kConstant,   Values::kZero, Values::kMinusZero,
    Values::kSubnormal, Values::kHuge,       Values::kTies, Values::kEqualMagnitudes,
    Values::kFar,       Values::kInfinities, Values::kNaN,  Values::kEverything};

inline float DrawValue(Values values, Random& random, float constant) {
  const float x = static_cast<float>(random.Normal());
  switch (values) {
    case Values::kNormal:
      return x;
    case Values::kConstant:
      return constant;
    case Values::kZero:
      return random.Chance(0.3) ? -0.0f : 0.0f;
    case Values::kMinusZero:
      return -0.0f;
    case Values::kSubnormal:
      return random.Chance(0.2) ? 0.0f : x * 1e-39f;
    case Values::kHuge:
      return x * 1e38f;
    case Values::kTies:
      return static_cast<float>(random.Between(-254, 254)) * 0.0625f;
    case Values::kEqualMagnitudes:
      return random.Chance(0.5) ? constant : -constant;
    case Values::kFar:
      return 1e4f + x * 0.1f;
    case Values::kInfinities:
      return random.Chance(0.1) ? (random.Chance(0.5) ? 1.0f : -1.0f) * INFINITY : x;
    case Values::kNaN:
      return random.Chance(0.03) ? NAN : x;
    case Values::kEverything: {
      const uint32_t bits = static_cast<uint32_t>(random.Bits());
      float any;
      std::memcpy(&any, &bits, sizeof(any));
      return any;
    }
  }
  return 0;
}

// New keys or values [B, H, n, d] of a type, dense or with gaps, each row with values of one kind.
class OwnedRows {
 public:
  OwnedRows(DType type, int64_t B, int64_t H, int64_t n, int64_t d, bool sparse,
            const std::vector<Values>& kinds, Random& random) {
    const int64_t size = SizeOf(type), step = sparse ? 2 : 1;
    bytes_.resize(static_cast<size_t>(B * H * n * d * size * step), 0x5A);
    // [B, n, H, d] in memory where sparse, so that no axis has its usual stride
    view = sparse ? View(static_cast<const void*>(bytes_.data()), type, {B, n, H, d})
                  : View(static_cast<const void*>(bytes_.data()), type, {B, H, n, d});
    if (sparse) {
      for (int64_t& stride : view.stride) stride *= step;
      view = SwapAxes(view, 1, 2);
    }
    for (int64_t b = 0; b < B; ++b) {
      for (int64_t h = 0; h < H; ++h) {
        for (int64_t i = 0; i < n; ++i) {
          const Values kind = random.Pick(kinds);
          const float constant = static_cast<float>(random.Normal());
          for (int64_t c = 0; c < d; ++c) {
            const float x = DrawValue(kind, random, constant);
            reference::WriteRow(type, &x, 1, nullptr, 0,
                                bytes_.data() + b * view.stride[0] + h * view.stride[1] +
                                    i * view.stride[2] + c * view.stride[3],
                                nullptr, nullptr);
          }
        }
      }
    }
  }
  OwnedRows(OwnedRows&&) = default;  // the elements stay where they are

  TensorView view;

 private:
  std::vector<unsigned char> bytes_;
};

// The same element, or NaN both.
inline bool SameElements(const TensorView& a, const TensorView& b) {
  for (int64_t n = 0; n < a.size(); ++n) {
    int64_t i[4] = {}, rest = n;
    for (int axis = 3; axis >= 0; --axis) i[axis] = rest % a.shape[axis], rest /= a.shape[axis];
    const double x = reference::At(a, i[0], i[1], i[2], i[3]),
                 y = reference::At(b, i[0], i[1], i[2], i[3]);
    if (!(x == y && std::signbit(x) == std::signbit(y)) && !(std::isnan(x) && std::isnan(y)))
      return false;
  }
  return true;
}

// All bytes the same; of K or V of a float type, whose NaN may have any bits, all elements.
inline bool SameCaches(OwnedCache& a, OwnedCache& b) {
  std::vector<unsigned char> x = a.Bytes(), y = b.Bytes();
  const auto compare = [&](const MutableTensorView& u, const MutableTensorView& v) {
    if (!u.present() || IsQuantised(u.dtype)) return true;
    return SameElements(u, v);
  };
  if (x == y) return true;
  if (IsQuantised(a.cache.k.dtype) && (!a.cache.v.present() || IsQuantised(a.cache.v.dtype)))
    return false;
  // The others are of the same kind in every test that has floats.
  return !IsQuantised(a.cache.k.dtype) && (!a.cache.v.present() || !IsQuantised(a.cache.v.dtype)) &&
         compare(a.cache.k, b.cache.k) && compare(a.cache.v, b.cache.v);
}

}  // namespace fovea::test

#endif  // FOVEA_TESTS_SUPPORT_APPEND_CASE_H_
