// The pieces of the kernels alone, out of L1, on every usable target: scores and accumulation of
// the tile engine, and exp. Compare with roofline/multiply_add and roofline/exp of the same
// process.
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/kernels_bench.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "kernels/kernel.h"
#include "kernels/math-inl.h"
#include "kernels/registry.h"
#include "kernels/tile_f32-inl.h"

#ifndef FOVEA_BENCH_KERNELS_BENCH_ONCE_
#define FOVEA_BENCH_KERNELS_BENCH_ONCE_
namespace fovea::measure {

// Operands of the pieces: a block of 64 keys, and more rows than any tile has.
constexpr int64_t kKeys = 64, kMostRows = 64, kMostChannels = 256;
struct Operands {
  alignas(64) float q[kMostRows * kMostChannels];
  alignas(64) float kv[kKeys * kMostChannels];
  alignas(64) float s[kMostRows * kKeys];
  alignas(64) float o[kMostRows * kMostChannels];
  alignas(64) float alpha[kMostRows];
};

// What one target offers; each function works once on the operands.
struct Pieces {
  int64_t rows = 0;  // of its widest tile
  void (*scores)(Operands& x, int64_t d) = nullptr;
  void (*accumulate)(Operands& x, int64_t d) = nullptr;
  void (*exp)(Operands& x) = nullptr;  // o = exp(s) of kMostRows·kKeys scores
};

}  // namespace fovea::measure
#endif  // FOVEA_BENCH_KERNELS_BENCH_ONCE_

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

using BenchedEngine = TileF32Engine<2>;

inline Tile BenchedTile(measure::Operands& x) {
  Tile tile = {};
  tile.count = static_cast<int>(BenchedEngine::Lanes::kRows);
  tile.q = x.q;
  tile.o = x.o;
  tile.state.alpha = x.alpha;
  return tile;
}

inline Geometry BenchedGeometry(int64_t d) {
  Geometry geometry;
  geometry.dk = geometry.dv = d;
  geometry.tile_rows = geometry.tile_lanes = static_cast<int32_t>(BenchedEngine::Lanes::kRows);
  geometry.block_keys = static_cast<int32_t>(measure::kKeys);
  return geometry;
}

// All keys, of which every row sees every one.
inline Part BenchedPart(measure::Operands& x, const Geometry& geometry, const Tile& tile) {
  const Span span = {0, measure::kKeys, false, false, false, false};
  return {&geometry, &tile, Block{0, measure::kKeys, 0}, span, x.s};
}

measure::Pieces BenchedPieces() {
  measure::Pieces pieces;
  pieces.rows = BenchedEngine::Lanes::kRows;
  pieces.scores = [](measure::Operands& x, int64_t d) {
    const Geometry geometry = BenchedGeometry(d);
    const Tile tile = BenchedTile(x);
    Ahead ahead;  // nothing to prefetch
    BenchedEngine::Scores(BenchedPart(x, geometry, tile), BlockRows{x.kv, d}, ahead);
  };
  pieces.accumulate = [](measure::Operands& x, int64_t d) {
    const Geometry geometry = BenchedGeometry(d);
    const Tile tile = BenchedTile(x);
    Ahead ahead;  // nothing to prefetch
    BenchedEngine::Accumulate(BenchedPart(x, geometry, tile),
                              BlockValues{BlockRows{x.kv, d}, nullptr}, ahead);
  };
  pieces.exp = [](measure::Operands& x) {
    const DF df;
    for (int64_t n = 0; n < measure::kMostRows * measure::kKeys; n += kLanes) {
      hn::Store(ExpNonPositive(df, hn::Load(df, x.s + n)), df, x.o + n);
    }
  };
  return pieces;
}

}  // namespace HWY_NAMESPACE
FOVEA_OFFER(BenchedPieces)
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <benchmark/benchmark.h>

#include <algorithm>
#include <memory>
#include <string>

#include "fovea/target.h"

namespace fovea {
using PiecesFunction = measure::Pieces();
FOVEA_DEFINE_FIND(PiecesFunction, BenchedPieces)
}  // namespace fovea

namespace fovea::measure {
namespace {

// Highway's target of each row of targets.h. Not the registry's, which a shared library hides.
struct BenchedTarget {
  Target target;
  int64_t own;
};
#define FOVEA_BENCHED_ROW(X, BUILD, TARGET, NAME, OWN, ...) {Target::TARGET, HWY_##OWN},
constexpr BenchedTarget kBenchedTargets[] = {FOVEA_FOR_EACH_TARGET(FOVEA_BENCHED_ROW, _)};
#undef FOVEA_BENCHED_ROW

Pieces PiecesFor(Target target) {
  for (const BenchedTarget& row : kBenchedTargets) {
    PiecesFunction* const pieces = row.target == target ? FindBenchedPieces(row.own) : nullptr;
    if (pieces != nullptr) return pieces();
  }
  return Pieces();
}

std::unique_ptr<Operands> MakeOperands() {
  auto x = std::make_unique<Operands>();
  std::fill(std::begin(x->q), std::end(x->q), 0.01f);
  std::fill(std::begin(x->kv), std::end(x->kv), 0.02f);
  std::fill(std::begin(x->s), std::end(x->s), -0.7f);
  std::fill(std::begin(x->o), std::end(x->o), 0.0f);
  std::fill(std::begin(x->alpha), std::end(x->alpha), 0.5f);
  return x;
}

void BenchProducts(benchmark::State& state, void (*piece)(Operands&, int64_t), int64_t rows,
                   int64_t d) {
  const std::unique_ptr<Operands> x = MakeOperands();
  for (auto _ : state) {
    piece(*x, d);
    benchmark::ClobberMemory();
  }
  const double flops = 2.0 * static_cast<double>(rows * kKeys * d);
  state.counters["FLOP/s"] =
      benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
}

void BenchExp(benchmark::State& state, void (*piece)(Operands&)) {
  const std::unique_ptr<Operands> x = MakeOperands();
  for (auto _ : state) {
    piece(*x);
    benchmark::ClobberMemory();
  }
  state.counters["exp/s"] = benchmark::Counter(static_cast<double>(kMostRows * kKeys),
                                               benchmark::Counter::kIsIterationInvariantRate);
}

const bool kRegistered = [] {
  for (const Target target : UsableTargets()) {
    const Pieces pieces = PiecesFor(target);
    if (pieces.scores == nullptr) continue;
    const std::string isa = Name(target);
    for (const int64_t d : {64, 128}) {
      const std::string suffix = "/" + isa + "/d:" + std::to_string(d);
      benchmark::RegisterBenchmark(("kernels/scores" + suffix).c_str(), BenchProducts,
                                   pieces.scores, pieces.rows, d);
      benchmark::RegisterBenchmark(("kernels/accumulate" + suffix).c_str(), BenchProducts,
                                   pieces.accumulate, pieces.rows, d);
    }
    benchmark::RegisterBenchmark(("kernels/exp/" + isa).c_str(), BenchExp, pieces.exp);
  }
  return true;
}();

}  // namespace
}  // namespace fovea::measure
#endif  // HWY_ONCE
