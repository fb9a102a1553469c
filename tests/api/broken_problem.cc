#include "api/broken_problem.h"

#include <string>
#include <utility>

#include "support/random.h"

namespace fovea::test {

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

RandomProblem FullLengths() {
  RandomProblem p(Everything(), 1);
  p.q_lengths.Fill([] { return 5; });
  p.kv_lengths.Fill([] { return 9; });
  p.query_offsets.Fill([] { return 4; });
  test::Random random(test::BaseSeed());  // where the drawn lengths had left NaN
  for (OwnedTensor* tensor : {&p.k, &p.v}) tensor->Fill([&] { return random.Normal(); });
  return p;
}

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

std::vector<Suite> Suites() {
  return {{FullLengths, DenseRules()},
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

}  // namespace fovea::test
