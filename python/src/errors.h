// Python exceptions: raised by name, and made of what a Status says.
#ifndef FOVEA_PYTHON_ERRORS_H_
#define FOVEA_PYTHON_ERRORS_H_

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>  // every file that casts must see it

#include <string>

#include "fovea/status.h"

namespace fovea::python {

namespace nb = nanobind;

[[noreturn]] void Raise(PyObject* type, const std::string& message);

// What Python prints for the object.
std::string Repr(nb::handle object);
std::string TypeName(nb::handle object);

// Throws what a Status that is not ok says: ValueError, UnsupportedError (a ValueError),
// MemoryError.
void Check(const Status& status);
void SetUnsupportedError(nb::handle type);

}  // namespace fovea::python

#endif  // FOVEA_PYTHON_ERRORS_H_
