// Rows of codes whose scales and zeros are views of their own, as f32. Knows no attention.
#if defined(FOVEA_SRC_KERNELS_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_CODES_INL_H_
#undef FOVEA_SRC_KERNELS_CODES_INL_H_
#else
#define FOVEA_SRC_KERNELS_CODES_INL_H_
#endif

#include "kernels/dequantise-inl.h"
#include "kernels/rows.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// Channels that are taken at once: room for their codes, scales and zeros.
constexpr int64_t kCodeChunk = 128;

// Codes of a byte, in place.
template <class ByteType>
struct WholeBytes {
  using Bytes = ByteType;
  static HWY_INLINE const uint8_t* Unpack(const char* row, int64_t first, int64_t, uint8_t*) {
    return reinterpret_cast<const uint8_t*>(row) + first;
  }
};

// Two codes in a byte, the even channel in the low or the high nibble; `offset` less than what is
// stored.
template <bool kHighFirst, int kOffset>
struct NibblePairs {
  using Bytes = SignedBytes;
  // first and n are even; `buffer` has room for 32 codes more than n.
  static HWY_INLINE const uint8_t* Unpack(const char* row, int64_t first, int64_t n,
                                          uint8_t* HWY_RESTRICT buffer) {
    const D16Bytes d;
    const uint8_t* const p = reinterpret_cast<const uint8_t*>(row) + first / 2;
    const auto unpack = [&](V16Bytes v, uint8_t* to) HWY_ATTR {
      const V16Bytes offset = hn::Set(d, uint8_t{kOffset});
      const V16Bytes low = hn::Sub(hn::And(v, hn::Set(d, uint8_t{15})), offset);
      const V16Bytes high = hn::Sub(hn::ShiftRight<4>(v), offset);
      const V16Bytes a = kHighFirst ? high : low, b = kHighFirst ? low : high;
      hn::StoreU(hn::InterleaveLower(d, a, b), d, to);
      hn::StoreU(hn::InterleaveUpper(d, a, b), d, to + 16);
    };
    int64_t c = 0;
    for (; c + 32 <= n; c += 32) unpack(hn::LoadU(d, p + c / 2), buffer + c);
    if (c < n) {
      uint8_t some[16] = {};
      std::memcpy(some, p + c / 2, static_cast<size_t>((n - c) / 2));
      unpack(hn::LoadU(d, some), buffer + c);
    }
    return buffer;
  }
};

// The group of element a: of `groups` that `all` elements share.
HWY_INLINE int64_t GroupOf(int64_t a, int64_t groups, int64_t all) {
  return groups == all ? a : groups == 1 ? 0 : a * groups / all;
}
// The first element behind the group of element a.
HWY_INLINE int64_t GroupEnd(int64_t a, int64_t groups, int64_t all) {
  return groups == all ? a + 1
         : groups == 1 ? all
                       : ((GroupOf(a, groups, all) + 1) * all + groups - 1) / groups;
}

constexpr uint32_t kZeroInScale = 15;  // the bits of f32_z4 that are the zero

// A scale, or a zero.
HWY_INLINE float FactorAt(DType dtype, const char* p) {
  switch (dtype) {
    case DType::kF32:
      return ReadAs<float>(p);
    case DType::kF16:
      return hn::GetLane(HalfAt(p));
    case DType::kBF16:
      return hwy::F32FromBF16(ReadAs<hwy::bfloat16_t>(p));
    case DType::kF32Z4: {
      const uint32_t bits = ReadAs<uint32_t>(p) & ~kZeroInScale;
      float scale;
      std::memcpy(&scale, &bits, sizeof(scale));
      return scale;
    }
    case DType::kI32:
      return static_cast<float>(ReadAs<int32_t>(p));
    case DType::kI8:
      return static_cast<float>(ReadAs<int8_t>(p));
    case DType::kU8:
      return static_cast<float>(ReadAs<uint8_t>(p));
    default:
      __builtin_trap();
  }
}

HWY_INLINE float ZeroInScale(const char* p) {
  return static_cast<float>(ReadAs<uint32_t>(p) & kZeroInScale);
}

// Channels first ≤ c < end that share a scale and a zero, and where those lie in their rows.
struct CodeGroup {
  int64_t first, end;
  int64_t scale, zero;  // bytes
  int64_t codes;        // bytes from the row to the codes of a group of channels that lies apart …
  int64_t skipped;      // … and its channels before `first`
};

// Scales and zeros of codes: of a chunk of channels, for one row after the other.
class ScalesOfRows {
 public:
  // Channels begin ≤ c < begin + n of the rows, n ≤ kCodeChunk.
  ScalesOfRows(const CodeScales& s, int64_t begin, int64_t n) : s_(s) {
    in_scale_ = s.scale.dtype == DType::kF32Z4;
    has_scale_ = s.scale.dtype != DType::kNone;
    has_zero_ = in_scale_ || s.zero.dtype != DType::kNone;
    const int64_t all = s.code_columns, most = std::max(s.scale.columns, s.zero.columns);
    // Groups so short that each channel had better have a scale and a zero of its own.
    are_short_ = s.group_stride == 0 && most > 1 && all / most < 2 * kLanes;
    begin_ = begin;
    for (int64_t c = begin; c < begin + n && !are_short_;) {
      const int64_t end = std::min(
          std::min(GroupEnd(c, s.scale.columns, all), GroupEnd(c, s.zero.columns, all)), begin + n);
      groups_[count_++] = {c - begin,
                           end - begin,
                           GroupOf(c, s.scale.columns, all) * s.scale.stride,
                           GroupOf(c, s.zero.columns, all) * s.zero.stride,
                           s.group_stride == 0 ? 0 : c / s.group_channels * s.group_stride,
                           s.group_stride == 0 ? 0 : c % s.group_channels};
      c = end;
    }
  }

  // To the row of that number.
  HWY_INLINE void Find(int64_t row) {
    scale_ = s_.scale.data + GroupOf(row, s_.scale.rows, s_.code_rows) * s_.scale.row_stride;
    zero_ = s_.zero.data + GroupOf(row, s_.zero.rows, s_.code_rows) * s_.zero.row_stride;
  }
  HWY_INLINE float Scale(const CodeGroup& group) const {
    return has_scale_ ? FactorAt(s_.scale.dtype, scale_ + group.scale) : 1.0f;
  }
  HWY_INLINE float Zero(const CodeGroup& group) const {
    return in_scale_   ? ZeroInScale(scale_ + group.scale)
           : has_zero_ ? FactorAt(s_.zero.dtype, zero_ + group.zero)
                       : 0.0f;
  }

  bool has_zero() const { return has_zero_; }
  bool are_short() const { return are_short_; }
  const CodeGroup* begin() const { return groups_; }
  const CodeGroup* end() const { return groups_ + count_; }
  // The row's are those of the row that was expanded last.
  bool are_expanded() const { return scale_ == expanded_scale_ && zero_ == expanded_zero_; }
  // To a scale and a zero for each of n channels.
  void Expand(int64_t n, float* scales, float* zeros) {
    ExpandFactors(s_.scale, scale_, n, 1.0f, scales);
    if (in_scale_) {
      for (int64_t x = 0; x < n; ++x) {
        const int64_t group = GroupOf(begin_ + x, s_.scale.columns, s_.code_columns);
        zeros[x] = ZeroInScale(scale_ + group * s_.scale.stride);
      }
    } else {
      ExpandFactors(s_.zero, zero_, n, 0.0f, zeros);
    }
    expanded_scale_ = scale_;
    expanded_zero_ = zero_;
  }

 private:
  void ExpandFactors(const CodeFactors& f, const char* row, int64_t n, float none, float* to) {
    if (f.dtype == DType::kNone) {
      std::fill_n(to, n, none);
    } else if (f.dtype == DType::kF32 && f.columns == s_.code_columns && f.stride == 4) {
      std::memcpy(to, row + begin_ * f.stride, static_cast<size_t>(n) * sizeof(float));
    } else {
      for (int64_t x = 0; x < n; ++x)
        to[x] = FactorAt(f.dtype, row + GroupOf(begin_ + x, f.columns, s_.code_columns) * f.stride);
    }
  }

  const CodeScales& s_;
  bool in_scale_, has_scale_, has_zero_, are_short_;
  int64_t begin_;
  const char* scale_ = nullptr;
  const char* zero_ = nullptr;
  const char* expanded_scale_ = nullptr;
  const char* expanded_zero_ = nullptr;
  int64_t count_ = 0;
  CodeGroup groups_[kCodeChunk];
};

// Rows of the types with HasScaleViews.
template <class Codes>
struct CodedRows {
  static void Load(const SourceRows& from, int64_t rows, int64_t first, int64_t n,
                   float* HWY_RESTRICT to, int64_t to_stride) {
    using Bytes = typename Codes::Bytes;
    const DF df;
    HWY_ALIGN uint8_t buffer[kCodeChunk + 32];
    HWY_ALIGN float scale_of[kCodeChunk], zero_of[kCodeChunk];
    for (int64_t c = 0; c < n; c += kCodeChunk, to += kCodeChunk) {
      const int64_t channels = std::min(n - c, kCodeChunk);
      ScalesOfRows scales(*from.scales, first + c, channels);
      const bool is_dense = from.scales->group_stride == 0, has_zero = scales.has_zero();
      for (int64_t r = 0; r < rows; ++r) {
        const char* const coded = from.row + r * from.row_stride;
        const uint8_t* const codes =
            is_dense ? Codes::Unpack(coded, first + c, channels, buffer) : nullptr;
        float* const row = to + r * to_stride;
        scales.Find(from.scales->first + r);
        if (scales.are_short()) {
          if (r == 0 || !scales.are_expanded()) scales.Expand(channels, scale_of, zero_of);
          Dequantise<Bytes>(codes, channels, EachShiftedAndScaled{scale_of, zero_of}, row);
          continue;
        }
        for (const CodeGroup& group : scales) {
          const int64_t count = group.end - group.first;
          const uint8_t* const some =
              is_dense ? codes + group.first
                       : Codes::Unpack(coded + group.codes, group.skipped, count, buffer);
          const VF scale = hn::Set(df, scales.Scale(group));
          if (has_zero) {
            const ShiftedAndScaled f = {scale, hn::Set(df, scales.Zero(group))};
            Dequantise<Bytes>(some, count, f, row + group.first);
          } else {
            Dequantise<Bytes>(some, count, Scaled{scale}, row + group.first);
          }
        }
      }
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
