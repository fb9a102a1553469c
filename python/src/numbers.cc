#include "numbers.h"

#include <climits>
#include <string>

#include "src/narrow.h"

namespace fovea::python {
namespace {

[[noreturn]] void RaiseKind(nb::handle value, const char* name, const char* expected) {
  Raise(PyExc_TypeError, std::string(name) + " = " + Repr(value) + ", expected " + expected);
}

bool HasSlot(nb::handle value, int slot) {
  return PyType_GetSlot(Py_TYPE(value.ptr()), slot) != nullptr;
}

// The letter of the kind of a NumPy scalar's or array's elements: 'f', 'i', 'b', 'c', …; 0 for
// others.
char KindOf(nb::handle value) {
  if (!nb::hasattr(value, "dtype") || !nb::hasattr(value.attr("dtype"), "kind")) return 0;
  const std::string kind = nb::cast<std::string>(value.attr("dtype").attr("kind"));
  return kind.empty() ? '\0' : kind[0];
}

}  // namespace

bool IsScalar(nb::handle value) {
  if (PyLong_Check(value.ptr()) || PyFloat_Check(value.ptr())) return true;
  if (nb::hasattr(value, "ndim")) {
    int64_t axes;
    return nb::try_cast(value.attr("ndim"), axes) && axes == 0;
  }
  return HasSlot(value, Py_nb_float) || HasSlot(value, Py_nb_index);
}

int64_t Integer(nb::handle value, const char* name, const char* expected) {
  nb::object integer = nb::borrow(value);
  if (!PyLong_Check(value.ptr())) {
    if (!HasSlot(value, Py_nb_index) || !IsScalar(value)) RaiseKind(value, name, expected);
    integer = nb::steal(PyNumber_Index(value.ptr()));
  }
  if (integer.is_valid()) {
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(integer.ptr(), &overflow);
    if (overflow == 0 && PyErr_Occurred() == nullptr) return number;
  }
  PyErr_Clear();
  RaiseKind(value, name, expected);
}

int SmallInteger(nb::handle value, const char* name, const char* expected) {
  const int64_t number = Integer(value, name, expected);
  if (number < INT_MIN || number > INT_MAX) RaiseKind(value, name, expected);
  return static_cast<int>(number);
}

float Float(nb::handle value, const char* name, const char* expected) {
  if (!PyFloat_Check(value.ptr()) && !PyLong_Check(value.ptr())) {
    if (PyUnicode_Check(value.ptr()) || PyBytes_Check(value.ptr()) ||
        PyComplex_Check(value.ptr()) || KindOf(value) == 'c' || !IsScalar(value)) {
      RaiseKind(value, name, expected);
    }
  }
  const double number = PyFloat_AsDouble(value.ptr());
  bool beyond_doubles = false;
  if (number == -1 && PyErr_Occurred() != nullptr) {
    beyond_doubles = PyErr_ExceptionMatches(PyExc_OverflowError) != 0;
    PyErr_Clear();
    if (!beyond_doubles) RaiseKind(value, name, expected);
  }
  float narrow = 0;
  if (beyond_doubles || !Narrow(number, &narrow)) {
    Raise(PyExc_ValueError, std::string(name) + " = " + Repr(value) + ", expected " + kFloatRange);
  }
  return narrow;
}

bool IsBool(nb::handle value, bool* result) {
  if (value.ptr() != Py_True && value.ptr() != Py_False &&
      (PyLong_Check(value.ptr()) || KindOf(value) != 'b' || !IsScalar(value))) {
    return false;
  }
  const int truth = PyObject_IsTrue(value.ptr());
  if (truth < 0) throw nb::python_error();
  *result = truth == 1;
  return true;
}

}  // namespace fovea::python
