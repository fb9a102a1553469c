// How fast Append writes: 512 tokens and one, into each format, beside memcpy of the same rows out
// of cache. Checks the bytes against the scalar writers first.
//
//   append_bench [--d 128] [--heads 8] [--bytes 134217728]
//
// A row says: ns of a token and head (K and V), and the share of memcpy's bytes a second, read and
// written.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "fovea/kv_cache.h"
#include "reference/append.h"

namespace fovea {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kTokens = 512, kPage = 16;
// Beyond any cache: calls walk through so many bytes of new rows, and of cache, in turns.
int64_t far_bytes = int64_t{1} << 27;

struct Format {
  DType type;
  bool fixed;
};
constexpr Format kFormats[] = {
    {DType::kF32, false},    {DType::kF16, false},  {DType::kBF16, false},
    {DType::kI8, false},     {DType::kI8, true},    {DType::kU8, false},
    {DType::kU4, false},     {DType::kI4, true},    {DType::kF8E4M3FN, false},
    {DType::kF8E5M2, false}, {DType::kQ8_0, false}, {DType::kQ4_0, false},
    {DType::kQ4_1, false},   {DType::kQ5_0, false}, {DType::kQ5_1, false}};

// Memory at a multiple of 64.
class Memory {
 public:
  explicit Memory(int64_t bytes) : bytes_(static_cast<size_t>(bytes) + 64, 1) {}
  char* data() {
    return reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(bytes_.data()) + 63) / 64 * 64);
  }

 private:
  std::vector<char> bytes_;
};

void Fill(DType type, int64_t n, char* to) {
  uint32_t state = 1;
  for (int64_t i = 0; i < n; ++i) {
    state = state * 1664525u + 1013904223u;
    const float x = (static_cast<float>(state >> 8) - 8388608.0f) * 3e-7f;
    reference::WriteRow(type, &x, 1, nullptr, 0,
                        reinterpret_cast<unsigned char*>(to) + i * SizeOf(type), nullptr, nullptr);
  }
}

// Least seconds of a call f(turn), of some rounds of all turns: what is left of a call that nobody
// interrupts.
template <class F>
double Least(int64_t turns, const F& f) {
  double least = 1e9;
  for (int round = 0; round < 5; ++round) {
    for (int64_t turn = 0; turn < turns; ++turn) {
      const auto start = Clock::now();
      f(turn);
      least = std::min(least, std::chrono::duration<double>(Clock::now() - start).count());
    }
  }
  return least;
}

struct Setting {
  int64_t heads, d, tokens;
  DType from;
};

// New rows [1, tokens, Hkv, d] as projections leave them, `turn` calls on.
NewTokens TokensOf(const Setting& s, Memory& memory, int64_t turn) {
  const int64_t bytes = s.tokens * s.heads * s.d * SizeOf(s.from);
  const auto view = [&](int64_t n) {
    return SwapAxes(View(static_cast<const void*>(memory.data() + n * bytes), s.from,
                         {1, s.tokens, s.heads, s.d}),
                    1, 2);
  };
  NewTokens tokens;
  tokens.k = view(2 * turn), tokens.v = view(2 * turn + 1);
  return tokens;
}

// Seconds of a call, memory bandwidth of which is that of memcpy times *share.
bool Time(const Setting& s, const Format& format, double* seconds, double* traffic) {
  CacheShape shape;
  shape.page = kPage, shape.heads = s.heads, shape.dk = shape.dv = s.d;
  shape.k.dtype = shape.v.dtype = format.type;
  shape.k.scale_fixed = shape.v.scale_fixed = format.fixed;
  const int64_t pages = (s.tokens + kPage - 1) / kPage;
  const int64_t from_bytes = 2 * s.tokens * s.heads * s.d * SizeOf(s.from);
  shape.pages = pages;
  int64_t bytes = 0;
  if (!CacheBytes(shape, &bytes).ok()) return false;
  const int64_t turns = std::clamp<int64_t>(far_bytes / std::max(bytes, from_bytes), 1, 4096);
  shape.pages = pages * turns;
  int64_t all_bytes = 0;
  if (!CacheBytes(shape, &all_bytes).ok()) return false;
  Memory memory(all_bytes), from(from_bytes * turns);
  const float scale = 0.02f;
  const auto make = [&](Memory& at) {
    KVCache cache;
    if (!MakeCache(shape, at.data(), all_bytes, &cache).ok()) std::abort();
    if (format.fixed) {
      cache.k_scale =
          View(const_cast<void*>(static_cast<const void*>(&scale)), DType::kF32, {1, 1, 1, 1});
      cache.v_scale = cache.k_scale;
    }
    return cache;
  };
  const KVCache cache = make(memory);
  Fill(s.from, from_bytes / SizeOf(s.from), from.data());
  for (int64_t turn = 1; turn < turns; ++turn)
    std::memcpy(from.data() + turn * from_bytes, from.data(), static_cast<size_t>(from_bytes));
  std::vector<std::vector<int64_t>> slots(static_cast<size_t>(turns));
  for (int64_t turn = 0; turn < turns; ++turn) {
    for (int64_t n = 0; n < s.tokens; ++n)
      slots[static_cast<size_t>(turn)].push_back(turn * pages * kPage + n);
  }
  const auto append = [&](int64_t turn) {
    NewTokens tokens = TokensOf(s, from, turn);
    tokens.slots = View(slots[static_cast<size_t>(turn)].data(), {1, s.tokens});
    if (!Append(cache, tokens).ok()) std::abort();
  };
  {
    Memory want(all_bytes);
    NewTokens tokens = TokensOf(s, from, 0);
    tokens.slots = View(slots[0].data(), {1, s.tokens});
    reference::Append(make(want), tokens);
    append(0);
    if (std::memcmp(want.data(), memory.data(), static_cast<size_t>(bytes)) != 0) {
      std::printf("%s: other bytes than the scalar writer's\n", Name(format.type));
      return false;
    }
  }
  *seconds = Least(turns, append);
  *traffic = static_cast<double>(from_bytes + bytes * s.tokens / (pages * kPage));
  return true;
}

// Bytes a second, read and written, of memcpy of as many bytes as the rows have.
double MemcpyRate(int64_t bytes) {
  const int64_t turns = std::max<int64_t>(1, far_bytes / bytes);
  Memory from(turns * bytes), to(turns * bytes);
  const double seconds = Least(turns, [&](int64_t turn) {
    std::memcpy(to.data() + turn * bytes, from.data() + turn * bytes, static_cast<size_t>(bytes));
  });
  return 2 * static_cast<double>(bytes) / seconds;
}

int RunAll(int64_t heads, int64_t d) {
  std::printf("heads %d, d %d\n", static_cast<int>(heads), static_cast<int>(d));
  for (DType from : {DType::kF32, DType::kBF16}) {
    const double rate = MemcpyRate(kTokens * heads * d * SizeOf(from));
    std::printf("\n%s rows; memcpy reads and writes %.1f GB/s\n", Name(from), rate * 1e-9);
    std::printf("%-12s %14s %14s %18s\n", "cache", "512 tokens", "of memcpy", "one token");
    for (const Format& format : kFormats) {
      double many = 0, one = 0, bytes = 0, unused = 0;
      if (!Time({heads, d, kTokens, from}, format, &many, &bytes)) return 1;
      if (!Time({heads, d, 1, from}, format, &one, &unused)) return 1;
      std::printf("%-9s%-3s %8.1f ns/row %12.0f %% %8.3f us a head\n", Name(format.type),
                  format.fixed ? "fix" : "", many * 1e9 / static_cast<double>(kTokens * heads),
                  100 * bytes / many / rate, one * 1e6 / static_cast<double>(heads));
    }
  }
  return 0;
}

}  // namespace
}  // namespace fovea

int main(int argc, char** argv) {
  int64_t heads = 8, d = 128;
  for (int n = 1; n + 1 < argc; n += 2) {
    if (std::strcmp(argv[n], "--heads") == 0) heads = std::atoll(argv[n + 1]);
    if (std::strcmp(argv[n], "--d") == 0) d = std::atoll(argv[n + 1]);
    if (std::strcmp(argv[n], "--bytes") == 0) fovea::far_bytes = std::atoll(argv[n + 1]);
  }
  return fovea::RunAll(heads, d);
}
