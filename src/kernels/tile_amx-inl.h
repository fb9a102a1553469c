// The bf16 tile engine's micro-kernels on AMX: the layouts of tile_bf16-inl.h, 16 keys or channels
// × 16 queries at a time, 32 terms of a sum a step.
//
// S: A is 16 rows of K as stored, B is packed Q. O: A is Vᵀ, transposed once per block and reused
// over the item's tiles, B is P. Sums run over whole steps: channels of Q and K, and keys of Vᵀ and
// P, behind the last and before the first one are zeros in scratch, which no sum feels.
#if defined(FOVEA_SRC_KERNELS_TILE_AMX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_TILE_AMX_INL_H_
#undef FOVEA_SRC_KERNELS_TILE_AMX_INL_H_
#else
#define FOVEA_SRC_KERNELS_TILE_AMX_INL_H_
#endif

#include "kernels/amx-inl.h"
#include "kernels/tile_bf16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

constexpr int64_t kAmxItemRows = 256;  // for which transposing V of a block pays

// Vᵀ of a block: for the keys of every step, `channels` rows of their 16 words.
struct TransposedValues {
  const float* data;
  int64_t channels;
  const uint64_t* poisoned;  // as in BlockValues
};

// A product of matrices that runs in steps: c[r][:] = Σ_x a[r][x] · b[x][:], plus alpha[:] ·
// c[r][:] where alpha is given, for 16·row_tiles rows r and all queries of a tile; x in ascending
// order, 16 words a step.
struct SteppedProduct {
  const char* a = nullptr;
  int64_t a_stride = 0;  // bytes, from row to row …
  int64_t a_step = 0;    // … and from step to step
  const float* b = nullptr;
  float* c = nullptr;
  const float* alpha = nullptr;
  int64_t steps = 0;      // of all terms
  int64_t row_tiles = 0;  // left
  int64_t step = 0;       // of the one or two row tiles that are worked on

  int64_t StepsLeft() const { return (row_tiles + 1) / 2 * steps - step; }
};

// Scores and Accumulate in pieces of a few tile products: two by two tiles of C, two of A, two of
// B.
template <class Engine>
class AmxWork {
 public:
  HWY_INLINE void Scores(const Part& part, const WordRows& k, Ahead& ahead) {
    const Geometry& g = *part.g;
    const Tile& tile = *part.tile;
    const Span& span = part.span;
    float* s = part.s;
    const int64_t first = span.first / kAmxRows * kAmxRows, end = RoundUp(span.end, kAmxRows);
    ahead_ = &ahead;
    scores_.a = k.data + first * k.stride;
    scores_.a_stride = k.stride;
    scores_.a_step = kWordBytes * kAmxWords;
    scores_.b = tile.q;
    scores_.c = s + first * kRows;
    scores_.steps = Engine::Channels(g.dk) / kStep;
    scores_.row_tiles = (end - first) / kAmxRows;
    s_begin_ = scores_.c;
    s_end_ = s + end * kRows;
    scored_ = &tile;
  }

  HWY_INLINE void Accumulate(const Part& part, const TransposedValues& v, Ahead& ahead) {
    const Tile& tile = *part.tile;
    const Span& span = part.span;
    float* p = part.s;
    Finish();
    ahead_ = &ahead;
    // Weights of the keys that a step has and the span has not.
    const int64_t first = span.first / kStep * kStep, end = RoundUp(span.end, kStep);
    std::fill(WordsOf(p, first), WordsOf(p, span.first), 0.0f);
    std::fill(WordsOf(p, RoundUp(span.end, Product::kTerms)), WordsOf(p, end), 0.0f);
    accumulate_.a_step = kWordBytes * v.channels * kAmxWords;
    accumulate_.a = reinterpret_cast<const char*>(v.data) + first / kStep * accumulate_.a_step;
    accumulate_.a_stride = kWordBytes * kAmxWords;
    accumulate_.b = WordsOf(p, first);
    accumulate_.c = tile.o;
    accumulate_.alpha = tile.state.alpha;
    accumulate_.steps = (end - first) / kStep;
    accumulate_.row_tiles = v.channels / kAmxRows;
  }

  // What is left shall be done within so many steps.
  HWY_INLINE void SpreadOver(int64_t steps) {
    left_ = accumulate_.StepsLeft() + scores_.StepsLeft();
    over_ = steps;
    credit_ = 0;
  }
  HWY_INLINE void Step() {
    for (credit_ += left_; credit_ >= over_; credit_ -= over_) {
      if (accumulate_.row_tiles > 0) {
        Run(accumulate_);
      } else {
        Run(scores_);
      }
    }
  }

  HWY_INLINE void FinishScores() {
    if (s_begin_ == nullptr) return;
    Finish();
  }
  HWY_INLINE void Finish() {
    const DF df;
    while (accumulate_.row_tiles > 0) Run(accumulate_);
    while (scores_.row_tiles > 0) Run(scores_);
    if (scored_ != nullptr && (scored_->factors != nullptr || scored_->factor != 1.0f)) {
      for (int64_t row = 0; row < kRows; row += kLanes) {
        const VF factor = Product::Factor(scored_->factors, scored_->factor, row);
        for (float* s = s_begin_ + row; s < s_end_; s += kRows)
          hn::Store(hn::Mul(hn::Load(df, s), factor), df, s);
      }
    }
    s_begin_ = s_end_ = nullptr;
    scored_ = nullptr;
  }

 private:
  using Product = typename Engine::Product;
  static constexpr int64_t kStep = kAmxTerms<Product>;  // terms of a sum
  static constexpr int64_t kRows = Engine::Lanes::kRows, kRowBytes = kWordBytes * kRows;
  static constexpr int kQueryTiles = kRows / kAmxRows;

  // P of the keys from `key` on, of which a word is the first.
  static float* WordsOf(float* p, int64_t key) { return p + key / Product::kTerms * kRows; }

  HWY_INLINE void Run(SteppedProduct& p) {
    ahead_->Step();
    if (p.row_tiles > 1) {
      RunStep<2>(p);
    } else {
      RunStep<1>(p);
    }
  }

  template <int kRowTiles>
  HWY_INLINE void RunStep(SteppedProduct& p) {
    float* const c0 = p.c;
    if (p.step == 0) {
      t_.template Zero<0>();
      if constexpr (kQueryTiles > 1) t_.template Zero<1>();
      if constexpr (kRowTiles > 1) t_.template Zero<2>();
      if constexpr (kRowTiles > 1 && kQueryTiles > 1) t_.template Zero<3>();
    }
    const char* a = p.a + p.step * p.a_step;
    const float* b = p.b + p.step * kAmxWords * kRows;
    t_.template Load<4>(a, p.a_stride);
    t_.template Load<6>(b, kRowBytes);
    t_.template MultiplyAdd<0, 4, 6>(Product());
    if constexpr (kQueryTiles > 1) {
      t_.template Load<7>(b + kAmxRows, kRowBytes);
      t_.template MultiplyAdd<1, 4, 7>(Product());
    }
    if constexpr (kRowTiles > 1) {
      t_.template Load<5>(a + kAmxRows * p.a_stride, p.a_stride);
      t_.template MultiplyAdd<2, 5, 6>(Product());
      if constexpr (kQueryTiles > 1) t_.template MultiplyAdd<3, 5, 7>(Product());
    }
    if (++p.step < p.steps) return;
    float* const to = p.alpha == nullptr ? c0 : sums_;
    t_.template Store<0>(to, kRowBytes);
    if constexpr (kQueryTiles > 1) t_.template Store<1>(to + kAmxRows, kRowBytes);
    if constexpr (kRowTiles > 1) {
      t_.template Store<2>(to + kAmxRows * kRows, kRowBytes);
      if constexpr (kQueryTiles > 1)
        t_.template Store<3>(to + kAmxRows * kRows + kAmxRows, kRowBytes);
    }
    if (p.alpha != nullptr) AddSums(kRowTiles * kAmxRows, p.alpha, c0);
    p.step = 0;
    p.row_tiles -= kRowTiles;
    p.a += kRowTiles * kAmxRows * p.a_stride;
    p.c += kRowTiles * kAmxRows * kRows;
  }

  // c[r][:] = alpha[:] · c[r][:] + sums_[r][:] for n rows.
  HWY_INLINE void AddSums(int64_t n, const float* alpha, float* c) {
    const DF df;
    for (int64_t row = 0; row < kRows; row += kLanes) {
      const VF a = hn::Load(df, alpha + row);
      for (int64_t x = row; x < n * kRows; x += kRows)
        hn::Store(hn::MulAdd(hn::Load(df, c + x), a, hn::Load(df, sums_ + x)), df, c + x);
    }
  }

  AmxTiles t_;
  HWY_ALIGN float sums_[2 * kAmxRows * kRows];  // of a segment, on their way to O
  SteppedProduct accumulate_, scores_;
  Ahead* ahead_ = nullptr;
  float *s_begin_ = nullptr, *s_end_ = nullptr;  // S of scores_ that its factor has not reached
  const Tile* scored_ = nullptr;                 // whose factors those are
  int64_t left_ = 0, over_ = 1, credit_ = 0;
};

template <int kVectors>
struct TileAmxEngine : TileBF16Engine<kVectors> {
  using Base = TileBF16Engine<kVectors>;
  using Lanes = typename Base::Lanes;
  using Pipeline = RunningAlong<TileAmxEngine, AmxWork<TileAmxEngine>>;
  using Values = TransposedValues;
  using Product = BF16Product;
  static constexpr int64_t kAmxStep = kAmxTerms<Product>;
  static_assert(Lanes::kRows == kAmxRows || Lanes::kRows == 2 * kAmxRows, "whole tiles");

  static int64_t MicroKernelCalls(int64_t keys, const Geometry& g) {
    return keys / kAmxStep * (Channels(g.dk) / kAmxStep + OutputColumns(g.dv) / kAmxStep);
  }
  static int64_t QueryFloats(int64_t rows, int64_t dk) {
    return Lanes::TileFloats(rows, Channels(dk) / 2);
  }
  static int64_t ScoreColumns(int64_t keys) { return RoundUp(keys, kAmxStep); }
  static int64_t OutputColumns(int64_t dv) { return RoundUp(Base::OutputColumns(dv), kAmxRows); }
  static int64_t KeyFloats(int64_t keys, int64_t dk) {
    return RoundUp(keys, kAmxRows) * KeyStride(dk) / 4;
  }
  static int64_t ValueFloats(int64_t keys, int64_t dv) {
    return Base::ValueFloats(RoundUp(keys, kAmxStep), dv) + TransposedFloats(keys, dv);
  }

  static HWY_INLINE void BeginOutput(const Tile& tile, const Geometry& g) {
    Base::BeginOutput(tile, g);
    const int64_t columns = Base::OutputColumns(g.dv);
    std::fill_n(tile.o + Lanes::Index(0, columns, 0),
                Lanes::TileFloats(g.tile_lanes, OutputColumns(g.dv) - columns), 0.0f);
  }

  static HWY_INLINE void PackQueries(const Job& job, Tile& tile) {
    Base::PackQueries(job, tile);
    const int64_t pairs = (job.g.dk + 1) / 2;
    std::fill_n(tile.q + Lanes::Index(0, pairs, 0),
                Lanes::TileFloats(0, Channels(job.g.dk) / 2 - pairs), 0.0f);
  }

  static HWY_INLINE WordRows TakeKeys(const Job& job, const Block& block) {
    const TensorView& view = job.call.problem->k;
    const KeyRun run = RunFrom(job.call, job.item, view, block.first + block.begin);
    const int64_t dk = job.g.dk;
    const bool aliased = run.row_stride % kTileAliasing == 0;
    if (block.begin == 0 && run.n >= block.n && view.stride[3] == 2 && dk % kAmxStep == 0 &&
        block.n % kAmxRows == 0 && !aliased)
      return {run.row, run.row_stride};
    const int64_t stride = KeyStride(dk), rest = 2 * (Channels(dk) - dk);
    char* copy = reinterpret_cast<char*>(job.w.k);
    KeyWalk walk(job, view, block);
    for (int64_t j = 0; j < block.n; ++j, copy += stride) {
      CopyHalves(walk.Next(), view.stride[3], dk, copy);
      std::memset(copy + 2 * dk, 0, static_cast<size_t>(rest));
    }
    std::memset(copy, 0, static_cast<size_t>((RoundUp(block.n, kAmxRows) - block.n) * stride));
    return {reinterpret_cast<const char*>(job.w.k), stride};
  }

  // Non-finite V is always isolated: P of keys that no row of a tile sees takes part as zeros.
  static HWY_INLINE TransposedValues TakeValues(const Job& job, const Block& block, bool) {
    const Scratch& w = job.w;
    const int64_t dv = job.g.dv, channels = OutputColumns(dv), pairs = (block.n + 1) / 2;
    const PairValues values = Base::TakeValues(job, block, true);
    float* const transposed = w.v + Base::ValueFloats(RoundUp(job.g.block_keys, kAmxStep), dv);
    const int64_t stride = values.rows.stride / 4;
    float* const end = w.v + RoundUp(pairs, kAmxWords) * stride;
    std::fill(w.v + pairs * stride, end, 0.0f);
    float* to = transposed;
    for (const float* from = w.v; from < end;
         from += kAmxWords * stride, to += channels * kAmxWords) {
      const float* rows[kAmxWords];
      for (int64_t j = 0; j < kAmxWords; ++j) rows[j] = from + j * stride;
      TransposeIn<kAmxWords / kLanes>(rows, Base::OutputColumns(dv), to);
      std::fill(to + Base::OutputColumns(dv) * kAmxWords, to + channels * kAmxWords, 0.0f);
    }
    return {transposed, channels, values.poisoned};
  }

  // Channels of Q and K in scratch.
  static int64_t Channels(int64_t dk) { return RoundUp(dk, kAmxStep); }

 private:
  static int64_t KeyStride(int64_t dk) { return 4 * CopiedStride(Channels(dk) / 2); }
  static int64_t TransposedFloats(int64_t keys, int64_t dv) {
    return RoundUp(keys, kAmxStep) / 2 * OutputColumns(dv);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
