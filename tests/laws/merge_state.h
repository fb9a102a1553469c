// Partial states of a small problem, of which the tests of Merge make wholes.
#ifndef FOVEA_TESTS_LAWS_MERGE_STATE_H_
#define FOVEA_TESTS_LAWS_MERGE_STATE_H_

#include "fovea/merge.h"
#include "support/owned_tensor.h"
#include "support/random.h"

namespace fovea::test {

struct State {
  OwnedTensor out, lse;
  PartialState view() const { return {out.view(), lse.view()}; }
};

constexpr int64_t kB = 2, kH = 3, kT = 5, kD = 19;
constexpr int64_t kRows = kB * kH * kT;

inline State MakeState(Storage storage = {}) {
  return {OwnedTensor(DType::kF32, {kB, kH, kT, kD}, storage),
          OwnedTensor(DType::kF32, {kB, kH, kT}, storage)};
}

inline State RandomState(Random& random, double spread = 3, Storage storage = {}) {
  State state = MakeState(storage);
  state.out.Fill([&] { return random.Normal(); });
  state.lse.Fill([&] { return spread * random.Normal(); });
  return state;
}

}  // namespace fovea::test

#endif  // FOVEA_TESTS_LAWS_MERGE_STATE_H_
