// PyTorch's C functions for kernels outside of it, of the kind that it keeps stable from release to
// release. They are found in the process, by name, so that nothing is linked with PyTorch.
#ifndef FOVEA_PYTHON_TORCH_API_H_
#define FOVEA_PYTHON_TORCH_API_H_

#include <cstdint>

#include "errors.h"
#include "fovea/tensor.h"

namespace fovea::python {

// An at::Tensor, owned by who has the pointer.
struct TorchTensor;
// An argument or a result of an operator: a number, a pointer to a tensor, or (where the schema
// says "?") a pointer to such a value, or 0.
using TorchValue = uint64_t;
using TorchKernel = void (*)(TorchValue* stack, uint64_t inputs, uint64_t outputs);
struct TorchLibrary;

// All but `exception_text` and those of types return 0, or an error.
struct TorchApi {
  int32_t (*library_init_impl)(const char* space, const char* key, const char* file, uint32_t line,
                               TorchLibrary** library);
  int32_t (*library_impl)(TorchLibrary*, const char* name, TorchKernel, uint64_t version);
  int32_t (*library_delete)(TorchLibrary*);
  int32_t (*call)(const char* name, const char* overload, TorchValue* stack, uint64_t version);
  const char* (*exception_text)();
  int32_t (*tensor_new)(TorchTensor*, TorchTensor** same);  // another owner
  int32_t (*tensor_delete)(TorchTensor*);
  int32_t (*value_new)(TorchValue**);
  int32_t (*value_delete)(TorchValue*);
  int32_t (*rank)(TorchTensor*, int64_t*);
  int32_t (*sizes)(TorchTensor*, const int64_t**);
  int32_t (*strides)(TorchTensor*, const int64_t**);
  int32_t (*dtype)(TorchTensor*, int32_t*);
  int32_t (*const_data)(TorchTensor*, const void**);
  int32_t (*mutable_data)(TorchTensor*, void**);
  int32_t (*empty_strided)(int64_t rank, const int64_t* sizes, const int64_t* strides,
                           int32_t dtype, int32_t device, int32_t index, TorchTensor**);
  int32_t (*num_threads)(uint32_t*);
  int32_t (*type_f32)();
  int32_t (*type_f16)();
  int32_t (*type_bf16)();
  int32_t (*type_bool)();
  int32_t (*device_cpu)();
};

// The conventions of PyTorch 2.13, which later releases keep.
constexpr uint64_t kTorchVersion = (uint64_t{2} << 56) | (uint64_t{13} << 48);

// What ConnectToTorch has found.
const TorchApi& Torch213();

// `functions(name)` gives the address of a C function of PyTorch's, or 0. Gives the name of one
// that is missing, or None.
nb::object ConnectToTorch(nb::handle functions);

// The number of threads of PyTorch's operations, and no more than those of ours. After
// ConnectToTorch; needs no GIL.
int TorchThreads();

// A tensor in the CPU's memory as a view; false where Fovea has no such type or rank.
bool ViewOfTorch(TorchTensor* tensor, TensorView* view);

}  // namespace fovea::python

#endif  // FOVEA_PYTHON_TORCH_API_H_
