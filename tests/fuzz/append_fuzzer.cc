// Bytes → a cache and new tokens with anything in them: Append must answer with a status that says
// something, write nothing on an error, and write what the reference writes where nothing was
// damaged. Every tensor has memory of exactly its own size, so that AddressSanitizer sees a byte
// too many.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "fovea/kv_cache.h"
#include "reference/append.h"

namespace fovea::fuzz {
namespace {

using Wide = __int128;

constexpr DType kTypes[] = {
    DType::kF32,  DType::kF16,    DType::kBF16,   DType::kI8,       DType::kU8,     DType::kI4,
    DType::kU4,   DType::kI4High, DType::kU4High, DType::kF8E4M3FN, DType::kF8E5M2, DType::kQ8_0,
    DType::kQ4_0, DType::kQ4_1,   DType::kQ5_0,   DType::kQ5_1,     DType::kIQ4NL};

[[noreturn]] void Fail(const char* what, const Status& status) {
  std::fprintf(stderr, "append_fuzzer: %s (%s)\n", what, status.message());
  std::abort();
}

// A number from the edges of its type as well as from the middle.
int64_t DrawNumber(FuzzedDataProvider& bytes) {
  switch (bytes.ConsumeIntegralInRange<int>(0, 3)) {
    case 0:
      return bytes.ConsumeIntegral<int64_t>();
    case 1:
      return bytes.ConsumeBool() ? INT64_MAX : INT64_MIN;
    default:
      return bytes.ConsumeIntegralInRange<int64_t>(-3, 40);
  }
}

// Memory of exactly n bytes, at an address that is a multiple of 64.
struct Free {
  void operator()(unsigned char* p) const { std::free(p); }
};
using Memory = std::unique_ptr<unsigned char, Free>;
Memory MakeMemory(int64_t n) {
  void* p = nullptr;
  if (posix_memalign(&p, 64, static_cast<size_t>(std::max<int64_t>(n, 1))) != 0) std::abort();
  return Memory(static_cast<unsigned char*>(p));
}

// Whether every element lies within n bytes from `memory` on.
template <class View>
bool Fits(const View& view, const void* memory, int64_t n) {
  if (!view.present() || view.rank < 0 || view.rank > kMaxRank) return true;
  const int32_t type = static_cast<int32_t>(view.dtype);
  if (type < 0 || type >= internal::kFormatCount) return true;  // refused before it is read
  const Wide first = reinterpret_cast<intptr_t>(view.data) - reinterpret_cast<intptr_t>(memory);
  Wide least = first, most = first + UnitBytes(view.dtype);
  for (int a = 0; a < view.rank; ++a) {
    if (view.shape[a] <= 0) return true;
    const Wide units = a + 1 == view.rank ? UnitElements(view.dtype) : 1;
    const Wide reach = (view.shape[a] - 1) / units * Wide{view.stride[a]};
    (reach < 0 ? least : most) += reach;
  }
  return least >= 0 && most <= n;
}

struct Call {
  Memory cache_memory, k_memory, v_memory;
  int64_t cache_bytes = 0, k_bytes = 0, v_bytes = 0;
  std::vector<int64_t> integers[4];  // slots or table, past, lengths, starts
  float scale = 0.25f;
  KVCache cache;
  NewTokens tokens;
  bool ok = false;

  explicit Call(FuzzedDataProvider& bytes);
  bool Fit() const;
  bool IntegersFit() const;  // which are read before anything is refused
};

TensorView DrawRows(FuzzedDataProvider& bytes, const int64_t (&shape)[4], Memory* memory,
                    int64_t* size) {
  const DType type = kTypes[bytes.ConsumeIntegralInRange<int>(0, 2)];
  int64_t elements = 1;
  for (int64_t n : shape) elements *= n;
  *size = elements * SizeOf(type);
  *memory = MakeMemory(*size);
  const std::vector<uint8_t> some = bytes.ConsumeBytes<uint8_t>(256);
  for (int64_t n = 0; n < *size; ++n)
    memory->get()[n] = some.empty() ? 0 : some[static_cast<size_t>(n) % some.size()];
  return View(static_cast<const void*>(memory->get()), type, shape);
}

Call::Call(FuzzedDataProvider& bytes) {
  const auto number = [&](int64_t least, int64_t most) {
    return bytes.ConsumeIntegralInRange<int64_t>(least, most);
  };
  const auto type = [&] { return kTypes[number(0, std::size(kTypes) - 1)]; };
  CacheShape shape;
  shape.pages = number(1, 4), shape.page = number(1, 5), shape.heads = number(1, 3);
  shape.k.dtype = type(), shape.v.dtype = type();
  shape.dk = UnitElements(shape.k.dtype) * number(1, 3);
  shape.dv = UnitElements(shape.v.dtype) * number(1, 3);
  const auto is_i = [](DType t) {
    return t == DType::kI8 || t == DType::kI4 || t == DType::kI4High;
  };
  shape.k.scale_fixed = is_i(shape.k.dtype) && (shape.k.dtype != DType::kI8 || bytes.ConsumeBool());
  shape.v.scale_fixed = is_i(shape.v.dtype) && (shape.v.dtype != DType::kI8 || bytes.ConsumeBool());
  shape.ring = bytes.ConsumeBool();
  if (!CacheBytes(shape, &cache_bytes).ok()) return;
  cache_memory = MakeMemory(cache_bytes);
  std::memset(cache_memory.get(), 0xA5, static_cast<size_t>(cache_bytes));
  if (!MakeCache(shape, cache_memory.get(), cache_bytes, &cache).ok()) return;
  const MutableTensorView fixed = View(&scale, {1, 1, 1, 1});
  if (shape.k.scale_fixed) cache.k_scale = fixed;
  if (shape.v.scale_fixed) cache.v_scale = fixed;

  const bool packed = bytes.ConsumeBool();
  const int64_t n = number(0, 6), where = number(0, 3);
  const int64_t sequences = where >= 2 && !packed ? shape.pages : number(1, 3);
  const int64_t B = packed ? 1 : sequences, rows = shape.pages * shape.page;
  tokens.k = DrawRows(bytes, {B, shape.heads, n, shape.dk}, &k_memory, &k_bytes);
  tokens.v = DrawRows(bytes, {B, shape.heads, n, shape.dv}, &v_memory, &v_bytes);
  if (packed) {
    for (int64_t b = 0; b <= sequences; ++b) integers[3].push_back(number(0, n));
    std::sort(integers[3].begin(), integers[3].end());
    tokens.cu_seqlens = View(integers[3].data(), {sequences + 1});
  }
  if (where == 0) {
    for (int64_t i = 0; i < B * n; ++i) integers[0].push_back(number(-1, rows - 1));
    tokens.slots = packed ? View(integers[0].data(), {n}) : View(integers[0].data(), {B, n});
  } else {
    if (where == 1) {
      cache.ring = false;
      for (int64_t i = 0; i < sequences * 3; ++i) integers[0].push_back(number(0, shape.pages - 1));
      tokens.pages.table = View(integers[0].data(), {sequences, 3});
    }
    for (int64_t b = 0; b < sequences; ++b) integers[1].push_back(number(0, 3));
    tokens.past_lengths = View(integers[1].data(), {sequences});
  }
  if (bytes.ConsumeBool()) {
    for (int64_t b = 0; b < sequences; ++b) integers[2].push_back(number(0, n));
    tokens.lengths = View(integers[2].data(), {sequences});
  }
  ok = true;
}

bool Call::Fit() const {
  bool fit = Fits(tokens.k, k_memory.get(), k_bytes) && Fits(tokens.v, v_memory.get(), v_bytes);
  for (const MutableTensorView* view :
       {&cache.k, &cache.v, &cache.k_scale, &cache.k_zero, &cache.v_scale, &cache.v_zero}) {
    const bool is_fixed = view->data == &scale;
    fit = fit && Fits(*view, is_fixed ? static_cast<const void*>(&scale) : cache_memory.get(),
                      is_fixed ? static_cast<int64_t>(sizeof(scale)) : cache_bytes);
  }
  return fit;
}

bool Call::IntegersFit() const {
  const auto fits = [](const TensorView& view, const std::vector<int64_t>& of) {
    return Fits(view, of.data(), static_cast<int64_t>(of.size() * sizeof(int64_t)));
  };
  return fits(tokens.slots, integers[0]) && fits(tokens.pages.table, integers[0]) &&
         fits(tokens.past_lengths, integers[1]) && fits(tokens.lengths, integers[2]) &&
         fits(tokens.cu_seqlens, integers[3]);
}

template <class View>
void DamageView(FuzzedDataProvider& bytes, View& view) {
  const int axis = bytes.ConsumeIntegralInRange<int>(0, kMaxRank - 1);
  switch (bytes.ConsumeIntegralInRange<int>(0, 4)) {
    case 0:
      view.rank = bytes.ConsumeIntegralInRange<int>(-1, 5);
      break;
    case 1:
      view.dtype = static_cast<DType>(bytes.ConsumeIntegralInRange<int>(-1, 24));
      break;
    case 2:
      view.shape[axis] = DrawNumber(bytes);
      break;
    case 3:
      view.stride[axis] = DrawNumber(bytes);
      break;
    default:
      view = View();
  }
}

void Damage(FuzzedDataProvider& bytes, Call& call) {
  MutableTensorView* const stored[] = {&call.cache.k,      &call.cache.v,       &call.cache.k_scale,
                                       &call.cache.k_zero, &call.cache.v_scale, &call.cache.v_zero};
  TensorView* const given[] = {&call.tokens.k,         &call.tokens.v,
                               &call.tokens.slots,     &call.tokens.past_lengths,
                               &call.tokens.lengths,   &call.tokens.pages.table,
                               &call.tokens.cu_seqlens};
  switch (bytes.ConsumeIntegralInRange<int>(0, 4)) {
    case 0:
      DamageView(bytes, *stored[bytes.ConsumeIntegralInRange<size_t>(0, std::size(stored) - 1)]);
      break;
    case 1:
      DamageView(bytes, *given[bytes.ConsumeIntegralInRange<size_t>(0, std::size(given) - 1)]);
      break;
    case 2: {
      std::vector<int64_t>& some = call.integers[bytes.ConsumeIntegralInRange<int>(0, 3)];
      if (!some.empty())
        some[bytes.ConsumeIntegralInRange<size_t>(0, some.size() - 1)] = DrawNumber(bytes);
      break;
    }
    case 3:
      (bytes.ConsumeBool() ? call.cache.k_group_stride : call.tokens.pages.keys) =
          DrawNumber(bytes);
      break;
    default:
      (bytes.ConsumeBool() ? call.cache.ring : call.cache.k_scale_fixed) = bytes.ConsumeBool();
  }
}

void TryBytes(const uint8_t* data, size_t size) {
  FuzzedDataProvider bytes(data, size);
  const int damages = bytes.ConsumeIntegralInRange<int>(0, 3);
  Call call(bytes);
  if (!call.ok) return;
  for (int n = 0; n < damages; ++n) Damage(bytes, call);
  if (!call.IntegersFit()) return;
  // What does not lie in memory, or whose groups lie who knows where, is checked and not written.
  if (!call.Fit() || call.cache.k_group_stride != 0) {
    if (damages == 0) std::abort();
    BoundAppend bound;
    const Status status = BindAppend(call.cache, call.tokens, {}, nullptr, &bound);
    if (status.ok() != (status.message()[0] == '\0')) Fail("an error without a message", status);
    return;
  }
  const size_t n = static_cast<size_t>(call.cache_bytes);
  const std::vector<unsigned char> before(call.cache_memory.get(), call.cache_memory.get() + n);
  AppendResult result;
  const Status status = Append(call.cache, call.tokens, &result);
  if (status.ok() != (status.message()[0] == '\0')) Fail("an error without a message", status);
  if (!status.ok()) {
    if (std::memcmp(before.data(), call.cache_memory.get(), n) != 0)
      Fail("an error, and bytes were written", status);
    return;
  }
  if (damages != 0) return;
  const std::vector<unsigned char> got(call.cache_memory.get(), call.cache_memory.get() + n);
  std::memcpy(call.cache_memory.get(), before.data(), n);
  const AppendResult expected = reference::Append(call.cache, call.tokens);
  if (expected.lost_nans != result.lost_nans) Fail("other NaN were counted", status);
  // the bits of a NaN in a float type are free
  if (IsQuantised(call.cache.k.dtype) && IsQuantised(call.cache.v.dtype) &&
      std::memcmp(got.data(), call.cache_memory.get(), n) != 0)
    Fail("other bytes than the scalar writers'", status);
}

}  // namespace
}  // namespace fovea::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fovea::fuzz::TryBytes(data, size);
  return 0;
}
