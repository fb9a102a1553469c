#include "overlap.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>

namespace fovea::python {
namespace {

// The bytes of a view: runs without gaps, at first + Σ i·stride, 0 ≤ i < count.
struct Bytes {
  int64_t first = 0;  // address of the lowest byte
  int64_t run = 0;
  int axes = 0;
  int64_t count[kMaxRank];   // ≥ 2
  int64_t stride[kMaxRank];  // > run, the widest first

  int64_t Span() const {
    int64_t span = run;
    for (int a = 0; a < axes; ++a) span += (count[a] - 1) * stride[a];
    return span;
  }
};

// More than any address space, and little enough that sums of some do not overflow.
constexpr int64_t kTooLong = int64_t{1} << 60;

// False for views without elements, and for strides that point out of all memory.
bool Describe(const TensorView& view, Bytes* bytes) {
  if (view.data == nullptr || view.rank == 0) return false;
  const int64_t elements = UnitElements(view.dtype);
  bytes->first = static_cast<int64_t>(reinterpret_cast<uintptr_t>(view.data));
  bytes->run = UnitBytes(view.dtype);
  for (int a = 0; a < view.rank; ++a) {
    const int64_t count =
        a == view.rank - 1 ? (view.shape[a] + elements - 1) / elements : view.shape[a];
    if (count <= 0) return false;
    if (count == 1 || view.stride[a] == 0) continue;
    int64_t reach;
    if (__builtin_mul_overflow(count - 1, view.stride[a], &reach) || reach > kTooLong ||
        reach < -kTooLong)
      return false;
    if (reach < 0) bytes->first += reach;
    const int64_t stride = std::abs(view.stride[a]);
    int at = bytes->axes++;
    for (; at > 0 && bytes->stride[at - 1] < stride; --at) {
      bytes->count[at] = bytes->count[at - 1];
      bytes->stride[at] = bytes->stride[at - 1];
    }
    bytes->count[at] = count;
    bytes->stride[at] = stride;
  }
  while (bytes->axes > 0 && bytes->stride[bytes->axes - 1] <= bytes->run) {
    --bytes->axes;
    bytes->run += (bytes->count[bytes->axes] - 1) * bytes->stride[bytes->axes];
  }
  return true;
}

// `count` of the positions along the widest axis, from position `from`.
Bytes Part(const Bytes& whole, int64_t from, int64_t count) {
  Bytes part = whole;
  part.first += from * whole.stride[0];
  part.count[0] = count;
  if (count == 1) {
    --part.axes;
    std::copy(whole.count + 1, whole.count + whole.axes, part.count);
    std::copy(whole.stride + 1, whole.stride + whole.axes, part.stride);
  }
  return part;
}

int64_t FloorDivide(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }  // b > 0

bool Meet(const Bytes& a, const Bytes& b, int* steps);

// With the same stride s along their widest axes only i − j matters: the positions of the one at
// which it can meet the other's first.
bool MeetInStep(const Bytes& a, const Bytes& b, int* steps) {
  const int64_t s = a.stride[0];
  Bytes x = Part(a, 0, 1);
  const Bytes y = Part(b, 0, 1);
  const int64_t distance = y.first - x.first;
  const int64_t first = std::max(FloorDivide(distance - x.Span(), s) + 1, 1 - b.count[0]);
  const int64_t last = std::min(FloorDivide(distance + y.Span() - 1, s), a.count[0] - 1);
  for (int64_t m = first; m <= last; ++m) {
    x.first = a.first + m * s;
    if (Meet(x, y, steps)) return true;
    if (*steps < 0) return false;
  }
  return false;
}

// Halves the longer of the two until they are apart, or both without gaps.
bool Meet(const Bytes& a, const Bytes& b, int* steps) {
  if (--*steps < 0) return false;
  if (a.first == b.first) return true;
  const int64_t a_span = a.Span(), b_span = b.Span();
  if (a.first < b.first ? b.first - a.first >= a_span : a.first - b.first >= b_span) return false;
  if (a.axes == 0 && b.axes == 0) return true;
  if (a.axes != 0 && b.axes != 0 && a.stride[0] == b.stride[0]) return MeetInStep(a, b, steps);
  const bool halve_a = b.axes == 0 || (a.axes != 0 && a_span >= b_span);
  const Bytes& longer = halve_a ? a : b;
  const Bytes& other = halve_a ? b : a;
  const int64_t half = longer.count[0] / 2;
  return Meet(Part(longer, 0, half), other, steps) ||
         Meet(Part(longer, half, longer.count[0] - half), other, steps);
}

}  // namespace

bool Overlap(const TensorView& a, const TensorView& b) {
  Bytes a_bytes, b_bytes;
  int steps = 1 << 16;
  return Describe(a, &a_bytes) && Describe(b, &b_bytes) && Meet(a_bytes, b_bytes, &steps);
}

}  // namespace fovea::python
