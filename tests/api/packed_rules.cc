// What can be wrong with packed sequences, and with all that has their shape.
#include "api/broken_problem.h"

namespace fovea::test {
namespace {

const int32_t kNegativeStart[] = {-1, 6, 8};
const int32_t kFalling[] = {1, 6, 5};
const int32_t kFallingAtOnce[] = {7, 6, 8};
const int32_t kBeyondRows[] = {1, 6, 10};
const int64_t kHugeSequence[] = {0, 3, (int64_t{1} << 32) + 12};  // legal if cut to 32 bits
const int64_t kBackToTheStart[] = {0, 3, 0};
const int32_t kLongerThanItsRows[] = {4, 3};
const int64_t kMoreKeysThanRows[] = {4, 9};

}  // namespace

std::vector<Rule> PackedRules() {
  return {
      RULE("cu_seqlens_q.rank", p.cu_seqlens_q.rank = 2, {"cu_seqlens_q.rank", "2", "1"}),
      RULE("cu_seqlens_k.rank", p.cu_seqlens_k.rank = -1, {"cu_seqlens_k.rank", "-1", "1"}),
      RULE("cu_seqlens_q.dtype f32", p.cu_seqlens_q.dtype = DType::kF32,
           {"cu_seqlens_q.dtype", "f32", "i32"}),
      RULE("cu_seqlens_k.dtype bool", p.cu_seqlens_k.dtype = DType::kBool,
           {"cu_seqlens_k.dtype", "bool", "i64"}),
      RULE("cu_seqlens_q.dtype bit", p.cu_seqlens_q.dtype = DType::kBit,
           {"cu_seqlens_q.dtype", "bit"}),
      RULE("cu_seqlens_k.dtype unknown", p.cu_seqlens_k.dtype = kUnknown, {"cu_seqlens_k.dtype"}),
      RULE("cu_seqlens_q null", p.cu_seqlens_q.data = nullptr, {"cu_seqlens_q.data", "null"}),
      RULE("cu_seqlens_k null", p.cu_seqlens_k.data = nullptr, {"cu_seqlens_k.data", "null"}),
      RULE("cu_seqlens_q of nothing", p.cu_seqlens_q.shape[0] = 0, {"cu_seqlens_q.shape[0]", "0"}),
      RULE("cu_seqlens_k of nothing", p.cu_seqlens_k.shape[0] = 0, {"cu_seqlens_k.shape[0]", "0"}),
      RULE("cu_seqlens_q negative", p.cu_seqlens_q.shape[0] = -3, {"cu_seqlens_q.shape[0]", "-3"}),
      RULE("fewer sequences of q", p.cu_seqlens_q.shape[0] = 2,
           {"cu_seqlens", "shape[0]", "2", "3"}),
      RULE("fewer sequences of k", p.cu_seqlens_k.shape[0] = 2,
           {"cu_seqlens", "shape[0]", "2", "3"}),
      RULE("cu_seqlens_q.stride overflows", p.cu_seqlens_q.stride[0] = kMost,
           {"cu_seqlens_q.stride"}),
      RULE("cu_seqlens_k.stride overflows", p.cu_seqlens_k.stride[0] = kLeast,
           {"cu_seqlens_k.stride"}),
      RULE("a sequence before the first row", p.cu_seqlens_q.data = kNegativeStart,
           {"cu_seqlens_q[0] = -1", "0"}),
      RULE("a sequence that ends before it begins", p.cu_seqlens_q.data = kFalling,
           {"cu_seqlens_q[2] = 5", "6"}),
      RULE("a first sequence that ends before it begins", p.cu_seqlens_q.data = kFallingAtOnce,
           {"cu_seqlens_q[1] = 6", "7"}),
      RULE("queries past the last row", p.cu_seqlens_q.data = kBeyondRows,
           {"cu_seqlens_q[2] = 10", "9", "q.shape[2]"}),
      RULE("keys past the last row", p.cu_seqlens_k.data = kHugeSequence,
           {"cu_seqlens_k[2] = 4294967308", "13", "k.shape[2]"}),
      RULE("keys that go back", p.cu_seqlens_k.data = kBackToTheStart,
           {"cu_seqlens_k[2] = 0", "3"}),
      RULE("q batch", p.q.shape[0] = 2, {"q.shape[0]", "2", "1"}),
      RULE("no q batch", p.q.shape[0] = 0, {"q.shape[0]", "0", "1"}),
      RULE("k batch", p.k.shape[0] = 2, {"k.shape[0]", "2", "1"}),
      RULE("v batch", p.v.shape[0] = 2, {"v.shape[0]", "2", "1"}),
      RULE("out batch", p.out.shape[0] = 2, {"out.shape[0]", "2", "1"}),
      RULE("lse batch", p.lse.shape[0] = 2, {"lse.shape[0]", "2", "1"}),
      RULE("out rows", p.out.shape[2] = 5, {"out.shape[2]", "5", "9"}),
      RULE("lse rows", p.lse.shape[2] = 8, {"lse.shape[2]", "8", "9"}),
      RULE("v rows", p.v.shape[2] = 9, {"v.shape[2]", "9", "13", "k.shape[2]"}),
      RULE("weights batch", p.weights.shape[0] = 1, {"weights.shape[0]", "1", "2"}),
      RULE("weights rows", p.weights.shape[2] = 9, {"weights.shape[2]", "9", "5"}),
      RULE("weights keys", p.weights.shape[3] = 13, {"weights.shape[3]", "13", "9"}),
      RULE("scores batch", p.scores.shape[0] = 1, {"scores.shape[0]", "1", "2"}),
      RULE("scores rows", p.scores.shape[2] = 9, {"scores.shape[2]", "9", "5"}),
      RULE("scores keys", p.scores.shape[3] = 13, {"scores.shape[3]", "13", "9"}),
      RULE("mask batch", p.score.mask.shape[0] = 3, {"mask.shape[0]", "3", "2"}),
      RULE("mask rows", p.score.mask.shape[2] = 9, {"mask.shape[2]", "9", "5"}),
      RULE("bias keys", p.score.bias.shape[3] = 13, {"bias.shape[3]", "13", "9"}),
      RULE("block map rows", p.score.block_map.visible.shape[2] = 5,
           {"block_map", "shape[2]", "5", "3"}),
      RULE("parents batch", p.score.parents.shape[0] = 1, {"parents.shape[0]", "1", "2"}),
      RULE("parents rows", p.score.parents.shape[1] = 9, {"parents.shape[1]", "9", "5"}),
      RULE("query_offsets count", p.score.query_offsets.shape[0] = 1,
           {"query_offsets.shape[0]", "1", "2"}),
      RULE("q_lengths count", p.score.q_lengths.shape[0] = 1, {"q_lengths.shape[0]", "1", "2"}),
      RULE("q_lengths beyond the rows of a sequence", p.score.q_lengths.data = kLongerThanItsRows,
           {"q_lengths[1]", "3", "2"}),
      RULE("kv_lengths beyond the rows of a sequence", p.score.kv_lengths.data = kMoreKeysThanRows,
           {"kv_lengths[0]", "4", "3"}),
  };
}

std::vector<Rule> PackedQueryRules() {
  return {
      RULE("fewer batches of k than sequences", p.k.shape[0] = 1, {"k.shape[0]", "1", "2"}),
      RULE("more batches of k than sequences", p.k.shape[0] = 3, {"k.shape[0]", "3", "2"}),
      RULE("fewer batches of v than sequences", p.v.shape[0] = 1, {"v.shape[0]", "1", "2"}),
      RULE("fewer sequences than batches of k", p.cu_seqlens_q.shape[0] = 2, {"shape[0]", "2"}),
      RULE("out as if dense", p.out.shape[2] = 5, {"out.shape[2]", "5", "9"}),
  };
}

std::vector<Rule> PackedKeyRules() {
  return {
      RULE("fewer batches of q than sequences",
           (p.q.shape[0] = 1, p.out.shape[0] = 1, p.lse.shape[0] = 1), {"shape[0]", "3"}),
      RULE("fewer sequences than batches of q", p.cu_seqlens_k.shape[0] = 2,
           {"cu_seqlens_k.shape[0]", "2", "3"}),
      RULE("k as if dense", (p.k.shape[0] = 2, p.v.shape[0] = 2), {"k.shape[0]", "2", "1"}),
  };
}

}  // namespace fovea::test
