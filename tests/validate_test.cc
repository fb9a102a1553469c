// Every error, on every entry point: its code, a message that names the field and both values, and
// outputs that nobody touched.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "fovea/attention.h"
#include "support/check.h"
#include "support/random_problem.h"

namespace fovea {
namespace {

using test::Axes;
using test::Memory;
using test::OwnedTensor;
using test::Placement;
using test::ProblemSpec;
using test::RandomProblem;

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
constexpr DType kUnknown = static_cast<DType>(77);

// B 2, Hq 4, Hkv 2, Tq 5, Tk 9, dk 6, dv 7, and everything that a problem can have but packed
// sequences.
ProblemSpec Everything() {
  ProblemSpec s;
  s.B = 2, s.Hq = 4, s.Hkv = 2, s.Tq = 5, s.Tk = 9, s.dk = 6, s.dv = 7;
  s.scale = 0.5f, s.softcap = 10, s.alibi = true, s.sinks = true, s.bias = Axes::kBHQK,
  s.mask = Axes::kBHQK;
  s.causal = Causal::kTopLeft, s.window = {4, 4}, s.query_offsets = DType::kI32,
  s.q_lengths = DType::kI32, s.kv_lengths = DType::kI64;
  // 3 × 3 blocks
  s.block_map = Axes::kBHQK, s.block_queries = 2, s.block_keys = 4, s.parents = DType::kI32;
  s.weights = true, s.scores = ScoreStage::kMasked;
  return s;
}

// Lengths of all that there is, so that nothing of a problem is behind them.
RandomProblem FullLengths() {
  RandomProblem p(Everything(), 1);
  p.q_lengths.Fill([] { return 5; });
  p.kv_lengths.Fill([] { return 9; });
  p.query_offsets.Fill([] { return 4; });
  test::Random random(test::BaseSeed());  // where the drawn lengths had left NaN
  for (OwnedTensor* tensor : {&p.k, &p.v}) tensor->Fill([&] { return random.Normal(); });
  return p;
}

// Everything again, in sequences of 5 and 2 queries among 9 rows, the first of them spare, or of 3
// and 9 keys among 13 rows.
RandomProblem Packed(bool queries, bool keys) {
  RandomProblem p = FullLengths();
  const ProblemSpec& s = p.spec;
  test::Random random(test::BaseSeed());
  if (queries) {
    p.cu_seqlens_q = OwnedTensor(DType::kI32, {3});
    for (auto [b, row] : {std::pair<int64_t, double>{0, 1}, {1, 6}, {2, 8}})
      p.cu_seqlens_q.Set(b, row);
    p.q = OwnedTensor(DType::kF32, {1, s.Hq, 9, s.dk});
    p.q.Fill([&] { return random.Normal(); });
    p.out = OwnedTensor(DType::kF32, {1, s.Hq, 9, s.dv});
    p.lse = OwnedTensor(DType::kF32, {1, s.Hq, 9});
    p.q_lengths.Set(0, 4), p.q_lengths.Set(1, 2);
  }
  if (keys) {
    p.cu_seqlens_k = OwnedTensor(DType::kI64, {3});
    for (auto [b, row] : {std::pair<int64_t, double>{0, 0}, {1, 3}, {2, 12}})
      p.cu_seqlens_k.Set(b, row);
    p.k = OwnedTensor(DType::kF32, {1, s.Hkv, 13, s.dk});
    p.v = OwnedTensor(DType::kF32, {1, s.Hkv, 13, s.dv});
    for (OwnedTensor* tensor : {&p.k, &p.v}) tensor->Fill([&] { return random.Normal(); });
    p.kv_lengths.Set(0, 3);
  }
  p.Refresh();
  return p;
}

ProblemSpec Plain() {
  ProblemSpec s = Everything();
  ProblemSpec plain;
  plain.B = s.B, plain.Hq = s.Hq, plain.Hkv = s.Hkv, plain.Tq = s.Tq, plain.Tk = s.Tk,
  plain.dk = s.dk, plain.dv = s.dv;
  return plain;
}

const int32_t kShortLengths[] = {1, -1};
const int32_t kLongQLengths[] = {6, 1};
const int64_t kNegativeKvLengths[] = {0, kLeast};
const int64_t kLongKvLengths[] = {9, 10};
const int64_t kHugeOffsets[] = {0, (int64_t{1} << 62) + 1};
const int64_t kHugeKvLengths[] = {int64_t{1} << 32, 1};  // 0 if cut to 32 bits
const int32_t kOwnParent[] = {-1, 0, 1, 3, -1, -1, -1, -1, -1, -1};
const int32_t kParentOfTheFirst[] = {-1, 0, 1, 2, 3, 0, -1, -1, -1, -1};
const int32_t kNegativeParent[] = {-1, 0, -2, 2, 3, -1, -1, -1, -1, -1};
const int64_t kHugeParent[] = {-1, 0, 1, 2, 3, -1, 0, 1, 2, int64_t{1} << 32};
const int32_t kNegativeStart[] = {-1, 6, 8};
const int32_t kFalling[] = {1, 6, 5};
const int32_t kFallingAtOnce[] = {7, 6, 8};
const int32_t kBeyondRows[] = {1, 6, 10};
const int64_t kHugeSequence[] = {0, 3, (int64_t{1} << 32) + 12};  // legal if cut to 32 bits
const int64_t kBackToTheStart[] = {0, 3, 0};
const int32_t kLongerThanItsRows[] = {4, 3};
const int64_t kMoreKeysThanRows[] = {4, 9};

// What Create looks at as well, or only a call with tensors.
enum class Seen { kAlways, kByRuns };

struct Rule {
  const char* name;
  void (*break_it)(Problem&);
  std::vector<const char*> message;  // the field first
  StatusCode code = StatusCode::kInvalidArgument;
  Seen seen = Seen::kAlways;
};

#define RULE(name, statement, ...)                   \
  Rule {                                             \
    name, [](Problem& p) { statement; }, __VA_ARGS__ \
  }

std::vector<Rule> Rules() {
  const StatusCode invalid = StatusCode::kInvalidArgument;
  return {
      // ranks
      RULE("q absent", p.q = TensorView(), {"q"}),
      RULE("k absent", p.k = TensorView(), {"k"}),
      RULE("v absent", p.v = TensorView(), {"v"}),
      RULE("out absent", p.out = MutableTensorView(), {"out"}),
      RULE("q.rank", p.q.rank = 3, {"q.rank", "3", "4"}),
      RULE("k.rank", p.k.rank = 2, {"k.rank", "2", "4"}),
      RULE("v.rank", p.v.rank = 1, {"v.rank", "1", "4"}),
      RULE("out.rank", p.out.rank = 3, {"out.rank", "3", "4"}),
      RULE("lse.rank", p.lse.rank = 4, {"lse.rank", "4", "3"}),
      RULE("weights.rank", p.weights.rank = 3, {"weights.rank", "3", "4"}),
      RULE("q.rank five", p.q.rank = 5, {"q.rank", "5"}),
      RULE("k.rank negative", p.k.rank = -1, {"k.rank", "-1"}),
      RULE("v.rank huge", p.v.rank = std::numeric_limits<int32_t>::max(), {"v.rank"}),
      RULE("out.rank five", p.out.rank = 5, {"out.rank", "5"}),
      RULE("mask.rank five", p.score.mask.rank = 5, {"mask.rank", "5"}),
      RULE("bias.rank negative", p.score.bias.rank = -1, {"bias.rank", "-1"}),
      RULE("alibi_slopes.rank", p.score.alibi_slopes.rank = 2, {"alibi_slopes.rank", "2", "1"}),
      RULE("sinks.rank", p.score.sinks.rank = 2, {"sinks.rank", "2", "1"}),
      RULE("query_offsets.rank", p.score.query_offsets.rank = 2, {"query_offsets.rank", "2", "1"}),
      RULE("q_lengths.rank", p.score.q_lengths.rank = 2, {"q_lengths.rank", "2", "1"}),
      RULE("kv_lengths.rank", p.score.kv_lengths.rank = 3, {"kv_lengths.rank", "3", "1"}),

      // sizes
      RULE("no KV heads", (p.k.shape[1] = 0, p.v.shape[1] = 0), {"k.shape[1]", "0"}),
      RULE("Hq no multiple of Hkv", (p.k.shape[1] = 3, p.v.shape[1] = 3), {"shape[1]", "4", "3"}),
      RULE("more KV heads than query heads", (p.k.shape[1] = 8, p.v.shape[1] = 8),
           {"shape[1]", "4", "8"}),
      RULE("k and v heads", p.v.shape[1] = 1, {"v.shape[1]", "1", "2"}),
      RULE("dk", p.k.shape[3] = 5, {"k.shape[3]", "5", "6"}),
      RULE("dk of zero", (p.q.shape[3] = 0, p.k.shape[3] = 0), {"shape[3]", "0"}),
      RULE("dv of zero", (p.v.shape[3] = 0, p.out.shape[3] = 0), {"shape[3]", "0"}),
      RULE("Tk", p.v.shape[2] = 8, {"v.shape[2]", "8", "9", "k.shape[2]"}),
      RULE("K batch of one", p.k.shape[0] = 1, {"k.shape[0]", "1", "2"}),
      RULE("V batch of one", p.v.shape[0] = 1, {"v.shape[0]", "1", "2"}),
      RULE("K and V batch of one", (p.k.shape[0] = 1, p.v.shape[0] = 1), {"k.shape[0]", "1", "2"}),
      RULE("K batch larger", p.k.shape[0] = 3, {"k.shape[0]", "3", "2"}),
      RULE("out batch", p.out.shape[0] = 1, {"out.shape[0]", "1", "2"}),
      RULE("out heads", p.out.shape[1] = 2, {"out.shape[1]", "2", "4"}),
      RULE("out queries", p.out.shape[2] = 4, {"out.shape[2]", "4", "5"}),
      RULE("out channels", p.out.shape[3] = 6, {"out.shape[3]", "6", "7"}),
      RULE("lse batch", p.lse.shape[0] = 1, {"lse.shape[0]", "1", "2"}),
      RULE("lse heads", p.lse.shape[1] = 5, {"lse.shape[1]", "5", "4"}),
      RULE("lse queries", p.lse.shape[2] = 6, {"lse.shape[2]", "6", "5"}),
      RULE("weights batch", p.weights.shape[0] = 1, {"weights.shape[0]", "1", "2"}),
      RULE("weights heads", p.weights.shape[1] = 5, {"weights.shape[1]", "5", "4"}),
      RULE("weights queries", p.weights.shape[2] = 6, {"weights.shape[2]", "6", "5"}),
      RULE("weights keys", p.weights.shape[3] = 8, {"weights.shape[3]", "8", "9"}),
      RULE("q negative", p.q.shape[2] = -5, {"q.shape[2]", "-5"}),
      RULE("q and out negative",
           (p.q.shape[2] = -5, p.out.shape[2] = -5, p.lse.shape[2] = -5, p.weights.shape[2] = -5),
           {"q.shape[2]", "-5"}),
      RULE("k negative", (p.k.shape[2] = -9, p.v.shape[2] = -9), {"k.shape[2]", "-9"}),
      RULE("v negative", p.v.shape[3] = -7, {"v.shape[3]", "-7"}),
      RULE("batch negative",
           (p.q.shape[0] = -2, p.k.shape[0] = -2, p.v.shape[0] = -2, p.out.shape[0] = -2),
           {"q.shape[0]", "-2"}),
      RULE("Tq beyond memory",
           (p.q.shape[2] = kMost, p.out.shape[2] = kMost, p.lse.shape[2] = kMost,
            p.weights.shape[2] = kMost),
           {"q"}),
      RULE("Tk beyond memory", (p.k.shape[2] = kMost, p.v.shape[2] = kMost), {"k"}),
      RULE("alibi_slopes size", p.score.alibi_slopes.shape[0] = 2,
           {"alibi_slopes.shape[0]", "2", "4"}),
      RULE("sinks size", p.score.sinks.shape[0] = 5, {"sinks.shape[0]", "5", "4"}),
      RULE("query_offsets count", p.score.query_offsets.shape[0] = 1,
           {"query_offsets.shape[0]", "1", "2"}),
      RULE("q_lengths count", p.score.q_lengths.shape[0] = 3, {"q_lengths.shape[0]", "3", "2"}),
      RULE("kv_lengths count", p.score.kv_lengths.shape[0] = 1, {"kv_lengths.shape[0]", "1", "2"}),
      RULE("kv_lengths none", p.score.kv_lengths.shape[0] = 0, {"kv_lengths.shape[0]", "0", "2"}),
      RULE("mask keys", p.score.mask.shape[3] = 8, {"mask.shape[3]", "8", "9"}),
      RULE("mask queries", p.score.mask.shape[2] = 4, {"mask.shape[2]", "4", "5"}),
      RULE("mask heads", p.score.mask.shape[1] = 2, {"mask.shape[1]", "2", "4"}),
      RULE("mask batch", p.score.mask.shape[0] = 3, {"mask.shape[0]", "3", "2"}),
      RULE("mask of nothing", p.score.mask.shape[3] = 0, {"mask.shape[3]", "0", "9"}),
      RULE("mask negative", p.score.mask.shape[2] = -1, {"mask.shape[2]", "-1"}),
      RULE("mask of lower rank aligns right",
           (p.score.mask.rank = 2, p.score.mask.shape[0] = 9, p.score.mask.shape[1] = 5),
           {"mask.shape", "9", "5"}),
      RULE("bias keys", p.score.bias.shape[3] = 10, {"bias.shape[3]", "10", "9"}),
      RULE("bias queries", p.score.bias.shape[2] = 2, {"bias.shape[2]", "2", "5"}),
      RULE("bias heads", p.score.bias.shape[1] = 2, {"bias.shape[1]", "2", "4"}),
      RULE("bias batch", p.score.bias.shape[0] = 4, {"bias.shape[0]", "4", "2"}),
      RULE("block map keys", p.score.block_map.visible.shape[3] = 2,
           {"block_map", "shape[3]", "2", "3"}),
      RULE("block map of pairs", p.score.block_map.visible.shape[3] = 9,
           {"block_map", "shape[3]", "9", "3"}),
      RULE("block map queries", p.score.block_map.visible.shape[2] = 5,
           {"block_map", "shape[2]", "5", "3"}),
      RULE("block map heads", p.score.block_map.visible.shape[1] = 2,
           {"block_map", "shape[1]", "2", "4"}),
      RULE("block map batch", p.score.block_map.visible.shape[0] = 3,
           {"block_map", "shape[0]", "3", "2"}),
      RULE("block map of nothing", p.score.block_map.visible.shape[2] = 0,
           {"block_map", "shape[2]", "0", "3"}),
      RULE("block map negative", p.score.block_map.visible.shape[3] = -3,
           {"block_map", "shape[3]", "-3"}),
      RULE("block map of other blocks", p.score.block_map.keys = 5,
           {"block_map", "shape[3]", "3", "2"}),
      RULE("block map rank five", p.score.block_map.visible.rank = 5, {"block_map", "rank", "5"}),
      RULE("block map rank negative", p.score.block_map.visible.rank = -1,
           {"block_map", "rank", "-1"}),
      RULE("block_map.queries missing", p.score.block_map.queries = 0, {"block_map.queries", "0"}),
      RULE("block_map.keys missing", p.score.block_map.keys = 0, {"block_map.keys", "0"}),
      RULE("block sizes missing", (p.score.block_map.queries = 0, p.score.block_map.keys = 0),
           {"block_map.queries", "0"}),
      RULE("block_map.queries negative", p.score.block_map.queries = -2,
           {"block_map.queries", "-2"}),
      RULE("block_map.keys negative", p.score.block_map.keys = kLeast,
           {"block_map.keys", "-9223372036854775808"}),
      RULE("block sizes without a map", p.score.block_map.visible = TensorView(), {"block_map"}),
      RULE("parents.rank one", p.score.parents.rank = 1, {"parents.rank", "1", "2"}),
      RULE("parents.rank three", p.score.parents.rank = 3, {"parents.rank", "3", "2"}),
      RULE("parents batch", p.score.parents.shape[0] = 1, {"parents.shape[0]", "1", "2"}),
      RULE("parents queries", p.score.parents.shape[1] = 4, {"parents.shape[1]", "4", "5"}),
      RULE("parents of keys", p.score.parents.shape[1] = 9, {"parents.shape[1]", "9", "5"}),
      RULE("parents negative", p.score.parents.shape[1] = -5, {"parents.shape[1]", "-5"}),
      RULE("scores.rank", p.scores.rank = 3, {"scores.rank", "3", "4"}),
      RULE("scores batch", p.scores.shape[0] = 1, {"scores.shape[0]", "1", "2"}),
      RULE("scores heads", p.scores.shape[1] = 2, {"scores.shape[1]", "2", "4"}),
      RULE("scores queries", p.scores.shape[2] = 6, {"scores.shape[2]", "6", "5"}),
      RULE("scores keys", p.scores.shape[3] = 8, {"scores.shape[3]", "8", "9"}),

      // types
      RULE("q.dtype unknown", p.q.dtype = kUnknown, {"q.dtype"}),
      RULE("k.dtype unknown", p.k.dtype = static_cast<DType>(-1), {"k.dtype"}),
      RULE("v.dtype unknown", p.v.dtype = static_cast<DType>(8), {"v.dtype"}),
      RULE("out.dtype unknown", p.out.dtype = kUnknown, {"out.dtype"}),
      RULE("lse.dtype unknown", p.lse.dtype = kUnknown, {"lse.dtype"}),
      RULE("weights.dtype unknown", p.weights.dtype = kUnknown, {"weights.dtype"}),
      RULE("mask.dtype unknown", p.score.mask.dtype = kUnknown, {"mask.dtype"}),
      RULE("bias.dtype unknown", p.score.bias.dtype = kUnknown, {"bias.dtype"}),
      RULE("alibi_slopes.dtype unknown", p.score.alibi_slopes.dtype = kUnknown,
           {"alibi_slopes.dtype"}),
      RULE("sinks.dtype unknown", p.score.sinks.dtype = kUnknown, {"sinks.dtype"}),
      RULE("query_offsets.dtype unknown", p.score.query_offsets.dtype = kUnknown,
           {"query_offsets.dtype"}),
      RULE("q_lengths.dtype unknown", p.score.q_lengths.dtype = kUnknown, {"q_lengths.dtype"}),
      RULE("kv_lengths.dtype unknown", p.score.kv_lengths.dtype = kUnknown, {"kv_lengths.dtype"}),
      RULE("q.dtype none", p.q.dtype = DType::kNone, {"q.dtype", "0"}),
      RULE("mask.dtype none", p.score.mask.dtype = DType::kNone, {"mask.dtype", "0"}),
      RULE("q.dtype i32", p.q.dtype = DType::kI32, {"q.dtype", "i32"}),
      RULE("k.dtype bool", p.k.dtype = DType::kBool, {"k.dtype", "bool"}),
      RULE("v.dtype i64", p.v.dtype = DType::kI64, {"v.dtype", "i64"}),
      RULE("out.dtype i32", p.out.dtype = DType::kI32, {"out.dtype", "i32"}),
      RULE("lse.dtype f16", p.lse.dtype = DType::kF16, {"lse.dtype", "f16", "f32"}),
      RULE("weights.dtype bf16", p.weights.dtype = DType::kBF16, {"weights.dtype", "bf16", "f32"}),
      RULE("mask.dtype f32", p.score.mask.dtype = DType::kF32, {"mask.dtype", "f32", "bool"}),
      RULE("mask.dtype i32", p.score.mask.dtype = DType::kI32, {"mask.dtype", "i32", "bool"}),
      RULE("bias.dtype bool", p.score.bias.dtype = DType::kBool, {"bias.dtype", "bool"}),
      RULE("bias.dtype i64", p.score.bias.dtype = DType::kI64, {"bias.dtype", "i64"}),
      RULE("alibi_slopes.dtype", p.score.alibi_slopes.dtype = DType::kF16,
           {"alibi_slopes.dtype", "f16", "f32"}),
      RULE("sinks.dtype", p.score.sinks.dtype = DType::kBF16, {"sinks.dtype", "bf16", "f32"}),
      RULE("query_offsets.dtype", p.score.query_offsets.dtype = DType::kF32,
           {"query_offsets.dtype", "f32"}),
      RULE("q_lengths.dtype", p.score.q_lengths.dtype = DType::kBool, {"q_lengths.dtype", "bool"}),
      RULE("kv_lengths.dtype", p.score.kv_lengths.dtype = DType::kF32, {"kv_lengths.dtype", "f32"}),
      RULE("block map dtype f32", p.score.block_map.visible.dtype = DType::kF32,
           {"block_map", "dtype", "f32", "bool"}),
      RULE("block map dtype i32", p.score.block_map.visible.dtype = DType::kI32,
           {"block_map", "dtype", "i32", "bit"}),
      RULE("block map dtype unknown", p.score.block_map.visible.dtype = kUnknown,
           {"block_map", "dtype"}),
      RULE("block map dtype none", p.score.block_map.visible.dtype = DType::kNone,
           {"block_map", "dtype", "0"}),
      RULE("parents.dtype f32", p.score.parents.dtype = DType::kF32,
           {"parents.dtype", "f32", "i32"}),
      RULE("parents.dtype bool", p.score.parents.dtype = DType::kBool,
           {"parents.dtype", "bool", "i64"}),
      RULE("parents.dtype unknown", p.score.parents.dtype = kUnknown, {"parents.dtype"}),
      RULE("scores.dtype f16", p.scores.dtype = DType::kF16, {"scores.dtype", "f16", "f32"}),
      RULE("scores.dtype unknown", p.scores.dtype = kUnknown, {"scores.dtype"}),
      // bits are for masks alone
      RULE("q.dtype bit", p.q.dtype = DType::kBit, {"q.dtype", "bit"}),
      RULE("k.dtype bit", p.k.dtype = DType::kBit, {"k.dtype", "bit"}),
      RULE("v.dtype bit", p.v.dtype = DType::kBit, {"v.dtype", "bit"}),
      RULE("out.dtype bit", p.out.dtype = DType::kBit, {"out.dtype", "bit"}),
      RULE("lse.dtype bit", p.lse.dtype = DType::kBit, {"lse.dtype", "bit", "f32"}),
      RULE("weights.dtype bit", p.weights.dtype = DType::kBit, {"weights.dtype", "bit", "f32"}),
      RULE("scores.dtype bit", p.scores.dtype = DType::kBit, {"scores.dtype", "bit", "f32"}),
      RULE("bias.dtype bit", p.score.bias.dtype = DType::kBit, {"bias.dtype", "bit"}),
      RULE("alibi_slopes.dtype bit", p.score.alibi_slopes.dtype = DType::kBit,
           {"alibi_slopes.dtype", "bit", "f32"}),
      RULE("sinks.dtype bit", p.score.sinks.dtype = DType::kBit, {"sinks.dtype", "bit", "f32"}),
      RULE("q_lengths.dtype bit", p.score.q_lengths.dtype = DType::kBit,
           {"q_lengths.dtype", "bit"}),
      RULE("query_offsets.dtype bit", p.score.query_offsets.dtype = DType::kBit,
           {"query_offsets.dtype", "bit"}),
      RULE("parents.dtype bit", p.score.parents.dtype = DType::kBit, {"parents.dtype", "bit"}),
      // and must be dense
      RULE("mask of bits apart", (p.score.mask.dtype = DType::kBit, p.score.mask.stride[3] = 2),
           {"mask.stride[3]", "2", "1"}),
      RULE("mask of one byte of bits",
           (p.score.mask.dtype = DType::kBit, p.score.mask.stride[3] = 0),
           {"mask.stride[3]", "0", "1"}),
      RULE("mask of bits backwards",
           (p.score.mask.dtype = DType::kBit, p.score.mask.stride[3] = -1),
           {"mask.stride[3]", "-1", "1"}),
      RULE("block map of bits apart",
           (p.score.block_map.visible.dtype = DType::kBit, p.score.block_map.visible.stride[3] = 3),
           {"block_map", "stride[3]", "3", "1"}),

      // memory
      RULE("q null", p.q.data = nullptr, {"q.data", "null"}, invalid, Seen::kByRuns),
      RULE("k null", p.k.data = nullptr, {"k.data", "null"}, invalid, Seen::kByRuns),
      RULE("v null", p.v.data = nullptr, {"v.data", "null"}, invalid, Seen::kByRuns),
      RULE("out null", p.out.data = nullptr, {"out.data", "null"}, invalid, Seen::kByRuns),
      RULE("lse null", p.lse.data = nullptr, {"lse.data", "null"}, invalid, Seen::kByRuns),
      RULE("weights null", p.weights.data = nullptr, {"weights.data", "null"}, invalid,
           Seen::kByRuns),
      RULE("mask null", p.score.mask.data = nullptr, {"mask.data", "null"}, invalid, Seen::kByRuns),
      RULE("bias null", p.score.bias.data = nullptr, {"bias.data", "null"}, invalid, Seen::kByRuns),
      RULE("alibi_slopes null", p.score.alibi_slopes.data = nullptr, {"alibi_slopes.data", "null"},
           invalid, Seen::kByRuns),
      RULE("sinks null", p.score.sinks.data = nullptr, {"sinks.data", "null"}, invalid,
           Seen::kByRuns),
      RULE("scores null", p.scores.data = nullptr, {"scores.data", "null"}, invalid, Seen::kByRuns),
      RULE("block map null", p.score.block_map.visible.data = nullptr,
           {"block_map", "data", "null"}, invalid, Seen::kByRuns),
      RULE("parents null", p.score.parents.data = nullptr, {"parents.data", "null"}, invalid,
           Seen::kByRuns),
      RULE("query_offsets null", p.score.query_offsets.data = nullptr,
           {"query_offsets.data", "null"}),
      RULE("q_lengths null", p.score.q_lengths.data = nullptr, {"q_lengths.data", "null"}),
      RULE("kv_lengths null", p.score.kv_lengths.data = nullptr, {"kv_lengths.data", "null"}),
      RULE("q.stride overflows", p.q.stride[0] = kMost, {"q.stride"}),
      RULE("q.stride overflows below", p.q.stride[2] = kLeast, {"q.stride"}),
      RULE("k.stride overflows", p.k.stride[3] = kMost / 2, {"k.stride"}),
      RULE("k.strides overflow together", (p.k.stride[2] = kMost / 16, p.k.stride[3] = kMost / 8),
           {"k.stride"}),
      RULE("v.stride overflows", p.v.stride[2] = kLeast / 2, {"v.stride"}),
      RULE("out.stride overflows", p.out.stride[2] = kMost / 3, {"out.stride"}),
      RULE("lse.stride overflows", p.lse.stride[2] = kMost / 3, {"lse.stride"}),
      RULE("weights.stride overflows", p.weights.stride[3] = kMost / 3, {"weights.stride"}),
      RULE("mask.stride overflows", p.score.mask.stride[3] = kMost / 3, {"mask.stride"}),
      RULE("bias.stride overflows", p.score.bias.stride[2] = kLeast, {"bias.stride"}),
      RULE("alibi_slopes.stride overflows", p.score.alibi_slopes.stride[0] = kMost,
           {"alibi_slopes.stride"}),
      RULE("sinks.stride overflows", p.score.sinks.stride[0] = kMost, {"sinks.stride"}),
      RULE("scores.stride overflows", p.scores.stride[2] = kMost / 3, {"scores.stride"}),
      RULE("block map stride overflows", p.score.block_map.visible.stride[2] = kMost / 2,
           {"block_map", "stride"}),
      RULE("bits overflow", (p.score.mask.dtype = DType::kBit, p.score.mask.stride[2] = kLeast),
           {"mask.stride"}),
      RULE("parents.stride overflows", p.score.parents.stride[0] = kMost, {"parents.stride"}),

      // values
      RULE("scale NaN", p.score.scale = std::nanf(""), {"scale", "nan"}),
      RULE("scale Inf", p.score.scale = std::numeric_limits<float>::infinity(), {"scale", "inf"}),
      RULE("scale -Inf", p.score.scale = -std::numeric_limits<float>::infinity(),
           {"scale", "-inf"}),
      RULE("softcap negative", p.score.softcap = -1.5f, {"softcap", "-1.5"}),
      RULE("softcap NaN", p.score.softcap = std::nanf(""), {"softcap", "nan"}),
      RULE("softcap Inf", p.score.softcap = std::numeric_limits<float>::infinity(),
           {"softcap", "inf"}),
      RULE("window.left", p.score.window.left = -2, {"window.left", "-2", "-1"}),
      RULE("window.right", p.score.window.right = kLeast, {"window.right", "-1"}),
      RULE("causal unknown", p.score.causal = static_cast<Causal>(9), {"causal", "9"}),
      RULE("query_offset twice", p.score.query_offset = 0, {"query_offset", "query_offsets"}),
      RULE("query_offset beyond 2^62",
           (p.score.query_offsets = TensorView(), p.score.query_offset = kMost),
           {"query_offset", "9223372036854775807"}),
      RULE("query_offset below -2^62",
           (p.score.query_offsets = TensorView(), p.score.query_offset = kLeast),
           {"query_offset", "-9223372036854775808"}),
      RULE("query_offsets beyond 2^62", p.score.query_offsets = View(kHugeOffsets, {2}),
           {"query_offsets", "4611686018427387905"}),
      RULE("q_lengths negative", p.score.q_lengths.data = kShortLengths, {"q_lengths[1]", "-1"}),
      RULE("q_lengths beyond Tq", p.score.q_lengths.data = kLongQLengths,
           {"q_lengths[0]", "6", "5"}),
      RULE("kv_lengths negative", p.score.kv_lengths.data = kNegativeKvLengths,
           {"kv_lengths[1]", "-9223372036854775808"}),
      RULE("kv_lengths beyond Tk", p.score.kv_lengths.data = kLongKvLengths,
           {"kv_lengths[1]", "10", "9"}),
      RULE("kv_lengths beyond 32 bits", p.score.kv_lengths.data = kHugeKvLengths,
           {"kv_lengths[0]", "4294967296", "9"}),
      RULE("score_stage unknown", p.score_stage = static_cast<ScoreStage>(4), {"score_stage", "4"}),
      RULE("score_stage negative", p.score_stage = static_cast<ScoreStage>(-1),
           {"score_stage", "-1"}),
      RULE("a query as its own parent", p.score.parents.data = kOwnParent,
           {"parents[0,3] = 3", "-1", "to 2"}, invalid, Seen::kByRuns),
      RULE("a parent of the first query", p.score.parents.data = kParentOfTheFirst,
           {"parents[1,0] = 0", "-1"}, invalid, Seen::kByRuns),
      RULE("a parent below -1", p.score.parents.data = kNegativeParent,
           {"parents[0,2] = -2", "-1", "to 1"}, invalid, Seen::kByRuns),
      RULE("a parent beyond 32 bits", (p.score.parents = View(kHugeParent, {2, 5})),
           {"parents[1,4] = 4294967296", "-1", "to 3"}, invalid, Seen::kByRuns),
  };
}

// Of sequences packed as in Packed(true, true).
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

// Of packed queries and dense keys, and the other way round.
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

// A legal problem, and the ways to break it.
struct Suite {
  RandomProblem (*make)();
  std::vector<Rule> rules;
};
std::vector<Suite> Suites() {
  return {{FullLengths, Rules()},
          {[] { return Packed(true, true); }, PackedRules()},
          {[] { return Packed(true, false); }, PackedQueryRules()},
          {[] { return Packed(false, true); }, PackedKeyRules()}};
}

testing::AssertionResult Says(const Status& status, const std::vector<const char*>& texts) {
  const std::string message = status.message();
  for (const char* text : texts) {
    if (message.find(text) == std::string::npos)
      return testing::AssertionFailure() << "'" << text << "' is not in: " << message;
  }
  return testing::AssertionSuccess();
}

// "kv_lengths" of "kv_lengths[1]": beside a plan, another element may be the first that is wrong.
std::string Field(const std::string& text) {
  return text.find("lengths[") == std::string::npos ? text : text.substr(0, text.find('['));
}

// A plan, its workspace, and what it gave before anybody tried to break it.
struct Planned {
  Plan plan;
  Memory memory;
  Workspace workspace;

  explicit Planned(const RandomProblem& p, const PlanOptions& options = {}) {
    const Status status = Plan::Create(p.problem, options, &plan);
    EXPECT_TRUE(status.ok()) << status.message();
    memory = Memory(plan.WorkspaceBytes(2), Placement::kBeforeGuard, 1);
    workspace = {memory.data(), memory.bytes()};
  }
};

TEST(ValidateTest, TheUnbrokenProblemIsAccepted) {
  std::vector<RandomProblem> problems = {RandomProblem(Everything(), 1), RandomProblem(Plain(), 1)};
  for (const Suite& suite : Suites()) problems.push_back(suite.make());
  for (RandomProblem& p : problems) {
    test::ExpectMatchesReference(p);
    Planned planned(p);
    const Status run = fovea::Run(planned.plan, p.problem, planned.workspace);
    EXPECT_TRUE(run.ok()) << run.message();
    BoundCall call;
    const Status bind = Bind(planned.plan, p.problem, planned.workspace, 2, &call);
    EXPECT_TRUE(bind.ok()) << bind.message();
    const Status update = planned.plan.Update(p.problem);
    EXPECT_TRUE(update.ok()) << update.message();
  }
}

TEST(ValidateTest, AttentionRefusesEveryBrokenProblem) {
  for (const Suite& suite : Suites()) {
    for (const Rule& rule : suite.rules) {
      SCOPED_TRACE(rule.name);
      RandomProblem p = suite.make();
      rule.break_it(p.problem);
      for (int how = 0; how < 2; ++how) {
        const Status status =
            how == 0 ? Attention(p.problem) : Attention(p.problem, PlanOptions(), SerialExecutor());
        EXPECT_EQ(status.code(), rule.code) << status.message();
        EXPECT_TRUE(Says(status, rule.message));
        EXPECT_TRUE(p.OutputsUntouched());
      }
    }
  }
}

TEST(ValidateTest, CreateRefusesEveryBrokenProblemAndKeepsThePlan) {
  for (const Suite& suite : Suites()) {
    for (const Rule& rule : suite.rules) {
      SCOPED_TRACE(rule.name);
      RandomProblem p = suite.make();
      rule.break_it(p.problem);
      Plan plan;
      const Status status = Plan::Create(p.problem, PlanOptions(), &plan);
      if (rule.seen == Seen::kByRuns) {  // a plan is made without looking at this data
        EXPECT_TRUE(status.ok()) << status.message();
        continue;
      }
      EXPECT_EQ(status.code(), rule.code) << status.message();
      EXPECT_TRUE(Says(status, rule.message));
      EXPECT_FALSE(plan.valid());

      RandomProblem good(Plain(), 1);
      Planned planned(good);
      const size_t bytes = planned.plan.WorkspaceBytes(3);
      EXPECT_FALSE(Plan::Create(p.problem, PlanOptions(), &planned.plan).ok());
      EXPECT_EQ(planned.plan.WorkspaceBytes(3), bytes);
      EXPECT_TRUE(fovea::Run(planned.plan, good.problem, planned.workspace).ok());
    }
  }
}

TEST(ValidateTest, UpdateRefusesEveryBrokenProblemAndKeepsThePlan) {
  for (const Suite& suite : Suites()) {
    RandomProblem good = suite.make();
    const auto expected = reference::Forward(good.problem);
    Planned planned(good);
    for (const Rule& rule : suite.rules) {
      if (rule.seen == Seen::kByRuns) continue;
      SCOPED_TRACE(rule.name);
      RandomProblem p = suite.make();
      rule.break_it(p.problem);
      const Status status = planned.plan.Update(p.problem);
      EXPECT_TRUE(status.code() == rule.code || status.code() == StatusCode::kInvalidArgument)
          << status.message();
      EXPECT_TRUE(Says(status, {Field(rule.message.front()).c_str()}));
      good.ResetOutputs();
      ASSERT_TRUE(fovea::Run(planned.plan, good.problem, planned.workspace).ok());
      ASSERT_TRUE(test::Matches(good.problem, expected));
    }
  }
}

TEST(ValidateTest, RunAndBindRefuseEveryBrokenProblem) {
  for (const Suite& suite : Suites()) {
    RandomProblem good = suite.make();
    Planned planned(good);
    for (const Rule& rule : suite.rules) {
      SCOPED_TRACE(rule.name);
      RandomProblem p = suite.make();
      rule.break_it(p.problem);
      const Status run = fovea::Run(planned.plan, p.problem, planned.workspace);
      EXPECT_TRUE(run.code() == rule.code || run.code() == StatusCode::kInvalidArgument)
          << run.message();
      EXPECT_TRUE(Says(run, {Field(rule.message.front()).c_str()}));
      BoundCall call;
      const Status bind = Bind(planned.plan, p.problem, planned.workspace, 2, &call);
      EXPECT_EQ(bind.code(), run.code());
      EXPECT_STREQ(bind.message(), run.message());
      EXPECT_EQ(call.Phases(), 0) << "an error changed the call";
      EXPECT_TRUE(p.OutputsUntouched());
    }
  }
}

// ---- legal things beside the errors ----

TEST(ValidateTest, QueriesWithoutHeadsAreAnError) {
  RandomProblem p(Plain(), 1);
  for (int64_t* shape : {p.problem.q.shape, p.problem.k.shape, p.problem.v.shape,
                         p.problem.out.shape, p.problem.lse.shape})
    shape[1] = 0;
  const Status status = Attention(p.problem);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
  EXPECT_TRUE(Says(status, {"shape[1]", "0"}));
  EXPECT_TRUE(p.OutputsUntouched());
}

TEST(ValidateTest, StridesOfAxesWithOneElementAreNotLookedAt) {
  ProblemSpec s = Plain();
  s.B = s.Hq = s.Hkv = 1;
  RandomProblem p(s, test::BaseSeed());
  for (TensorView* view : {&p.problem.q, &p.problem.k, &p.problem.v})
    view->stride[0] = kMost, view->stride[1] = kLeast;
  p.problem.out.stride[0] = kLeast;
  test::ExpectMatchesReference(p);
}

TEST(ValidateTest, NullDataOfEmptyTensorsIsLegal) {
  ProblemSpec s = Everything();
  s.Tk = 0;
  RandomProblem p(s, 1);
  p.problem.weights.data = p.problem.scores.data = nullptr;
  for (TensorView* view : {&p.problem.k, &p.problem.v, &p.problem.score.mask, &p.problem.score.bias,
                           &p.problem.score.block_map.visible}) {
    view->data = nullptr;
  }
  const Status status = Attention(p.problem);
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(ValidateTest, NoHeadsWithoutQueriesAreLegalWithAnythingThatIsEmptyThen) {
  ProblemSpec s = Everything();
  s.Tq = 0, s.Tk = 200;
  for (Axes axes : {Axes::kBHQK, Axes::kK}) {
    for (bool fixed : {false, true}) {
      s.mask = axes;
      RandomProblem p(s, 1);
      p.problem.score.alibi_slopes.shape[0] = p.problem.score.sinks.shape[0] = 0;
      for (int64_t* shape : {p.problem.q.shape, p.problem.out.shape, p.problem.lse.shape,
                             p.problem.weights.shape, p.problem.scores.shape,
                             p.problem.score.bias.shape, p.problem.score.block_map.visible.shape}) {
        shape[1] = 0;
      }
      if (axes == Axes::kBHQK) p.problem.score.mask.shape[1] = 0;
      PlanOptions options;
      options.fixed_mask = fixed;
      const Status status = Attention(p.problem, options, SerialExecutor());
      EXPECT_TRUE(status.ok()) << status.message();
    }
  }
}

TEST(ValidateTest, ParentsOfPaddingAreNotLookedAtByTheResult) {
  // Rows behind q_lengths have no tree: whatever a legal parent there is, nothing changes.
  ProblemSpec s = Plain();
  s.q_lengths = DType::kI32, s.parents = DType::kI32, s.causal = Causal::kBottomRight;
  RandomProblem p(s, 1), other(s, 1);
  p.q_lengths.Set(0, 3), p.q_lengths.Set(1, 0);
  other.q_lengths = p.q_lengths;
  for (auto [b, i] : {std::pair<int64_t, int64_t>{0, 3}, {0, 4}, {1, 1}})
    other.parents.SetAt({b, i}, static_cast<double>(i - 1));
  other.Refresh();
  ASSERT_TRUE(Attention(p.problem).ok());
  ASSERT_TRUE(Attention(other.problem).ok());
  EXPECT_EQ(p.out.Bytes(), other.out.Bytes());
}

TEST(ValidateTest, LengthsMayHaveAnyStride) {
  ProblemSpec s = Plain();
  s.kv_lengths = DType::kI64, s.q_lengths = DType::kI32;
  RandomProblem p(s, test::BaseSeed());
  p.kv_lengths = p.kv_lengths.CopiedTo({test::Layout::kReversed});
  p.q_lengths = p.q_lengths.CopiedTo({test::Layout::kSparse});
  p.Refresh();
  test::ExpectMatchesReference(p);
}

// ---- options ----

TEST(ValidateTest, OptionsOutOfRange) {
  struct OptionRule {
    void (*break_it)(PlanOptions&);
    std::vector<const char*> message;
  };
  const std::vector<OptionRule> rules = {
      {[](PlanOptions& o) { o.tile_rows = -1; }, {"tile_rows", "-1"}},
      {[](PlanOptions& o) { o.block_keys = std::numeric_limits<int32_t>::min(); },
       {"block_keys", "-2147483648"}},
      {[](PlanOptions& o) { o.split_keys = -7; }, {"split_keys", "-7"}},
      {[](PlanOptions& o) { o.max_queries = -1; }, {"max_queries", "-1"}},
      {[](PlanOptions& o) { o.max_keys = kLeast; }, {"max_keys"}},
      {[](PlanOptions& o) { o.engine = static_cast<Engine>(3); }, {"engine", "3"}},
      {[](PlanOptions& o) { o.engine = static_cast<Engine>(-1); }, {"engine", "-1"}},
      {[](PlanOptions& o) { o.product = static_cast<Product>(3); }, {"product", "3"}},
      {[](PlanOptions& o) { o.product = static_cast<Product>(-1); }, {"product", "-1"}},
      {[](PlanOptions& o) { o.product = Product::kBF16; }, {"product", "bf16", "f32"}},
      {[](PlanOptions& o) { o.target = static_cast<Target>(99); }, {"target", "99"}},
      {[](PlanOptions& o) { o.target = static_cast<Target>(-1); }, {"target", "-1"}},
  };
  for (const OptionRule& rule : rules) {
    SCOPED_TRACE(rule.message.front());
    RandomProblem p(Plain(), 1);
    PlanOptions options;
    rule.break_it(options);
    Plan plan;
    for (const Status& status : {Plan::Create(p.problem, options, &plan),
                                 Attention(p.problem, options, SerialExecutor())}) {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
      EXPECT_TRUE(Says(status, rule.message));
    }
    EXPECT_FALSE(plan.valid());
    EXPECT_TRUE(p.OutputsUntouched());
  }
}

TEST(ValidateTest, HugeTestHooksAreUpperBoundsOnly) {
  RandomProblem p(Plain(), test::BaseSeed());
  PlanOptions options;
  options.tile_rows = options.block_keys = std::numeric_limits<int32_t>::max();
  options.split_keys = kMost;
  test::ExpectMatchesReference(p, options);
}

TEST(ValidateTest, TargetsThatAreNotUsableAreErrors) {
  for (Target target : {Target::kEmu128, Target::kSse2, Target::kSse4, Target::kAvx2,
                        Target::kAvx512, Target::kNeon, Target::kAvx512Bf16, Target::kNeonBf16,
                        Target::kAvx512Amx, Target::kPpc8, Target::kPpc9, Target::kWasm}) {
    bool usable = false;
    for (Target t : UsableTargets()) usable = usable || t == target;
    if (usable) continue;
    RandomProblem p(Plain(), 1);
    PlanOptions options;
    options.target = target;
    const Status status = Attention(p.problem, options, SerialExecutor());
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(status.code(), StatusCode::kUnsupported) << "a host can fall back";
    EXPECT_TRUE(Says(status, {Name(target), Name(*UsableTargets().begin())}));
    EXPECT_TRUE(p.OutputsUntouched());
  }
}

TEST(ValidateTest, NumbersThatAreNoTargetAreErrors) {
  for (int number : {-1, 1000}) {
    RandomProblem p(Plain(), 1);
    PlanOptions options;
    options.target = static_cast<Target>(number);
    const Status status = Attention(p.problem, options, SerialExecutor());
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(Says(status, {"options.target", std::to_string(number).c_str(),
                              Name(*UsableTargets().begin())}));
    EXPECT_TRUE(p.OutputsUntouched());
  }
}

// ---- workspace and workers ----

// An executor that claims any number of workers, and must never be asked to run.
class ClaimingExecutor : public Executor {
 public:
  explicit ClaimingExecutor(int workers) : workers_(workers) {}
  int Workers() const noexcept override { return workers_; }
  void ForEach(int64_t, Task, void*) noexcept override { ADD_FAILURE() << "ran"; }

 private:
  int workers_;
};

TEST(ValidateTest, WorkspaceTooSmallOrAbsent) {
  for (const test::Kernel& kernel : test::Kernels()) {
    RandomProblem p(Everything(), 1);
    Planned planned(p, test::Options(kernel));
    for (int workers : {1, 2}) {
      const size_t needed = planned.plan.WorkspaceBytes(workers);
      ASSERT_GT(needed, 0u);
      for (size_t bytes : {size_t{0}, size_t{1}, needed / 2, needed - 1}) {
        BoundCall call;
        const Status status =
            Bind(planned.plan, p.problem, {planned.memory.data(), bytes}, workers, &call);
        EXPECT_EQ(status.code(), StatusCode::kOutOfMemory) << status.message();
        EXPECT_TRUE(Says(status, {"workspace"}));
        EXPECT_NE(std::string(status.message()).find(std::to_string(needed)), std::string::npos)
            << status.message();
        EXPECT_EQ(call.Phases(), 0);
      }
      BoundCall call;
      EXPECT_TRUE(
          Bind(planned.plan, p.problem, {planned.memory.data(), needed}, workers, &call).ok());
    }
    const Status small = fovea::Run(planned.plan, p.problem,
                                    {planned.memory.data(), planned.plan.WorkspaceBytes(1) - 1});
    EXPECT_EQ(small.code(), StatusCode::kOutOfMemory) << small.message();
    const Status null =
        fovea::Run(planned.plan, p.problem, {nullptr, planned.plan.WorkspaceBytes(1)});
    EXPECT_FALSE(null.ok());
    EXPECT_TRUE(Says(null, {"workspace"}));
    EXPECT_TRUE(p.OutputsUntouched());
  }
}

TEST(ValidateTest, FewerThanOneWorker) {
  RandomProblem p(Plain(), 1);
  Planned planned(p);
  for (int workers : {0, -1, std::numeric_limits<int>::min()}) {
    BoundCall call;
    const Status bind = Bind(planned.plan, p.problem, planned.workspace, workers, &call);
    EXPECT_EQ(bind.code(), StatusCode::kInvalidArgument) << bind.message();
    EXPECT_TRUE(Says(bind, {"workers"}));
    EXPECT_NE(std::string(bind.message()).find(std::to_string(workers)), std::string::npos)
        << bind.message();
    EXPECT_EQ(call.Phases(), 0);
    ClaimingExecutor executor(workers);
    EXPECT_EQ(fovea::Run(planned.plan, p.problem, planned.workspace, executor).code(),
              StatusCode::kInvalidArgument);
    EXPECT_EQ(Attention(p.problem, executor).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(planned.plan.WorkspaceBytes(workers), 0u);
  }
  EXPECT_TRUE(p.OutputsUntouched());
}

TEST(ValidateTest, MoreWorkersThanMemoryHasBytes) {
  RandomProblem p(Plain(), 1);
  Planned planned(p);
  BoundCall call;
  EXPECT_FALSE(
      Bind(planned.plan, p.problem, planned.workspace, std::numeric_limits<int>::max(), &call)
          .ok());
}

// ---- plans ----

TEST(ValidateTest, InvalidPlans) {
  RandomProblem p(Plain(), 1);
  Planned planned(p);
  Plan moved_to = std::move(planned.plan);
  Plan fresh;
  for (Plan* plan : {&fresh, &planned.plan}) {
    EXPECT_FALSE(plan->valid());
    EXPECT_EQ(plan->WorkspaceBytes(1), 0u);
    BoundCall call;
    for (const Status& status :
         {fovea::Run(*plan, p.problem, planned.workspace),
          Bind(*plan, p.problem, planned.workspace, 1, &call), plan->Update(p.problem)}) {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
      EXPECT_TRUE(Says(status, {"plan"}));
    }
    EXPECT_EQ(call.Phases(), 0);
    // Nothing else crashes either.
    plan->ToString();
    plan->cost();
    plan->target();
    plan->engine();
  }
  EXPECT_TRUE(p.OutputsUntouched());
  EXPECT_TRUE(moved_to.valid());
  EXPECT_TRUE(fovea::Run(moved_to, p.problem, planned.workspace).ok());
}

// Legal problems that are not the planned one.
struct Other {
  const char* name;
  void (*change)(RandomProblem&);
  const char* field;
};

std::vector<Other> OtherProblems() {
  return {
      {"batch",
       [](RandomProblem& p) {
         for (int64_t* shape :
              {p.problem.q.shape, p.problem.k.shape, p.problem.v.shape, p.problem.out.shape,
               p.problem.lse.shape, p.problem.weights.shape, p.problem.scores.shape})
           shape[0] = 1;
         for (TensorView* view :
              {&p.problem.score.query_offsets, &p.problem.score.q_lengths,
               &p.problem.score.kv_lengths, &p.problem.score.bias, &p.problem.score.mask,
               &p.problem.score.block_map.visible, &p.problem.score.parents})
           view->shape[0] = 1;
       },
       "shape[0]"},
      {"query heads",
       [](RandomProblem& p) {
         for (int64_t* shape :
              {p.problem.q.shape, p.problem.out.shape, p.problem.lse.shape, p.problem.weights.shape,
               p.problem.scores.shape, p.problem.score.bias.shape, p.problem.score.mask.shape,
               p.problem.score.block_map.visible.shape})
           shape[1] = 2;
         p.problem.score.alibi_slopes.shape[0] = p.problem.score.sinks.shape[0] = 2;
       },
       "q.shape[1]"},
      {"KV heads", [](RandomProblem& p) { p.problem.k.shape[1] = p.problem.v.shape[1] = 1; },
       "k.shape[1]"},
      {"dk", [](RandomProblem& p) { p.problem.q.shape[3] = p.problem.k.shape[3] = 5; }, "shape[3]"},
      {"dv", [](RandomProblem& p) { p.problem.v.shape[3] = p.problem.out.shape[3] = 6; },
       "shape[3]"},
      {"no lse", [](RandomProblem& p) { p.problem.lse = MutableTensorView(); }, "lse"},
      {"no weights", [](RandomProblem& p) { p.problem.weights = MutableTensorView(); }, "weights"},
      {"no bias", [](RandomProblem& p) { p.problem.score.bias = TensorView(); }, "bias"},
      {"no mask", [](RandomProblem& p) { p.problem.score.mask = TensorView(); }, "mask"},
      {"no slopes", [](RandomProblem& p) { p.problem.score.alibi_slopes = TensorView(); },
       "alibi_slopes"},
      {"no sinks", [](RandomProblem& p) { p.problem.score.sinks = TensorView(); }, "sinks"},
      {"no block map", [](RandomProblem& p) { p.problem.score.block_map = BlockMap(); },
       "block_map"},
      {"no parents", [](RandomProblem& p) { p.problem.score.parents = TensorView(); }, "parents"},
      {"no scores", [](RandomProblem& p) { p.problem.scores = MutableTensorView(); }, "scores"},
      {"q type", [](RandomProblem& p) { p.problem.q.dtype = DType::kBF16; }, "q.dtype"},
      {"k type", [](RandomProblem& p) { p.problem.k.dtype = DType::kF16; }, "k.dtype"},
      {"v type", [](RandomProblem& p) { p.problem.v.dtype = DType::kF16; }, "v.dtype"},
      {"out type", [](RandomProblem& p) { p.problem.out.dtype = DType::kBF16; }, "out.dtype"},
      {"bias type", [](RandomProblem& p) { p.problem.score.bias.dtype = DType::kF16; }, "bias"},
  };
}

// What Update may change, and Run may not.
std::vector<Other> OtherLengths() {
  static const int32_t other_q_lengths[] = {2, 3}, other_offsets[] = {1, -1};
  static const int64_t other_kv_lengths[] = {0, 0};
  return {
      {"fewer queries",
       [](RandomProblem& p) {
         for (int64_t* shape :
              {p.problem.q.shape, p.problem.out.shape, p.problem.lse.shape, p.problem.weights.shape,
               p.problem.scores.shape, p.problem.score.bias.shape, p.problem.score.mask.shape})
           shape[2] = 4;
         p.problem.score.parents.shape[1] = 4;
         p.problem.score.block_map.visible.shape[2] = 2;
         p.q_lengths.Fill([] { return 4; });
       },
       "q.shape[2]"},
      {"fewer keys",
       [](RandomProblem& p) {
         p.problem.k.shape[2] = p.problem.v.shape[2] = 8;
         for (int64_t* shape : {p.problem.weights.shape, p.problem.scores.shape,
                                p.problem.score.bias.shape, p.problem.score.mask.shape})
           shape[3] = 8;
         p.problem.score.block_map.visible.shape[3] = 2;
         p.kv_lengths.Fill([] { return 8; });
       },
       "k.shape[2]"},
      {"q_lengths", [](RandomProblem& p) { p.problem.score.q_lengths.data = other_q_lengths; },
       "q_lengths"},
      {"kv_lengths", [](RandomProblem& p) { p.problem.score.kv_lengths.data = other_kv_lengths; },
       "kv_lengths"},
      {"query_offsets",
       [](RandomProblem& p) { p.problem.score.query_offsets.data = other_offsets; },
       "query_offsets"},
      {"causal", [](RandomProblem& p) { p.problem.score.causal = Causal::kNone; }, "causal"},
      {"causal the other way",
       [](RandomProblem& p) { p.problem.score.causal = Causal::kBottomRight; }, "causal"},
      {"window.left", [](RandomProblem& p) { p.problem.score.window.left = -1; }, "window.left"},
      {"window.right", [](RandomProblem& p) { p.problem.score.window.right = 3; }, "window.right"},
  };
}

TEST(ValidateTest, RunAndBindRefuseAProblemThatIsNotThePlannedOne) {
  std::vector<Other> all = OtherProblems();
  for (const Other& other : OtherLengths()) all.push_back(other);
  for (const Other& other : all) {
    SCOPED_TRACE(other.name);
    RandomProblem p = FullLengths();
    Planned planned(p);
    other.change(p);
    const Status run = fovea::Run(planned.plan, p.problem, planned.workspace);
    EXPECT_EQ(run.code(), StatusCode::kInvalidArgument) << run.message();
    EXPECT_TRUE(Says(run, {other.field}));
    BoundCall call;
    const Status bind = Bind(planned.plan, p.problem, planned.workspace, 2, &call);
    EXPECT_STREQ(bind.message(), run.message());
    EXPECT_EQ(call.Phases(), 0);
    EXPECT_TRUE(p.OutputsUntouched());
    // By itself it is a legal problem.
    EXPECT_TRUE(Attention(p.problem).ok());
  }
}

// What has as many sequences, queries or keys as the batch.
void DropWhatHasTheShapeOfTheBatch(Problem& problem) {
  Score& score = problem.score;
  for (TensorView* view : {&score.query_offsets, &score.q_lengths, &score.kv_lengths,
                           &score.parents, &score.bias, &score.mask}) {
    *view = TensorView();
  }
  score.block_map = BlockMap();
  problem.weights = problem.scores = MutableTensorView();
}

TEST(ValidateTest, RunAndBindRefuseOtherSequences) {
  struct OtherSequences {
    int32_t q[3];
    int64_t k[3];
    const char* field;
  };
  for (const OtherSequences& other : {OtherSequences{{1, 6, 8}, {0, 3, 12}, nullptr},
                                      {{1, 6, 9}, {0, 3, 12}, "cu_seqlens_q"},
                                      {{0, 5, 7}, {0, 3, 12}, "cu_seqlens_q"},
                                      {{2, 7, 9}, {0, 3, 12}, "cu_seqlens_q"},
                                      {{1, 6, 7}, {0, 3, 12}, "cu_seqlens_q"},
                                      {{1, 3, 8}, {0, 3, 12}, "cu_seqlens_q"},
                                      {{1, 4, 8}, {0, 3, 12}, "cu_seqlens_q"},
                                      {{1, 2, 4}, {0, 3, 12}, "cu_seqlens_q"},
                                      {{1, 6, 8}, {1, 4, 13}, "cu_seqlens_k"},
                                      {{1, 6, 8}, {1, 3, 12}, "cu_seqlens_k"},
                                      {{1, 6, 8}, {0, 9, 12}, "cu_seqlens_k"},
                                      {{1, 6, 8}, {0, 2, 11}, "cu_seqlens_k"},
                                      {{1, 6, 8}, {0, 3, 9}, "cu_seqlens_k"}}) {
    RandomProblem p = Packed(true, true);
    DropWhatHasTheShapeOfTheBatch(p.problem);
    Planned planned(p);
    p.problem.cu_seqlens_q = View(other.q, {3});
    p.problem.cu_seqlens_k = View(other.k, {3});
    const Status run = fovea::Run(planned.plan, p.problem, planned.workspace);
    EXPECT_EQ(run.ok(), other.field == nullptr) << run.message();
    if (other.field == nullptr) continue;
    EXPECT_EQ(run.code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(Says(run, {other.field}));
    BoundCall call;
    const Status bind = Bind(planned.plan, p.problem, planned.workspace, 2, &call);
    EXPECT_STREQ(bind.message(), run.message());
    EXPECT_EQ(call.Phases(), 0);
    EXPECT_TRUE(p.OutputsUntouched());
  }
}

TEST(ValidateTest, ABatchThatIsNoLongerPackedIsAnotherProblem) {
  for (bool update : {false, true}) {
    for (int which = 0; which < 3; ++which) {
      RandomProblem packed = Packed(which != 1, which != 0), dense = FullLengths();
      Planned planned(packed), planned_dense(dense);
      const Status there = update ? planned.plan.Update(dense.problem)
                                  : fovea::Run(planned.plan, dense.problem, planned.workspace);
      const Status back =
          update ? planned_dense.plan.Update(packed.problem)
                 : fovea::Run(planned_dense.plan, packed.problem, planned_dense.workspace);
      for (const Status& status : {there, back}) {
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
        EXPECT_TRUE(Says(status, {which == 1 ? "cu_seqlens_k" : "cu_seqlens_q"}));
      }
      EXPECT_TRUE(packed.OutputsUntouched());
      EXPECT_TRUE(dense.OutputsUntouched());
    }
  }
}

TEST(ValidateTest, UpdateRefusesAnotherNumberOfSequences) {
  RandomProblem p = Packed(true, true);
  DropWhatHasTheShapeOfTheBatch(p.problem);
  Planned planned(p);
  Problem fewer = p.problem;
  fewer.cu_seqlens_q.shape[0] = fewer.cu_seqlens_k.shape[0] = 2;
  EXPECT_TRUE(Attention(fewer).ok());
  p.ResetOutputs();
  for (const Status& status :
       {planned.plan.Update(fewer), fovea::Run(planned.plan, fewer, planned.workspace)}) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
    EXPECT_TRUE(Says(status, {"cu_seqlens"}));
  }
  EXPECT_TRUE(p.OutputsUntouched());
  EXPECT_TRUE(fovea::Run(planned.plan, p.problem, planned.workspace).ok()) << "the plan changed";
}

TEST(ValidateTest, RoomForAFixedMaskBeyondMemoryIsAnError) {
  PlanOptions options;
  options.fixed_mask = true;
  for (auto [queries, keys] : {std::pair<int64_t, int64_t>{kMost, kMost},
                               {kMost, 0},
                               {0, kMost},
                               {kMost / 2, kMost / 2}}) {
    options.max_queries = queries, options.max_keys = keys;
    ProblemSpec s = Plain();
    s.Tk = 200, s.mask = Axes::kQK;
    RandomProblem large(s, 1);
    Plan plan;
    EXPECT_FALSE(Plan::Create(large.problem, options, &plan).ok());
    EXPECT_FALSE(plan.valid());
  }
}

TEST(ValidateTest, RunRefusesAnotherExplicitOffset) {
  ProblemSpec s = Plain();
  s.causal = Causal::kTopLeft, s.query_offset = 3;
  RandomProblem p(s, 1);
  Planned planned(p);
  for (int how = 0; how < 2; ++how) {
    p.problem.score.query_offset.reset();
    if (how == 0) p.problem.score.query_offset = 2;
    const Status status = fovea::Run(planned.plan, p.problem, planned.workspace);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
    EXPECT_TRUE(Says(status, {"query_offset"}));
    EXPECT_TRUE(p.OutputsUntouched());
  }
}

TEST(ValidateTest, ScaleAndSoftcapMayChangeFromRunToRun) {
  for (const test::Kernel& kernel : test::Kernels()) {
    ProblemSpec s = Plain();
    s.Tq = 40, s.Tk = 150, s.causal = Causal::kTopLeft;
    RandomProblem p(s, test::BaseSeed());
    Planned planned(p, test::Options(kernel));
    for (float scale : {2.0f, -1.0f}) {
      for (float softcap : {0.0f, 1.0f}) {
        p.problem.score.scale = scale;
        p.problem.score.softcap = softcap;
        const Status status = fovea::Run(planned.plan, p.problem, planned.workspace);
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_TRUE(test::Matches(p.problem, reference::Forward(p.problem)))
            << ToString(kernel) << " scale " << scale << " softcap " << softcap;
      }
    }
  }
}

TEST(ValidateTest, UpdateRefusesAnotherProblem) {
  for (const Other& other : OtherProblems()) {
    SCOPED_TRACE(other.name);
    RandomProblem p = FullLengths(), changed = FullLengths();
    Planned planned(p);
    other.change(changed);
    const Status status = planned.plan.Update(changed.problem);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
    EXPECT_TRUE(Says(status, {other.field}));
    EXPECT_TRUE(fovea::Run(planned.plan, p.problem, planned.workspace).ok()) << "the plan changed";
  }
  for (const Other& other : OtherLengths()) {
    SCOPED_TRACE(other.name);
    RandomProblem p = FullLengths();
    Planned planned(p);
    other.change(p);
    const Status status = planned.plan.Update(p.problem);
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

TEST(ValidateTest, UpdateRefusesSizesBeyondItsRoom) {
  PlanOptions options;
  options.max_queries = 8, options.max_keys = 20;
  const auto sized = [](int64_t Tq, int64_t Tk) {
    ProblemSpec s = Plain();
    s.Tq = Tq, s.Tk = Tk;
    return RandomProblem(s, 1);
  };
  RandomProblem p = sized(5, 9);
  Planned planned(p, options);
  struct Sizes {
    int64_t Tq, Tk;
    const char* field;  // null: fits
    const char* values[2];
  };
  for (const Sizes& size : {Sizes{8, 20, nullptr, {}}, Sizes{9, 20, "q.shape[2]", {"9", "8"}},
                            Sizes{8, 21, "k.shape[2]", {"21", "20"}}, Sizes{1, 1, nullptr, {}},
                            Sizes{8, 20, nullptr, {}}, Sizes{0, 20, nullptr, {}},
                            Sizes{8, 0, nullptr, {}}, Sizes{5, 9, nullptr, {}}}) {
    RandomProblem other = sized(size.Tq, size.Tk);
    const Status status = planned.plan.Update(other.problem);
    if (size.field == nullptr) {
      EXPECT_TRUE(status.ok()) << status.message();
    } else {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
      EXPECT_TRUE(Says(status, {size.field, size.values[0], size.values[1]}));
    }
  }
  // Without options the room is the problem's own.
  Planned tight(p);
  EXPECT_FALSE(tight.plan.Update(sized(6, 9).problem).ok());
  EXPECT_FALSE(tight.plan.Update(sized(5, 10).problem).ok());
  EXPECT_TRUE(tight.plan.Update(sized(4, 8).problem).ok());
}

}  // namespace
}  // namespace fovea
