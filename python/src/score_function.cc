#include "score_function.h"

#include <cstdint>
#include <string>

namespace fovea::python {
namespace {

bool IsInstance(nb::handle object, nb::handle type) {
  const int is = PyObject_IsInstance(object.ptr(), type.ptr());
  if (is < 0) throw nb::python_error();
  return is == 1;
}

// True and False are integers, but no addresses.
bool IsAddress(nb::handle value) {
  return PyLong_Check(value.ptr()) != 0 && PyBool_Check(value.ptr()) == 0;
}

uintptr_t Address(nb::handle number, const char* name) {
  uintptr_t address{};
  if (!nb::try_cast(number, address))
    Raise(PyExc_ValueError, std::string(name) + " = " + Repr(number) + ", expected an address");
  return address;
}

// What a pointer of ctypes points at.
uintptr_t TargetOf(nb::handle pointer, nb::handle ctypes) {
  const nb::object target = ctypes.attr("cast")(pointer, ctypes.attr("c_void_p")).attr("value");
  return target.is_none() ? 0 : Address(target, "pointer");
}

// cffi's name of what `value` is, "pointer" or "function"; empty where it is none of cffi's.
// Whoever has such an object has loaded the module, too.
std::string KindInCffi(nb::handle value, nb::object* ffi) {
  const nb::object module = nb::getattr(value.type(), "__module__", nb::none());
  std::string name;
  if (!nb::try_cast(module, name) || name != "_cffi_backend") return "";
  const nb::object type = nb::module_::import_("_cffi_backend").attr("FFI");
  if (!IsInstance(value, type.attr("CData"))) return "";
  *ffi = type();
  return nb::cast<std::string>(ffi->attr("typeof")(value).attr("kind"));
}

uintptr_t TargetInCffi(nb::handle pointer, nb::handle ffi) {
  return Address(nb::steal(PyNumber_Long(ffi.attr("cast")("uintptr_t", pointer).ptr())), "pointer");
}

uintptr_t FunctionAddress(nb::handle value) {
  constexpr char kName[] = "score_function";
  if (IsAddress(value)) return Address(value, kName);
  const nb::object ctypes = nb::module_::import_("ctypes");
  if (IsInstance(value, ctypes.attr("_CFuncPtr"))) return TargetOf(value, ctypes);
  nb::object ffi;
  if (KindInCffi(value, &ffi) == "function") return TargetInCffi(value, ffi);
  const nb::object address = nb::getattr(value, "address", nb::none());  // numba's
  if (IsAddress(address)) return Address(address, kName);
  if (PyCallable_Check(value.ptr()) != 0) {
    Raise(PyExc_TypeError,
          "score_function is a Python function (" + TypeName(value) +
              "), which is not safe to call from threads that do not hold the GIL, as kernels do; "
              "expected a compiled one (numba.cfunc, a pointer of ctypes or cffi, an address), or "
              "fovea.score_function_type(function), which takes the GIL for each block");
  }
  Raise(PyExc_TypeError, "score_function is of type " + TypeName(value) +
                             ", expected a pointer to a function (ctypes, cffi, numba.cfunc, an "
                             "address) or a pair of one and its context");
}

uintptr_t ContextAddress(nb::handle value, nb::object* memory) {
  constexpr char kName[] = "context of score_function";
  if (value.is_none()) return 0;
  if (IsAddress(value)) return Address(value, kName);
  const nb::object ctypes = nb::module_::import_("ctypes");
  for (const char* type : {"_Pointer", "c_void_p", "c_char_p"}) {
    if (IsInstance(value, ctypes.attr(type))) return TargetOf(value, ctypes);
  }
  nb::object ffi;
  const std::string kind = KindInCffi(value, &ffi);
  if (kind == "pointer" || kind == "array") return TargetInCffi(value, ffi);
  Py_buffer buffer;
  if (PyObject_GetBuffer(value.ptr(), &buffer, PyBUF_SIMPLE) != 0) {
    PyErr_Clear();
    Raise(PyExc_TypeError, std::string(kName) + " is of type " + TypeName(value) +
                               ", expected None, an address, a pointer or a contiguous buffer");
  }
  const uintptr_t address = reinterpret_cast<uintptr_t>(buffer.buf);
  *memory = nb::steal(PyMemoryView_FromObject(value.ptr()));
  PyBuffer_Release(&buffer);
  return address;
}

}  // namespace

ScoreFunction ReadScoreFunction(nb::handle value, nb::object* memory) {
  nb::handle function = value;
  nb::object first, second = nb::none();
  if (PyTuple_Check(value.ptr()) != 0) {
    if (PyTuple_Size(value.ptr()) != 2) {
      Raise(PyExc_TypeError, "score_function is a tuple of " + std::to_string(nb::len(value)) +
                                 ", expected (function, context)");
    }
    first = value[0];
    second = value[1];
    function = first;
  }
  const uintptr_t address = FunctionAddress(function);
  if (address == 0)
    Raise(PyExc_ValueError, "score_function is a null pointer, expected a function");
  ScoreFunction result;
  result.apply = reinterpret_cast<decltype(result.apply)>(address);
  result.context = reinterpret_cast<void*>(ContextAddress(second, memory));
  return result;
}

}  // namespace fovea::python
