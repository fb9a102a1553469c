// How structs of the C interface are read, whatever version of them a caller has.
#ifndef FOVEA_SRC_C_READ_H_
#define FOVEA_SRC_C_READ_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "errors.h"

// A struct that ended in padding would hand on whatever lies there, as a field of a later version
// that fits into it.
#define FOVEA_ENDS_WITH(STRUCT, FIELD) \
  static_assert(offsetof(STRUCT, FIELD) + sizeof(STRUCT::FIELD) == sizeof(STRUCT))

namespace fovea {

// More than any version will have: a size beyond it was never set.
constexpr size_t kMostStructBytes = 16384;

template <class Struct>
Status CheckSize(const char* name, const Struct* given) {
  if (given == nullptr) return Invalid("%s = null", name);
  if (given->size <= sizeof(size_t) || given->size > kMostStructBytes ||
      given->size % alignof(Struct) != 0) {
    return Invalid("%s.size = %zu, expected %zu (sizeof)", name, given->size, sizeof(Struct));
  }
  return Status();
}

// A caller's struct as this version knows it: what a shorter one lacks stays 0, as *known is, and
// so must be what a longer one adds.
template <class Struct>
Status Read(const char* name, const Struct* given, Struct* known) {
  FOVEA_RETURN_IF_ERROR(CheckSize(name, given));
  const char* const bytes = reinterpret_cast<const char*>(given);
  for (size_t n = sizeof(Struct); n < given->size; ++n) {
    if (bytes[n] != 0) {
      return Invalid(
          "%s.size = %zu, expected at most %zu: byte %zu, which this version does not know, is not "
          "0",
          name, given->size, sizeof(Struct), n);
    }
  }
  std::memcpy(static_cast<void*>(known), given, std::min(given->size, sizeof(Struct)));
  return Status();
}

// The same without a copy where the caller's struct is that of this version: *known is it, or
// *copy.
template <class Struct>
Status Read(const char* name, const Struct* given, Struct* copy, const Struct** known) {
  FOVEA_RETURN_IF_ERROR(CheckSize(name, given));
  *known = given;
  if (given->size == sizeof(Struct)) return Status();
  *copy = Struct();
  *known = copy;
  return Read(name, given, copy);
}

inline Status CheckFlag(const char* name, int32_t flag) {
  if (flag != 0 && flag != 1) return Invalid("%s = %d, expected 0 or 1", name, flag);
  return Status();
}

inline Status CheckReserved(const char* name, int32_t reserved) {
  if (reserved != 0) return Invalid("%s = %d, expected 0", name, reserved);
  return Status();
}

}  // namespace fovea

#endif  // FOVEA_SRC_C_READ_H_
