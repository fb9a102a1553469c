#include "errors.h"

namespace fovea::python {
namespace {

PyObject* unsupported_error = nullptr;

}  // namespace

void Raise(PyObject* type, const std::string& message) {
  PyErr_SetString(type, message.c_str());
  throw nb::python_error();
}

std::string Repr(nb::handle object) { return nb::cast<std::string>(nb::repr(object)); }

std::string TypeName(nb::handle object) {
  return nb::cast<std::string>(nb::str(object.type().attr("__name__")));
}

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

}  // namespace fovea::python
