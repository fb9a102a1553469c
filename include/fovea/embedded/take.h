// Q, K and V as the micro-kernels read them: Q packed and scaled, K and V in place or copied. Knows
// nothing of the softmax.
#ifndef FOVEA_EMBEDDED_TAKE_H_
#define FOVEA_EMBEDDED_TAKE_H_

#include "fovea/embedded/tile.h"

namespace fovea::embedded {
inline namespace FOVEA_EMBEDDED_ISA {
namespace internal {

// ---- Q

// 2^exponent, normal
inline float Power(int exponent) {
  return BitCast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

// A row whose scale·q overflows, or is so small that it loses bits, though its scores need not:
// scale·q·2^−x is packed, and scores are multiplied by 2^x later.
template <class Lanes>
FOVEA_EMBEDDED_KERNEL void PackExtremeRow(const Head& head, const Tile<Lanes>& tile,
                                          const char* row, double scale, double max, int r) {
  // of two factors; behind it any k but 0 gives a score that is not finite, or one of 0
  constexpr int64_t kMostExponent = 2 * 126;
  constexpr double kMost = 0x1.fffffep127;
  const Problem& p = *head.problem;
  const int e = static_cast<int>(BitCast<uint64_t>(max) >> 52 & 0x7FF) - 1023;
  const int64_t wanted = e > 126 ? e - 126 : e < -60 ? e + 60 : 0;
  const int exponent = static_cast<int>(Between(wanted, -kMostExponent, kMostExponent));
  const double factor = BitCast<double>(static_cast<uint64_t>(1023 - exponent) << 52) * scale;
  for (int64_t c = 0; c < p.dk; ++c) {
    float x;
    LoadRow(p.q.type, row + c * p.q.stride[3], p.q.stride[3], 1, &x);
    const double q = static_cast<double>(x) * factor;
    const double finite = q > kMost ? kMost : q < -kMost ? -kMost : q;
    tile.q[tile.lanes.Index(r, c, p.dk)] = static_cast<float>(finite);
  }
  tile.exponent[0][r] = Power(exponent / 2);
  tile.exponent[1][r] = Power(exponent - exponent / 2);
}

// tile.q = scale·Q in the lanes' layout. Padding rows repeat row 0.
template <class Lanes>
FOVEA_EMBEDDED_KERNEL void PackQueries(const Head& head, float* stage, Tile<Lanes>& tile) {
  const Problem& p = *head.problem;
  const char* address[Lanes::kMostRows];
  const float* rows[Lanes::kMostRows];
  double scale[Lanes::kMostRows];  // of each row, and as f32
  float scales[Lanes::kMostRows];
  bool plain = p.q.type == Type::kF32 && p.q.stride[3] == 4;
  ForEachRow(head, tile, [&](int r, int64_t h, int64_t i) {
    address[r] = Address(p.q, head.b, h, i);
    scale[r] = head.ScaleOf(h);
    scales[r] = static_cast<float>(scale[r]);
    plain = plain && reinterpret_cast<uintptr_t>(address[r]) % 4 == 0;
  });
  float max[Lanes::kMostRows];
  for (int r = 0; r < tile.lanes.rows(); ++r) max[r] = 0;
  for (int64_t c = 0; c < p.dk; c += kStageColumns) {
    const int64_t n = Least(p.dk - c, kStageColumns);
    for (int r = 0; r < tile.count; ++r) {
      if (plain) {
        rows[r] = reinterpret_cast<const float*>(address[r]) + c;
      } else {
        rows[r] = stage + r * kStageColumns;
        LoadRow(p.q.type, address[r] + c * p.q.stride[3], p.q.stride[3], n,
                stage + r * kStageColumns);
      }
    }
    if constexpr (Lanes::kKeyStep == 1) {
      for (int r = tile.count; r < tile.lanes.rows(); ++r) rows[r] = rows[0], scales[r] = scales[0];
      ForEachColumn(rows, tile.lanes.rows(), n, [&](int64_t x, int r, V4 q) {
        const V4 scaled = q * Load4(scales + r);
        xsimd::max(Load4(max + r), xsimd::abs(scaled)).store_unaligned(max + r);
        scaled.store_unaligned(tile.q + tile.lanes.Index(r, c + x, p.dk));
      });
    } else {
      for (int r = 0; r < tile.count; ++r) {
        float* to = tile.q + tile.lanes.Index(r, c, p.dk);
        for (int64_t x = 0; x < n; ++x) {
          to[x] = rows[r][x] * scales[r];
          if (!(__builtin_fabsf(to[x]) <= max[r])) max[r] = __builtin_fabsf(to[x]);
        }
        for (int64_t x = n; x < RoundUp(n, kLanes); ++x) to[x] = 0;
      }
    }
  }
  tile.has_exponents = false;
  for (int r = 0; r < tile.lanes.rows(); ++r) tile.exponent[0][r] = tile.exponent[1][r] = 1.0f;
  for (int r = 0; r < tile.count; ++r) {
    if (scale[r] == 0) continue;
    // A scale that is no normal number in f32 has lost bits.
    const bool is_exact =
        __builtin_fabsf(scales[r]) >= 0x1p-126f || static_cast<double>(scales[r]) == scale[r];
    if (is_exact && max[r] <= 0x1.fffffep127f && max[r] >= 0x1p-60f) continue;
    double largest = 0;
    for (int64_t c = 0; c < p.dk; ++c) {
      float x;
      LoadRow(p.q.type, address[r] + c * p.q.stride[3], p.q.stride[3], 1, &x);
      const double scaled = __builtin_fabs(static_cast<double>(x) * scale[r]);
      if (!(scaled <= largest)) largest = scaled;
    }
    if (largest == 0 || !IsFinite(largest)) continue;
    tile.has_exponents = true;
    PackExtremeRow(head, tile, address[r], scale[r], largest, r);
  }
}

// ---- K and V

// A matrix of rows of K or V: the caller's memory or a copy.
struct Matrix {
  const void* data = nullptr;
  int64_t stride = 0;  // elements
  Type type = Type::kF32;

  template <class T>
  const T* Row(int64_t j) const {
    return static_cast<const T*>(data) + j * stride;
  }
};

// The block of keys from `first` on.
inline Block NextBlock(const Head& head, int64_t first, int64_t end) {
  Block block = {first, Least(kBlockKeys - first % kBlockKeys, end - first),
                 first + head.sequence.first_row, 0};
  const int64_t wrap = head.sequence.rows;
  if (block.row >= wrap) block.row -= wrap;
  block.straight = Least(block.n, wrap - block.row);
  return block;
}

// The rows of a block of K or V, times `factor` (of values; a power of two): in place where the
// micro-kernels can read them, else a copy in f32.
template <class Engine>
Matrix Take(const Head& head, const Tensor& tensor, const Block& block, int64_t d, float factor,
            float* copy) {
  const char* first = Address(tensor, head.b, head.kv_head, block.row);
  const int64_t size = SizeOf(tensor.type), row_stride = tensor.stride[2];
  const bool plain = tensor.stride[3] == size && row_stride % size == 0 &&
                     reinterpret_cast<uintptr_t>(first) % static_cast<uintptr_t>(size) == 0;
  const bool aliased =
      Engine::Lanes::kKeyStep == 1 && row_stride != 0 && row_stride % kAliasing == 0;
  if (plain && !aliased && block.straight == block.n && factor == 1 &&
      (Engine::kReadsF16 || tensor.type == Type::kF32))
    return {first, row_stride / size, tensor.type};
  const int64_t stride = CopiedStride(d);
  for (int64_t j = 0; j < block.n; ++j) {
    const int64_t row = j < block.straight ? block.row + j : j - block.straight;
    float* const to = copy + j * stride;
    LoadRow(tensor.type, Address(tensor, head.b, head.kv_head, row), tensor.stride[3], d, to);
    if (factor == 1) continue;
    for (int64_t c = 0; c < d; ++c) to[c] *= factor;
  }
  return {copy, stride};
}

}  // namespace internal
}  // namespace FOVEA_EMBEDDED_ISA
}  // namespace fovea::embedded

#endif  // FOVEA_EMBEDDED_TAKE_H_
