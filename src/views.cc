#include "views.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

namespace fovea {
namespace {

bool IsKnown(DType dtype) {
  return dtype >= DType::kF32 && static_cast<int32_t>(dtype) < internal::kFormatCount;
}

// As CheckTensor says, axis by axis.
Status FindUncountable(const TensorFacts& t) {
  bool empty = false;
  for (int a = 0; a < t.rank; ++a) {
    if (t.shape[a] < 0)
      return Invalid("%s.shape[%d] = %" PRId64 ", expected 0 or greater", t.name, a, t.shape[a]);
    empty = empty || t.shape[a] == 0;
  }
  if (empty) return Status();
  // The bytes from the lowest to the highest unit, and the elements, must both be countable.
  int64_t below = 0, above = UnitBytes(t.dtype), elements = 1;
  for (int a = 0; a < t.rank; ++a) {
    const int64_t unit = a == t.rank - 1 ? UnitElements(t.dtype) : 1;
    int64_t reach, extent;
    if (__builtin_mul_overflow((t.shape[a] - 1) / unit, t.stride[a], &reach) ||
        __builtin_add_overflow(reach < 0 ? below : above, reach, reach < 0 ? &below : &above) ||
        __builtin_sub_overflow(above, below, &extent)) {
      return Invalid("%s.stride[%d] = %" PRId64 " with %s.shape[%d] = %" PRId64
                     " overflows, expected a tensor of less than 2^63 bytes",
                     t.name, a, t.stride[a], t.name, a, t.shape[a]);
    }
    if (__builtin_mul_overflow(elements, t.shape[a], &elements)) {
      return Invalid("%s.shape[%d] = %" PRId64 ", expected fewer than 2^63 elements in all", t.name,
                     a, t.shape[a]);
    }
  }
  return Status();
}

}  // namespace

Status CheckTensor(const TensorFacts& t, int rank) noexcept {
  if (t.rank != rank) return Invalid("%s.rank = %d, expected %d", t.name, t.rank, rank);
  if (!IsKnown(t.dtype))
    return Invalid("%s.dtype = %d, expected a known type (1 to %d)", t.name,
                   static_cast<int>(t.dtype), internal::kFormatCount - 1);
  return IsPlain(t) ? Status() : FindUncountable(t);
}

Status CheckNotNull(const TensorFacts& t) noexcept {
  if (t.data != nullptr) return Status();
  for (int a = 0; a < t.rank; ++a) {
    if (t.shape[a] == 0) return Status();
  }
  return t.rank == 0
             ? Status()
             : Invalid(
                   "%s.data = null, expected the address of its elements (%s.shape[0] = %" PRId64
                   ")",
                   t.name, t.name, t.shape[0]);
}

Status CheckType(const TensorFacts& t, DType expected) noexcept {
  return t.dtype == expected
             ? Status()
             : Invalid("%s.dtype = %s, expected %s", t.name, Name(t.dtype), Name(expected));
}

Status CheckShape(const TensorFacts& t, int axis, int64_t expected, const char* source) noexcept {
  if (t.shape[axis] == expected) return Status();
  return Invalid("%s.shape[%d] = %" PRId64 ", expected %" PRId64 " (%s)", t.name, axis,
                 t.shape[axis], expected, source);
}

int64_t ReadInteger(const TensorView& view, int64_t index, int64_t second) noexcept {
  const char* p =
      static_cast<const char*>(view.data) + index * view.stride[0] + second * view.stride[1];
  if (view.dtype == DType::kI32) {
    int32_t x;
    std::memcpy(&x, p, sizeof(x));
    return x;
  }
  int64_t x;
  std::memcpy(&x, p, sizeof(x));
  return x;
}

}  // namespace fovea
