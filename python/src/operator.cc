#include "operator.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "call.h"
#include "gil.h"
#include "numbers.h"
#include "running.h"

namespace fovea::python {
namespace {

// Whether the shapes are those that need no preparation.
bool Fits(const Problem& problem, bool groups, bool has_out, bool same_sizes) {
  const TensorView &q = problem.q, &k = problem.k, &v = problem.v;
  const bool ranks = q.rank == 4 && k.rank == 4 && v.rank == 4;
  const bool sizes = q.shape[0] == k.shape[0] && std::equal(k.shape, k.shape + 3, v.shape) &&
                     q.shape[3] == k.shape[3] && (!same_sizes || k.shape[3] == v.shape[3]) &&
                     q.shape[3] > 0 && v.shape[3] > 0;
  const bool heads = k.shape[1] == 1 || q.shape[1] == k.shape[1] ||
                     (groups && k.shape[1] > 0 && q.shape[1] % k.shape[1] == 0);
  bool dense = true;
  int64_t step = SizeOf(q.dtype);
  for (int a = q.rank; a-- > 0;) {
    dense = dense && (q.stride[a] == step || q.shape[a] == 1);
    step *= q.shape[a];
  }
  return ranks && sizes && heads && (dense || has_out);
}

// PyTorch's backward pass takes exp(score − lse): with −inf that would be NaN.
void ZeroWhereEmpty(const MutableTensorView& lse) {
  // dense in whatever order
  float* const begin = static_cast<float*>(lse.data);
  const int64_t n = lse.shape[0] * lse.shape[1] * lse.shape[2];
  std::replace(begin, begin + n, -std::numeric_limits<float>::infinity(), 0.0f);
}

nb::object NoWeights(const Problem& problem) {
  static constexpr int64_t kOne[kMaxRank] = {1, 1, 1, 1}, kZero[kMaxRank] = {};
  const int64_t shape[] = {problem.q.shape[0], problem.q.shape[1], problem.q.shape[2],
                           problem.k.shape[2]};
  void* data;
  nb::object weights = EmptyTorch(problem.q.dtype, 4, kOne, shape, kZero, &data);
  if (problem.q.dtype == DType::kF32) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(data, &nan, sizeof nan);
  } else {
    const uint16_t nan = 0x7fff;  // of either format of 16 bits
    std::memcpy(data, &nan, sizeof nan);
  }
  return weights;
}

}  // namespace

nb::object RunOperator(nb::handle q, nb::handle k, nb::handle v, nb::handle attn_mask, bool causal,
                       nb::handle scale, bool groups, int threads, int second, nb::handle more,
                       nb::handle out) {
  static const size_t mask_row = TensorOf("mask"), bias_row = TensorOf("bias"),
                      out_row = TensorOf("out"), lse_row = TensorOf("lse");
  static PyObject* const dtype_name = PyUnicode_InternFromString("dtype");
  const bool wants_lse = second == static_cast<int>(Second::kLogSumExp);
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
  options.wanted[lse_row] = wants_lse;

  Call call(q, k, v, options);
  // With `out` and nothing else it was prepared, and the library says what is wrong with it.
  const bool prepared = !out.is_none() && !wants_lse;
  if (!prepared && !Fits(call.problem(), groups, !out.is_none(), wants_lse)) return nb::none();
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
    if (wants_lse && !attn_mask.is_none()) ZeroWhereEmpty(call.problem().lse);
  }
  if (interrupted) throw nb::python_error();
  Check(status);
  if (second != static_cast<int>(Second::kNoWeights)) return call.Results();
  return nb::make_tuple(call.Results(), NoWeights(call.problem()));
}

}  // namespace fovea::python
