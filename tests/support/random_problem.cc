#include "support/random_problem.h"

#include <cmath>
#include <limits>
#include <sstream>
#include <vector>

namespace fovea::test {
namespace {

std::vector<int64_t> Shape(Axes axes, const ProblemSpec& s) {
  switch (axes) {
    case Axes::kAbsent:
      break;
    case Axes::kK:
      return {s.Tk};
    case Axes::kQK:
      return {s.Tq, s.Tk};
    case Axes::kHQK:
      return {s.Hq, s.Tq, s.Tk};
    case Axes::kH1K:
      return {s.Hq, 1, s.Tk};
    case Axes::kB11K:
      return {s.B, 1, 1, s.Tk};
    case Axes::kB1Q1:
      return {s.B, 1, s.Tq, 1};
    case Axes::kBHQK:
      return {s.B, s.Hq, s.Tq, s.Tk};
    case Axes::k1:
      return {1};
  }
  return {};
}

const char* Name(Axes axes) {
  static const char* const kNames[] = {"absent",     "[Tk]",       "[Tq,Tk]",      "[Hq,Tq,Tk]", "[Hq,1,Tk]",
                                       "[B,1,1,Tk]", "[B,1,Tq,1]", "[B,Hq,Tq,Tk]", "[1]"};
  return kNames[static_cast<int>(axes)];
}

}  // namespace

std::string ToString(const ProblemSpec& s) {
  std::ostringstream text;
  text << "B " << s.B << ", heads " << s.Hq << "/" << s.Hkv << ", T " << s.Tq << "x" << s.Tk << ", d " << s.dk << "/" << s.dv;
  if (s.scale) text << ", scale " << *s.scale;
  if (s.softcap != 0) text << ", softcap " << s.softcap;
  if (s.alibi) text << ", alibi";
  if (s.sinks) text << ", sinks";
  if (s.bias != Axes::kAbsent) text << ", bias " << fovea::Name(s.bias_type) << Name(s.bias) << " removes " << s.bias_removes;
  if (s.mask != Axes::kAbsent) text << ", mask " << Name(s.mask) << " allows " << s.mask_allows;
  if (s.causal != Causal::kNone) text << (s.causal == Causal::kTopLeft ? ", causal top-left" : ", causal bottom-right");
  if (s.window.left != -1 || s.window.right != -1) text << ", window " << s.window.left << "," << s.window.right;
  if (s.query_offset) text << ", offset " << *s.query_offset;
  if (s.query_offsets != DType::kNone) text << ", offsets " << fovea::Name(s.query_offsets);
  if (s.q_lengths != DType::kNone) text << ", q_lengths " << fovea::Name(s.q_lengths);
  if (s.kv_lengths != DType::kNone) text << ", kv_lengths " << fovea::Name(s.kv_lengths);
  text << (s.lse ? ", lse" : "") << (s.weights ? ", weights" : "");
  text << ", q " << ToString(s.q) << ", k " << ToString(s.k) << ", v " << ToString(s.v) << ", out " << ToString(s.out) << ", rest "
       << ToString(s.rest);
  return text.str();
}

RandomProblem::RandomProblem(const ProblemSpec& s, uint64_t seed) : spec(s) {
  Random random(seed);
  const auto normal = [&] { return random.Normal(); };
  q = OwnedTensor(DType::kF32, {s.B, s.Hq, s.Tq, s.dk}, s.q);
  k = OwnedTensor(DType::kF32, {s.B, s.Hkv, s.Tk, s.dk}, s.k);
  v = OwnedTensor(DType::kF32, {s.B, s.Hkv, s.Tk, s.dv}, s.v);
  q.Fill(normal);
  k.Fill(normal);
  v.Fill(normal);
  if (s.alibi) {
    alibi_slopes = OwnedTensor(DType::kF32, {s.Hq});
    alibi_slopes.Fill([&] { return std::exp2(-8 * random.Uniform()); });
  }
  if (s.sinks) {
    sinks = OwnedTensor(DType::kF32, {s.Hq});
    sinks.Fill([&] { return 2 * random.Normal(); });
  }
  if (s.bias != Axes::kAbsent) {
    bias = OwnedTensor(s.bias_type, Shape(s.bias, s), s.rest);
    bias.Fill([&] { return random.Chance(s.bias_removes) ? -std::numeric_limits<double>::infinity() : random.Normal(); });
  }
  if (s.mask != Axes::kAbsent) {
    mask = OwnedTensor(DType::kBool, Shape(s.mask, s), s.rest);
    mask.Fill([&] { return random.Chance(s.mask_allows) ? 1.0 : 0.0; });
  }
  if (s.q_lengths != DType::kNone) {
    q_lengths = OwnedTensor(s.q_lengths, {s.B});
    q_lengths.Fill([&] { return static_cast<double>(random.Between(0, s.Tq)); });
  }
  if (s.kv_lengths != DType::kNone) {
    kv_lengths = OwnedTensor(s.kv_lengths, {s.B});
    kv_lengths.Fill([&] { return static_cast<double>(random.Between(0, s.Tk)); });
    const double nan = std::numeric_limits<double>::quiet_NaN();
    // Only where batch is stored: with a batch axis of stride 0 the longest sequence decides.
    for (int64_t b = 0; b < s.B; ++b) {
      for (int64_t h = 0; h < s.Hkv; ++h) {
        for (int64_t j = KvLength(b); j < s.Tk; ++j) {
          for (int64_t c = 0; c < s.dk && s.k.broadcast == 0; ++c) k.SetAt({b, h, j, c}, nan);
          for (int64_t c = 0; c < s.dv && s.v.broadcast == 0; ++c) v.SetAt({b, h, j, c}, nan);
        }
      }
    }
  }
  if (s.query_offsets != DType::kNone) {
    query_offsets = OwnedTensor(s.query_offsets, {s.B});
    query_offsets.Fill([&] { return static_cast<double>(random.Between(-s.Tq, s.Tk)); });
  }
  out = OwnedTensor(DType::kF32, {s.B, s.Hq, s.Tq, s.dv}, s.out);
  if (s.lse) lse = OwnedTensor(DType::kF32, {s.B, s.Hq, s.Tq}, s.rest);
  if (s.weights) weights = OwnedTensor(DType::kF32, {s.B, s.Hq, s.Tq, s.Tk}, s.rest);
  Refresh();
}

void RandomProblem::Refresh() {
  problem = Problem();
  problem.q = q.view();
  problem.k = k.view();
  problem.v = v.view();
  problem.out = out.mutable_view();
  problem.lse = lse.mutable_view();
  problem.weights = weights.mutable_view();
  Score& score = problem.score;
  score.scale = spec.scale;
  score.softcap = spec.softcap;
  score.causal = spec.causal;
  score.window = spec.window;
  score.query_offset = spec.query_offset;
  score.alibi_slopes = alibi_slopes.view();
  score.bias = bias.view();
  score.mask = mask.view();
  score.query_offsets = query_offsets.view();
  score.q_lengths = q_lengths.view();
  score.kv_lengths = kv_lengths.view();
  score.sinks = sinks.view();
}

void RandomProblem::ResetOutputs() {
  out.Reset();
  lse.Reset();
  weights.Reset();
}

bool RandomProblem::OutputsUntouched() const { return out.Untouched() && lse.Untouched() && weights.Untouched(); }

bool RandomProblem::OutputPaddingUntouched() const {
  return out.PaddingUntouched() && lse.PaddingUntouched() && weights.PaddingUntouched();
}

int64_t RandomProblem::Offset(int64_t b) const {
  if (spec.query_offset) return *spec.query_offset;
  if (query_offsets.present()) return static_cast<int64_t>(query_offsets.Get(b));
  return spec.causal == Causal::kBottomRight ? KvLength(b) - QLength(b) : 0;
}

bool RandomProblem::InBand(int64_t b, int64_t i, int64_t j) const {
  if (i >= QLength(b) || j >= KvLength(b)) return false;
  const int64_t position = i + Offset(b);
  if (spec.causal != Causal::kNone && j > position) return false;
  if (spec.window.left != -1 && j < position - spec.window.left) return false;
  if (spec.window.right != -1 && j > position + spec.window.right) return false;
  return true;
}

bool RandomProblem::Visible(int64_t b, int64_t h, int64_t i, int64_t j) const {
  if (!InBand(b, i, j)) return false;
  if (mask.present() && Broadcast(mask, b, h, i, j) == 0) return false;
  return !(bias.present() && Broadcast(bias, b, h, i, j) == -std::numeric_limits<double>::infinity());
}

double RandomProblem::Broadcast(const OwnedTensor& tensor, int64_t b, int64_t h, int64_t i, int64_t j) {
  const TensorView view = tensor.view();
  const int64_t index[] = {b, h, i, j};
  int64_t number = 0;
  for (int a = 0; a < view.rank; ++a) number = number * view.shape[a] + (view.shape[a] == 1 ? 0 : index[4 - view.rank + a]);
  return tensor.Get(number);
}

}  // namespace fovea::test
