#include "measure/roofline.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "measure/clock.h"
#include "measure/roofline_loops.h"

#if !defined(__x86_64__) && !defined(__aarch64__)
namespace fovea::measure {
// Elsewhere rates are unknown, and benchmarks report times alone.
Loop MultiplyAddLoop(Target) { return {}; }
Loop DotBF16Loop(Target) { return {}; }
Loop ExpLoop(Target) { return {}; }
void ReadAscending(const char* data, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64)
    static_cast<void>(*static_cast<const volatile char*>(data + i));
}
}  // namespace fovea::measure
#endif

namespace fovea::measure {
namespace {

struct Burst {
  double seconds = 0;      // from the common start to the last thread's end
  double cpu_seconds = 0;  // of the thread that used the most
  bool owned = true;       // every thread had its core to itself
};

// work(t) on threads t = 0 … threads − 1 at the same time; thread 0 is the caller.
Burst RunTogether(int threads, const std::function<void(int)>& work) {
  std::atomic<int> ready{0};
  std::vector<double> cpu_seconds(static_cast<size_t>(threads));
  std::atomic<bool> owned{true};
  double start = 0;
  const auto body = [&](int t) {
    ready.fetch_add(1);
    while (ready.load() < threads) {
    }
    const double wall = WallSeconds(), cpu = ThreadSeconds();
    if (t == 0) start = wall;
    work(t);
    cpu_seconds[static_cast<size_t>(t)] = ThreadSeconds() - cpu;
    if (cpu_seconds[static_cast<size_t>(t)] < kOwnedShare * (WallSeconds() - wall)) owned = false;
  };
  std::vector<std::thread> others;
  for (int t = 1; t < threads; ++t) others.emplace_back(body, t);
  body(0);
  for (std::thread& thread : others) thread.join();
  return {WallSeconds() - start, *std::max_element(cpu_seconds.begin(), cpu_seconds.end()), owned};
}

constexpr int kBursts = 7;

// Median and best of kBursts bursts that kept their cores, or, where too few did, of the CPU time
// of all; the first, which wakes wide units and fills page tables, is not counted.
Rate RateOfBursts(int threads, double giga_work, const std::function<void(int)>& work) {
  RunTogether(threads, work);
  std::vector<double> owned, all;
  while (owned.size() < kBursts && all.size() < 4 * kBursts) {
    const Burst burst = RunTogether(threads, work);
    all.push_back(burst.cpu_seconds);
    if (burst.owned) owned.push_back(burst.seconds);
  }
  Rate rate;
  rate.noisy = owned.size() < kBursts;
  std::vector<double>& seconds = rate.noisy ? all : owned;
  std::sort(seconds.begin(), seconds.end());
  rate.median = giga_work / seconds[seconds.size() / 2];
  rate.best = giga_work / seconds[0];
  return rate;
}

// So many iterations that one burst takes about 5 ms: long against clock reads, short against a
// scheduler's time slice.
int64_t IterationsOf(const Loop& loop) {
  constexpr double kBurstSeconds = 5e-3;
  int64_t iterations = 1024;
  for (;;) {
    const double start = WallSeconds();
    loop.run(iterations);
    const double seconds = WallSeconds() - start;
    if (seconds > kBurstSeconds / 4)
      return std::max<int64_t>(
          1, static_cast<int64_t>(static_cast<double>(iterations) * kBurstSeconds / seconds));
    iterations *= 2;
  }
}

Rate RateOf(const Loop& loop, int threads) {
  if (loop.run == nullptr) return {};
  const int64_t iterations = IterationsOf(loop);
  return RateOfBursts(threads, 1e-9 * loop.work * static_cast<double>(iterations) * threads,
                      [&](int) { loop.run(iterations); });
}

size_t LastLevelCacheBytes() {
  size_t largest = 0;
  for (int index = 0; index < 8; ++index) {
    char path[96];
    std::snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu0/cache/index%d/size", index);
    std::FILE* file = std::fopen(path, "r");
    if (file == nullptr) break;
    unsigned long kib = 0;
    if (std::fscanf(file, "%luK", &kib) == 1)
      largest = std::max<size_t>(largest, size_t{kib} << 10);
    std::fclose(file);
  }
  return largest;
}

}  // namespace

Rate ProductGflops(Target target, Product product, int threads) {
  return RateOf(product == Product::kBF16 ? DotBF16Loop(target) : MultiplyAddLoop(target), threads);
}

Rate ExpGeps(Target target, int threads) { return RateOf(ExpLoop(target), threads); }

Rate ReadGbps(const void* data, size_t bytes, int threads) {
  const size_t part = bytes / static_cast<size_t>(threads) / 512 * 512;
  if (data == nullptr || part == 0) return {};
  const char* const first = static_cast<const char*>(data);
  const double giga_bytes = 1e-9 * static_cast<double>(part) * threads;
  return RateOfBursts(threads, giga_bytes,
                      [&](int t) { ReadAscending(first + part * static_cast<size_t>(t), part); });
}

size_t StreamBytes() {
  constexpr size_t kLeast = size_t{256} << 20, kMost = size_t{1} << 30;
  return std::clamp(2 * LastLevelCacheBytes(), kLeast, kMost);
}

HugeBuffer::HugeBuffer(size_t bytes) {
  constexpr size_t kHugePage = size_t{2} << 20;
  const size_t mapped = bytes + kHugePage;
  void* const mapping =
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return;
  mapping_ = mapping;
  mapped_ = mapped;
  bytes_ = bytes;
  const uintptr_t address = reinterpret_cast<uintptr_t>(mapping);
  data_ = static_cast<char*>(mapping) + (0 - address) % kHugePage;
#ifdef MADV_HUGEPAGE
  madvise(data_, bytes, MADV_HUGEPAGE);  // advice: without it the numbers are lower, not wrong
#endif
  std::memset(data_, 1, bytes);
}

HugeBuffer::~HugeBuffer() {
  if (mapping_ != nullptr) munmap(mapping_, mapped_);
}

}  // namespace fovea::measure
