// The problems that Fovea is measured on: shapes, what modifies their scores, and their names.
// Tensors are in workload_tensors.h.
//
// Letters: B sequences, Hq query heads, Hkv key/value heads, Tq queries, Tk keys, dk query/key
// size, dv value size. The last query stands at the last key: query i is at position i + Tk − Tq,
// for everything that goes by positions.
#ifndef FOVEA_MEASURE_WORKLOAD_H_
#define FOVEA_MEASURE_WORKLOAD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "fovea/tensor.h"

namespace fovea::measure {

// Boolean masks.
enum class MaskKind {
  kNone,
  kRandom,    // [Tq, Tk], a tenth of the pairs removed at random
  kPadding,   // [B, 1, 1, Tk], the last 100 keys removed, but at most half of them
  kTriangle,  // [1, 1, Tq, Tk], of what causal allows
  kBand,      // [1, 1, Tq, Tk], of what causal and a window of kBandKeys keys allow
};
constexpr int64_t kBandKeys = 256;

constexpr int64_t kDocuments = 4;

// Additive biases, f32.
enum class BiasKind {
  kNone,
  kDense,     // [Hq, Tq, Tk], normally distributed
  kDistance,  // [1, Hq, Tq, Tk], of what ALiBi adds
  kKeys,      // [1, 1, 1, Tk], normally distributed
};

struct Workload {
  std::string name;
  int64_t B = 0, Hq = 0, Hkv = 0, Tq = 0, Tk = 0, dk = 0, dv = 0;
  bool causal = false;       // bottom-right: the last query sees every key
  DType type = DType::kF32;  // of q, k, v and out: f32, f16 or bf16

  DType kv_type = DType::kNone;  // of k and v where it is a quantised one
  int64_t page_keys = 0;  // k and v are in pages of so many keys, in no order; 0: they are not

  int64_t window = 0;  // keys that a query sees, the last one at its own position; 0: all
  float softcap = 0;
  bool alibi = false, sinks = false, head_scales = false;
  bool documents = false;  // of kDocuments that lie behind each other, a query sees its own
  MaskKind mask = MaskKind::kNone;
  BiasKind bias = BiasKind::kNone;
  bool additive = false;  // the mask is given as a bias of 0 and −inf, f32
  bool nan = false;       // in the rows of K and V that the padding mask removes
  // V is the first dv channels of K, as in multi-head latent attention
  bool values_in_keys = false;
  std::string modifiers;  // all of that as in names: "softcap+alibi"; not the type

  // Few queries over a long cache: bound by reading K and V, which come from memory in a model of
  // many layers.
  bool IsDecode() const { return Tq <= 16 && Tq < Tk; }
  // Whether more than shape and causal decides about scores.
  bool ModifiesScores() const;
  bool HasShapeOf(const Workload& other) const;  // the same B … dv

  int64_t PaddingKeys() const;                  // that kPadding removes
  bool MaskAllows(int64_t i, int64_t j) const;  // the boolean mask alone
  // The first key of query i's document and the first behind it. Of equal documents, to a key.
  void DocumentOf(int64_t i, int64_t* first, int64_t* end) const;
  // visible (query, key) pairs of all query heads; O(Tq·Tk) with a boolean mask
  double Pairs() const;
  DType TypeOfKv() const { return kv_type == DType::kNone ? type : kv_type; }
  // Pages of a sequence, the last of which may have room for more keys; 0: there are none.
  int64_t Pages() const { return page_keys == 0 ? 0 : (Tk + page_keys - 1) / page_keys; }
  // Keys of a sequence that k and v have room for.
  int64_t StoredKeys() const { return page_keys == 0 ? Tk : Pages() * page_keys; }
  // Bytes of the scales of k or of v: f32, one for each token and head, where they lie apart.
  int64_t ScaleBytes() const { return HasScaleViews(TypeOfKv()) ? 4 * B * Hkv * StoredKeys() : 0; }
  // 2·pairs·(dk + dv): a multiplication and an addition for each product of q·k and p·v
  double Flops() const;
  // of K and V, without keys outside of every query's window or document
  double KvBytes() const;
  int64_t Position(int64_t i) const { return i + Tk - Tq; }
};

// P1 … P6 prefill, D1 … D3 decode, F1 a long sequence without a mask, X0 and its variants of shape
// and score X1 … X17.
const std::vector<Workload>& NamedWorkloads();

// WORKLOAD[+MODIFIER]…, where WORKLOAD is one of the names or B,Hq[/Hkv],Tq[xTk],d[,dv][,causal]:
// "P2+softcap+alibi", "1,32/8,1x4096,128", "1,8,2048,64,causal+window=256". False with a message in
// *error.
//
//   softcap                            at 20
//   alibi                              slopes 2^(−8(h+1)/Hq)
//   sinks                              one for each query head
//   headscales                         1 + h/Hq, times the scale
//   ranges                             key_ranges of documents, see Workload::documents
//   mask, padmask, trimask, bandmask   MaskKind's kRandom, kPadding, kTriangle, kBand; at most one
//   additive                           behind a mask: Workload::additive; no bias then
//   nan                                padmask, and NaN behind it
//   bias, distbias, keybias            BiasKind's kDense, kDistance, kKeys; at most one
//   window=N                           see Workload::window
//   mla                                see Workload::values_in_keys
//   bf16, f16                          Workload::type; f32 without
//   kv=TYPE                            Workload::kv_type: i8, u4, f8_e4m3fn, q8_0, …
//   pages=N                            see Workload::page_keys
bool ParseWorkload(const std::string& text, Workload* workload, std::string* error);

// `workload`, which is in f32, in that type: "P1+bf16" from P1.
Workload InType(const Workload& workload, DType type);

// "modifiers": P2 and what modifies its scores. "variants": X0 … X17. Empty for other names.
std::vector<Workload> WorkloadSet(const std::string& name);

// What a workload is compared with: itself in f32 and without modifiers, but for "nan" with
// "padmask" in its place, so that they differ in nothing but the NaNs; X0 for X1 … X17; else
// itself.
Workload BaseOf(const Workload& workload);

}  // namespace fovea::measure

#endif  // FOVEA_MEASURE_WORKLOAD_H_
