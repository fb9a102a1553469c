#include "quantised.h"

#include <algorithm>
#include <cinttypes>

namespace fovea {
namespace {

// Scales or zeros of codes: on each axis one for all, one for each, or one for each of the groups.
Status CheckGroups(const TensorFacts& t, const TensorFacts& codes) {
  for (int a = 0; a < kMaxRank; ++a) {
    const int64_t n = t.shape[a], all = codes.shape[a];
    if (n == all || n == 1) continue;
    if (n < 1 || n > all) {
      return Invalid("%s.shape[%d] = %" PRId64 ", expected 1 to %" PRId64 " (%s.shape[%d])", t.name,
                     a, n, all, codes.name, a);
    }
    int64_t product;
    if (__builtin_mul_overflow(n, all, &product)) {
      return Unsupported("%s.shape[%d] = %" PRId64
                         ", expected its product with %s.shape[%d] = %" PRId64
                         " to be less than 2^63",
                         t.name, a, n, codes.name, a, all);
    }
  }
  return Status();
}

// Groups of channels that lie apart: as long as each other, and of whole units.
Status CheckGroupStride(const TensorFacts& codes, const TensorFacts& scale, const TensorFacts& zero,
                        const char* name, int64_t stride) {
  constexpr int64_t kMost = int64_t{1} << 40;  // all of a row is a number of bytes
  if (stride == 0) return Status();
  if (!HasScaleViews(codes.dtype)) {
    return Invalid("%s = %" PRId64 ", expected 0 (%s.dtype = %s)", name, stride, codes.name,
                   Name(codes.dtype));
  }
  if (stride < -kMost || stride > kMost)
    return Invalid("%s = %" PRId64 ", expected -2^40 to 2^40", name, stride);
  const int64_t scales = scale.rank == 0 ? 1 : scale.shape[3];
  const int64_t zeros = zero.rank == 0 ? 1 : zero.shape[3];
  const int64_t groups = std::max<int64_t>(std::max(scales, zeros), 1), d = codes.shape[3];
  if ((scales != zeros && scales != 1 && zeros != 1) || d % groups != 0 ||
      d / groups % UnitElements(codes.dtype) != 0) {
    return Unsupported("%s = %" PRId64 " with %" PRId64
                       " groups, expected equal groups of whole "
                       "units of %s.shape[3] = %" PRId64,
                       name, stride, groups, codes.name, d);
  }
  return Status();
}

// Scales and zeros of k, or of v, where and only where its type has them.
Status CheckScales(const TensorFacts& codes, const TensorFacts& scale, const TensorFacts& zero,
                   const char* stride_name, int64_t group_stride) {
  const bool has_scale = scale.rank != 0, has_zero = zero.rank != 0;
  if (!HasScaleViews(codes.dtype)) {
    for (const TensorFacts* t : {&scale, &zero}) {
      if (t->rank != 0) {
        return Invalid("%s.rank = %d, expected 0 (absent): %s.dtype = %s has no scales of its own",
                       t->name, t->rank, codes.name, Name(codes.dtype));
      }
    }
    return CheckGroupStride(codes, scale, zero, stride_name, group_stride);
  }
  const bool is_float = codes.dtype == DType::kF8E4M3FN || codes.dtype == DType::kF8E5M2;
  if (!has_scale && !is_float) {
    return Invalid("%s is absent, expected the scales of codes (%s.dtype = %s)", scale.name,
                   codes.name, Name(codes.dtype));
  }
  if (has_zero && scale.dtype == DType::kF32Z4) {
    return Invalid("%s.rank = %d, expected 0 (absent): %s.dtype = %s holds the zeros", zero.name,
                   zero.rank, scale.name, Name(scale.dtype));
  }
  if (has_scale) FOVEA_RETURN_IF_ERROR(CheckGroups(scale, codes));
  if (has_zero) FOVEA_RETURN_IF_ERROR(CheckGroups(zero, codes));
  return CheckGroupStride(codes, scale, zero, stride_name, group_stride);
}

}  // namespace

Status CheckUnits(const TensorFacts& t) noexcept {
  const int axis = t.rank - 1;
  const int64_t elements = UnitElements(t.dtype), bytes = UnitBytes(t.dtype);
  if (t.shape[axis] % elements != 0) {
    return Unsupported("%s.shape[%d] = %" PRId64 ", expected a multiple of %" PRId64
                       " (a unit of %s)",
                       t.name, axis, t.shape[axis], elements, Name(t.dtype));
  }
  if (t.shape[axis] > elements && t.stride[axis] != bytes) {
    return Unsupported("%s.stride[%d] = %" PRId64 ", expected %" PRId64
                       " (units of %s are dense along a row)",
                       t.name, axis, t.stride[axis], bytes, Name(t.dtype));
  }
  return Status();
}

Status CheckQuantised(const Problem& problem) noexcept {
  FOVEA_RETURN_IF_ERROR(CheckScales(Facts("k", problem.k), Facts("k_scale", problem.k_scale),
                                    Facts("k_zero", problem.k_zero), "k_group_stride",
                                    problem.k_group_stride));
  return CheckScales(Facts("v", problem.v), Facts("v_scale", problem.v_scale),
                     Facts("v_zero", problem.v_zero), "v_group_stride", problem.v_group_stride);
}

}  // namespace fovea
