// The Python module fovea._core: attention, plans, merging, threads and instruction sets. What is
// exported here is documented in fovea/_core.pyi too.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "array.h"
#include "call.h"
#include "cpus.h"
#include "errors.h"
#include "fovea/merge.h"
#include "fovea/version.h"
#include "gil.h"
#include "numbers.h"
#include "operator.h"
#include "overlap.h"
#include "pool.h"
#include "running.h"

namespace fovea::python {
namespace {

const char* const kAttentionDoc =
    R"(Scaled dot-product attention, softmax(scale·q·kᵀ + …)·v, without a score matrix in memory.

Letters: B sequences, Hq query heads, Hkv key/value heads, Tq queries, Tk keys, dk and dv sizes. Query head h reads KV head
h // (Hq // Hkv).

q [B, Hq, Tq, dk], k [B, Hkv, Tk, dk], v [B, Hkv, Tk, dv], or all three without B. Arrays are NumPy arrays (ml_dtypes.bfloat16 included), PyTorch tensors on the
CPU, or anything with DLPack or the buffer protocol: float32, float16 or bfloat16, each with its own type and any strides (transposed, negative, zero). Nothing is
copied or cast; what does not fit raises.

Keywords, each None or left out when not wanted:
  out             array to write instead of a new one: [B, Hq, Tq, dv] in `layout`; memory that no input and no other output has
  scale           multiplies q·k; 1/√dk by default
  causal          'top-left' (query i sees keys j ≤ i), 'bottom-right' (the last query sees every key; what True means)
  window          (left, right): query i sees keys i + offset − left … i + offset + right; None or −1 leaves a side open
  query_offset    position of query 0 among the keys: an integer, or one per sequence (array or list of B)
  q_lengths, kv_lengths   array or list of B integers; rows behind q_lengths give out 0 and lse −inf, keys behind kv_lengths are never read
  key_offsets     position of the first key of each sequence, array or list of B: a cache that has dropped what lay before
  ring            True: k and v are rings, the key of position p lies in row p mod Tk; kv_lengths counts the keys so far and may exceed Tk
  page_table      int32 or int64 [B, max]: numbers of pages. k and v are then [pages, Hkv, page, d], and key n of sequence b is row n % page of page_table[b, n // page]
  page_begins     array or list of B + 1: the numbers of sequence b are those from page_begins[b] on, in a page_table of one axis
  page_keys       Tk of pages; as many as fit by default
  cu_seqlens_q, cu_seqlens_k   packed batches, array or list of B + 1 integers: then q and out (k and v) are [1, H, rows, d] or [H, rows, d]
  bias            added to scores, float32, float16 or bfloat16; broadcast to [B, Hq, Tq, Tk]; −inf removes a pair
  mask            bool, True = attend; broadcast as bias
  mask_bits       the same as uint8, eight keys in a byte, the first in bit 0 (numpy.packbits(…, axis=-1, bitorder='little'))
  mask_shape      shape of mask_bits in booleans, where its last axis is not Tk
  block_map       (visible, queries, keys): a bool array over blocks of queries × keys; False removes all pairs of a block
  parents         int32 or int64 [B, Tq]: a tree of queries (speculative decoding), −1 for roots
  alibi_slopes    float32 [Hq], or a list: score −= slope·|i + offset − j|
  softcap         c: score = c·tanh(score / c)
  head_scales     float32 [Hq], or a list: multiplies the scale of each head, as in cosine attention
  bias_scales     float32 [Hq], or a list: multiplies the bias of each head
  key_ranges      int32 or int64 [B, Tq, 2], or [1, Tq, 2] for all sequences: query i sees keys begin ≤ j < end (documents, prefixes, images in a text)
  score_function  a compiled function that changes scores behind the bias, or (function, context): see help(fovea.score_function)
  sinks           float32 [Hq], or a list: one logit per head that only adds to the softmax denominator
  return_lse      also return the natural logarithm of the softmax denominator, float32 [B, Hq, Tq]
  return_weights  also return the softmax weights, float32 [B, Hq, Tq, Tk] (packed: Tq and Tk of the longest sequence)
  return_scores   also return scores, as weights, at score_stage: 'scaled', 'softcapped', 'masked' (default) or 'weights'
  lse, weights, scores   arrays to write instead of new ones, as out; returned too
  layout          'BHTD' (default), or 'BTHD' for q, k, v and out [B, T, H, d]
  out_layout      the layout of out where it differs
  threads         at most so many, the calling one included; default get_threads(). Small problems use one. Results do not depend on it, bit for bit
  isa             'avx2', 'avx512', …: one of targets(); the best by default
  engine          'auto', 'tile' (prefill) or 'row' (decode)
  product         'auto', 'f32' or 'bf16': what multiplies

Returns out, or a tuple of out and those of lse, weights, scores that were asked for, in this order: arrays of PyTorch where q is one of PyTorch, else of NumPy.

Raises TypeError for arguments of the wrong kind and element types that Fovea has none of; ValueError for sizes that do not match, other devices, tensors that
require gradients, and outputs that are read-only or share memory with anything else of the call; UnsupportedError (a ValueError) for legal problems that this build
cannot compute. On an error nothing was written.

Thread safety: may be called from any threads at the same time; the GIL is released while it computes. Arrays must not be written meanwhile.)";

const char* const kPlanDoc =
    R"(How a problem will be computed, kept for many runs: Plan(q, k, v, **keywords) with the keywords of attention().

A plan binds shapes, types, lengths, offsets, causal and window, and which arrays are present; run() refuses what differs. Data, strides, scale and softcap may
change, and which score_function it is, but not whether there is one. It keeps references to what the keywords hold (masks, lengths, functions, …) and none to q, k, v.
Further keywords:
  max_queries, max_keys   the largest Tq and Tk that update() will be asked for
  fixed_mask              the mask's contents do not change until the next update(): where it removes what is noted once
  fixed_tables            page_table and page_begins do not change until the next update(): checked once
  fixed_bias              where the bias is -inf or 0 does not change until the next update(): noted once; its other values may change

Thread safety: run() may be called from several threads at the same time; update() waits until no run is under way.)";

nb::object Attention(nb::handle q, nb::handle k, nb::handle v, const nb::kwargs& keywords) {
  Options options;
  options.Read(keywords, Options::Kind::kAttention);
  Call call(q, k, v, options);
  Plan plan;
  Status status;
  {
    const WithoutGil release;
    status = Plan::Create(call.problem(), options.plan, &plan);
  }
  Check(status);
  call.Allocate();
  bool interrupted;
  {
    WithoutGil release;
    status = RunHere(plan, call.problem(), call.library(), ThreadsFor(plan.cost(), options.threads),
                     &release, &interrupted);
  }
  if (interrupted) throw nb::python_error();
  Check(status);
  return call.Results();
}

template <class Function>
double Least(int repeats, Function function) {
  double least = 1e9;
  for (int round = 0; round < 5; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < repeats; ++i) Check(function());
    least = std::min(
        least,
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / repeats);
  }
  return least;
}

// Seconds of one call in C++, plan and workspace included.
double TimeAttention(nb::handle q, nb::handle k, nb::handle v, int repeats) {
  const Options options;
  Call call(q, k, v, options);
  call.Allocate();
  return Least(repeats, [&] { return fovea::Attention(call.problem()); });
}

class PlanObject {
 public:
  PlanObject(nb::handle q, nb::handle k, nb::handle v, const nb::kwargs& keywords) {
    options_.Read(keywords, Options::Kind::kPlan);
    const Call call(q, k, v, options_);
    Describe(call, keywords);
    if (options_.plan.max_queries == 0) keywords_["max_queries"] = call.problem().q.shape[2];
    if (options_.plan.max_keys == 0) keywords_["max_keys"] = call.problem().k.shape[2];
    Status status;
    {
      const WithoutGil release;
      status = Plan::Create(call.problem(), options_.plan, &plan_);
      if (status.ok()) cost_ = plan_.cost();
    }
    Check(status);
  }

  void Update(nb::handle q, nb::handle k, nb::handle v, const nb::kwargs& keywords) {
    Options options = options_;
    options.Read(keywords, Options::Kind::kRun);
    const Call call(q, k, v, options);
    Status status;
    {
      // The lock is taken without the GIL, which those who hold the lock need to let go of it.
      const WithoutGil release;
      std::unique_lock<std::shared_mutex> lock(mutex_);
      status = plan_.Update(call.problem());
      if (status.ok()) cost_ = plan_.cost();
    }
    Check(status);
    options_ = std::move(options);
    Describe(call, keywords);
  }

  // Of a plan without data: (function, arguments) that make it again.
  nb::object Reduce() const {
    if (options_.score.function.present()) {
      Raise(PyExc_TypeError,
            "a plan with a score_function, which is an address in this process, cannot be pickled "
            "or copied");
    }
    return nb::make_tuple(nb::module_::import_("fovea._plan").attr("plan_of"),
                          nb::make_tuple(tensors_, keywords_));
  }

  nb::object Run(nb::handle q, nb::handle k, nb::handle v, const nb::kwargs& keywords) {
    // A copy, whose references outlive the run: update() may replace options_ while the GIL is
    // released.
    Options options = options_;
    options.Read(keywords, Options::Kind::kRun);
    Call call(q, k, v, options);
    call.Allocate();
    Status status;
    bool interrupted;
    {
      WithoutGil release;
      std::shared_lock<std::shared_mutex> lock(mutex_);
      status = RunHere(plan_, call.problem(), call.library(), ThreadsFor(cost_, options.threads),
                       &release, &interrupted);
    }
    if (interrupted) throw nb::python_error();
    Check(status);
    return call.Results();
  }

  // Seconds of one run in C++, without Python: the least of five rounds.
  double TimeRun(nb::handle q, nb::handle k, nb::handle v, int repeats) {
    Call call(q, k, v, options_);
    call.Allocate();
    return Least(repeats, [&] {
      bool interrupted;
      WithoutGil release;
      const Status status = RunHere(plan_, call.problem(), call.library(),
                                    ThreadsFor(cost_, options_.threads), &release, &interrupted);
      return interrupted ? Status(StatusCode::kInvalidArgument, "interrupted") : status;
    });
  }

  std::string ToString() const { return plan_.ToString(); }
  const char* target() const { return Name(plan_.target()); }
  const char* engine() const { return Name(plan_.engine()); }
  const char* product() const { return Name(plan_.product()); }
  double flops() const { return cost_.flops; }
  double kv_bytes() const { return cost_.kv_bytes; }
  double pairs() const { return cost_.pairs; }
  int64_t tasks() const { return cost_.tasks; }
  size_t WorkspaceBytes(nb::handle threads) const {
    return plan_.WorkspaceBytes(SmallInteger(threads, "threads", "an integer"));
  }

 private:
  void Describe(const Call& call, const nb::kwargs& keywords) {
    const auto tensor = [&](const TensorView& view) {
      nb::list shape;
      for (int a = call.lifted() ? 1 : 0; a < view.rank; ++a) shape.append(view.shape[a]);
      return nb::make_tuple(nb::tuple(shape), Name(view.dtype));
    };
    const Problem& problem = call.problem();
    tensors_ = nb::make_tuple(tensor(problem.q), tensor(problem.k), tensor(problem.v));
    for (auto [name, value] : keywords) keywords_[name] = value;
  }

  Options options_;
  nb::object tensors_;  // shapes [B, H, T, d] and types of q, k and v
  nb::dict keywords_;   // all that it was made and updated with
  Plan plan_;
  Cost cost_;
  std::shared_mutex mutex_;
};

bool Same(const TensorView& a, const TensorView& b) {
  bool same = a.data == b.data && a.rank == b.rank;
  for (int axis = 0; axis < a.rank; ++axis) {
    same = same && a.shape[axis] == b.shape[axis] &&
           (a.stride[axis] == b.stride[axis] || a.shape[axis] == 1);
  }
  return same;
}

// A part is read where the result is written, so that out and lse may be those of a part; nothing
// else may be shared.
void RefuseOverlap(const std::vector<PartialState>& parts, const TensorView& out,
                   const TensorView& lse) {
  const auto refuse = [](const char* what, const TensorView& a, const TensorView& b,
                         bool may_be_same) {
    if ((may_be_same && Same(a, b)) || !Overlap(a, b)) return;
    Raise(PyExc_ValueError,
          std::string(what) +
              " overlap, expected an output in memory of its own, or that of one part");
  };
  refuse("out and lse", out, lse, false);
  for (const PartialState& part : parts) {
    refuse("out and out of a part", out, part.out, true);
    refuse("out and lse of a part", out, part.lse, false);
    refuse("lse and lse of a part", lse, part.lse, true);
    refuse("lse and out of a part", lse, part.out, false);
  }
}

// (out, lse) of the union of disjoint key sets.
nb::object MergeParts(nb::handle parts, nb::handle out, nb::handle lse) {
  Borrower borrower;
  std::vector<PartialState> states;
  Library library = Library::kNumpy;
  int drop = 0;
  for (nb::handle part : parts) {
    if ((!PyTuple_Check(part.ptr()) && !PyList_Check(part.ptr())) || nb::len(part) != 2) {
      Raise(PyExc_TypeError, "parts: expected pairs (out, lse)");
    }
    const nb::object part_out = part[0], part_lse = part[1];
    PartialState state;
    state.out = borrower.Input(part_out, "out of a part");
    state.lse = borrower.Input(part_lse, "lse of a part");
    if (states.empty()) {
      library = LibraryOf(part_out);
      drop = state.out.rank == 3 && state.lse.rank == 2 ? 1 : 0;
    }
    states.push_back(state);
  }
  const auto lift = [drop](auto view, int rank) {
    if (drop == 0 || view.rank != rank - 1) return view;
    for (int a = rank - 1; a > 0; --a)
      view.shape[a] = view.shape[a - 1], view.stride[a] = view.stride[a - 1];
    view.shape[0] = 1, view.stride[0] = 0, view.rank = rank;
    return view;
  };
  for (PartialState& state : states) state.out = lift(state.out, 4), state.lse = lift(state.lse, 3);

  const auto result = [&](nb::handle given, const char* name, int rank, const TensorView* like,
                          nb::object* object) {
    if (!given.is_none()) {
      *object = nb::borrow(given);
    } else {
      int64_t shape[kMaxRank] = {};
      for (int a = 0; like != nullptr && a < rank; ++a) shape[a] = like->shape[a];
      void* data;
      *object = Empty(library, DType::kF32, rank - drop, shape + drop, &data);
    }
    return lift(borrower.Output(*object, name), rank);
  };
  nb::object out_object, lse_object;
  const MutableTensorView out_view =
      result(out, "out", 4, states.empty() ? nullptr : &states[0].out, &out_object);
  const MutableTensorView lse_view =
      result(lse, "lse", 3, states.empty() ? nullptr : &states[0].lse, &lse_object);
  if (!out.is_none() || !lse.is_none()) RefuseOverlap(states, out_view, lse_view);
  Status status;
  {
    const WithoutGil release;
    status = fovea::Merge(states.data(), static_cast<int64_t>(states.size()), out_view, lse_view);
  }
  Check(status);
  return nb::make_tuple(out_object, lse_object);
}

nb::object Slopes(nb::handle given_heads, nb::handle given_max_bias) {
  const int64_t heads = Integer(given_heads, "heads", "an integer");
  const float max_bias = Float(given_max_bias, "max_bias", "a number");
  if (heads < 0) {
    Raise(PyExc_ValueError, "heads = " + std::to_string(heads) + ", expected 0 or more");
  }
  void* data;
  nb::object slopes = Empty(Library::kNumpy, DType::kF32, 1, &heads, &data);
  AlibiSlopes(heads, static_cast<float*>(data), max_bias);
  return slopes;
}

std::vector<std::string> Names(TargetList list) {
  std::vector<std::string> names;
  for (Target target : list) names.emplace_back(Name(target));
  return names;
}

std::string Active() {
  Target target;
  Check(ActiveTarget(&target));
  return Name(target);
}

void SetThreads(nb::handle given) {
  const int threads = SmallInteger(given, "threads", "an integer");
  if (threads < 1) {
    Raise(PyExc_ValueError, "threads = " + std::to_string(threads) + ", expected 1 or more");
  }
  SetDefaultThreads(threads);
}

}  // namespace

NB_MODULE(_core, m) {
  // Whoever forgets the module and imports it again gets what there is: types are registered once.
  static PyObject* first = nullptr;
  if (first != nullptr) {
    PyDict_Update(PyModule_GetDict(m.ptr()), PyModule_GetDict(first));
    return;
  }
  first = nb::handle(m).inc_ref().ptr();
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(&EndGil));

  m.doc() = "Fovea's library, bound. Use the package fovea.";
  m.attr("__version__") = std::to_string(FOVEA_VERSION_MAJOR) + "." +
                          std::to_string(FOVEA_VERSION_MINOR) + "." +
                          std::to_string(FOVEA_VERSION_PATCH);

  PrepareForks();
  nb::dict names;
  names["__doc__"] = "A legal problem that this build cannot compute: fall back to something else.";
  names["__module__"] = "fovea";
  nb::object unsupported = nb::handle(reinterpret_cast<PyObject*>(&PyType_Type))(
      "UnsupportedError", nb::make_tuple(nb::handle(PyExc_ValueError)), names);
  m.attr("UnsupportedError") = unsupported;
  SetUnsupportedError(unsupported);

  m.def("attention", &Attention, nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(),
        nb::arg("kwargs"), kAttentionDoc);

  nb::class_<PlanObject>(m, "Plan", kPlanDoc)
      .def(nb::init<nb::handle, nb::handle, nb::handle, const nb::kwargs&>(), nb::arg("q").none(),
           nb::arg("k").none(), nb::arg("v").none(), nb::arg("kwargs"))
      .def("run", &PlanObject::Run, nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(),
           nb::arg("kwargs"),
           "Runs the plan on these tensors; keywords as of attention(), over those that the plan "
           "was made with. Returns as attention() "
           "does.")
      .def("update", &PlanObject::Update, nb::arg("q").none(), nb::arg("k").none(),
           nb::arg("v").none(), nb::arg("kwargs"),
           "Plans again, in place, for new lengths, offsets, Tq and Tk within max_queries and "
           "max_keys. On an error the plan is as it was.")
      .def("workspace_bytes", &PlanObject::WorkspaceBytes, nb::arg("threads") = 1,
           "Bytes of scratch memory that a run with so many threads uses.")
      .def_prop_ro("isa", &PlanObject::target, "The instruction set.")
      .def_prop_ro("engine", &PlanObject::engine, "'tile' or 'row'.")
      .def_prop_ro("product", &PlanObject::product, "'f32' or 'bf16'.")
      .def_prop_ro("flops", &PlanObject::flops,
                   "Floating-point operations, 2·pairs·(dk + dv), pairs counted as visible ones.")
      .def_prop_ro("kv_bytes", &PlanObject::kv_bytes,
                   "Bytes of K and V that are read at least once.")
      .def_prop_ro("pairs", &PlanObject::pairs, "Visible (query, key) pairs over all heads.")
      .def_prop_ro("tasks", &PlanObject::tasks, "More threads than this cannot help.")
      .def("__reduce__", &PlanObject::Reduce)
      .def("_time_run", &PlanObject::TimeRun, nb::arg("q"), nb::arg("k"), nb::arg("v"),
           nb::arg("repeats"))
      .def("__str__", &PlanObject::ToString);

  m.def("_operator", &RunOperator, nb::arg("q"), nb::arg("k"), nb::arg("v"),
        nb::arg("attn_mask").none(), nb::arg("causal"), nb::arg("scale").none(), nb::arg("groups"),
        nb::arg("threads"), nb::arg("second"), nb::arg("options").none(), nb::arg("out").none());
  m.def("_cpu_quota", &CpuQuota, nb::arg("root"));
  m.def("_time_attention", &TimeAttention, nb::arg("q"), nb::arg("k"), nb::arg("v"),
        nb::arg("repeats"));
  m.def(
      "merge", &MergeParts, nb::arg("parts"), nb::arg("out") = nb::none(),
      nb::arg("lse") = nb::none(),
      R"(The attention state (out, lse) over the union of disjoint key sets, from the states of each: [(out, lse), …].

out is float32 [B, Hq, Tq, dv], lse float32 [B, Hq, Tq], as attention(…, return_lse=True) gives them; all parts have the same shapes. A part with lse −inf counts for
nothing. Parts merge in the order given, so results are repeatable. `out` and `lse` are arrays to write instead of new ones, and may be those of one part.)");
  m.def(
      "alibi_slopes", &Slopes, nb::arg("heads"), nb::arg("max_bias") = 8.0f,
      "The standard ALiBi slopes of so many query heads, float32 [heads] (Press et al. 2021, §3).");
  m.def(
      "targets", [] { return Names(UsableTargets()); },
      "Names of the instruction sets that this CPU can run, the best first.");
  m.def(
      "compiled_targets", [] { return Names(CompiledTargets()); },
      "Names of the instruction sets that this build has, the most capable first.");
  m.def("active_target", &Active,
        "The instruction set that calls use unless they say isa=…: FOVEA_TARGET of the "
        "environment, or the best one.");
  m.def("set_threads", &SetThreads, nb::arg("threads"),
        "The number of threads of calls that do not say it, the calling one included; 1 or more.");
  m.def("get_threads", &DefaultThreads,
        "The number of threads of calls that do not say it: at first that of the CPUs that the "
        "process may use: those of its affinity, and no more than its control groups' quota.");
}

}  // namespace fovea::python
