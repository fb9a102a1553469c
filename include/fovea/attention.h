// Scaled dot-product attention: softmax(scale·Q·Kᵀ + …)·V, streaming, so that no score matrix is
// ever stored.
//
// Letters: B sequences, Hq query heads, Hkv key/value heads, Tq queries, Tk keys, dk query/key
// size, dv value size. Query head h reads KV head h / (Hq/Hkv).
//
// Floating-point state: everything here is computed in the default one (to nearest, nothing
// trapped, nothing flushed to zero) whatever that of the calling threads is, which each of them has
// back afterwards, flags included. No bit of a result depends on it.
#ifndef FOVEA_ATTENTION_H_
#define FOVEA_ATTENTION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "fovea/allocator.h"
#include "fovea/cache.h"
#include "fovea/detail/macros_begin.h"
#include "fovea/executor.h"
#include "fovea/export.h"
#include "fovea/score.h"
#include "fovea/status.h"
#include "fovea/target.h"
#include "fovea/tensor.h"

namespace fovea {

// At which step a score is given out.
enum class ScoreStage : int32_t {
  kScaled = 0,      // scale·head_scale·(q·k)
  kSoftcapped = 1,  // after softcap
  // after ALiBi, bias, function and masks: what softmax sees; −inf for removed pairs
  kMasked = 2,
  kWeights = 3,  // after softmax: 0 for removed pairs
};

// One attention problem: the caller's tensors, any strides (bytes), each with its own type. Outputs
// must not overlap inputs or each other. B, Tq and Tk may be 0; dk and dv are 1 or greater.
struct Problem {
  TensorView q;  // [B, Hq, Tq, dk]
  TensorView k;  // [B, Hkv, Tk, dk]; a float type or a quantised one
  TensorView v;  // [B, Hkv, Tk, dv]; likewise, whatever that of k is
  Score score;   // scale, bias, masks, lengths, …; by default softmax(q·k/√dk) over all keys

  // Packed (ragged) batches: i32 or i64 [B + 1], rising from 0 or more. With cu_seqlens_q the
  // queries of sequence b are rows cu_seqlens_q[b] ≤ row < cu_seqlens_q[b + 1] of q, out and lse,
  // whose batch axis is 1 and whose third axis counts the rows of all sequences; with cu_seqlens_k
  // likewise the keys of k and v. Either may be packed alone. Rows outside of every sequence are
  // neither read nor written. Read while a plan is made.
  TensorView cu_seqlens_q;
  TensorView cu_seqlens_k;  // of the keys, as cu_seqlens_q of the queries; not together with pages

  // k and v lie in pages; score.kv_lengths says how many keys of each sequence are resident. Read
  // and checked by every run, or once by plans: PlanOptions::fixed_tables.
  PageTable pages;
  // k and v are rings of Tk rows: the key of position p lies in row p mod Tk. score.kv_lengths then
  // counts the keys so far and may exceed Tk: the last min(Tk, kv_length) are resident. Not
  // together with pages, cu_seqlens_k or score.key_offsets.
  bool ring = false;

  // Quantised k or v (IsQuantised): of types with HasScaleViews an element is (u − zero)·scale, in
  // f32 and in that order. Four axes, each of 1 to as many elements as that axis of k has: element
  // a of an axis uses element ⌊a·n_scale / n_k⌋ of it, so that 1 is shared by all and fewer are
  // groups (which the two may have each its own). They may point into the same bytes as the codes.
  // Scales that no visible key uses have no influence. Errors: absent scales of integer codes,
  // scales or zeros of other types, a zero beside f32_z4.
  TensorView k_scale;  // f32, f16, bf16, or f32_z4, which holds zeros too; of fp8 optional
  TensorView k_zero;   // optional: f32, f16, bf16, i32, i8 or u8; 0 where absent
  TensorView v_scale;  // of v, as k_scale
  TensorView v_zero;   // of v, as k_zero
  // Bytes from one group of channels that share scales to the next, where something lies between
  // the groups of a row; 0: the channels of a row are dense. kUnsupported for groups of different
  // lengths or of parts of units.
  int64_t k_group_stride = 0;
  int64_t v_group_stride = 0;  // of v, as k_group_stride

  MutableTensorView out;  // [B, Hq, Tq, dv]
  // optional, f32 [B, Hq, Tq]: natural logarithm of the softmax denominator, the sink included;
  // −inf for empty rows
  MutableTensorView lse;
  // Optional, f32 [B, Hq, Tq, Tk] (packed: of the longest sequence, rows and keys that a sequence
  // lacks are 0): softmax weights; costs a second pass over Q and K.
  MutableTensorView weights;
  // Optional, the same shape: scores at `score_stage`. At kScaled and kSoftcapped of every pair of
  // a query and a key within their lengths, whether masks remove it or not; pairs behind the
  // lengths are −inf. Costs another pass over Q and K.
  MutableTensorView scores;
  ScoreStage score_stage = ScoreStage::kMasked;  // of scores; without effect where they are absent
};

// What SIMD lanes hold while scores are computed. Results differ by rounding alone.
enum class Engine : int32_t {
  kAuto = 0,  // from shapes, types and target
  kTile = 1,  // SIMD lanes hold queries: prefill
  kRow = 2,   // SIMD lanes hold the head dimension: decode
};

// "auto", "tile", "row"; "unknown" for values outside the enumeration.
FOVEA_EXPORT const char* Name(Engine engine) noexcept;

// What multiplies. Sums are f32 in any case.
enum class Product : int32_t {
  kAuto = 0,  // from types and target
  kF32 = 1,   // multiply-adds in f32: narrower types are widened
  // Dot products of bf16: q, k and v must be bf16; softmax weights are rounded to bf16 before they
  // multiply V. x86's instructions count what is below 2^−126 as 0: elements of k and v, of q times
  // the scale's power of two, and the products and sums themselves. So values of v around 2^−126
  // times their weights may give anything between 0 and what f32 products give. Only the tile
  // engine has them.
  kBF16 = 2,
};

// "auto", "f32", "bf16"; "unknown" for values outside the enumeration.
FOVEA_EXPORT const char* Name(Product product) noexcept;

// What a caller may prescribe to a plan. The defaults are right for most.
struct PlanOptions {
  // StatusCode::kUnsupported for one that this build lacks or this CPU cannot run: see
  // UsableTargets
  Target target = Target::kAuto;
  Engine engine = Engine::kAuto;  // of all sequences
  // kBF16: StatusCode::kUnsupported where the target has no such products, kInvalidArgument for
  // other types of q, k or v, or with Engine::kRow
  Product product = Product::kAuto;
  int64_t max_queries = 0;  // room for Update: the largest Tq to come; 0 = that of the problem
  int64_t max_keys = 0;     // room for Update: the largest Tk to come; 0 = that of the problem
  // score.mask is read by Create and Update, which note where it removes what; its contents then
  // must not change until the next Update. Without it every run reads the whole mask first, which
  // is right for masks that change from run to run.
  bool fixed_mask = false;
  // The same of score.bias, of which only where it is −inf or 0 is noted: its other values may
  // change from run to run, as between the layers of a model.
  bool fixed_bias = false;
  // pages.table and pages.begins are read and checked by Create and Update; their contents, and the
  // data of k and v where pages are, then must not change in what they name until the next Update:
  // runs trust them. Without it every run checks the numbers of all pages that it needs.
  bool fixed_tables = false;
  // Of the plan, and of the workspace where Attention allocates one.
  Allocator allocator;

  // test hook: at most so many query rows in a tile; 0 = the plan's choice. Changes rounding
  int32_t tile_rows = 0;
  // test hook: at most so many keys in a block; 0 = the plan's choice. Changes rounding
  int32_t block_keys = 0;
  // test hook: at most so many keys in a split; 0 = the plan's choice. Changes rounding
  int64_t split_keys = 0;
};

// What a plan will do, estimated from shapes, lengths, causal and window alone.
struct Cost {
  // 4·pairs·(dk + dv)/2, pairs counted as visible ones (a boolean mask or bias is not looked at)
  double flops = 0;
  double kv_bytes = 0;  // bytes of K and V read at least once
  double pairs = 0;     // visible (query, key) pairs over all heads
  int64_t tasks = 0;    // of the largest phase: more threads than this cannot help
};

// How a problem will be computed. Immutable between Create and Update, so one plan may be run by
// several threads at the same time (each run with its own workspace). A plan holds no pointer into
// the caller's tensors: it binds shapes, types, lengths, offsets, causal, window and which tensors
// are present, and Run refuses a problem that differs in them; strides, data, scale,
// softcap and which score function may change from run to run, so one plan serves all layers of a
// step.
class FOVEA_EXPORT Plan {
 public:
  // An invalid plan; owns nothing.
  Plan() noexcept;
  // Gives the memory back to the allocator of the options.
  ~Plan();
  // Leaves an invalid plan behind.
  Plan(Plan&&) noexcept;
  // Releases what this plan held; leaves an invalid plan behind.
  Plan& operator=(Plan&&) noexcept;

  // Checks everything about `problem` but its data pointers (only lengths, offsets and cu_seqlens
  // are read, and a fixed mask) and replaces *plan. Allocates. On an error *plan is unchanged.
  static Status Create(const Problem& problem, const PlanOptions& options, Plan* plan) noexcept;

  // Plans again for new lengths, offsets, Tq and Tk, in place and without allocating; ask for
  // WorkspaceBytes again. Errors: anything that Create would refuse, a change of B, Hq, Hkv, dk,
  // dv, types or of which tensors are present, or sizes beyond the room reserved by Create. On an
  // error the plan is unchanged.
  Status Update(const Problem& problem) noexcept;

  // False before the first successful Create, and after a move.
  bool valid() const noexcept { return state_ != nullptr; }
  // Bytes that a run with that many workers needs, whatever the alignment of the memory: a fixed
  // part for each worker plus split partials. 0 for an invalid plan or workers < 1.
  size_t WorkspaceBytes(int workers) const noexcept;
  // The target whose kernels will run, never kAuto; kAuto for an invalid plan.
  Target target() const noexcept;
  // That of the costliest sequence: those with few queries may have another one.
  Engine engine() const noexcept;
  // kBF16 if that of any sequence is, since it is what the precision of the whole depends on.
  Product product() const noexcept;
  // An estimate for hosts that decide what to run where; all 0 for an invalid plan.
  Cost cost() const noexcept;
  // Several lines for people: shapes, target, engine, tile, block, splits, items, workspace.
  std::string ToString() const;

  struct State;
  // For the library's own sources.
  const State* state() const noexcept { return state_.get(); }

 private:
  struct Destroy {
    void operator()(State* state) const noexcept;
  };
  std::unique_ptr<State, Destroy> state_;
};

// Memory that a run may use: any address, at least Plan::WorkspaceBytes(workers) bytes, not shared
// with another run at the same time.
struct Workspace {
  void* data = nullptr;  // belongs to the caller; any alignment
  size_t bytes = 0;      // at `data`
};

// Runs `plan` on the tensors of `problem`. Never allocates by itself (an executor might).
// Thread-safe for distinct outputs and workspaces. An executor that does not call every task once,
// or calls what does not exist, is kInvalidArgument, and outputs hold anything.
FOVEA_EXPORT Status Run(const Plan& plan, const Problem& problem, Workspace workspace,
                        Executor& executor = SerialExecutor()) noexcept;

// Plan, workspace and run in one call, on `executor`. Allocates with malloc, but nothing for a
// small call (16 KiB of the stack). Thread-safe for distinct outputs.
FOVEA_EXPORT Status Attention(const Problem& problem,
                              Executor& executor = SerialExecutor()) noexcept;

// Plan, workspace and run in one call. Plan and workspace come from options.allocator, and are
// given back before it returns.
FOVEA_EXPORT Status Attention(const Problem& problem, const PlanOptions& options,
                              Executor& executor) noexcept;

// The host-driven path: a checked call as phases of independent tasks. The host runs every task of
// a phase, on any threads and in any order, waits for all of them (a barrier), and goes on to the
// next phase:
//
//   BoundCall call;
//   Status s = Bind(plan, problem, workspace, workers, &call);
//   for (int phase = 0; phase < call.Phases(); ++phase) {
//     // every thread: call.RunTask(phase, i, worker) for its share of the i < call.Tasks(phase)
//     // barrier
//   }
//
// A BoundCall owns nothing: plan, tensors and workspace must outlive it. Trivially copyable; no
// heap.
class FOVEA_EXPORT BoundCall {
 public:
  // How many phases there are, each behind a barrier; 0 before Bind.
  int Phases() const noexcept;
  // How many tasks a phase has; 0 for a phase that does not exist.
  int64_t Tasks(int phase) const noexcept;
  // Runs one task; phase and task must exist. `worker` in [0, workers of Bind); no two concurrent
  // tasks may share one. Never throws, allocates or blocks. That each task runs once is up to the
  // host: nobody counts here.
  void RunTask(int phase, int64_t task, int worker) const noexcept;

 private:
  friend Status Bind(const Plan& plan, const Problem& problem, Workspace workspace, int workers,
                     BoundCall* call) noexcept;
  const Plan::State* plan_ = nullptr;
  Problem problem_;
  char* workspace_ = nullptr;
};

// Checks `problem` against `plan`, as Run does, and fills *call. No allocation; on an error *call
// is unchanged.
FOVEA_EXPORT Status Bind(const Plan& plan, const Problem& problem, Workspace workspace, int workers,
                         BoundCall* call) noexcept;

}  // namespace fovea

#include "fovea/detail/macros_end.h"

#endif  // FOVEA_ATTENTION_H_
