// Writing rows of new keys and values, compiled for every target.
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/append.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "kernels/append-inl.h"
#include "kernels/registry.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

uint8_t* Bytes(char* p) { return reinterpret_cast<uint8_t*>(p); }

// ---- float types ----

int64_t WriteFloats(const AppendRows& rows) {
  const int64_t bytes = SizeOf(rows.to_type);
  if (rows.from_type == rows.to_type && rows.from_stride == bytes && rows.to_stride == bytes) {
    for (int n = 0; n < rows.count; ++n) CopyBytes(rows.from[n], rows.d * bytes, rows.to[n]);
    return 0;
  }
  float scratch[kPiece];
  RowReader x(rows, scratch);
  for (int n = 0; n < rows.count; ++n) {
    x.Begin(rows.from[n]);
    for (int64_t a = 0; a < rows.d; a += kPiece) {
      const int64_t count = std::min(kPiece, rows.d - a);
      StoreRow(x.Take(a, count), count, rows.to_type, rows.to[n] + a * rows.to_stride,
               rows.to_stride);
    }
  }
  return 0;
}

// ---- blocks ----

template <class Block>
int64_t WriteBlocks(const AppendRows& rows) {
  float scratch[kPiece];
  RowReader x(rows, scratch);
  const int64_t bytes = UnitBytes(rows.to_type);
  for (int n = 0; n < rows.count; ++n) {
    x.Begin(rows.from[n]);
    uint8_t* to = Bytes(rows.to[n]);
    for (int64_t a = 0; a < rows.d; a += kPiece) {
      const int64_t count = std::min(kPiece, rows.d - a);
      const float* const p = x.Take(a, count);
      for (int64_t i = 0; i < count; i += 32, to += bytes) Block::Write(p + i, to);
    }
  }
  return 0;
}

// ---- codes whose scales are written ----

// Where the codes of a row go, elements in ascending order, any number at once.
class CodeStore {
 public:
  CodeStore(DType type, char* to)
      : nibbles_(SizeOf(type) == 0),
        high_(type == DType::kU4High || type == DType::kI4High),
        to_(Bytes(to)) {}

  // Where element 0 is from now on.
  void MoveTo(char* to) { to_ = Bytes(to); }
  // Elements a … a + n − 1, n ≤ kPiece.
  template <class T, class CodeOf>
  HWY_INLINE void Put(const float* p, int64_t a, int64_t n, const CodeOf& code_of) {
    if (!nibbles_) return MakeCodes<T>(p, n, to_ + a, code_of);
    const int64_t odd = a % 2;  // then the first byte has a code already
    codes_[0] = half_;
    MakeCodes<T>(p, n, codes_ + odd, code_of);
    const int64_t pairs = (odd + n) / 2;
    half_ = codes_[2 * pairs];
    if (high_) {
      PackPairs<true>(codes_, 2 * pairs, to_ + a / 2);
    } else {
      PackPairs<false>(codes_, 2 * pairs, to_ + a / 2);
    }
  }

 private:
  const bool nibbles_, high_;
  uint8_t* to_;
  uint8_t half_ = 0;  // of a byte, whose other code comes with the next elements
  uint8_t codes_[kPiece + 2];
};

void PutScale(float x, char* to) { std::memcpy(to, &x, sizeof(x)); }

// f(begin, end, group) for each group of channels.
template <class F>
HWY_INLINE void ForEachGroup(const AppendRows& rows, const F& f) {
  const auto begin = [&](int64_t g) { return (g * rows.d + rows.groups - 1) / rows.groups; };
  for (int64_t g = 0, first = 0; g < rows.groups; ++g) {
    const int64_t end = begin(g + 1);
    f(first, end, g);
    first = end;
  }
}

// Codes u = round(x / scale), without a zero.
int64_t WriteSymmetric(const AppendRows& rows) {
  float scratch[kPiece];
  RowReader x(rows, scratch);
  for (int n = 0; n < rows.count; ++n) {
    x.Begin(rows.from[n]);
    ForEachGroup(rows, [&](int64_t first, int64_t end, int64_t g) HWY_ATTR {
      const float magnitude = MagnitudeOf(x, first, end);
      const float scale = std::isnan(magnitude) ? kNaN : std::max(magnitude / 127.0f, 1e-6f);
      PutScale(scale, rows.scale[n] + g * rows.scale_stride);
      const VF divisor = hn::Set(DF(), scale);
      for (int64_t a = first; a < end; a += kPiece) {
        const int64_t count = std::min(kPiece, end - a);
        const float* const p = x.Take(a, count);
        uint8_t* const to =
            Bytes(rows.to[n]) + (rows.group_stride == 0 ? a : g * rows.group_stride + (a - first));
        if (HWY_LIKELY(std::isfinite(scale))) {  // then no quotient is beyond ±127
          MakeCodes<int8_t>(p, count, to, [=](VF v, int64_t) HWY_ATTR {
            return RoundedAway(hn::Div(v, divisor));
          });
        } else {
          MakeCodes<int8_t>(p, count, to, [=](VF v, int64_t) HWY_ATTR {
            return RoundedAway(Clamped(hn::Div(v, divisor), -128.0f, 127.0f));
          });
        }
      }
    });
  }
  return 0;
}

// Codes u = round(x / scale + zero), from 0 for the least to `most` for the largest of a group.
int64_t WriteRanged(const AppendRows& rows) {
  const float most = rows.to_type == DType::kU8 ? 255.0f : 15.0f;
  float scratch[kPiece];
  RowReader x(rows, scratch);
  for (int n = 0; n < rows.count; ++n) {
    x.Begin(rows.from[n]);
    CodeStore store(rows.to_type, rows.to[n]);
    ForEachGroup(rows, [&](int64_t first, int64_t end, int64_t g) HWY_ATTR {
      // Groups that lie apart are whole bytes: each is a row of its own.
      const int64_t origin = rows.group_stride == 0 ? 0 : first;
      store.MoveTo(rows.to[n] + g * rows.group_stride);
      const Range range = RangeOf(x, first, end);
      const float step = (range.hi - range.lo) / most;
      const float scale = step == 0.0f ? 1e-4f : Canonical(step);
      const float zero = Canonical(-range.lo / scale);
      PutScale(scale, rows.scale[n] + g * rows.scale_stride);
      PutScale(zero, rows.zero[n] + g * rows.zero_stride);
      const VF divisor = hn::Set(DF(), scale), offset = hn::Set(DF(), zero);
      for (int64_t a = first; a < end; a += kPiece) {
        const int64_t count = std::min(kPiece, end - a);
        store.Put<uint8_t>(x.Take(a, count), a - origin, count, [=](VF v, int64_t) HWY_ATTR {
          return RoundedAway(Clamped(hn::Add(hn::Div(v, divisor), offset), 0.0f, most));
        });
      }
    });
  }
  return 0;
}

// ---- codes with fixed scales ----

HWY_INLINE int64_t CountNaN(const float* p, int64_t n) {
  const DF df;
  int64_t i = 0, count = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VF x = hn::LoadU(df, p + i);
    count += kLanes - static_cast<int64_t>(hn::CountTrue(df, hn::Eq(x, x)));
  }
  for (; i < n; ++i) count += std::isnan(p[i]) ? 1 : 0;
  return count;
}

// A scale for each of the elements first … first + n − 1; ones behind, up to a whole vector.
void SpreadScales(const AppendRows& rows, int64_t first, int64_t n, float* HWY_RESTRICT to) {
  const SourceRows scales = {rows.fixed_scale, rows.fixed_type, rows.scale_stride};
  if (rows.groups == rows.d) {
    LoadRow(scales, first, n, to);
  } else {
    int64_t end = 0;  // of the elements that share the scale of `group`
    for (int64_t i = 0, group = first * rows.groups / rows.d; i < n; i = end, ++group) {
      const int64_t next = ((group + 1) * rows.d + rows.groups - 1) / rows.groups;
      end = std::min(n, next - first);
      LoadRow(scales, group, 1, to + i);
      std::fill(to + i + 1, to + end, to[i]);
    }
  }
  for (int64_t i = n; i < RoundUp(n, kLanes); ++i) to[i] = 1.0f;
}

// Codes code_of(x / scale), or code_of(x) without scales.
template <class T, class CodeOf>
HWY_INLINE int64_t WriteFixed(const AppendRows& rows, bool counts, const CodeOf& code_of) {
  float scratch[kPiece], scales[kPiece + kLanes];
  RowReader x(rows, scratch);
  int64_t lost = 0;
  // Rows share scales: those of a piece are spread once for all of them.
  for (int64_t a = 0; a < rows.d; a += kPiece) {
    const int64_t count = std::min(kPiece, rows.d - a);
    if (rows.source == ScaleSource::kFixed) SpreadScales(rows, a, count, scales);
    for (int n = 0; n < rows.count; ++n) {
      x.Begin(rows.from[n]);
      CodeStore store(rows.to_type, rows.to[n]);
      const float* const p = x.Take(a, count);
      if (counts) lost += CountNaN(p, count);
      if (rows.source == ScaleSource::kFixed) {
        store.Put<T>(p, a, count, [&](VF v, int64_t i) HWY_ATTR {
          return code_of(hn::Div(v, hn::LoadU(DF(), scales + i)));
        });
      } else {
        store.Put<T>(p, a, count, [&](VF v, int64_t) HWY_ATTR { return code_of(v); });
      }
    }
  }
  return lost;
}

int64_t WriteI8(const AppendRows& rows) {
  if (rows.source == ScaleSource::kWritten) return WriteSymmetric(rows);
  return WriteFixed<int8_t>(rows, true,
                            [](VF v) HWY_ATTR { return RoundedEven(Clamped(v, -128.0f, 127.0f)); });
}
int64_t WriteI4(const AppendRows& rows) {
  return WriteFixed<uint8_t>(rows, true, [](VF v) HWY_ATTR {
    return hn::Add(RoundedEven(Clamped(v, -8.0f, 7.0f)), hn::Set(DI(), 8));
  });
}
int64_t WriteE4M3FN(const AppendRows& rows) {
  return WriteFixed<uint8_t>(rows, false, [](VF v) HWY_ATTR { return RoundedF8<3, 7>(v, 448.0f); });
}
int64_t WriteE5M2(const AppendRows& rows) {
  return WriteFixed<uint8_t>(rows, false,
                             [](VF v) HWY_ATTR { return RoundedF8<2, 15>(v, 57344.0f); });
}

// Types that are not here are only read.
int64_t WriteRows(const AppendRows& rows) {
  switch (rows.to_type) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      return WriteFloats(rows);
    case DType::kI8:
      return WriteI8(rows);
    case DType::kI4:
    case DType::kI4High:
      return WriteI4(rows);
    case DType::kU8:
    case DType::kU4:
    case DType::kU4High:
      return WriteRanged(rows);
    case DType::kF8E4M3FN:
      return WriteE4M3FN(rows);
    case DType::kF8E5M2:
      return WriteE5M2(rows);
    case DType::kQ8_0:
      return WriteBlocks<Q8_0>(rows);
    case DType::kQ4_0:
      return WriteBlocks<SignedBlock<8>>(rows);
    case DType::kQ4_1:
      return WriteBlocks<RangedBlock<15>>(rows);
    case DType::kQ5_0:
      return WriteBlocks<SignedBlock<16>>(rows);
    case DType::kQ5_1:
      return WriteBlocks<RangedBlock<31>>(rows);
    default:
      __builtin_trap();
  }
}

}  // namespace HWY_NAMESPACE
FOVEA_OFFER(WriteRows)
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fovea {
FOVEA_DEFINE_FIND(AppendFunction, WriteRows)
AppendFunction* FindAppendKernel(int64_t highway_target) noexcept {
  return FindWriteRows(highway_target);
}
}  // namespace fovea
#endif  // HWY_ONCE
