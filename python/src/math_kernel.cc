#include "math_kernel.h"

#include <cmath>
#include <exception>
#include <vector>

#include "library.h"
#include "operator.h"
#include "src/narrow.h"
#include "torch_api.h"

namespace fovea::python {
namespace {

// What PyTorch's function passes. Arguments that are their defaults may be missing.
struct Arguments {
  nb::handle keyset, query, key, value;
  nb::handle attn_mask = Py_None, dropout_p, is_causal = Py_False, dropout_mask = Py_None;
  nb::handle scale = Py_None, enable_gqa = Py_False;
};

bool Read(PyObject* args, PyObject* keywords, Arguments* a) {
  nb::handle* const places[] = {&a->keyset,    &a->query,     &a->key,       &a->value,
                                &a->attn_mask, &a->dropout_p, &a->is_causal, &a->dropout_mask};
  const Py_ssize_t given = PyTuple_Size(args);
  if (given < 4 || given > 8) return false;
  for (Py_ssize_t i = 0; i < given; ++i) *places[i] = PyTuple_GetItem(args, i);
  if (keywords == nullptr) return true;
  static PyObject* const scale = PyUnicode_InternFromString("scale");
  static PyObject* const enable_gqa = PyUnicode_InternFromString("enable_gqa");
  Py_ssize_t known = 0;
  for (const auto& [name, place] : {std::pair{scale, &a->scale}, {enable_gqa, &a->enable_gqa}}) {
    if (PyObject* const value = PyDict_GetItem(keywords, name)) *place = value, ++known;
  }
  return known == PyDict_Size(keywords);
}

nb::object Called(nb::handle function) {
  nb::object result = nb::steal(PyObject_CallObject(function.ptr(), nullptr));
  if (!result.is_valid()) throw nb::python_error();
  return result;
}

nb::object Attribute(nb::handle object, PyObject* name) {
  nb::object result = nb::steal(PyObject_GetAttr(object.ptr(), name));
  if (!result.is_valid()) throw nb::python_error();
  return result;
}

// What PyTorch knows beside the tensors. Found once.
struct State {
  nb::object flash_enabled, tracing_state, is_exporting, is_grad_enabled, forward_ad;
};
const State& TorchState() {
  static const State* const state = [] {
    auto* s = new State;
    const nb::module_ c = nb::module_::import_("torch._C");
    s->flash_enabled = c.attr("_get_flash_sdp_enabled");
    s->tracing_state = c.attr("_get_tracing_state");
    s->is_exporting = nb::module_::import_("torch.compiler").attr("is_exporting");
    s->is_grad_enabled = Torch().is_grad_enabled;
    s->forward_ad = nb::module_::import_("torch.autograd.forward_ad");
    return s;
  }();
  return *state;
}

bool WantsDerivatives(const Arguments& a) {
  static PyObject* const level = PyUnicode_InternFromString("_current_level");
  static PyObject* const requires_grad = PyUnicode_InternFromString("requires_grad");
  const State& state = TorchState();
  if (PyLong_AsLong(Attribute(state.forward_ad, level).ptr()) >= 0) return true;
  if (Called(state.is_grad_enabled).ptr() != Py_True) return false;
  for (const nb::handle x : {a.query, a.key, a.value, a.attn_mask}) {
    if (!x.is_none() && Attribute(x, requires_grad).ptr() != Py_False) return true;
  }
  return false;
}

// Nothing stands between the caller and a kernel on plain tensors, and Fovea may be that kernel.
bool IsPlain(const Arguments& a, nb::handle plain) {
  static PyObject* const raw_repr = PyUnicode_InternFromString("raw_repr");
  if (!a.dropout_mask.is_none() || (!a.attn_mask.is_none() && a.is_causal.ptr() != Py_False))
    return false;
  if (a.dropout_p.is_valid() && PyFloat_AsDouble(a.dropout_p.ptr()) != 0) return false;
  float scale;
  if (!a.scale.is_none() &&
      (!PyFloat_Check(a.scale.ptr()) || !std::isfinite(PyFloat_AsDouble(a.scale.ptr())) ||
       !Narrow(PyFloat_AsDouble(a.scale.ptr()), &scale))) {
    return false;
  }
  const nb::object keys = nb::steal(PyObject_CallMethodObjArgs(a.keyset.ptr(), raw_repr, nullptr));
  if (!keys.is_valid()) throw nb::python_error();
  const int known = PySequence_Contains(plain.ptr(), keys.ptr());
  if (known < 0) throw nb::python_error();
  const State& state = TorchState();
  return known == 1 && Called(state.flash_enabled).ptr() == Py_True &&
         Called(state.tracing_state).is_none() && Called(state.is_exporting).ptr() == Py_False &&
         !WantsDerivatives(a);
}

nb::object RunPlain(const Arguments& a) {
  try {
    return RunOperator(a.query, a.key, a.value, a.attn_mask, a.is_causal.ptr() == Py_True, a.scale,
                       a.enable_gqa.ptr() == Py_True, TorchThreads(), true, nb::none(), nb::none());
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_ValueError) && !error.matches(PyExc_TypeError)) throw;
    return nb::none();  // what is wrong, or is PyTorch's alone, is seen more slowly
  }
}

// `self` is (slow, plain).
PyObject* Math(PyObject* self, PyObject* args, PyObject* keywords) noexcept {
  try {
    Arguments a;
    if (Read(args, keywords, &a) && IsPlain(a, PyTuple_GetItem(self, 1))) {
      nb::object result = RunPlain(a);
      if (!result.is_none()) return result.release().ptr();
    }
    return PyObject_Call(PyTuple_GetItem(self, 0), args, keywords);
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

}  // namespace

nb::object MathKernel(nb::handle slow, nb::handle plain) {
  static PyMethodDef method = {"_scaled_dot_product_attention_math",
                               reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&Math)),
                               METH_VARARGS | METH_KEYWORDS, nullptr};
  const nb::object self = nb::make_tuple(slow, plain);
  return nb::steal(PyCFunction_New(&method, self.ptr()));
}

}  // namespace fovea::python
