// What a tree of queries removes: of the keys from the sequence's offset on, which are its nodes,
// each query sees its own and those above it. Knows intervals of tree.h, not parents.
#if defined(FOVEA_SRC_KERNELS_TREE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_SRC_KERNELS_TREE_INL_H_
#undef FOVEA_SRC_KERNELS_TREE_INL_H_
#else
#define FOVEA_SRC_KERNELS_TREE_INL_H_
#endif

#include "kernels/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea {
namespace HWY_NAMESPACE {

using DI = hn::RebindToSigned<DF>;
using VI = hn::Vec<DI>;

// The intervals of some keys' nodes. Keys before the tree are seen by all, those behind it by none.
struct KeyNodes {
  HWY_ALIGN int32_t enter[kMostBlockKeys];
  HWY_ALIGN int32_t leave[kMostBlockKeys];
  static_assert(kMostBlockKeys % kLanes == 0, "whole vectors");

  // Of n ≥ 1 keys from `key` on; the last one fills up the vector.
  HWY_INLINE void Take(const Job& job, int64_t key, int64_t n) {
    HWY_DASSERT(n <= kMostBlockKeys);
    const int64_t offset = job.sequence.offset, tree_end = offset + job.sequence.q_length;
    const int64_t before = key < offset ? std::min(offset - key, n) : 0;
    std::fill_n(enter, before, 0);
    std::fill_n(leave, before, INT32_MAX);
    int64_t end = before;
    if (before < n && key + before < tree_end) {
      const int64_t node = key + before - offset,
                    nodes = std::min(n - before, tree_end - key - before);
      const QueryTrees& trees = job.call.trees;
      std::copy_n(trees.Enter(job.item.sequence) + node, nodes, enter + before);
      std::copy_n(trees.Leave(job.item.sequence) + node, nodes, leave + before);
      end += nodes;
    }
    std::fill(enter + end, enter + n, INT32_MAX);
    std::fill(leave + end, leave + n, 0);
    std::fill(enter + n, enter + RoundUp(n, kLanes), enter[n - 1]);
    std::fill(leave + n, leave + RoundUp(n, kLanes), leave[n - 1]);
  }
};

// The least and the greatest of n ≥ 1 numbers, which fill whole vectors.
struct Extremes {
  int32_t least, most;
};
HWY_INLINE Extremes ExtremesOf(const int32_t* numbers, int64_t n) {
  const DI di;
  VI least = hn::Load(di, numbers), most = least;
  for (int64_t x = kLanes; x < n; x += kLanes) {
    const VI v = hn::Load(di, numbers + x);
    least = hn::Min(least, v);
    most = hn::Max(most, v);
  }
  return {hn::ReduceMin(di, least), hn::ReduceMax(di, most)};
}

// Between the first and the last of the keys that some of the queries first ≤ i ≤ last see; empty
// if there is none. *all: every one of the queries sees every key.
inline HWY_NOINLINE KeyRange SeenThroughTree(const Job& job, int64_t first, int64_t last,
                                             const KeyRange& keys, bool* all) {
  const DI di;
  *all = false;
  // No node is above one before it.
  const int64_t end = std::min(keys.end, job.sequence.offset + last + 1);
  if (end <= keys.first) return {keys.first, keys.first};
  HWY_ALIGN int32_t queries[kMaxTileLanes];
  static_assert(kMaxTileLanes % kLanes == 0, "whole vectors");
  const int64_t count = last - first + 1, n = end - keys.first;
  std::copy_n(job.call.trees.Enter(job.item.sequence) + first, count, queries);
  std::fill(queries + count, queries + RoundUp(count, kLanes), queries[count - 1]);
  KeyNodes nodes;
  nodes.Take(job, keys.first, n);
  const Extremes i = ExtremesOf(queries, count), enter = ExtremesOf(nodes.enter, n),
                 leave = ExtremesOf(nodes.leave, n);
  if (enter.least > i.most || leave.most <= i.least) return {keys.first, keys.first};
  if (enter.most <= i.least && leave.least > i.most) {
    *all = end == keys.end;
    return {keys.first, end};
  }
  const auto is_seen = [&](int64_t x) HWY_ATTR {
    const VI from = hn::Set(di, nodes.enter[x]), to = hn::Set(di, nodes.leave[x]);
    for (int64_t r = 0; r < count; r += kLanes) {
      const VI query = hn::Load(di, queries + r);
      if (!hn::AllFalse(di, hn::And(hn::Le(from, query), hn::Lt(query, to)))) return true;
    }
    return false;
  };
  int64_t from = 0, to = n;
  while (from < to && !is_seen(from)) ++from;
  while (from < to && !is_seen(to - 1)) --to;
  return {keys.first + from, keys.first + to};
}

// S = −inf where the tree removes.
template <class Lanes>
inline HWY_NOINLINE void RemoveByTree(const Job& job, const Part& part) {
  const int32_t* const enter = job.call.trees.Enter(job.item.sequence);
  HWY_ALIGN int32_t query[kMaxTileLanes] = {};  // of padding rows: any
  ForEachRow(job, *part.tile, [&](int r, int64_t, int64_t i) {
    query[r] = enter[std::min(i, job.sequence.q_length - 1)];
  });
  KeyNodes nodes;
  nodes.Take(job, part.block.first, part.span.end);
  ForEachScore<Lanes>(part, [&](VF score, int64_t row, int64_t key) HWY_ATTR {
    const VI i = Lanes::PerRow(query, row);
    const auto seen = hn::And(hn::Le(Lanes::PerKey(nodes.enter, key), i),
                              hn::Lt(i, Lanes::PerKey(nodes.leave, key)));
    return hn::IfThenElse(hn::RebindMask(DF(), seen), score, MinusInfinity());
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
