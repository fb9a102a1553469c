#include "torch_api.h"

#include <algorithm>
#include <cstring>

#include "pool.h"

namespace fovea::python {
namespace {

TorchApi api;
bool connected = false;

struct Row {
  const char* name;
  void* slot;  // a pointer to a function
};

const Row kRows[] = {
    {"aoti_torch_library_init_impl", &api.library_init_impl},
    {"torch_library_impl", &api.library_impl},
    {"aoti_torch_delete_library_object", &api.library_delete},
    {"torch_call_dispatcher", &api.call},
    {"torch_exception_get_what_without_backtrace", &api.exception_text},
    {"aoti_torch_new_tensor_handle", &api.tensor_new},
    {"aoti_torch_delete_tensor_object", &api.tensor_delete},
    {"torch_new_stable_ivalue", &api.value_new},
    {"torch_delete_stable_ivalue", &api.value_delete},
    {"aoti_torch_get_dim", &api.rank},
    {"aoti_torch_get_sizes", &api.sizes},
    {"aoti_torch_get_strides", &api.strides},
    {"aoti_torch_get_dtype", &api.dtype},
    {"torch_get_const_data_ptr", &api.const_data},
    {"torch_get_mutable_data_ptr", &api.mutable_data},
    {"aoti_torch_empty_strided", &api.empty_strided},
    {"torch_get_num_threads", &api.num_threads},
    {"aoti_torch_dtype_float32", &api.type_f32},
    {"aoti_torch_dtype_float16", &api.type_f16},
    {"aoti_torch_dtype_bfloat16", &api.type_bf16},
    {"aoti_torch_dtype_bool", &api.type_bool},
    {"aoti_torch_device_type_cpu", &api.device_cpu},
};

}  // namespace

const TorchApi& Torch213() { return api; }

nb::object ConnectToTorch(nb::handle functions) {
  if (connected) return nb::none();
  for (const Row& row : kRows) {
    const uintptr_t address = nb::cast<uintptr_t>(functions(row.name));
    if (address == 0) return nb::str(row.name);
    std::memcpy(row.slot, &address, sizeof address);
  }
  connected = true;
  return nb::none();
}

int TorchThreads() {
  uint32_t threads = 1;
  api.num_threads(&threads);
  return std::min(DefaultThreads(), static_cast<int>(std::max<uint32_t>(1, threads)));
}

bool ViewOfTorch(TorchTensor* tensor, TensorView* view) {
  int64_t rank;
  int32_t type;
  const int64_t *sizes, *strides;
  if (api.rank(tensor, &rank) != 0 || rank < 1 || rank > kMaxRank) return false;
  if (api.dtype(tensor, &type) != 0 || api.sizes(tensor, &sizes) != 0 ||
      api.strides(tensor, &strides) != 0 || api.const_data(tensor, &view->data) != 0) {
    return false;
  }
  if (type == api.type_f32()) {
    view->dtype = DType::kF32;
  } else if (type == api.type_bf16()) {
    view->dtype = DType::kBF16;
  } else if (type == api.type_f16()) {
    view->dtype = DType::kF16;
  } else if (type == api.type_bool()) {
    view->dtype = DType::kBool;
  } else {
    return false;
  }
  view->rank = static_cast<int>(rank);
  for (int a = 0; a < view->rank; ++a) {
    view->shape[a] = sizes[a];
    view->stride[a] = strides[a] * SizeOf(view->dtype);
  }
  return true;
}

}  // namespace fovea::python
