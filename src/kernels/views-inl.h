// Where the elements of the caller's tensors lie that belong to heads, queries and keys.
#if defined(FOVEA_SRC_KERNELS_VIEWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_VIEWS_INL_H_
#undef FOVEA_SRC_KERNELS_VIEWS_INL_H_
#else
#define FOVEA_SRC_KERNELS_VIEWS_INL_H_
#endif

#include <type_traits>

#include "kernels/formats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// Row `index` of head h on the third axis of q, k, v, out or lse.
template <class View>
HWY_INLINE auto RowOf(const View& view, int64_t batch, int64_t h, int64_t index) {
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(view.data)>>,
                                  const char, char>;
  return static_cast<Byte*>(view.data) + batch * view.stride[0] + h * view.stride[1] +
         index * view.stride[2];
}

// A bias, mask or map aligned at the right to [B, Hq, Tq, Tk]: byte strides, 0 where it broadcasts.
struct Broadcast {
  const char* data;
  DType dtype;
  int64_t stride[4];

  const char* Row(int64_t b, int64_t h, int64_t i) const {
    return data + b * stride[0] + h * stride[1] + i * stride[2];
  }
};

HWY_INLINE Broadcast BroadcastView(const TensorView& view) {
  Broadcast b{static_cast<const char*>(view.data), view.dtype, {0, 0, 0, 0}};
  for (int a = 0; a < view.rank; ++a)
    b.stride[4 - view.rank + a] = view.shape[a] == 1 ? 0 : view.stride[a];
  return b;
}

// n elements of one of its rows from element j on: booleans as 0 or −inf.
HWY_INLINE void LoadFrom(const Broadcast& view, const char* row, int64_t j, int64_t n, float* to) {
  LoadRow({row, view.dtype, view.stride[3]}, j, n, to);
}
HWY_INLINE float ValueAt(const Broadcast& view, const char* row, int64_t j) {
  float x;
  LoadFrom(view, row, j, 1, &x);
  return x;
}

HWY_INLINE int64_t IntegerAt(DType dtype, const char* p) {
  return dtype == DType::kI32 ? ReadAs<int32_t>(p) : ReadAs<int64_t>(p);
}

// The float of head h.
HWY_INLINE float PerHeadAt(const TensorView& view, int64_t h) {
  return ReadAs<float>(static_cast<const char*>(view.data) + h * view.stride[0]);
}

// The interval of keys that is given to query i of sequence b.
HWY_INLINE KeyRange RangeOf(const TensorView& ranges, int64_t b, int64_t i) {
  const char* p = static_cast<const char*>(ranges.data) +
                  (ranges.shape[0] == 1 ? 0 : b * ranges.stride[0]) + i * ranges.stride[1];
  return {IntegerAt(ranges.dtype, p), IntegerAt(ranges.dtype, p + ranges.stride[2])};
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
