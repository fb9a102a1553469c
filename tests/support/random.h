// A small generator with the same numbers on every compiler and machine, and the seed that all
// random tests start from.
#ifndef FOVEA_TESTS_SUPPORT_RANDOM_H_
#define FOVEA_TESTS_SUPPORT_RANDOM_H_

#include <cmath>
#include <cstdint>
#include <cstdlib>

namespace fovea::test {

// SplitMix64 (Steele, Lea, Flood 2014): the standard distributions differ between standard
// libraries, a printed seed must not.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Bits() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  // Uniform in [0, n); n ≥ 1. The bias of the modulus does not matter here.
  int64_t Below(int64_t n) { return static_cast<int64_t>(Bits() % static_cast<uint64_t>(n)); }
  int64_t Between(int64_t first, int64_t last) { return first + Below(last - first + 1); }
  double Uniform() { return static_cast<double>(Bits() >> 11) * 0x1p-53; }
  bool Chance(double probability) { return Uniform() < probability; }
  // Standard normal, by Box and Muller.
  double Normal() {
    const double radius = std::sqrt(-2 * std::log(1 - Uniform()));
    return radius * std::cos(6.283185307179586 * Uniform());
  }
  template <class Container>
  auto Pick(const Container& from) {
    return from[static_cast<size_t>(Below(static_cast<int64_t>(from.size())))];
  }
  template <class Container>
  void Shuffle(Container& items) {
    for (size_t n = items.size(); n > 1; --n)
      std::swap(items[n - 1], items[static_cast<size_t>(Below(static_cast<int64_t>(n)))]);
  }

 private:
  uint64_t state_;
};

// FOVEA_TEST_SEED or a fixed number, so that a plain run is repeatable.
inline uint64_t BaseSeed() {
  const char* seed = std::getenv("FOVEA_TEST_SEED");
  return seed == nullptr ? 20240917u : std::strtoull(seed, nullptr, 10);
}

// Slow machines (emulators, sanitizers) run every n-th problem of the large grids and thin lists
// (support/thin.h): n = FOVEA_TEST_EVERY, 1 by default.
inline int64_t GridStep() {
  const char* every = std::getenv("FOVEA_TEST_EVERY");
  const long long n = every == nullptr ? 1 : std::atoll(every);
  return n < 1 ? 1 : n;
}

}  // namespace fovea::test

#endif  // FOVEA_TESTS_SUPPORT_RANDOM_H_
