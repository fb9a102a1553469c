#include "library.h"

#include <utility>

namespace fovea::python {
namespace {

// sys.modules[name].attribute is a base of `type`. Does not import: a type of a module that is not
// loaded cannot be asked for.
bool IsSubclass(PyTypeObject* type, const char* module, const char* attribute) {
  nb::object modules = nb::module_::import_("sys").attr("modules");
  nb::object found = modules.attr("get")(module);
  if (found.is_none() || !nb::hasattr(found, attribute)) return false;
  const int is =
      PyObject_IsSubclass(reinterpret_cast<PyObject*>(type), found.attr(attribute).ptr());
  if (is < 0) throw nb::python_error();
  return is == 1;
}

TypeInfo Inspect(PyTypeObject* type) {
  TypeInfo info;
  info.type = type;
  const nb::handle t(reinterpret_cast<PyObject*>(type));
  info.is_torch = IsSubclass(type, "torch", "Tensor");
  info.is_numpy = IsSubclass(type, "numpy", "ndarray");
  info.is_masked = info.is_numpy && IsSubclass(type, "numpy.ma", "MaskedArray");
  if (nb::hasattr(t, "__dlpack_c_exchange_api__")) {
    const nb::object capsule = t.attr("__dlpack_c_exchange_api__");
    if (PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) {
      auto* api = static_cast<const DLPackExchangeAPI*>(
          PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
      while (api != nullptr && api->version.major > kDLPackMajor) api = api->previous;
      if (api != nullptr && api->version.major == kDLPackMajor) info.exchange = api;
    }
  }
  if (info.exchange != nullptr) {
    info.protocol = TypeInfo::Protocol::kExchange;
  } else if (PyType_GetSlot(type, Py_bf_getbuffer) != nullptr) {
    info.protocol = TypeInfo::Protocol::kBuffer;
  } else if (nb::hasattr(t, "__dlpack__")) {
    info.protocol = TypeInfo::Protocol::kDLPack;
  }
  return info;
}

}  // namespace

const NumpyTypes& Numpy() {
  static const NumpyTypes* const types = [] {
    auto* t = new NumpyTypes;
    const nb::object numpy = nb::module_::import_("numpy");
    t->array = numpy.attr("ndarray");
    t->empty = numpy.attr("empty");
    t->uint16 = numpy.attr("dtype")("uint16");
    t->uint8 = numpy.attr("dtype")("uint8");
    const std::pair<DType, const char*> names[] = {{DType::kF32, "float32"},
                                                   {DType::kF16, "float16"},
                                                   {DType::kBool, "bool"},
                                                   {DType::kI32, "int32"},
                                                   {DType::kI64, "int64"}};
    for (const auto& [dtype, name] : names)
      t->dtypes[static_cast<size_t>(dtype)] = numpy.attr("dtype")(name);
    return t;
  }();
  return *types;
}

const nb::object& NumpyBF16() {
  static const nb::object* const bf16 = new nb::object(nb::module_::import_("numpy").attr("dtype")(
      nb::module_::import_("ml_dtypes").attr("bfloat16")));
  return *bf16;
}

const TorchTypes& Torch() {
  static const TorchTypes* const types = [] {
    auto* t = new TorchTypes;
    const nb::object torch = nb::module_::import_("torch");
    t->empty = torch.attr("empty");
    t->is_grad_enabled = torch.attr("is_grad_enabled");
    const std::pair<DType, const char*> names[] = {
        {DType::kF32, "float32"}, {DType::kF16, "float16"}, {DType::kBF16, "bfloat16"},
        {DType::kBool, "bool"},   {DType::kI32, "int32"},   {DType::kI64, "int64"}};
    for (const auto& [dtype, name] : names)
      t->dtypes[static_cast<size_t>(dtype)] = torch.attr(name);
    return t;
  }();
  return *types;
}

// The types in it are kept alive; programs have few types of arrays,
// and those that are too many are looked at anew each time.
TypeInfo InfoOf(nb::handle array) {
  static std::array<TypeInfo, 16> known;
  static size_t n_known = 0;
  PyTypeObject* const type = Py_TYPE(array.ptr());
  for (size_t i = 0; i < n_known; ++i) {
    if (known[i].type == type) return known[i];
  }
  const TypeInfo info = Inspect(type);
  if (n_known < known.size() && info.protocol != TypeInfo::Protocol::kNone) {
    Py_INCREF(reinterpret_cast<PyObject*>(type));
    known[n_known++] = info;
  }
  return info;
}

}  // namespace fovea::python
