// The instruction sets that the library was compiled for, which of them this CPU can run, and which
// one plans use.
#ifndef FOVEA_TARGET_H_
#define FOVEA_TARGET_H_

#include <cstddef>
#include <cstdint>

#include "fovea/detail/macros_begin.h"
#include "fovea/export.h"
#include "fovea/status.h"

namespace fovea {

// An instruction set. Ordered within an architecture from the least to the most capable.
enum class Target : int32_t {
  kAuto = 0,    // the best usable one, or what the environment variable FOVEA_TARGET names
  kEmu128 = 1,  // portable C++, no SIMD instructions
  kSse2 = 2,    // the least of x86-64
  kSse4 = 3,    // up to SSE4.2
  kAvx2 = 4,    // with FMA and F16C: Haswell, Zen
  kAvx512 = 5,  // F, BW, CD, DQ, VL: Skylake server, Zen 4
  kNeon = 6,    // AArch64 Advanced SIMD
  // AVX-512 with what Zen 4 and Sapphire Rapids add, dot products of bf16 among it
  kAvx512Bf16 = 7,
  // Advanced SIMD with f16 arithmetic and dot products of bf16: Neoverse N2 and V1
  kNeonBf16 = 8,
  kAvx512Amx = 9,  // AVX-512 with AMX's tiles of bf16: Sapphire Rapids; see UsableTargets
  kPpc8 = 10,      // POWER8: the least of 64-bit little-endian Power
  kPpc9 = 11,      // POWER9
  kWasm = 12,      // WebAssembly's 128-bit SIMD
};

// A fixed list in static storage.
struct TargetList {
  const Target* data = nullptr;  // [count]
  size_t count = 0;              // how many there are
  // For range-based loops.
  const Target* begin() const { return data; }
  // For range-based loops.
  const Target* end() const { return data + count; }
};

// "auto", "emu128", "sse2", "sse4", "avx2", "avx512", "neon", "avx512_bf16", "neon_bf16",
// "avx512_amx", "ppc8", "ppc9", "wasm"; "unknown" for values outside the enumeration.
FOVEA_EXPORT const char* Name(Target target) noexcept;

// The target of that name, whether or not it is usable here; otherwise kInvalidArgument, with the
// valid names in the message. `target` is written only on success.
FOVEA_EXPORT Status ParseTarget(const char* name, Target* target) noexcept;

// Those that the library was compiled for, the most capable first; thread-safe.
FOVEA_EXPORT TargetList CompiledTargets() noexcept;

// Those of them that this CPU can run, the best first: a CPU may run a more capable target slower
// than a lesser one (VDPBF16PS on Intel's cores); thread-safe.
//
// The first call, which may be that of a plan, asks Linux for AMX's tiles where CPU and build have
// kAvx512Amx, once per process. From then on the signal frames of threads that use them are 8 KiB
// larger: alternate signal stacks need getauxval(AT_MINSIGSTKSZ). Where Linux refuses, the target
// is not usable.
FOVEA_EXPORT TargetList UsableTargets() noexcept;

// What Target::kAuto means in this process: FOVEA_TARGET if set (read once, at the first use), else
// the best usable one. An error, the same from every plan, when FOVEA_TARGET names no target
// (kInvalidArgument), or one that was not compiled or that this CPU cannot run (kUnsupported).
// Thread-safe.
FOVEA_EXPORT Status ActiveTarget(Target* target) noexcept;

}  // namespace fovea

#include "fovea/detail/macros_end.h"

#endif  // FOVEA_TARGET_H_
