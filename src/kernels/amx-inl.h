// AMX's tiles: eight registers of 16 rows of 64 bytes. What one holds is 16 × 16 sums, or 16 rows
// of 16 words (products-inl.h).
//
// In assembly: compilers have intrinsics for them only behind build flags, and allocate no tiles,
// so nothing else touches them. Where the target has none, plain memory and the vectors of the
// product do the same.
#if defined(FOVEA_SRC_KERNELS_AMX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_AMX_INL_H_
#undef FOVEA_SRC_KERNELS_AMX_INL_H_
#else
#define FOVEA_SRC_KERNELS_AMX_INL_H_
#endif

#include "kernels/products-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

constexpr int64_t kAmxRows = 16;
constexpr int64_t kAmxWords = 16;  // of a row: 64 bytes

// Terms of a sum that an instruction adds.
template <class Product>
constexpr int64_t kAmxTerms = Product::kTerms * kAmxWords;

#if HWY_TARGET == HWY_AVX3_SPR

// While one exists, this thread's tiles are all of the full size. Outside the CPU has none, which
// keeps switches of threads cheap.
class AmxTiles {
 public:
  AmxTiles() {
    struct Configuration {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    };
    static_assert(sizeof(Configuration) == 64, "as LDTILECFG reads it");
    const Configuration configuration;
    __asm__ volatile("ldtilecfg %0" : : "m"(configuration));
  }
  ~AmxTiles() { __asm__ volatile("tilerelease"); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

  // Strides in bytes. kTile: the number of the register.
  template <int kTile>
  HWY_INLINE void Zero() {
    __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  template <int kTile>
  HWY_INLINE void Load(const void* p, int64_t stride) {
    __asm__ volatile("tileloadd (%1,%2,1), %%tmm%c0"
                     :
                     : "i"(kTile), "r"(p), "r"(stride)
                     : "memory");
  }
  template <int kTile>
  HWY_INLINE void Store(void* p, int64_t stride) const {
    __asm__ volatile("tilestored %%tmm%c0, (%1,%2,1)"
                     :
                     : "i"(kTile), "r"(p), "r"(stride)
                     : "memory");
  }
  // C[r][c] += Σ_k A[r][k] · B[k][c] over 16 words k: an instruction for each product.
  template <int kC, int kA, int kB>
  HWY_INLINE void MultiplyAdd(BF16Product) {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
};

#else

class AmxTiles {
 public:
  template <int kTile>
  void Zero() {
    std::memset(tiles_[kTile], 0, sizeof(tiles_[kTile]));
  }
  template <int kTile>
  void Load(const void* p, int64_t stride) {
    for (int64_t r = 0; r < kAmxRows; ++r)
      CopyBytes(static_cast<const char*>(p) + r * stride, sizeof(Row), tiles_[kTile][r]);
  }
  template <int kTile>
  void Store(void* p, int64_t stride) const {
    for (int64_t r = 0; r < kAmxRows; ++r) {
      CopyBytes(reinterpret_cast<const char*>(tiles_[kTile][r]), sizeof(Row),
                static_cast<char*>(p) + r * stride);
    }
  }
  template <int kC, int kA, int kB, class Product>
  void MultiplyAdd(Product) {
    const DF df;
    for (int64_t r = 0; r < kAmxRows; ++r) {
      for (int64_t c = 0; c < kAmxWords; c += kLanes) {
        float* to = tiles_[kC][r] + c;
        VF sum = hn::Zero(df);
        for (int64_t k = 0; k < kAmxRows; ++k) {
          const auto a = Product::Broadcast(reinterpret_cast<const char*>(tiles_[kA][r] + k));
          sum = Product::MultiplyAdd(a, Product::Load(tiles_[kB][k] + c), sum);
        }
        hn::Store(hn::Add(hn::Load(df, to), sum), df, to);
      }
    }
  }

 private:
  using Row = float[kAmxWords];
  HWY_ALIGN Row tiles_[8][kAmxRows];
};

#endif

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
