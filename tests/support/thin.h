// Thinned lists, for machines on which instructions are slow (emulators, sanitizers).
#ifndef FOVEA_TESTS_SUPPORT_THIN_H_
#define FOVEA_TESTS_SUPPORT_THIN_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <map>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/random.h"

namespace fovea::test {

// Where a list of the running test begins: at each of the first `step` elements before at any of
// them again, in an order drawn anew for each round. Lists are told apart by the line that they
// stand in, and forgotten when the test ends: a test does the same alone as among others.
inline size_t FirstOfThinned(size_t step, int line) {
  struct Round {
    std::vector<size_t> order;
    size_t used = 0;
  };
  static const testing::TestInfo* running = nullptr;
  static std::map<std::pair<int, size_t>, Round> rounds;
  static Random random(0);
  const testing::TestInfo* const current = testing::UnitTest::GetInstance()->current_test_info();
  if (running != current) {
    running = current;
    rounds.clear();
    uint64_t seed = BaseSeed();
    for (const char* c = current == nullptr ? "" : current->name(); *c != 0; ++c)
      seed = 31 * seed + static_cast<unsigned char>(*c);
    random = Random(seed);  // other items in other tests
  }
  Round& round = rounds[{line, step}];
  if (round.used == round.order.size()) {
    round.order.resize(step), round.used = 0;
    for (size_t n = 0; n < step; ++n) round.order[n] = n;
    random.Shuffle(round.order);
  }
  return round.order[round.used++];
}

// Every n-th of the items, one at least: n = GridStep(), or `most` if that is less. A line that is
// run again begins with another item each time, so that a loop over a whole list and a loop over a
// thinned one inside it meet every item of both, and in the end every pair.
template <class Container>
auto Thinned(const Container& items, int64_t most = INT64_MAX, int line = __builtin_LINE()) {
  std::vector<std::decay_t<decltype(*std::begin(items))>> some(std::begin(items), std::end(items));
  const size_t step = std::min(static_cast<size_t>(std::min(GridStep(), most)), some.size());
  if (step <= 1) return some;
  size_t kept = 0;
  for (size_t n = FirstOfThinned(step, line); n < some.size(); n += step) some[kept++] = some[n];
  some.erase(some.begin() + static_cast<std::ptrdiff_t>(kept), some.end());
  return some;
}
template <class T>
std::vector<T> Thinned(std::initializer_list<T> items, int64_t most = INT64_MAX,
                       int line = __builtin_LINE()) {
  return Thinned(std::vector<T>(items), most, line);
}

// first, first + step, … up to last.
inline std::vector<int64_t> Numbers(int64_t first, int64_t last, int64_t step = 1) {
  std::vector<int64_t> numbers;
  for (int64_t n = first; n <= last; n += step) numbers.push_back(n);
  return numbers;
}

}  // namespace fovea::test

#endif  // FOVEA_TESTS_SUPPORT_THIN_H_
