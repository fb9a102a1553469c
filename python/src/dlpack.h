// The parts of the DLPack ABI (version 1) that borrowing a tensor needs:
// https://dmlc.github.io/dlpack. Names and layouts are the standard's.
#ifndef FOVEA_PYTHON_DLPACK_H_
#define FOVEA_PYTHON_DLPACK_H_

#include <cstdint>

namespace fovea::python {

struct DLPackVersion {
  uint32_t major, minor;
};

constexpr uint32_t kDLPackMajor = 1;
constexpr int32_t kDLCPU = 1;

struct DLDevice {
  int32_t device_type, device_id;
};

enum DLDataTypeCode : uint8_t {
  kDLInt = 0,
  kDLUInt = 1,
  kDLFloat = 2,
  kDLBfloat = 4,
  kDLComplex = 5,
  kDLBool = 6,
  kDLFloat8E4M3FN = 10,
  kDLFloat8E5M2 = 12
};

struct DLDataType {
  uint8_t code, bits;
  uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null: dense in C order
  uint64_t byte_offset;
};

struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor*);
};

constexpr uint64_t kDLReadOnly = 1;
constexpr uint64_t kDLIsCopied = 2;

struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned*);
  uint64_t flags;
  DLTensor dl_tensor;
};

// What the capsule in type(x).__dlpack_c_exchange_api__ points to: the producer's functions as C
// pointers (DLPack 1.3).
struct DLPackExchangeAPI {
  DLPackVersion version;
  DLPackExchangeAPI* previous;
  int (*managed_tensor_allocator)(DLTensor* prototype, DLManagedTensorVersioned** out,
                                  void* error_context,
                                  void (*set_error)(void* error_context, const char* kind,
                                                    const char* message));
  int (*managed_tensor_from_py_object_no_sync)(void* object, DLManagedTensorVersioned** out);
  int (*managed_tensor_to_py_object_no_sync)(DLManagedTensorVersioned* tensor, void** out);
  int (*dltensor_from_py_object_no_sync)(void* object, DLTensor* out);  // may be null
  int (*current_work_stream)(int32_t device_type, int32_t device_id, void** out);
};

}  // namespace fovea::python

#endif  // FOVEA_PYTHON_DLPACK_H_
