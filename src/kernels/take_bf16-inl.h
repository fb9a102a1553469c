// Getting Q, K and V ready for engines that multiply bf16: in pairs along what is summed. K is read
// in place; Q is packed once per tile; V is interleaved once per block, two keys at a time.
#if defined(FOVEA_SRC_KERNELS_TAKE_BF16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_TAKE_BF16_INL_H_
#undef FOVEA_SRC_KERNELS_TAKE_BF16_INL_H_
#else
#define FOVEA_SRC_KERNELS_TAKE_BF16_INL_H_
#endif

#include "kernels/products-inl.h"
#include "kernels/take-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// n elements of 16 bits, `stride` bytes apart, side by side.
HWY_INLINE void CopyHalves(const char* p, int64_t stride, int64_t n, char* to) {
  if (stride == 2) return CopyBytes(p, 2 * n, to);
  for (int64_t i = 0; i < n; ++i) std::memcpy(to + 2 * i, p + i * stride, 2);
}

// to[c] = (a[c], b[c]) for n bf16 side by side at a and b; b null: zeros. Whether all are finite.
// `to` has room for whole vectors of a.
HWY_INLINE bool Interleave(const char* a, const char* b, int64_t n, float* HWY_RESTRICT to) {
  const DF df;
  const hn::Repartition<uint16_t, DF> du16;
  const hn::Repartition<uint8_t, DF> d8;
  constexpr int64_t kHalves = 2 * kLanes;
  const auto magnitude = hn::Set(du16, uint16_t{0x7fff});
  auto largest = hn::Zero(du16);
  const auto load = [&](const void* p) HWY_ATTR {
    return hn::BitCast(du16, hn::LoadU(d8, static_cast<const uint8_t*>(p)));
  };
  const auto store = [&](hn::Vec<decltype(du16)> x, hn::Vec<decltype(du16)> y, int64_t c) HWY_ATTR {
    largest = hn::Max(largest, hn::Max(hn::And(x, magnitude), hn::And(y, magnitude)));
    hn::Store(hn::BitCast(df, hn::InterleaveWholeLower(du16, x, y)), df, to + c);
    hn::Store(hn::BitCast(df, hn::InterleaveWholeUpper(du16, x, y)), df, to + c + kLanes);
  };
  const auto zero = hn::Zero(du16);
  int64_t c = 0;
  for (; c + kHalves <= n; c += kHalves)
    store(load(a + 2 * c), b == nullptr ? zero : load(b + 2 * c), c);
  if (c < n) {
    char tails[2][2 * kHalves] = {};
    std::memcpy(tails[0], a + 2 * c, static_cast<size_t>(2 * (n - c)));
    if (b != nullptr) std::memcpy(tails[1], b + 2 * c, static_cast<size_t>(2 * (n - c)));
    store(load(tails[0]), load(tails[1]), c);
  }
  return hn::AllTrue(du16, hn::Lt(largest, hn::Set(du16, uint16_t{0x7f80})));
}

// n pairs times `scale`.
inline HWY_NOINLINE void ScalePairs(int64_t n, float scale, float* pairs) {
  char* p = reinterpret_cast<char*>(pairs);
  for (int64_t x = 0; x < 2 * n; ++x, p += 2) {
    const hwy::bfloat16_t scaled =
        hwy::BF16FromF32(hwy::F32FromBF16(ReadAs<hwy::bfloat16_t>(p)) * scale);
    std::memcpy(p, &scaled, sizeof(scaled));
  }
}

// scale = power · rest, power a power of two and 1 ≤ |rest| < 2, or both 0: products with Q as it
// is may overflow that a scale of 0 makes 0. An infinity or NaN is the power: it multiplies each
// channel, as in the formula.
struct SplitScale {
  double power;
  float rest;
  explicit SplitScale(double scale) : power(scale), rest(1) {
    if (!std::isfinite(scale)) return;
    int exponent;
    rest = static_cast<float>(2 * std::frexp(scale, &exponent));
    power = rest == 0 ? 0.0 : std::ldexp(1.0, exponent - 1);
  }
};

// V as rows of pairs, one for every two keys.
struct PairValues {
  WordRows rows;
  const uint64_t* poisoned;  // as in BlockValues
};

// How they take Q, K and V, and keep O.
template <class Lanes>
struct BF16Operands {
  using OutputLanes = Lanes;
  using Keys = WordRows;
  using Values = PairValues;
  static constexpr int kSegmentKeys = kSegmentKeysBF16;
  static constexpr bool kPrefetchesRows = false;

  static int64_t QueryFloats(int64_t rows, int64_t dk) {
    return Lanes::TileFloats(rows, (dk + 1) / 2);
  }
  static int64_t ScoreColumns(int64_t keys) { return keys; }
  static int64_t OutputColumns(int64_t dv) { return dv + 1; }
  static int64_t KeyFloats(int64_t keys, int64_t dk) { return keys * KeyStride(dk) / 4; }
  static int64_t ValueFloats(int64_t keys, int64_t dv) {
    return (keys + 1) / 2 * ValueStride(dv) / 4;
  }

  static HWY_INLINE void BeginOutput(const Tile& tile, const Geometry& g) {
    std::fill_n(tile.o, Lanes::TileFloats(g.tile_lanes, g.dv), 0.0f);
    std::copy_n(tile.state.l, g.tile_lanes, tile.o + Lanes::Index(0, g.dv, 0));  // a sink's share
  }
  static HWY_INLINE float* Denominators(const Tile& tile, const Geometry& g) {
    return tile.o + Lanes::Index(0, g.dv, 0);
  }

  static HWY_INLINE void PackQueries(const Job& job, Tile& tile) {
    const DF df;
    const DU32 du;
    const KernelCall& call = job.call;
    const Geometry& g = job.g;
    const Scratch& w = job.w;
    const TensorView& view = call.problem->q;
    const auto scale_of = [&call](int64_t h) { return SplitScale(ScaleOf(call, h)); };
    const bool per_head = g.scales_heads;
    const SplitScale all(static_cast<double>(call.scale));
    tile.factor = all.rest;
    if (per_head) {
      float* factors = w.factors + (tile.exponent[0] - w.exponents) / 2;
      PerHead(job, tile, factors, [&](int64_t h) { return scale_of(h).rest; });
      tile.factors = factors;
    }
    const char* row_data[kMaxTileLanes];
    FindQueries(job, tile, row_data);
    // Pairs of channels are transposed as if they were floats.
    const float* rows[kMaxTileLanes];
    bool plain = view.stride[3] == 2 && g.dk % 2 == 0;
    for (int r = 0; r < tile.count; ++r)
      plain = plain && reinterpret_cast<uintptr_t>(row_data[r]) % alignof(float) == 0;
    if (plain) {
      for (int r = 0; r < g.tile_lanes; ++r)
        rows[r] = reinterpret_cast<const float*>(row_data[r < tile.count ? r : 0]);
      Lanes::FromRows(rows, tile.count, g.dk / 2, 0, tile.q);
    } else {
      for (int r = 0; r < g.tile_lanes; ++r)
        rows[r] = w.stage + (r < tile.count ? r : 0) * kStageColumns;
      for (int64_t c = 0; c < g.dk; c += 2 * kStageColumns) {
        const int64_t n = std::min(g.dk - c, 2 * kStageColumns);
        for (int r = 0; r < tile.count; ++r) {
          char* to = reinterpret_cast<char*>(w.stage + r * kStageColumns);
          CopyHalves(row_data[r] + c * view.stride[3], view.stride[3], n, to);
          if (n % 2 != 0) std::memset(to + 2 * n, 0, 2);
        }
        Lanes::FromRows(rows, tile.count, (n + 1) / 2, 0, tile.q + Lanes::Index(0, c / 2, 0));
      }
    }

    const auto second = hn::Set(du, 0xffff0000u);
    float* max_abs = w.row_values;
    float* powers = max_abs + g.tile_lanes;
    if (per_head)
      PerHead(job, tile, powers, [&](int64_t h) { return InFloats(scale_of(h).power); });
    for (int64_t row = 0; row < tile.count; row += kLanes) {
      const VF power =
          per_head ? hn::Load(df, powers + row) : hn::Set(df, static_cast<float>(all.power));
      VF max = hn::Zero(df);
      for (int64_t c = 0; c < (g.dk + 1) / 2; ++c) {
        float* p = tile.q + Lanes::Index(row, c, 0);
        const auto pair = hn::BitCast(du, hn::Load(df, p));
        const VF x0 = hn::Mul(hn::BitCast(df, hn::ShiftLeft<16>(pair)), power);
        const VF x1 = hn::Mul(hn::BitCast(df, hn::And(pair, second)), power);
        max = hn::Max(max, hn::Max(hn::Abs(x0), hn::Abs(x1)));
        // Products with a power of two need no rounding; of those that are too large or too small
        // PackExtremeRow takes care.
        const auto scaled =
            hn::Or(hn::ShiftRight<16>(hn::BitCast(du, x0)), hn::And(hn::BitCast(du, x1), second));
        hn::Store(hn::BitCast(df, scaled), df, p);
      }
      hn::Store(max, df, max_abs + row);
    }
    PackExtremeRows(
        job, tile, max_abs, row_data, [&](int64_t h) { return scale_of(h).power; },
        [&](int r, int64_t c, float x) {
          const hwy::bfloat16_t rounded = hwy::BF16FromF32(x);
          std::memcpy(reinterpret_cast<char*>(tile.q + Lanes::Index(r, c / 2, 0)) + 2 * (c % 2),
                      &rounded, 2);
        });
  }

  static HWY_INLINE Keys TakeKeys(const Job& job, const Block& block) {
    const TensorView& view = job.call.problem->k;
    const KeyRun run = RunFrom(job.call, job.item, view, block.first + block.begin);
    const bool aliased = run.row_stride != 0 && run.row_stride % kTileAliasing == 0;
    if (block.begin == 0 && run.n >= block.n && view.stride[3] == 2 && !aliased)
      return {run.row, run.row_stride};
    const int64_t dk = job.g.dk, stride = KeyStride(dk);
    char* copy = reinterpret_cast<char*>(job.w.k);
    KeyWalk walk(job, view, block);
    for (int64_t j = 0; j < block.n; ++j)
      CopyHalves(walk.Next(), view.stride[3], dk, copy + j * stride);
    return {copy, stride};
  }

  static HWY_INLINE Values TakeValues(const Job& job, const Block& block, bool removes) {
    const TensorView& view = job.call.problem->v;
    const Scratch& w = job.w;
    const int64_t dv = job.g.dv, stride = ValueStride(dv);
    const auto side_by_side = [&](const char* from, char* copy) {
      if (view.stride[3] == 2) return from;
      CopyHalves(from, view.stride[3], dv, copy);
      return static_cast<const char*>(copy);
    };
    char* copy = reinterpret_cast<char*>(w.v_row);  // of two rows
    bool finite = true;
    float* to = w.v;
    KeyWalk walk(job, view, block);
    for (int64_t j = 0; j < block.n; j += 2, to += stride / 4) {
      const char* a = side_by_side(walk.Next(), copy);
      const char* b = j + 1 < block.n ? side_by_side(walk.Next(), copy + 2 * dv) : nullptr;
      const bool all = Interleave(a, b, dv, to);
      finite = finite && all;
      if (job.value_scale != 1.0f) ScalePairs(dv, job.value_scale, to);
      const uint32_t ones = 0x3f803f80;
      std::memcpy(to + dv, &ones, sizeof(ones));
    }
    const WordRows rows = {reinterpret_cast<const char*>(w.v), stride};
    if (finite || !removes) return {rows, nullptr};
    IsolateNonFinitePairs(w.v, stride / 4, block.n, dv, w.poisoned);
    return {rows, w.poisoned};
  }

 protected:
  // Bytes from row to row in scratch, by CopiedStride's rule: of copied keys, and of interleaved
  // values with room for the channel of ones.
  static int64_t KeyStride(int64_t dk) { return 4 * CopiedStride((dk + 1) / 2); }
  static int64_t ValueStride(int64_t dv) { return 4 * CopiedStride(RoundUp(dv + 1, 2 * kLanes)); }
};

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
