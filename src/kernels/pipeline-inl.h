// When an engine's products run beside the softmax of a tile: at once, or in pieces in its steps.
#if defined(FOVEA_SRC_KERNELS_PIPELINE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_PIPELINE_INL_H_
#undef FOVEA_SRC_KERNELS_PIPELINE_INL_H_
#else
#define FOVEA_SRC_KERNELS_PIPELINE_INL_H_
#endif

#include "kernels/ahead-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

// S of the part → P, m, l and alpha of its tile; `along` gets a Step for every four vectors, of
// which StepsOfSoftmax says how many there are.
template <class Lanes>
HWY_INLINE int64_t StepsOfSoftmax(const Part& part) {
  const int64_t end = RoundUp(part.span.end, Lanes::kKeyStep);
  return (part.tile->count + Lanes::kRowStep - 1) / Lanes::kRowStep *
         ((end - part.span.first) / (4 * Lanes::kKeyStep));
}
template <class Engine, class Along>
HWY_INLINE void SoftmaxOf(const Part& part, Along& along) {
  using Lanes = typename Engine::Lanes;
  Softmax<Lanes, typename Engine::Weights>(part.s, part.tile->count, part.span.first,
                                           RoundUp(part.span.end, Lanes::kKeyStep),
                                           part.g->block_keys, part.tile->state, along);
}

// Every product is done when the call returns.
template <class Engine>
class AtOnce {
 public:
  static constexpr int kScoreTiles = 1;  // that scores of successive parts take turns in

  // S of `part`. `next` is the block's next one, null behind the last.
  HWY_INLINE void Scores(const Part& part, const Part* /*next*/, const typename Engine::Keys& k,
                         Ahead& ahead) {
    Engine::Scores(part, k, ahead);
  }
  HWY_INLINE void Softmax(const Part& part) { SoftmaxOf<Engine>(part, *this); }
  HWY_INLINE void Accumulate(const Part& part, const typename Engine::Values& v, Ahead& ahead) {
    Engine::Accumulate(part, v, ahead);
  }
  // All that was begun is done.
  HWY_INLINE void Complete() {}

  void Step() {}
};

// Work has products that go on in its steps: O of a part and S of the next one run along with the
// softmax between them.
template <class Engine, class Work>
class RunningAlong {
 public:
  static constexpr int kScoreTiles = 2;

  HWY_INLINE void Scores(const Part& part, const Part* next, const typename Engine::Keys& k,
                         Ahead& ahead) {
    if (begun_ != &part) work_.Scores(part, k, ahead);
    work_.FinishScores();
    if (next != nullptr) work_.Scores(*next, k, ahead);
    begun_ = next;
  }
  HWY_INLINE void Softmax(const Part& part) {
    work_.SpreadOver(StepsOfSoftmax<typename Engine::Lanes>(part));
    SoftmaxOf<Engine>(part, work_);
  }
  HWY_INLINE void Accumulate(const Part& part, const typename Engine::Values& v, Ahead& ahead) {
    work_.Accumulate(part, v, ahead);
  }
  HWY_INLINE void Complete() { work_.Finish(); }

 private:
  Work work_;
  const Part* begun_ = nullptr;
};

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
