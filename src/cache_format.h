// What a cache may hold, and what of it Append writes. One row for each type that it may have.
#ifndef FOVEA_SRC_CACHE_FORMAT_H_
#define FOVEA_SRC_CACHE_FORMAT_H_

#include "fovea/tensor.h"
#include "tensors.h"

namespace fovea {

inline constexpr Types kF8 = {SetOf(DType::kF8E4M3FN, DType::kF8E5M2), "f8_e4m3fn or f8_e5m2"};
// Codes of which each group of a row gets a scale, or a scale and a zero, made of its values.
inline constexpr Types kWithZero = {SetOf(DType::kU8, DType::kU4, DType::kU4High),
                                    "u8, u4 or u4_high"};
inline constexpr Types kWithScale = {kWithZero.set | SetOf(DType::kI8), "i8, u8, u4 or u4_high"};
// Codes under scales that are given.
inline constexpr Types kUnderFixedScale = {SetOf(DType::kI8, DType::kI4, DType::kI4High),
                                           "i8, i4 or i4_high"};
// A writer would have to search.
inline constexpr Types kOnlyRead = {SetOf(DType::kIQ4NL), "iq4_nl"};

inline bool MayBeCached(DType type) {
  return static_cast<uint32_t>(type) < 32 && kFloatsOrCodes.Has(type);
}
constexpr bool IsF8(DType type) { return kF8.Has(type); }
constexpr bool HasWrittenZero(DType type) { return kWithZero.Has(type); }
constexpr bool HasWrittenScale(DType type) { return kWithScale.Has(type); }
constexpr bool MayHaveFixedScale(DType type) { return kUnderFixedScale.Has(type); }

}  // namespace fovea

#endif  // FOVEA_SRC_CACHE_FORMAT_H_
