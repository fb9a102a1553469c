#include "operator.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>

#include "call.h"
#include "numbers.h"
#include "running.h"

namespace fovea::python {
namespace {

std::atomic<uint64_t> runs{0};
std::atomic<bool> observed{false};
PyObject* observer = nullptr;  // guarded by the GIL

// [B, H, Tq, Tk], or without B.
nb::object NoWeights(const Call& call) {
  static constexpr int64_t kOne[kMaxRank] = {1, 1, 1, 1}, kZero[kMaxRank] = {};
  const Problem& problem = call.problem();
  const int64_t shape[] = {problem.q.shape[0], problem.q.shape[1], problem.q.shape[2],
                           problem.k.shape[2]};
  const int lacked = call.lifted() ? 1 : 0;
  void* data;
  nb::object weights =
      EmptyTorch(problem.q.dtype, kMaxRank - lacked, kOne, shape + lacked, kZero, &data);
  if (problem.q.dtype == DType::kF32) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(data, &nan, sizeof nan);
  } else {
    const uint16_t nan = 0x7fff;  // of either format of 16 bits
    std::memcpy(data, &nan, sizeof nan);
  }
  return weights;
}

// Of heads without a batch PyTorch lets no mask add one.
bool MaskFits(const Call& call) {
  const Score& score = call.problem().score;
  return !call.lifted() || (score.mask.rank <= 3 && score.bias.rank <= 3);
}

}  // namespace

bool IsDense(const TensorView& view) {
  bool dense = true;
  int64_t step = SizeOf(view.dtype);
  for (int a = view.rank; a-- > 0;) {
    dense = dense && (view.stride[a] == step || view.shape[a] == 1);
    step *= view.shape[a];
  }
  return dense;
}

bool FitsPyTorch(const Problem& problem, bool groups) {
  const TensorView &q = problem.q, &k = problem.k, &v = problem.v;
  const bool ranks = q.rank == 4 && k.rank == 4 && v.rank == 4;
  const bool sizes = q.shape[0] == k.shape[0] && std::equal(k.shape, k.shape + 3, v.shape) &&
                     q.shape[3] == k.shape[3] && q.shape[3] > 0 && v.shape[3] > 0;
  const bool heads = k.shape[1] == 1 || q.shape[1] == k.shape[1] ||
                     (groups && k.shape[1] > 0 && q.shape[1] % k.shape[1] == 0);
  return ranks && sizes && heads;
}

uint64_t KernelRuns() { return runs.load(); }
void CountRun() { runs.fetch_add(1, std::memory_order_relaxed); }

void Observe(nb::handle given) {
  observed.store(!given.is_none());
  Py_XDECREF(observer);
  observer = given.is_none() ? nullptr : given.inc_ref().ptr();
}
bool IsObserved() { return observed.load(std::memory_order_relaxed); }

nb::object RunOperator(nb::handle q, nb::handle k, nb::handle v, nb::handle attn_mask, bool causal,
                       nb::handle scale, bool groups, int threads, bool wants_weights,
                       nb::handle more, nb::handle out) {
  static const size_t mask_row = TensorOf("mask"), bias_row = TensorOf("bias"),
                      out_row = TensorOf("out");
  static PyObject* const dtype_name = PyUnicode_InternFromString("dtype");
  Options options;
  options.for_dispatcher = true;
  if (!more.is_none()) options.Read(nb::borrow<nb::kwargs>(more), Options::Kind::kAttention);
  options.threads = threads;
  if (causal) options.score.causal = Causal::kTopLeft;
  if (!scale.is_none()) options.score.scale = Float(scale, "scale", "a number");
  if (!attn_mask.is_none()) {
    const nb::object dtype = nb::steal(PyObject_GetAttr(attn_mask.ptr(), dtype_name));
    if (!dtype.is_valid()) throw nb::python_error();
    const bool is_bool = dtype.is(Torch().dtypes[static_cast<size_t>(DType::kBool)]);
    nb::object& row = options.arrays[is_bool ? mask_row : bias_row];
    if (row.is_valid()) {
      Raise(PyExc_ValueError,
            "attn_mask is added to the scores and bias is given too, expected one of them");
    }
    row = nb::borrow(attn_mask);
  }
  if (!out.is_none()) options.arrays[out_row] = nb::borrow(out);

  Call call(q, k, v, options);
  // With `out` it was prepared, and the library says what is wrong with it.
  const bool repeated = groups && !call.lifted();
  if (out.is_none() &&
      !(FitsPyTorch(call.problem(), repeated) && IsDense(call.problem().q) && MaskFits(call))) {
    return nb::none();
  }
  RunOnce(&call, options);
  CountRun();
  nb::object result = call.Results();
  if (const nb::handle shown = observer; shown.is_valid())
    shown(q, k, v, attn_mask, causal, scale, result);
  if (!wants_weights) return result;
  return nb::make_tuple(result, NoWeights(call));
}

}  // namespace fovea::python
