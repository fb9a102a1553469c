// Covering arrays: few rows in which every pair of values of every two factors occurs (Cohen et al.
// 1997, "The AETG System").
#ifndef FOVEA_TESTS_SUPPORT_PAIRWISE_H_
#define FOVEA_TESTS_SUPPORT_PAIRWISE_H_

#include <cstddef>
#include <vector>

#include "support/random.h"

namespace fovea::test {

// levels[f] = how many values factor f has. Each row holds a value for each factor.
inline std::vector<std::vector<int>> CoverPairs(const std::vector<int>& levels, uint64_t seed) {
  const size_t factors = levels.size();
  Random random(seed);
  // number of the first value of a factor, all values counted through
  std::vector<size_t> first(factors + 1, 0);
  for (size_t f = 0; f < factors; ++f) first[f + 1] = first[f] + static_cast<size_t>(levels[f]);
  const size_t values = first[factors];
  std::vector<char> open(values * values, 0);  // pairs not yet covered, both ways
  std::vector<size_t> open_of(values, 0);
  size_t left = 0;
  for (size_t f = 0; f < factors; ++f) {
    for (size_t g = 0; g < factors; ++g) {
      if (f == g) continue;
      for (size_t x = first[f]; x < first[f + 1]; ++x) {
        for (size_t y = first[g]; y < first[g + 1]; ++y)
          open[x * values + y] = 1, ++open_of[x], ++left;
      }
    }
  }

  std::vector<std::vector<int>> rows;
  while (left != 0) {
    // Start from the value with the most open pairs, then give each other factor, in random order,
    // the value that covers most.
    size_t start = 0;
    for (size_t x = 1; x < values; ++x) {
      if (open_of[x] > open_of[start]) start = x;
    }
    std::vector<size_t> order;
    std::vector<size_t> chosen(factors, values);
    for (size_t f = 0; f < factors; ++f) {
      if (start >= first[f] && start < first[f + 1]) {
        chosen[f] = start;
      } else {
        order.push_back(f);
      }
    }
    random.Shuffle(order);
    for (size_t f : order) {
      size_t best = first[f], best_gain = 0, ties = 0;
      for (size_t x = first[f]; x < first[f + 1]; ++x) {
        size_t gain = 0;
        for (size_t y : chosen) gain += y < values && open[x * values + y] ? 1 : 0;
        // Among equals a random one, so that triples vary too.
        if (gain > best_gain) {
          best = x, best_gain = gain, ties = 1;
        } else if (gain == best_gain && random.Below(static_cast<int64_t>(++ties)) == 0) {
          best = x;
        }
      }
      chosen[f] = best;
    }
    std::vector<int> row(factors);
    for (size_t f = 0; f < factors; ++f) {
      row[f] = static_cast<int>(chosen[f] - first[f]);
      for (size_t g = 0; g < factors; ++g) {
        char& pair = open[chosen[f] * values + chosen[g]];
        if (pair) pair = 0, --open_of[chosen[f]], --left;
      }
    }
    rows.push_back(row);
  }
  return rows;
}

}  // namespace fovea::test

#endif  // FOVEA_TESTS_SUPPORT_PAIRWISE_H_
