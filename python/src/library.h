// NumPy and PyTorch as the process has them, and what the type of an array offers.
#ifndef FOVEA_PYTHON_LIBRARY_H_
#define FOVEA_PYTHON_LIBRARY_H_

#include <nanobind/nanobind.h>

#include <array>

#include "dlpack.h"
#include "errors.h"
#include "fovea/tensor.h"

namespace fovea::python {

// NumPy and PyTorch are found when the first array needs them, and kept for the whole process:
// modules that went through import are never unloaded.
struct NumpyTypes {
  nb::object array, empty, uint16, uint8;
  std::array<nb::object, 8> dtypes;  // by DType; bf16 only when ml_dtypes is there
};
const NumpyTypes& Numpy();
const nb::object& NumpyBF16();

struct TorchTypes {
  nb::object empty, is_grad_enabled;
  std::array<nb::object, 8> dtypes;
};
const TorchTypes& Torch();

// What can be told from the type of an object, found once per type.
struct TypeInfo {
  enum class Protocol { kNone, kExchange, kBuffer, kDLPack };
  PyTypeObject* type = nullptr;
  Protocol protocol = Protocol::kNone;
  const DLPackExchangeAPI* exchange = nullptr;
  bool is_torch = false;
  bool is_numpy = false;
  bool is_masked = false;
};

// By type, guarded by the GIL.
TypeInfo InfoOf(nb::handle array);

}  // namespace fovea::python

#endif  // FOVEA_PYTHON_LIBRARY_H_
