// Which axis of a tile the lanes run along: how its arrays lie, and which rows and keys a vector of
// scores holds. Knows nothing else.
#ifndef FOVEA_EMBEDDED_LANES_H_
#define FOVEA_EMBEDDED_LANES_H_

#include "fovea/embedded/load.h"

namespace fovea::embedded {
inline namespace FOVEA_EMBEDDED_ISA {
namespace internal {

// S[key][row], rows padded to one or two vectors. The padding computes along, as a copy of the
// first row, and is never written out.
struct LanesAreQueries {
  int vectors;

  static constexpr int kMostRows = 2 * kLanes;
  static constexpr int kRowStep = kLanes;  // rows and keys of one vector of S
  static constexpr int kKeyStep = 1;

  constexpr int rows() const { return vectors * kLanes; }
  // what holds the first `count` rows; their bits are the same
  constexpr LanesAreQueries For(int count) const { return {count <= kLanes ? 1 : vectors}; }
  constexpr int64_t Floats(int64_t columns) const { return rows() * columns; }
  constexpr int64_t Index(int64_t row, int64_t column, int64_t /*columns*/) const {
    return column * rows() + row;
  }

  static V PerRow(const float* a, int64_t row) { return Load(a + row); }
  static void StorePerRow(V v, float* a, int64_t row) { Store(v, a + row); }
  static V Keys(int64_t key) { return V(static_cast<float>(key)); }
  static V FoldMax(V v) { return v; }
  static V FoldSum(V v) { return v; }
};

// Up to half a vector of rows, but at least four: a tile of queries would leave half of its lanes
// empty.
constexpr int kFewRows = kLanes / 2 > 4 ? kLanes / 2 : 4;

// S[row][key], keys padded to whole vectors; the padding is −inf before the softmax.
struct LanesAreKeys {
  static constexpr int kMostRows = kFewRows;
  static constexpr int kRowStep = 1;
  static constexpr int kKeyStep = kLanes;

  constexpr int rows() const { return kFewRows; }
  constexpr LanesAreKeys For(int /*count*/) const { return {}; }
  constexpr int64_t Floats(int64_t columns) const { return kFewRows * RoundUp(columns, kLanes); }
  constexpr int64_t Index(int64_t row, int64_t column, int64_t columns) const {
    return row * RoundUp(columns, kLanes) + column;
  }

  static V PerRow(const float* a, int64_t row) { return V(a[row]); }
  static void StorePerRow(V v, float* a, int64_t row) { a[row] = v.get(0); }
  static V Keys(int64_t key) {
    float keys[kLanes];
    for (int x = 0; x < kLanes; ++x) keys[x] = static_cast<float>(key + x);
    return Load(keys);
  }
  static V FoldMax(V v) { return V(xsimd::reduce_max(v)); }
  static V FoldSum(V v) { return V(xsimd::reduce_add(v)); }
};

}  // namespace internal
}  // namespace FOVEA_EMBEDDED_ISA
}  // namespace fovea::embedded

#endif  // FOVEA_EMBEDDED_LANES_H_
