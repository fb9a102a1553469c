#include "call.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "overlap.h"
#include "pool.h"

namespace fovea::python {
namespace {

[[noreturn]] void Raise(PyObject* type, const std::string& message) {
  PyErr_SetString(type, message.c_str());
  throw nb::python_error();
}

// ---------------------------------------------------------------- keywords

enum class Key {
  kArray,  // one of Array
  kScale,
  kCausal,
  kWindow,
  kQueryOffset,
  kBlockMap,
  kSoftcap,
  kMaskShape,
  kReturnLse,
  kReturnWeights,
  kReturnScores,
  kScoreStage,
  kLayout,
  kOutLayout,
  kThreads,
  kIsa,
  kEngine,
  kProduct,
  kMaxQueries,
  kMaxKeys,
  kFixedMask,
};

struct Keyword {
  const char* name;
  Key key;
  Array array = Array::kCount;
  PyObject* interned = nullptr;
};

// The frequent ones first: the list is searched from the front.
Keyword kKeywords[] = {
    {"out", Key::kArray, Array::kOut},
    {"scale", Key::kScale},
    {"causal", Key::kCausal},
    {"mask", Key::kArray, Array::kMask},
    {"bias", Key::kArray, Array::kBias},
    {"kv_lengths", Key::kArray, Array::kKvLengths},
    {"q_lengths", Key::kArray, Array::kQLengths},
    {"layout", Key::kLayout},
    {"threads", Key::kThreads},
    {"out_layout", Key::kOutLayout},
    {"window", Key::kWindow},
    {"query_offset", Key::kQueryOffset},
    {"return_lse", Key::kReturnLse},
    {"lse", Key::kArray, Array::kLse},
    {"cu_seqlens_q", Key::kArray, Array::kCuSeqlensQ},
    {"cu_seqlens_k", Key::kArray, Array::kCuSeqlensK},
    {"softcap", Key::kSoftcap},
    {"sinks", Key::kArray, Array::kSinks},
    {"alibi_slopes", Key::kArray, Array::kAlibiSlopes},
    {"parents", Key::kArray, Array::kParents},
    {"block_map", Key::kBlockMap},
    {"mask_bits", Key::kArray, Array::kMaskBits},
    {"mask_shape", Key::kMaskShape},
    {"return_weights", Key::kReturnWeights},
    {"weights", Key::kArray, Array::kWeights},
    {"return_scores", Key::kReturnScores},
    {"scores", Key::kArray, Array::kScores},
    {"score_stage", Key::kScoreStage},
    {"isa", Key::kIsa},
    {"engine", Key::kEngine},
    {"product", Key::kProduct},
    {"max_queries", Key::kMaxQueries},
    {"max_keys", Key::kMaxKeys},
    {"fixed_mask", Key::kFixedMask},
};

const Keyword* Find(PyObject* name) {
  static const bool interned = [] {
    for (Keyword& k : kKeywords) k.interned = PyUnicode_InternFromString(k.name);
    return true;
  }();
  (void)interned;
  for (const Keyword& k : kKeywords) {
    if (k.interned == name) return &k;
  }
  // Names that a program makes up at run time are not interned.
  for (const Keyword& k : kKeywords) {
    if (PyUnicode_CompareWithASCIIString(name, k.name) == 0) return &k;
  }
  return nullptr;
}

template <class T>
T Number(nb::handle value, const char* name, const char* expected) {
  T number{};
  if (!nb::try_cast(value, number)) {
    Raise(PyExc_TypeError, std::string(name) + " = " + nb::cast<std::string>(nb::repr(value)) +
                               ", expected " + expected);
  }
  return number;
}

bool Flag(nb::handle value, const char* name) { return Number<bool>(value, name, "True or False"); }

Causal ReadCausal(nb::handle value) {
  if (value.ptr() == Py_False) return Causal::kNone;
  if (value.ptr() == Py_True) return Causal::kBottomRight;
  std::string name;
  if (nb::try_cast(value, name)) {
    std::replace(name.begin(), name.end(), '_', '-');
    if (name == "top-left") return Causal::kTopLeft;
    if (name == "bottom-right") return Causal::kBottomRight;
  }
  Raise(PyExc_ValueError, "causal = " + nb::cast<std::string>(nb::repr(value)) +
                              ", expected None, 'top-left' or 'bottom-right' (what True means)");
}

Window ReadWindow(nb::handle value) {
  if (!nb::isinstance<nb::sequence>(value) || nb::len(value) != 2) {
    Raise(PyExc_TypeError,
          "window = " + nb::cast<std::string>(nb::repr(value)) + ", expected a pair (left, right)");
  }
  const auto side = [](nb::handle v) {
    return v.is_none() ? int64_t{-1} : Number<int64_t>(v, "window", "integers or None");
  };
  return {side(value[0]), side(value[1])};
}

bool ReadLayout(nb::handle value, const char* keyword) {
  std::string name;
  if (nb::try_cast(value, name)) {
    if (name == "BHTD") return false;
    if (name == "BTHD") return true;
  }
  Raise(PyExc_ValueError, std::string(keyword) + " = " + nb::cast<std::string>(nb::repr(value)) +
                              ", expected 'BHTD' or 'BTHD'");
}

const char* Name(ScoreStage stage) {
  static const char* const names[] = {"scaled", "softcapped", "masked", "weights"};
  return names[static_cast<int>(stage)];
}

// The value of an enumeration by its name, of `first` … `last`. ValueError that lists the names
// otherwise.
template <class Enum>
Enum ByName(nb::handle value, const char* argument, Enum first, Enum last) {
  std::string given, names;
  const bool text = nb::try_cast(value, given);
  for (int i = static_cast<int>(first); i <= static_cast<int>(last); ++i) {
    const char* const name = Name(static_cast<Enum>(i));
    if (text && given == name) return static_cast<Enum>(i);
    names += (names.empty() ? "'" : ", '") + std::string(name) + "'";
  }
  Raise(PyExc_ValueError, std::string(argument) + " = " + nb::cast<std::string>(nb::repr(value)) +
                              ", expected one of " + names);
}

}  // namespace

void Options::Read(const nb::kwargs& keywords, Kind kind) {
  PyObject *name, *object;
  Py_ssize_t position = 0;
  while (PyDict_Next(keywords.ptr(), &position, &name, &object)) {
    const Keyword* const keyword = Find(name);
    const bool plans = keyword != nullptr && keyword->key >= Key::kIsa;
    const bool only_plans = keyword != nullptr && keyword->key >= Key::kMaxQueries;
    if (keyword == nullptr || (plans && kind == Kind::kRun) ||
        (only_plans && kind == Kind::kAttention)) {
      const char* const function = kind == Kind::kAttention ? "attention"
                                   : kind == Kind::kPlan    ? "Plan"
                                                            : "Plan.run";
      Raise(PyExc_TypeError, std::string(function) + "() got an unexpected keyword argument " +
                                 nb::cast<std::string>(nb::repr(nb::handle(name))));
    }
    const nb::handle value(object);
    const bool none = value.is_none();
    switch (keyword->key) {
      case Key::kArray:
        arrays[static_cast<size_t>(keyword->array)] = none ? nb::object() : nb::borrow(value);
        break;
      case Key::kScale:
        if (none) {
          score.scale.reset();
        } else {
          score.scale = Number<float>(value, "scale", "a number");
        }
        break;
      case Key::kCausal:
        score.causal = none ? Causal::kNone : ReadCausal(value);
        break;
      case Key::kWindow:
        score.window = none ? Window() : ReadWindow(value);
        break;
      case Key::kQueryOffset:
        score.query_offset.reset();
        arrays[static_cast<size_t>(Array::kQueryOffsets)] = nb::object();
        if (PyLong_Check(object)) {
          score.query_offset = Number<int64_t>(value, "query_offset", "an integer of 64 bits");
        } else if (!none) {
          arrays[static_cast<size_t>(Array::kQueryOffsets)] = nb::borrow(value);
        }
        break;
      case Key::kBlockMap:
        score.block_map = {};
        arrays[static_cast<size_t>(Array::kBlockMap)] = nb::object();
        if (none) break;
        if (!PyTuple_Check(object) || PyTuple_Size(object) != 3) {
          Raise(PyExc_TypeError, "block_map is a " +
                                     nb::cast<std::string>(nb::str(value.type().attr("__name__"))) +
                                     ", expected a tuple (visible, queries, keys)");
        }
        arrays[static_cast<size_t>(Array::kBlockMap)] = value[0];
        score.block_map.queries = Number<int64_t>(value[1], "block_map[1]", "an integer");
        score.block_map.keys = Number<int64_t>(value[2], "block_map[2]", "an integer");
        break;
      case Key::kSoftcap:
        score.softcap = none ? 0 : Number<float>(value, "softcap", "a number");
        break;
      case Key::kMaskShape: {
        mask_rank = 0;
        if (none) break;
        const bool sequence = PyTuple_Check(object) || PyList_Check(object);
        const size_t rank = sequence ? nb::len(value) : 0;
        if (rank < 1 || rank > static_cast<size_t>(kMaxRank))
          Raise(PyExc_TypeError, "mask_shape: expected a tuple of 1 to 4 integers");
        for (size_t a = 0; a < rank; ++a)
          mask_shape[a] = Number<int64_t>(value[a], "mask_shape", "integers");
        mask_rank = static_cast<int>(rank);
        break;
      }
      case Key::kReturnLse:
        return_lse = !none && Flag(value, "return_lse");
        break;
      case Key::kReturnWeights:
        return_weights = !none && Flag(value, "return_weights");
        break;
      case Key::kReturnScores:
        return_scores = !none && Flag(value, "return_scores");
        break;
      case Key::kScoreStage:
        stage = none ? ScoreStage::kMasked
                     : ByName(value, "score_stage", ScoreStage::kScaled, ScoreStage::kWeights);
        break;
      case Key::kLayout:
        bthd = !none && ReadLayout(value, "layout");
        break;
      case Key::kOutLayout:
        out_layout = !none;
        out_bthd = !none && ReadLayout(value, "out_layout");
        break;
      case Key::kThreads:
        threads = none ? 0 : Number<int>(value, "threads", "an integer");
        if (threads < 0)
          Raise(PyExc_ValueError, "threads = " + std::to_string(threads) +
                                      ", expected 1 or more, or 0 for the default");
        break;
      case Key::kIsa:
        plan.target = Target::kAuto;
        if (!none)
          Check(ParseTarget(Number<std::string>(value, "isa", "a string").c_str(), &plan.target));
        break;
      case Key::kEngine:
        plan.engine = none ? Engine::kAuto : ByName(value, "engine", Engine::kAuto, Engine::kRow);
        break;
      case Key::kProduct:
        plan.product =
            none ? Product::kAuto : ByName(value, "product", Product::kAuto, Product::kBF16);
        break;
      case Key::kMaxQueries:
        plan.max_queries = none ? 0 : Number<int64_t>(value, "max_queries", "an integer");
        break;
      case Key::kMaxKeys:
        plan.max_keys = none ? 0 : Number<int64_t>(value, "max_keys", "an integer");
        break;
      case Key::kFixedMask:
        plan.fixed_mask = !none && Flag(value, "fixed_mask");
        break;
    }
  }
  if (!out_layout) out_bthd = bthd;
}

// ---------------------------------------------------------------- a call

namespace {

// The longest of packed sequences, for the size of matrices; what is wrong with cu_seqlens the
// library says.
int64_t Longest(const TensorView& cu_seqlens, int64_t rows) {
  int64_t longest = 0;
  if (cu_seqlens.rank != 1 || cu_seqlens.shape[0] < 2 || cu_seqlens.data == nullptr) return rows;
  const auto at = [&](int64_t i) -> int64_t {
    const char* const element =
        static_cast<const char*>(cu_seqlens.data) + i * cu_seqlens.stride[0];
    if (cu_seqlens.dtype == DType::kI64) {
      int64_t value;
      std::memcpy(&value, element, sizeof value);
      return value;
    }
    int32_t value;
    std::memcpy(&value, element, sizeof value);
    return value;
  };
  if (cu_seqlens.dtype != DType::kI64 && cu_seqlens.dtype != DType::kI32) return rows;
  for (int64_t i = 1; i < cu_seqlens.shape[0]; ++i) {
    const int64_t first = std::clamp<int64_t>(at(i - 1), 0, rows),
                  last = std::clamp<int64_t>(at(i), 0, rows);
    longest = std::max(longest, last - first);
  }
  return longest;
}

// An output that is allocated later: a shape and the strides of a dense array.
MutableTensorView Promised(DType dtype, int rank, const int64_t* shape) {
  MutableTensorView view;
  view.dtype = dtype;
  view.rank = rank;
  int64_t step = SizeOf(dtype);
  for (int a = rank; a-- > 0;) {
    view.shape[a] = shape[a];
    view.stride[a] = step;
    step *= std::max<int64_t>(1, shape[a]);
  }
  return view;
}

}  // namespace

template <class Pointer>
BasicView<Pointer> Call::Lift(BasicView<Pointer> view, bool bthd) const {
  if (lifted_ && view.rank == 3) {
    for (int a = 3; a > 0; --a)
      view.shape[a] = view.shape[a - 1], view.stride[a] = view.stride[a - 1];
    view.rank = 4;
    view.shape[0] = 1;
    view.stride[0] = 0;
  }
  return bthd && view.rank == 4 ? SwapAxes(view, 1, 2) : view;
}

Call::Call(nb::handle q, nb::handle k, nb::handle v, const Options& options)
    : options_(options), library_(LibraryOf(q)) {
  problem_.q = borrower_.Input(q, "q");
  problem_.k = borrower_.Input(k, "k");
  problem_.v = borrower_.Input(v, "v");
  lifted_ = problem_.q.rank == 3 && problem_.k.rank == 3 && problem_.v.rank == 3;
  problem_.q = Lift(problem_.q, options.bthd);
  problem_.k = Lift(problem_.k, options.bthd);
  problem_.v = Lift(problem_.v, options.bthd);

  Score& score = problem_.score;
  score = options.score;
  const auto integers = [&](Array which, const char* name, TensorView* view) {
    if (options.has(which)) *view = borrower_.Integers(options.array(which), name);
  };
  const auto floats = [&](Array which, const char* name, TensorView* view) {
    if (options.has(which)) *view = borrower_.Floats(options.array(which), name);
  };
  integers(Array::kQLengths, "q_lengths", &score.q_lengths);
  integers(Array::kKvLengths, "kv_lengths", &score.kv_lengths);
  integers(Array::kCuSeqlensQ, "cu_seqlens_q", &problem_.cu_seqlens_q);
  integers(Array::kCuSeqlensK, "cu_seqlens_k", &problem_.cu_seqlens_k);
  integers(Array::kQueryOffsets, "query_offset", &score.query_offsets);
  floats(Array::kAlibiSlopes, "alibi_slopes", &score.alibi_slopes);
  floats(Array::kSinks, "sinks", &score.sinks);
  if (options.has(Array::kParents))
    score.parents = borrower_.Input(options.array(Array::kParents), "parents");
  if (options.has(Array::kBias)) score.bias = borrower_.Input(options.array(Array::kBias), "bias");
  if (options.has(Array::kMask)) score.mask = borrower_.Input(options.array(Array::kMask), "mask");
  if (options.has(Array::kBlockMap))
    score.block_map.visible = borrower_.Input(options.array(Array::kBlockMap), "block_map");

  const bool packed_q = problem_.cu_seqlens_q.present(), packed_k = problem_.cu_seqlens_k.present();
  const TensorView &qv = problem_.q, &kv = problem_.k, &vv = problem_.v;
  const int64_t B = packed_q   ? std::max<int64_t>(0, problem_.cu_seqlens_q.shape[0] - 1)
                    : packed_k ? std::max<int64_t>(0, problem_.cu_seqlens_k.shape[0] - 1)
                               : qv.shape[0];
  const int64_t Hq = qv.shape[1], dv = vv.shape[3];
  const int64_t Tq = packed_q ? Longest(problem_.cu_seqlens_q, qv.shape[2]) : qv.shape[2];
  const int64_t Tk = packed_k ? Longest(problem_.cu_seqlens_k, kv.shape[2]) : kv.shape[2];

  if (options.has(Array::kMaskBits)) {
    if (score.mask.present()) Raise(PyExc_ValueError, "mask and mask_bits are both given");
    TensorView bits = borrower_.Bits(options.array(Array::kMaskBits), "mask_bits");
    const int last = bits.rank - 1;
    const int64_t bytes = bits.shape[last];
    bits.shape[last] = Tk;
    if (options.mask_rank != 0) {
      if (options.mask_rank != bits.rank) {
        Raise(PyExc_ValueError, "mask_shape has " + std::to_string(options.mask_rank) +
                                    " axes, expected " + std::to_string(bits.rank) +
                                    " (those of mask_bits)");
      }
      for (int a = 0; a < last; ++a) {
        if (options.mask_shape[static_cast<size_t>(a)] != bits.shape[a])
          Raise(PyExc_ValueError, "mask_shape and mask_bits differ in axis " + std::to_string(a));
      }
      bits.shape[last] = options.mask_shape[static_cast<size_t>(last)];
    }
    const int64_t expected = bits.shape[last] / 8 + (bits.shape[last] % 8 != 0 ? 1 : 0);
    if (bits.shape[last] < 0 || expected != bytes) {
      Raise(PyExc_ValueError, "mask_bits.shape[" + std::to_string(last) +
                                  "] = " + std::to_string(bytes) + " bytes, expected " +
                                  std::to_string(std::max<int64_t>(0, expected)) + " for " +
                                  std::to_string(bits.shape[last]) + " keys");
    }
    score.mask = bits;
  }

  problem_.score_stage = options.stage;
  const int64_t out_shape[] = {qv.shape[0], options.out_bthd ? qv.shape[2] : Hq,
                               options.out_bthd ? Hq : qv.shape[2], dv};
  const int64_t matrix_shape[] = {B, Hq, Tq, Tk};
  const int drop = lifted_ ? 1 : 0;  // axis B, which the caller's arrays do not have
  const int drop_matrix = lifted_ && !packed_q && !packed_k ? 1 : 0;
  problem_.out = Lift(Output(Array::kOut, "out", true, qv.dtype, 4 - drop, out_shape + drop),
                      options.out_bthd);
  const int64_t lse_shape[] = {qv.shape[0], Hq, qv.shape[2]};
  problem_.lse =
      Output(Array::kLse, "lse", options.return_lse, DType::kF32, 3 - drop, lse_shape + drop);
  problem_.weights = Output(Array::kWeights, "weights", options.return_weights, DType::kF32,
                            4 - drop_matrix, matrix_shape + drop_matrix);
  problem_.scores = Output(Array::kScores, "scores", options.return_scores, DType::kF32,
                           4 - drop_matrix, matrix_shape + drop_matrix);
  if (lifted_) {
    const auto lift_by_one = [](MutableTensorView* view, int rank) {
      if (view->rank != rank - 1) return;
      for (int a = rank - 1; a > 0; --a)
        view->shape[a] = view->shape[a - 1], view->stride[a] = view->stride[a - 1];
      view->shape[0] = 1;
      view->stride[0] = 0;
      view->rank = rank;
    };
    lift_by_one(&problem_.lse, 3);
    if (drop_matrix != 0) {
      lift_by_one(&problem_.weights, 4);
      lift_by_one(&problem_.scores, 4);
    }
  }
}

MutableTensorView Call::Output(Array which, const char* name, bool wanted, DType dtype, int rank,
                               const int64_t* shape) {
  if (options_.has(which)) {
    const nb::handle given = options_.array(which);
    outputs_[static_cast<size_t>(which)] = nb::borrow(given);
    return borrower_.Output(given, name);
  }
  return wanted ? Promised(dtype, rank, shape) : MutableTensorView();
}

// Kernels read inputs after they have written outputs, in an order that depends on threads. Arrays
// that are made here are new.
void Call::CheckOverlap() const {
  const Score& score = problem_.score;
  const struct {
    const char* name;
    const TensorView& view;
  } inputs[] = {
      {"q", problem_.q},
      {"k", problem_.k},
      {"v", problem_.v},
      {"cu_seqlens_q", problem_.cu_seqlens_q},
      {"cu_seqlens_k", problem_.cu_seqlens_k},
      {"q_lengths", score.q_lengths},
      {"kv_lengths", score.kv_lengths},
      {"query_offset", score.query_offsets},
      {"bias", score.bias},
      {score.mask.dtype == DType::kBit ? "mask_bits" : "mask", score.mask},
      {"block_map", score.block_map.visible},
      {"parents", score.parents},
      {"alibi_slopes", score.alibi_slopes},
      {"sinks", score.sinks},
  };
  const struct {
    const char* name;
    const MutableTensorView& view;
  } outputs[] = {{"out", problem_.out},
                 {"lse", problem_.lse},
                 {"weights", problem_.weights},
                 {"scores", problem_.scores}};

  for (size_t i = 0; i < std::size(outputs); ++i) {
    if (!outputs_[i].is_valid()) continue;
    const TensorView output = outputs[i].view;
    for (int a = 0; a < output.rank; ++a) {
      if (output.stride[a] == 0 && output.shape[a] > 1) {
        Raise(PyExc_ValueError, std::string(outputs[i].name) + " has stride 0 along an axis of " +
                                    std::to_string(output.shape[a]) +
                                    ", expected memory for every element");
      }
    }
    const auto refuse = [&](const char* other) {
      Raise(PyExc_ValueError, std::string(outputs[i].name) + " and " + other +
                                  " overlap, expected an output in memory of its own");
    };
    for (const auto& input : inputs) {
      if (input.view.present() && Overlap(output, input.view)) refuse(input.name);
    }
    for (size_t j = i + 1; j < std::size(outputs); ++j) {
      if (outputs_[j].is_valid() && Overlap(output, outputs[j].view)) refuse(outputs[j].name);
    }
  }
}

void Call::Allocate() {
  CheckOverlap();
  const auto allocate = [&](Array which, MutableTensorView* view, bool has_batch) {
    nb::object& output = outputs_[static_cast<size_t>(which)];
    if (!view->present() || output.is_valid()) return;
    // The view is [B, H, T, d]; the array is as the caller's arrays are.
    int64_t shape[kMaxRank];
    std::copy(view->shape, view->shape + view->rank, shape);
    if (which == Array::kOut && options_.out_bthd) std::swap(shape[1], shape[2]);
    const int drop = lifted_ && has_batch ? 1 : 0;
    output = Empty(library_, view->dtype, view->rank - drop, shape + drop, &view->data);
  };
  const bool packed = problem_.cu_seqlens_q.present() || problem_.cu_seqlens_k.present();
  allocate(Array::kOut, &problem_.out, true);
  allocate(Array::kLse, &problem_.lse, true);
  allocate(Array::kWeights, &problem_.weights, !packed);
  allocate(Array::kScores, &problem_.scores, !packed);
}

nb::object Call::Results() const {
  size_t n = 0;
  for (const nb::object& output : outputs_) n += output.is_valid() ? 1 : 0;
  if (n == 1) return outputs_[0];
  nb::object results = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(n)));
  Py_ssize_t i = 0;
  for (const nb::object& output : outputs_) {
    if (output.is_valid()) PyTuple_SetItem(results.ptr(), i++, nb::object(output).release().ptr());
  }
  return results;
}

// ---------------------------------------------------------------- errors, threads, memory

namespace {

PyObject* unsupported_error = nullptr;

// One per thread, so that runs of several threads do not meet. Small ones are kept for the next
// call.
struct Memory {
  void* data = nullptr;
  size_t bytes = 0;
  ~Memory() { std::free(data); }
  void Release() {
    std::free(data);
    data = nullptr;
    bytes = 0;
  }
};
thread_local Memory memory;
constexpr size_t kKeep = size_t{1} << 20;

}  // namespace

void SetUnsupportedError(nb::handle type) { unsupported_error = type.inc_ref().ptr(); }

void Check(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return;
    case StatusCode::kInvalidArgument:
      Raise(PyExc_ValueError, status.message());
    case StatusCode::kUnsupported:
      Raise(unsupported_error, status.message());
    case StatusCode::kOutOfMemory:
      Raise(PyExc_MemoryError, status.message());
  }
}

int ThreadsFor(const Cost& cost, int asked) {
  // Waking a thread that sleeps takes some ten microseconds; a core does about 10⁶ operations in it
  // and reads about 2·10⁵ bytes. Below a few times of that a second thread cannot gain anything
  // worth its wake-up.
  constexpr double kFewFlops = 4e6, kFewBytes = 1e6;
  const int threads = asked > 0 ? asked : DefaultThreads();
  if (cost.flops < kFewFlops && cost.kv_bytes < kFewBytes) return 1;
  return static_cast<int>(std::clamp<int64_t>(cost.tasks, 1, threads));
}

Status RunHere(const Plan& plan, const Call& call, int threads) noexcept {
  const Problem& problem = call.problem();
  const size_t bytes = plan.WorkspaceBytes(threads);
  if (bytes > memory.bytes) {
    memory.Release();
    memory.data = std::malloc(bytes);
    if (memory.data == nullptr)
      return Status(StatusCode::kOutOfMemory, "no memory for the workspace");
    memory.bytes = bytes;
  }
  Status status;
  if (threads == 1) {
    status = Run(plan, problem, {memory.data, memory.bytes});
  } else if (call.library() == Library::kTorch && OpenMPExecutor::Available()) {
    OpenMPExecutor executor(threads);
    status = Run(plan, problem, {memory.data, memory.bytes}, executor);
  } else {
    PoolExecutor executor(threads);
    status = Run(plan, problem, {memory.data, memory.bytes}, executor);
  }
  if (memory.bytes > kKeep) memory.Release();
  return status;
}

}  // namespace fovea::python
