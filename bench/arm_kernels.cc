// The tile engines' micro-kernels for AArch64, each as a function of its own: arm_throughput.py
// reads their loops in the compiler's assembly. Compiled by it, part of no library.
#define FOVEA_UNIT_TARGETS FOVEA_BF16_TARGETS
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/arm_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "kernels/kernel.h"
#include "kernels/tile_bf16-inl.h"
#include "kernels/tile_f32-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

#define FOVEA_ALONE __attribute__((used)) HWY_NOINLINE void

FOVEA_ALONE F32Scores(const char* k, int64_t k_stride, const float* q, int64_t dk, const Tile& tile,
                      float* s) {
  ScoresOf<F32Product, kTileKeys, 2>(k, k_stride, q, dk, tile, false, s);
}
FOVEA_ALONE F32Accumulate(const char* v, int64_t v_stride, const float* p, int64_t keys,
                          const float* alpha, float* o) {
  AccumulateOf<F32Product, kTileChannels, 2>(v, v_stride, p, keys, nullptr, alpha, o);
}
FOVEA_ALONE BF16Scores(const char* k, int64_t k_stride, const float* q, int64_t dk,
                       const Tile& tile, float* s) {
  ScoresOf<BF16Product, kTileKeys, 2>(k, k_stride, q, dk, tile, false, s);
}
FOVEA_ALONE BF16Accumulate(const char* v, int64_t v_stride, const float* p, int64_t keys,
                           const float* alpha, float* o) {
  AccumulateOf<BF16Product, kTileChannels, 2>(v, v_stride, p, keys, nullptr, alpha, o);
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();
