// The tensors of a problem: one row for each says all that the library asks about it. Checks,
// plans, the C interface and the Python package are loops over these rows.
#ifndef FOVEA_SRC_TENSORS_H_
#define FOVEA_SRC_TENSORS_H_

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>

#include "fovea/attention.h"

namespace fovea {

enum class Role : uint8_t { kInput, kOutput };

// The types that it may have, and how messages call them.
struct Types {
  uint32_t set;  // bit n: the DType n
  const char* words;

  constexpr bool Has(DType dtype) const { return (set >> static_cast<uint32_t>(dtype) & 1) != 0; }
};
template <class... DTypes>
constexpr uint32_t SetOf(DTypes... dtypes) {
  return ((uint32_t{1} << static_cast<uint32_t>(dtypes)) | ...);
}
inline constexpr Types kF32 = {SetOf(DType::kF32), "f32"};
inline constexpr Types kFloats = {SetOf(DType::kF32, DType::kF16, DType::kBF16),
                                  "f32, f16 or bf16"};
// What k and v may be.
inline constexpr Types kFloatsOrCodes = {
    kFloats.set | SetOf(DType::kI8, DType::kU8, DType::kI4, DType::kU4, DType::kI4High,
                        DType::kU4High, DType::kF8E4M3FN, DType::kF8E5M2, DType::kQ8_0,
                        DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kIQ4NL),
    "f32, f16, bf16 or a quantised type (i8, u8, i4, u4, i4_high, u4_high, f8_e4m3fn, f8_e5m2, "
    "q8_0, q4_0, q4_1, q5_0, q5_1 or iq4_nl)"};
inline constexpr Types kScales = {kFloats.set | SetOf(DType::kF32Z4), "f32, f16, bf16 or f32_z4"};
inline constexpr Types kZeros = {kFloats.set | SetOf(DType::kI32, DType::kI8, DType::kU8),
                                 "f32, f16, bf16, i32, i8 or u8"};
inline constexpr Types kIntegers = {SetOf(DType::kI32, DType::kI64), "i32 or i64"};
inline constexpr Types kBooleans = {SetOf(DType::kBool, DType::kBit), "bool or bit"};

// The size that an axis has, by where it is said. kAny: it says a size itself.
enum class Axis : uint8_t {
  kAny,
  kB,
  kHq,
  kTq,  // of packed batches: of the longest sequence
  kTk,
  kBatchOfQ,  // the axes of q; the third counts the rows of all packed sequences
  kHeadsOfQ,
  kRowsOfQ,
  kSizeOfV,
  kQueryBlocks,  // of the block map
  kKeyBlocks,
  kEnds,  // begin and end of an interval
};
constexpr int kAxes = static_cast<int>(Axis::kEnds) + 1;

struct Shape {
  int8_t rank;
  int8_t least_rank;  // a tensor of fewer axes has the last of them
  uint8_t ones;       // bit a: axis a may be 1 instead, which stands for all
  Axis axes[kMaxRank];

  constexpr bool MayBeOne(int axis) const { return (ones >> axis & 1) != 0; }
};
template <class... Axes>
constexpr Shape Exactly(Axes... axes) {
  return {sizeof...(axes), sizeof...(axes), 0, {axes...}};
}
// As in NumPy.
template <class... Axes>
constexpr Shape BroadcastTo(Axes... axes) {
  return {sizeof...(axes), 1, (1 << sizeof...(axes)) - 1, {axes...}};
}
inline constexpr Shape kSizes = Exactly(Axis::kAny, Axis::kAny, Axis::kAny, Axis::kAny);
inline constexpr Shape kStarts = Exactly(Axis::kAny);
inline constexpr Shape kTable = {2, 1, 0, {Axis::kAny, Axis::kAny}};
inline constexpr Shape kOutputs =
    Exactly(Axis::kBatchOfQ, Axis::kHeadsOfQ, Axis::kRowsOfQ, Axis::kSizeOfV);
inline constexpr Shape kOutputRows = Exactly(Axis::kBatchOfQ, Axis::kHeadsOfQ, Axis::kRowsOfQ);
inline constexpr Shape kMatrix = Exactly(Axis::kB, Axis::kHq, Axis::kTq, Axis::kTk);
inline constexpr Shape kPairs = BroadcastTo(Axis::kB, Axis::kHq, Axis::kTq, Axis::kTk);
inline constexpr Shape kBlocks =
    BroadcastTo(Axis::kB, Axis::kHq, Axis::kQueryBlocks, Axis::kKeyBlocks);
inline constexpr Shape kPerHead = Exactly(Axis::kHeadsOfQ);
inline constexpr Shape kPerSequence = Exactly(Axis::kB);
inline constexpr Shape kPerQuery = Exactly(Axis::kB, Axis::kTq);
// Sequences may share theirs.
inline constexpr Shape kRangePerQuery = {3, 3, 1, {Axis::kB, Axis::kTq, Axis::kEnds}};

struct TensorRow {
  const char* name;  // of messages
  Role role;
  Shape shape;
  Types types;
  bool required = false;
  bool by_plans = false;   // its data are read while planning, and must be there then; else by runs
  bool rank_bound = true;  // a plan is for this rank alone: 0 where the tensor is absent …
  bool type_bound = false;  // … and for this type
  bool walked = false;      // kernels step along its strides, those of axes of one element included

  constexpr TensorRow Required() const {
    TensorRow row = *this;
    return row.required = true, row;
  }
  constexpr TensorRow ByPlans() const {
    TensorRow row = *this;
    return row.by_plans = true, row;
  }
  // A plan binds what it says (lengths, offsets), not how.
  constexpr TensorRow ValuesBound() const {
    TensorRow row = *this;
    return row.rank_bound = false, row;
  }
  constexpr TensorRow TypeBound() const {
    TensorRow row = *this;
    return row.type_bound = true, row;
  }
  constexpr TensorRow Walked() const {
    TensorRow row = *this;
    return row.walked = true, row;
  }
};
constexpr TensorRow Input(const char* name, const Shape& shape, const Types& types) {
  return {name, Role::kInput, shape, types};
}
constexpr TensorRow Output(const char* name, const Shape& shape, const Types& types) {
  return {name, Role::kOutput, shape, types};
}

// A row, and where the tensor is: view(problem) is a reference to it.
template <class Get>
struct Tensor {
  TensorRow row;
  Get view;
};
template <class Get>
Tensor(TensorRow, Get) -> Tensor<Get>;

// Where the list finds what is not a member of the problem itself. A struct that has the same
// tensors, but all as its members, joins in by overloads of its own.
inline Score& ScoreOf(Problem& problem) { return problem.score; }
inline const Score& ScoreOf(const Problem& problem) { return problem.score; }
inline TensorView& MapIn(BlockMap& map) { return map.visible; }
inline const TensorView& MapIn(const BlockMap& map) { return map.visible; }
inline TensorView& PagesIn(Problem& problem) { return problem.pages.table; }
inline const TensorView& PagesIn(const Problem& problem) { return problem.pages.table; }
inline TensorView& BeginsIn(Problem& problem) { return problem.pages.begins; }
inline const TensorView& BeginsIn(const Problem& problem) { return problem.pages.begins; }

inline constexpr auto kTensors = std::make_tuple(
    Tensor{Input("q", kSizes, kFloats).Required().TypeBound().Walked(),
           [](auto& p) -> auto& { return p.q; }},
    Tensor{Input("k", kSizes, kFloatsOrCodes).Required().TypeBound().Walked(),
           [](auto& p) -> auto& { return p.k; }},
    Tensor{Input("v", kSizes, kFloatsOrCodes).Required().TypeBound().Walked(),
           [](auto& p) -> auto& { return p.v; }},
    Tensor{Input("k_scale", kSizes, kScales).Walked(), [](auto& p) -> auto& { return p.k_scale; }},
    Tensor{Input("k_zero", kSizes, kZeros).Walked(), [](auto& p) -> auto& { return p.k_zero; }},
    Tensor{Input("v_scale", kSizes, kScales).Walked(), [](auto& p) -> auto& { return p.v_scale; }},
    Tensor{Input("v_zero", kSizes, kZeros).Walked(), [](auto& p) -> auto& { return p.v_zero; }},
    Tensor{Input("cu_seqlens_q", kStarts, kIntegers).ByPlans(),
           [](auto& p) -> auto& { return p.cu_seqlens_q; }},
    Tensor{Input("cu_seqlens_k", kStarts, kIntegers).ByPlans(),
           [](auto& p) -> auto& { return p.cu_seqlens_k; }},
    Tensor{Input("pages.table", kTable, kIntegers), [](auto& p) -> auto& { return PagesIn(p); }},
    Tensor{Input("pages.begins", kStarts, kIntegers), [](auto& p) -> auto& { return BeginsIn(p); }},
    Tensor{Output("out", kOutputs, kFloats).Required().TypeBound().Walked(),
           [](auto& p) -> auto& { return p.out; }},
    Tensor{Output("lse", kOutputRows, kF32), [](auto& p) -> auto& { return p.lse; }},
    Tensor{Output("weights", kMatrix, kF32).Walked(), [](auto& p) -> auto& { return p.weights; }},
    Tensor{Output("scores", kMatrix, kF32).Walked(), [](auto& p) -> auto& { return p.scores; }},
    Tensor{Input("query_offsets", kPerSequence, kIntegers).ByPlans().ValuesBound(),
           [](auto& p) -> auto& { return ScoreOf(p).query_offsets; }},
    Tensor{Input("q_lengths", kPerSequence, kIntegers).ByPlans().ValuesBound(),
           [](auto& p) -> auto& { return ScoreOf(p).q_lengths; }},
    Tensor{Input("kv_lengths", kPerSequence, kIntegers).ByPlans().ValuesBound(),
           [](auto& p) -> auto& { return ScoreOf(p).kv_lengths; }},
    Tensor{Input("key_offsets", kPerSequence, kIntegers).ByPlans().ValuesBound(),
           [](auto& p) -> auto& { return ScoreOf(p).key_offsets; }},
    Tensor{Input("head_scales", kPerHead, kF32),
           [](auto& p) -> auto& { return ScoreOf(p).head_scales; }},
    Tensor{Input("alibi_slopes", kPerHead, kF32),
           [](auto& p) -> auto& { return ScoreOf(p).alibi_slopes; }},
    Tensor{Input("sinks", kPerHead, kF32), [](auto& p) -> auto& { return ScoreOf(p).sinks; }},
    Tensor{Input("bias", kPairs, kFloats).TypeBound().Walked(),
           [](auto& p) -> auto& { return ScoreOf(p).bias; }},
    Tensor{Input("bias_scales", kPerHead, kF32),
           [](auto& p) -> auto& { return ScoreOf(p).bias_scales; }},
    Tensor{Input("mask", kPairs, kBooleans).Walked(),
           [](auto& p) -> auto& { return ScoreOf(p).mask; }},
    Tensor{Input("block_map.visible", kBlocks, kBooleans),
           [](auto& p) -> auto& { return MapIn(ScoreOf(p).block_map); }},
    Tensor{Input("parents", kPerQuery, kIntegers),
           [](auto& p) -> auto& { return ScoreOf(p).parents; }},
    Tensor{Input("key_ranges", kRangePerQuery, kIntegers),
           [](auto& p) -> auto& { return ScoreOf(p).key_ranges; }});

constexpr int kTensorCount = static_cast<int>(std::tuple_size_v<decltype(kTensors)>);

template <class Function, class Get, class... Problems>
void Visit(Function& f, const Tensor<Get>& tensor, Problems&... problems) {
  f(tensor.row, tensor.view(problems)...);
}

// Calls f(row, view, …) for each tensor, in the order of the rows: of one problem, or with the
// views of several structs side by side.
template <class Function, class... Problems>
void ForEachTensor(Function&& f, Problems&... problems) {
  std::apply([&](const auto&... tensor) { (Visit(f, tensor, problems...), ...); }, kTensors);
}

}  // namespace fovea

#endif  // FOVEA_SRC_TENSORS_H_
