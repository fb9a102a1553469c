// Rows of blocks of 32 elements that have their scale inside, as f32. Knows no attention.
#if defined(FOVEA_SRC_KERNELS_CODE_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_CODE_BLOCKS_INL_H_
#undef FOVEA_SRC_KERNELS_CODE_BLOCKS_INL_H_
#else
#define FOVEA_SRC_KERNELS_CODE_BLOCKS_INL_H_
#endif

#include "kernels/dequantise-inl.h"
#include "kernels/rows.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

constexpr int64_t kBlockElements = 32;

// Byte j of 16 has element j in its low nibble, and j + 16 in the high one.
HWY_INLINE void SplitNibbles(const char* p, V16Bytes* low, V16Bytes* high) {
  const D16Bytes d;
  const V16Bytes v = hn::LoadU(d, reinterpret_cast<const uint8_t*>(p));
  *low = hn::And(v, hn::Set(d, uint8_t{15}));
  *high = hn::ShiftRight<4>(v);
}

// 16 where bits 8·kByte … 8·kByte + 15 of the 32 at p are 1.
template <int kByte>
HWY_INLINE V16Bytes FifthBits(const char* p) {
  const D16Bytes d;
  HWY_ALIGN static constexpr uint8_t kByteOf[16] = {
      kByte,     kByte,     kByte,     kByte,     kByte,     kByte,     kByte,     kByte,
      kByte + 1, kByte + 1, kByte + 1, kByte + 1, kByte + 1, kByte + 1, kByte + 1, kByte + 1};
  HWY_ALIGN static constexpr uint8_t kBitOf[16] = {1, 2, 4, 8, 16, 32, 64, 128,
                                                   1, 2, 4, 8, 16, 32, 64, 128};
  const auto bits = hn::BitCast(d, hn::Set(hn::FixedTag<uint32_t, 4>(), ReadAs<uint32_t>(p)));
  const V16Bytes bit = hn::Load(d, kBitOf);
  const V16Bytes byte = hn::TableLookupBytes(bits, hn::Load(d, kByteOf));
  return hn::And(hn::VecFromMask(d, hn::Eq(hn::And(byte, bit), bit)), hn::Set(d, uint8_t{16}));
}

// What a block is: kBytes with `d` first, and kHasLeast `m` behind it; Unpack gives its codes.
struct Q8_0Block {
  static constexpr int64_t kBytes = 34;
  static constexpr bool kHasLeast = false;
  static HWY_INLINE const uint8_t* Unpack(const char* p, uint8_t*) {
    return reinterpret_cast<const uint8_t*>(p) + 2;
  }
};

template <int64_t bytes, bool has_least, bool has_fifth_bits, int kOffset>
struct NibbleBlock {
  static constexpr int64_t kBytes = bytes;
  static constexpr bool kHasLeast = has_least;
  static HWY_INLINE const uint8_t* Unpack(const char* p, uint8_t* HWY_RESTRICT to) {
    const D16Bytes d;
    const char* const behind = p + (kHasLeast ? 4 : 2);
    V16Bytes low, high;
    SplitNibbles(behind + (has_fifth_bits ? 4 : 0), &low, &high);
    if constexpr (has_fifth_bits) {
      low = hn::Or(low, FifthBits<0>(behind));
      high = hn::Or(high, FifthBits<2>(behind));
    }
    const V16Bytes offset = hn::Set(d, uint8_t{kOffset});
    hn::Store(hn::Sub(low, offset), d, to);
    hn::Store(hn::Sub(high, offset), d, to + 16);
    return to;
  }
};
using Q4_0Block = NibbleBlock<18, false, false, 8>;
using Q4_1Block = NibbleBlock<20, true, false, 0>;
using Q5_0Block = NibbleBlock<22, false, true, 16>;
using Q5_1Block = NibbleBlock<24, true, true, 0>;

struct IQ4NLBlock {
  static constexpr int64_t kBytes = 18;
  static constexpr bool kHasLeast = false;
  static HWY_INLINE const uint8_t* Unpack(const char* p, uint8_t* HWY_RESTRICT to) {
    const D16Bytes d;
    HWY_ALIGN static constexpr int8_t kValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                     1,    13,   25,  38,  53,  69,  89,  113};
    const V16Bytes values = hn::BitCast(d, hn::Load(hn::FixedTag<int8_t, 16>(), kValues));
    V16Bytes low, high;
    SplitNibbles(p + 2, &low, &high);
    hn::Store(hn::TableLookupBytes(values, low), d, to);
    hn::Store(hn::TableLookupBytes(values, high), d, to + 16);
    return to;
  }
};

// Rows of blocks; `first` and n are multiples of 32.
template <class Block>
struct BlockedRows {
  static void Load(const SourceRows& from, int64_t rows, int64_t first, int64_t n,
                   float* HWY_RESTRICT to, int64_t to_stride) {
    HWY_ALIGN uint8_t buffer[kBlockElements];
    for (int64_t r = 0; r < rows; ++r) {
      const char* p = from.row + r * from.row_stride + first / kBlockElements * Block::kBytes;
      float* const row = to + r * to_stride;
      for (int64_t c = 0; c < n; c += kBlockElements, p += Block::kBytes) {
        const uint8_t* const codes = Block::Unpack(p, buffer);
        const VF scale = HalfAt(p);
        if constexpr (Block::kHasLeast) {
          const ScaledAndShifted f = {scale, HalfAt(p + 2)};
          Dequantise<SignedBytes>(codes, kBlockElements, f, row + c);
        } else {
          Dequantise<SignedBytes>(codes, kBlockElements, Scaled{scale}, row + c);
        }
      }
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
