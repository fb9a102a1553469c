#include "flash_kernel.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "fovea/attention.h"
#include "operator.h"
#include "running.h"
#include "src/narrow.h"
#include "torch_api.h"

namespace fovea::python {
namespace {

TorchLibrary* library = nullptr;

// What is on the stack, in the schema's order.
enum Argument { kQuery, kKey, kValue, kDropout, kCausal, kMask, kScale, kArguments };

double Double(TorchValue value) {
  double number;
  std::memcpy(&number, &value, sizeof number);
  return number;
}
TorchTensor* Tensor(TorchValue value) {
  TorchTensor* tensor;
  std::memcpy(&tensor, &value, sizeof tensor);
  return tensor;
}
TorchValue Value(const void* pointer) {
  TorchValue value = 0;
  std::memcpy(&value, &pointer, sizeof pointer);
  return value;
}
// Of an optional argument, or null.
TorchValue* Optional(TorchValue value) {
  TorchValue* inner;
  std::memcpy(&inner, &value, sizeof inner);
  return inner;
}

// New tensors, deleted but for those that are handed on.
struct Results {
  TorchTensor *out = nullptr, *lse = nullptr;
  Results() = default;
  Results(const Results&) = delete;
  Results& operator=(const Results&) = delete;
  ~Results() {
    for (TorchTensor* tensor : {out, lse}) {
      if (tensor != nullptr) Torch213().tensor_delete(tensor);
    }
  }
};

bool IsFloat(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

// As query lies in memory: torch.empty_like.
TorchTensor* EmptyLike(TorchTensor* query, const TensorView& q) {
  TorchTensor* out = nullptr;
  if (IsDense(q)) {
    const int64_t *sizes, *strides;
    int32_t type;
    Torch213().sizes(query, &sizes);
    Torch213().strides(query, &strides);
    Torch213().dtype(query, &type);
    Torch213().empty_strided(q.rank, sizes, strides, type, Torch213().device_cpu(), 0, &out);
    return out;
  }
  TorchTensor* same;
  if (Torch213().tensor_new(query, &same) != 0) return nullptr;
  TorchValue stack[6] = {Value(same)};  // type, layout, device, pinned memory, memory's format
  if (Torch213().call("aten::empty_like", "", stack, kTorchVersion) != 0) return nullptr;
  return Tensor(stack[0]);
}

// [B, H, T], T before H in memory: as PyTorch's backward pass takes it.
TorchTensor* EmptyLse(const TensorView& q) {
  const int64_t sizes[] = {q.shape[0], q.shape[1], q.shape[2]};
  const int64_t strides[] = {q.shape[1] * q.shape[2], 1, q.shape[1]};
  TorchTensor* lse = nullptr;
  Torch213().empty_strided(3, sizes, strides, Torch213().type_f32(), Torch213().device_cpu(), 0,
                           &lse);
  return lse;
}

bool MutableView(TorchTensor* tensor, MutableTensorView* view) {
  TensorView read;
  if (tensor == nullptr || !ViewOfTorch(tensor, &read)) return false;
  view->dtype = read.dtype;
  view->rank = read.rank;
  std::copy(read.shape, read.shape + read.rank, view->shape);
  std::copy(read.stride, read.stride + read.rank, view->stride);
  return Torch213().mutable_data(tensor, &view->data) == 0;
}

// PyTorch's backward pass takes exp(score − lse): with −inf that would be NaN.
void ZeroWhereEmpty(const MutableTensorView& lse) {
  float* const begin = static_cast<float*>(lse.data);  // dense, in whatever order
  const int64_t n = lse.shape[0] * lse.shape[1] * lse.shape[2];
  std::replace(begin, begin + n, -std::numeric_limits<float>::infinity(), 0.0f);
}

// False, and nothing done, where PyTorch must compute it.
bool Compute(const TorchValue* stack, Results* results) {
  if (Double(stack[kDropout]) != 0) return false;
  Problem problem;
  if (!ViewOfTorch(Tensor(stack[kQuery]), &problem.q) ||
      !ViewOfTorch(Tensor(stack[kKey]), &problem.k) ||
      !ViewOfTorch(Tensor(stack[kValue]), &problem.v) || !IsFloat(problem.q.dtype) ||
      !FitsPyTorch(problem, true) || problem.k.shape[3] != problem.v.shape[3]) {
    return false;
  }
  Score& score = problem.score;
  if ((stack[kCausal] & 0xff) != 0) score.causal = Causal::kTopLeft;
  if (const TorchValue* scale = Optional(stack[kScale])) {
    if (!Narrow(Double(*scale), &score.scale.emplace())) return false;
  }
  const TorchValue* const mask = Optional(stack[kMask]);
  if (mask != nullptr) {
    TensorView view;
    if (!ViewOfTorch(Tensor(*mask), &view)) return false;
    (view.dtype == DType::kBool ? score.mask : score.bias) = view;
  }
  results->out = EmptyLike(Tensor(stack[kQuery]), problem.q);
  results->lse = EmptyLse(problem.q);
  if (!MutableView(results->out, &problem.out) || !MutableView(results->lse, &problem.lse))
    return false;
  Plan plan;
  if (!Plan::Create(problem, {}, &plan).ok()) return false;
  bool interrupted;
  const Status status =
      RunWithoutPython(plan, problem, ThreadsFor(plan.cost(), TorchThreads()), &interrupted);
  // Of a call that was interrupted nobody sees the result: nothing else is to compute it.
  if (!status.ok() && !interrupted) return false;
  if (mask != nullptr) ZeroWhereEmpty(problem.lse);
  return true;
}

// The arguments are the kernel's, to delete.
void Release(TorchValue* stack) {
  for (const int i : {kQuery, kKey, kValue}) Torch213().tensor_delete(Tensor(stack[i]));
  if (TorchValue* mask = Optional(stack[kMask])) {
    Torch213().tensor_delete(Tensor(*mask));
    Torch213().value_delete(mask);
  }
  if (TorchValue* scale = Optional(stack[kScale])) Torch213().value_delete(scale);
}

TorchValue Another(TorchValue tensor) {
  TorchTensor* same = nullptr;
  Torch213().tensor_new(Tensor(tensor), &same);
  return Value(same);
}

// For tests: an operator, whose kernel is Python's.
void ShowObserver(const TorchValue* stack, TorchTensor* out) {
  const auto optional = [](TorchValue value) {
    TorchValue* box = nullptr;
    Torch213().value_new(&box);
    *box = value;
    return Value(box);
  };
  const TorchValue *mask = Optional(stack[kMask]), *scale = Optional(stack[kScale]);
  TorchValue shown[] = {Another(stack[kQuery]), Another(stack[kKey]),
                        Another(stack[kValue]), mask == nullptr ? 0 : optional(Another(*mask)),
                        stack[kCausal],         scale == nullptr ? 0 : optional(*scale),
                        Another(Value(out))};
  if (Torch213().call("fovea::observed", "", shown, kTorchVersion) != 0)
    throw std::runtime_error(Torch213().exception_text());
}

void Flash(TorchValue* stack, uint64_t, uint64_t) {
  Results results;
  if (!Compute(stack, &results)) {
    // takes the arguments
    if (Torch213().call("fovea::flash_of_pytorch", "", stack, kTorchVersion) != 0)
      throw std::runtime_error(Torch213().exception_text());
    return;
  }
  CountRun();
  if (IsObserved()) ShowObserver(stack, results.out);
  Release(stack);
  stack[0] = Value(results.out);
  stack[1] = Value(results.lse);
  results.out = results.lse = nullptr;
}

}  // namespace

void TakeFlash() {
  if (Torch213().library_init_impl("aten", "CPU", "fovea", 0, &library) != 0 ||
      Torch213().library_impl(library, "_scaled_dot_product_flash_attention_for_cpu", &Flash,
                              kTorchVersion) != 0) {
    Raise(PyExc_RuntimeError, Torch213().exception_text());
  }
}

void LeaveFlash() {
  if (library != nullptr) Torch213().library_delete(library);
  library = nullptr;
}

}  // namespace fovea::python
