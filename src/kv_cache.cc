// A cache as one description: its bytes, its views, and a problem that reads it.
#include "fovea/kv_cache.h"

#include <algorithm>
#include <cinttypes>

#include "cache_format.h"
#include "errors.h"

namespace fovea {
namespace {

constexpr int64_t kPageBytes = 64;  // a page begins at a cache line and at any vector

// Bytes of one tensor of a page: [Hkv, P, row].
struct Part {
  int64_t row = 0;  // bytes
  int64_t offset = 0;
};

// Of K or of V: codes, scales, zeros.
struct Parts {
  Part codes, scale, zero;
  int64_t groups = 0;
};

struct PageLayout {
  Parts k, v;
  int64_t bytes = 0;  // of a page
};

Status CheckSize(const char* name, int64_t size, int64_t least) {
  if (size >= least) return Status();
  return Invalid("shape.%s = %" PRId64 ", expected %" PRId64 " or greater", name, size, least);
}

Status CheckFormat(const char* name, const CacheFormat& format, const char* size_name, int64_t d) {
  const DType type = format.dtype;
  if (!MayBeCached(type)) {
    return Invalid("shape.%s.dtype = %s, expected %s", name, Name(type), kFloatsOrCodes.words);
  }
  if (d % UnitElements(type) != 0) {
    return Invalid("shape.%s = %" PRId64 ", expected a multiple of %" PRId64 " (a unit of %s)",
                   size_name, d, UnitElements(type), Name(type));
  }
  if (format.group < 0 || format.group > d) {
    return Invalid("shape.%s.group = %" PRId64 ", expected 0 to %" PRId64 " (shape.%s)", name,
                   format.group, d, size_name);
  }
  if (format.group != 0 && (d % format.group != 0 || !HasScaleViews(type) || IsF8(type))) {
    return Invalid("shape.%s.group = %" PRId64
                   ", expected 0, or what divides shape.%s of a type with scales of its own",
                   name, format.group, size_name);
  }
  if (format.scale_fixed && !MayHaveFixedScale(type)) {
    return Invalid("shape.%s.scale_fixed = true, expected false (%s)", name, Name(type));
  }
  if (HasScaleViews(type) && !IsF8(type) && !format.scale_fixed && !HasWrittenScale(type)) {
    return Unsupported("shape.%s.dtype = %s, expected scale_fixed (nothing writes its scales)",
                       name, Name(type));
  }
  return Status();
}

// Gives `part` its place behind what the page has already.
Status Place(const CacheShape& shape, int64_t row_bytes, int64_t* page_bytes, Part* part) {
  int64_t bytes;
  part->row = row_bytes;
  part->offset = *page_bytes;
  if (__builtin_mul_overflow(shape.heads, shape.page, &bytes) ||
      __builtin_mul_overflow(bytes, row_bytes, &bytes) ||
      __builtin_add_overflow(*page_bytes, bytes, page_bytes) ||
      __builtin_add_overflow(*page_bytes, kPageBytes - 1, page_bytes)) {
    return Invalid("shape.page = %" PRId64 " with shape.heads = %" PRId64
                   ", expected pages of less than 2^63 bytes",
                   shape.page, shape.heads);
  }
  *page_bytes = *page_bytes / kPageBytes * kPageBytes;
  return Status();
}

Status PlaceScales(const CacheShape& shape, const CacheFormat& format, int64_t d,
                   int64_t* page_bytes, Parts* parts) {
  constexpr int64_t kBytes = sizeof(float);
  if (d == 0 || !HasScaleViews(format.dtype) || IsF8(format.dtype) || format.scale_fixed)
    return Status();
  parts->groups = format.group == 0 ? 1 : d / format.group;
  FOVEA_RETURN_IF_ERROR(Place(shape, parts->groups * kBytes, page_bytes, &parts->scale));
  if (!HasWrittenZero(format.dtype)) return Status();
  return Place(shape, parts->groups * kBytes, page_bytes, &parts->zero);
}

Status LayOut(const CacheShape& shape, PageLayout* layout, int64_t* bytes) {
  constexpr int64_t kMostHeadSize = int64_t{1} << 24;  // as attention has it
  FOVEA_RETURN_IF_ERROR(CheckSize("pages", shape.pages, 0));
  FOVEA_RETURN_IF_ERROR(CheckSize("page", shape.page, 1));
  FOVEA_RETURN_IF_ERROR(CheckSize("heads", shape.heads, 1));
  FOVEA_RETURN_IF_ERROR(CheckSize("dk", shape.dk, 1));
  FOVEA_RETURN_IF_ERROR(CheckSize("dv", shape.dv, 0));
  if (std::max(shape.dk, shape.dv) > kMostHeadSize) {
    return Unsupported("shape.d%c = %" PRId64 ", expected at most 2^24",
                       shape.dk > shape.dv ? 'k' : 'v', std::max(shape.dk, shape.dv));
  }
  FOVEA_RETURN_IF_ERROR(CheckFormat("k", shape.k, "dk", shape.dk));
  if (shape.dv != 0) FOVEA_RETURN_IF_ERROR(CheckFormat("v", shape.v, "dv", shape.dv));
  PageLayout l;
  FOVEA_RETURN_IF_ERROR(Place(shape, BytesOf(shape.k.dtype, shape.dk), &l.bytes, &l.k.codes));
  if (shape.dv != 0)
    FOVEA_RETURN_IF_ERROR(Place(shape, BytesOf(shape.v.dtype, shape.dv), &l.bytes, &l.v.codes));
  FOVEA_RETURN_IF_ERROR(PlaceScales(shape, shape.k, shape.dk, &l.bytes, &l.k));
  FOVEA_RETURN_IF_ERROR(PlaceScales(shape, shape.v, shape.dv, &l.bytes, &l.v));
  if (__builtin_mul_overflow(l.bytes, shape.pages, bytes)) {
    return Invalid("shape.pages = %" PRId64 ", expected less than 2^63 bytes in all (%" PRId64
                   " of a page)",
                   shape.pages, l.bytes);
  }
  *layout = l;
  return Status();
}

MutableTensorView ViewOf(const CacheShape& shape, const PageLayout& layout, const Part& part,
                         DType type, int64_t elements, char* memory) {
  MutableTensorView view;
  if (part.row == 0) return view;
  view.data = memory + part.offset;
  view.dtype = type;
  view.rank = 4;
  const int64_t sizes[] = {shape.pages, shape.heads, shape.page, elements};
  const int64_t strides[] = {layout.bytes, shape.page * part.row, part.row, UnitBytes(type)};
  std::copy_n(sizes, 4, view.shape);
  std::copy_n(strides, 4, view.stride);
  return view;
}

}  // namespace

void SetCache(const KVCache& cache, Problem* problem) noexcept {
  problem->k = cache.k;
  problem->v = cache.v;
  problem->k_scale = cache.k_scale;
  problem->k_zero = cache.k_zero;
  problem->v_scale = cache.v_scale;
  problem->v_zero = cache.v_zero;
  problem->k_group_stride = cache.k_group_stride;
  problem->v_group_stride = cache.v_group_stride;
  problem->ring = cache.ring;
}

Status CacheBytes(const CacheShape& shape, int64_t* bytes) noexcept {
  if (bytes == nullptr) return Invalid("bytes = null, expected where to put it");
  PageLayout layout;
  int64_t all;
  FOVEA_RETURN_IF_ERROR(LayOut(shape, &layout, &all));
  *bytes = all;
  return Status();
}

Status MakeCache(const CacheShape& shape, void* memory, int64_t bytes, KVCache* cache) noexcept {
  if (cache == nullptr) return Invalid("cache = null, expected where to put it");
  PageLayout layout;
  int64_t needed;
  FOVEA_RETURN_IF_ERROR(LayOut(shape, &layout, &needed));
  if (memory == nullptr && needed > 0)
    return Invalid("memory = null, expected %" PRId64 " bytes (CacheBytes)", needed);
  if (reinterpret_cast<uintptr_t>(memory) % kPageBytes != 0)
    return Invalid("memory = %p, expected an address that is a multiple of %" PRId64, memory,
                   kPageBytes);
  if (bytes < needed)
    return TooSmall("bytes = %" PRId64 ", expected at least %" PRId64 " (CacheBytes)", bytes,
                    needed);
  char* const at = static_cast<char*>(memory);
  const auto view = [&](const Part& part, DType type, int64_t elements) {
    return ViewOf(shape, layout, part, type, elements, at);
  };
  KVCache made;
  made.k = view(layout.k.codes, shape.k.dtype, shape.dk);
  made.v = view(layout.v.codes, shape.v.dtype, shape.dv);
  made.k_scale = view(layout.k.scale, DType::kF32, layout.k.groups);
  made.k_zero = view(layout.k.zero, DType::kF32, layout.k.groups);
  made.v_scale = view(layout.v.scale, DType::kF32, layout.v.groups);
  made.v_zero = view(layout.v.zero, DType::kF32, layout.v.groups);
  made.k_scale_fixed = shape.k.scale_fixed;
  made.v_scale_fixed = shape.dv != 0 && shape.v.scale_fixed;
  made.ring = shape.ring;
  *cache = made;
  return Status();
}

}  // namespace fovea
