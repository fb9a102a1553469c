#include "support/problem_spec.h"

#include <sstream>

namespace fovea::test {
namespace {

const char* Name(Axes axes) {
  static const char* const kNames[] = {"absent",     "[Tk]",         "[Tq,Tk]",
                                       "[Hq,Tq,Tk]", "[Hq,1,Tk]",    "[B,1,1,Tk]",
                                       "[B,1,Tq,1]", "[B,Hq,Tq,Tk]", "[1]"};
  return kNames[static_cast<int>(axes)];
}

const char* Name(ScoreStage stage) {
  static const char* const kNames[] = {"scaled", "softcapped", "masked", "weights"};
  return kNames[static_cast<int>(stage)];
}

}  // namespace

std::string ToString(const ProblemSpec& s) {
  std::ostringstream text;
  text << "B " << s.B << ", heads " << s.Hq << "/" << s.Hkv << ", T " << s.Tq << "x" << s.Tk
       << ", d " << s.dk << "/" << s.dv;
  if (s.scale) text << ", scale " << *s.scale;
  if (s.softcap != 0) text << ", softcap " << s.softcap;
  if (s.head_scales) text << ", head scales";
  if (s.alibi) text << ", alibi";
  if (s.sinks) text << ", sinks";
  if (s.bias != Axes::kAbsent)
    text << ", bias " << fovea::Name(s.bias_type) << Name(s.bias) << " removes " << s.bias_removes;
  if (s.bias_scales) text << ", bias scales";
  if (s.function) text << ", function removes " << s.function_removes;
  if (s.mask != Axes::kAbsent)
    text << ", mask " << fovea::Name(s.mask_type) << Name(s.mask) << " allows " << s.mask_allows;
  if (s.fixed_mask) text << ", fixed";
  if (s.block_map != Axes::kAbsent) {
    text << ", block map " << fovea::Name(s.block_map_type) << Name(s.block_map) << " of "
         << s.block_queries << "x" << s.block_keys << " allows " << s.block_map_allows;
  }
  if (s.parents != DType::kNone) text << ", tree " << fovea::Name(s.parents);
  if (s.causal != Causal::kNone)
    text << (s.causal == Causal::kTopLeft ? ", causal top-left" : ", causal bottom-right");
  if (s.window.left != -1 || s.window.right != -1)
    text << ", window " << s.window.left << "," << s.window.right;
  if (s.query_offset) text << ", offset " << *s.query_offset;
  if (s.query_offsets != DType::kNone) text << ", offsets " << fovea::Name(s.query_offsets);
  if (s.q_lengths != DType::kNone) text << ", q_lengths " << fovea::Name(s.q_lengths);
  if (s.kv_lengths != DType::kNone) text << ", kv_lengths " << fovea::Name(s.kv_lengths);
  if (s.key_ranges != DType::kNone)
    text << ", key ranges " << fovea::Name(s.key_ranges) << (s.one_key_ranges ? " of all" : "");
  if (s.cu_seqlens_q != DType::kNone) text << ", cu_seqlens_q " << fovea::Name(s.cu_seqlens_q);
  if (s.cu_seqlens_k != DType::kNone) text << ", cu_seqlens_k " << fovea::Name(s.cu_seqlens_k);
  if (s.page_table != DType::kNone)
    text << ", pages of " << s.page << " " << fovea::Name(s.page_table)
         << (s.page_begins ? " in a list" : "");
  if (s.ring) text << ", ring";
  if (s.key_offsets != DType::kNone) text << ", key offsets " << fovea::Name(s.key_offsets);
  text << (s.lse ? ", lse" : "") << (s.weights ? ", weights" : "");
  if (s.scores) text << ", scores " << Name(*s.scores);
  const auto tensor = [&](const char* name, DType type, const Storage& storage) {
    text << ", " << name << " " << fovea::Name(type) << " " << ToString(storage);
  };
  tensor("q", s.q_type, s.q);
  tensor("k", s.k_type, s.k);
  tensor("v", s.v_type, s.v);
  tensor("out", s.out_type, s.out);
  text << ", rest " << ToString(s.rest);
  return text.str();
}

ProblemSpec SmallSpec() {
  ProblemSpec s;
  s.B = 2, s.Hq = 4, s.Hkv = 2, s.Tq = 19, s.Tk = 70, s.dk = 20, s.dv = 18, s.weights = true;
  return s;
}

std::vector<ProblemSpec> VariedSpecs() {
  std::vector<ProblemSpec> specs(11);
  ProblemSpec& scores = specs[0];
  scores.B = 2, scores.Hq = 4, scores.Hkv = 2, scores.Tq = 40, scores.Tk = 90, scores.dk = 20,
  scores.dv = 24, scores.scale = -0.3f;
  scores.causal = Causal::kTopLeft, scores.window = {50, 3}, scores.softcap = 3,
  scores.alibi = true, scores.sinks = true;
  scores.bias = Axes::kBHQK, scores.bias_type = DType::kF16, scores.mask = Axes::kHQK,
  scores.weights = true;
  scores.q_lengths = DType::kI32, scores.kv_lengths = DType::kI64,
  scores.query_offsets = DType::kI32;
  scores.k.layout = Layout::kTransposed, scores.q.layout = Layout::kSwapped,
  scores.v.layout = Layout::kReversed;
  ProblemSpec& decode = specs[1];
  decode.B = 2, decode.Hq = 8, decode.Hkv = 2, decode.Tk = 3000, decode.dk = 64, decode.dv = 64,
  decode.kv_lengths = DType::kI32, decode.v.layout = Layout::kPage;
  specs[2].Tq = 3, specs[2].Tk = 0;
  ProblemSpec& removes = specs[3];
  removes.B = 2, removes.Hq = 4, removes.Hkv = 2, removes.Tq = 40, removes.Tk = 290,
  removes.dk = 20, removes.dv = 24, removes.causal = Causal::kBottomRight,
  removes.mask = Axes::kBHQK, removes.mask_type = DType::kBit, removes.block_map = Axes::kHQK,
  removes.block_queries = 6, removes.block_keys = 50, removes.parents = DType::kI64,
  removes.scores = ScoreStage::kSoftcapped;
  ProblemSpec& packed = specs[4];
  packed.B = 5, packed.Hq = 4, packed.Hkv = 2, packed.Tq = 40, packed.Tk = 290, packed.dk = 20,
  packed.dv = 24, packed.cu_seqlens_q = DType::kI32, packed.cu_seqlens_k = DType::kI64,
  packed.mask = Axes::kQK, packed.fixed_mask = true, packed.weights = true,
  packed.scores = ScoreStage::kWeights;
  ProblemSpec& halves = specs[5];
  halves.B = 1, halves.Hq = 3, halves.Hkv = 3, halves.Tq = 50, halves.Tk = 70, halves.dk = 64,
  halves.dv = 32, halves.query_offset = 15;
  halves.q_type = halves.k_type = halves.v_type = halves.out_type = DType::kBF16,
  halves.causal = Causal::kTopLeft;
  ProblemSpec& stages = specs[6];
  stages.Hq = 2, stages.Hkv = 1, stages.Tq = 20, stages.Tk = 33, stages.dk = 5, stages.dv = 6,
  stages.scores = ScoreStage::kScaled;
  stages.q_type = DType::kF16, stages.v_type = DType::kBF16, stages.lse = false;
  ProblemSpec& function = specs[7];
  function.B = 2, function.Hq = 4, function.Hkv = 2, function.Tq = 40, function.Tk = 90,
  function.dk = 20, function.dv = 24, function.head_scales = function.bias_scales = true;
  function.bias = Axes::kHQK, function.key_ranges = DType::kI64, function.function = true;
  ProblemSpec& pages = specs[8];
  pages.B = 3, pages.Hq = 6, pages.Hkv = 2, pages.Tq = 5, pages.Tk = 200, pages.dk = 20,
  pages.dv = 24, pages.page_table = DType::kI32, pages.page = 16, pages.kv_lengths = DType::kI32,
  pages.q_lengths = DType::kI32, pages.causal = Causal::kBottomRight, pages.bias = Axes::kHQK,
  pages.weights = true;
  ProblemSpec& list = specs[9];
  list.B = 2, list.Hq = 4, list.Hkv = 2, list.Tq = 40, list.Tk = 290, list.dk = 20, list.dv = 24,
  list.page_table = DType::kI64, list.page = 3, list.page_begins = true,
  list.kv_lengths = DType::kI64, list.key_offsets = DType::kI64, list.cu_seqlens_q = DType::kI32,
  list.mask = Axes::kBHQK, list.window = {60, 20}, list.scores = ScoreStage::kMasked;
  ProblemSpec& ring = specs[10];
  ring.B = 3, ring.Hq = 4, ring.Hkv = 2, ring.Tq = 3, ring.Tk = 150, ring.dk = 20, ring.dv = 24,
  ring.ring = true, ring.kv_lengths = DType::kI32, ring.causal = Causal::kBottomRight,
  ring.alibi = true, ring.sinks = true;
  return specs;
}

ProblemSpec WithTypes(ProblemSpec spec, DType type) {
  spec.q_type = spec.k_type = spec.v_type = spec.out_type = type;
  return spec;
}

}  // namespace fovea::test
