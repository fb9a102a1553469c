#include "array.h"

#include <algorithm>
#include <string>
#include <utility>

#include "errors.h"
#include "formats.h"
#include "numbers.h"

namespace fovea::python {
namespace {

[[noreturn]] void RaiseNoArray(nb::handle object, const char* name) {
  Raise(PyExc_TypeError, std::string(name) + " is of type " + TypeName(object) +
                             ", expected an array (DLPack or the buffer protocol)");
}

[[noreturn]] void RaiseElement(const char* name, const std::string& given, bool bits) {
  Raise(PyExc_TypeError, std::string(name) + " has elements of type " + given + ", expected " +
                             (bits ? "uint8" : "float32, float16, bfloat16, bool, int32 or int64"));
}

void CheckRank(int64_t rank, const char* name) {
  if (rank < 1 || rank > kMaxRank) {
    Raise(PyExc_ValueError, std::string(name) + " has " + std::to_string(rank) +
                                " axes, expected 1 to " + std::to_string(kMaxRank));
  }
}

MutableTensorView ViewOf(const DLTensor& tensor, const char* name, bool bits, bool codes) {
  if (tensor.device.device_type != kDLCPU) {
    Raise(PyExc_ValueError, std::string(name) + " is not in the CPU's memory (DLPack device type " +
                                std::to_string(tensor.device.device_type) + ")");
  }
  CheckRank(tensor.ndim, name);
  MutableTensorView view;
  std::string given;
  if (!ParseDLType(tensor.dtype, bits, codes, &view.dtype, &given)) RaiseElement(name, given, bits);
  const int64_t element = bits ? 1 : SizeOf(view.dtype);
  view.data =
      tensor.data == nullptr ? nullptr : static_cast<char*>(tensor.data) + tensor.byte_offset;
  view.rank = tensor.ndim;
  int64_t dense = element;
  for (int a = tensor.ndim; a-- > 0;) {
    view.shape[a] = tensor.shape[a];
    view.stride[a] = tensor.strides == nullptr ? dense : tensor.strides[a] * element;
    dense *= tensor.shape[a];
  }
  return view;
}

// Names are interned once: the attributes of every tensor of every call are asked for.
nb::object Attribute(nb::handle object, PyObject* name) {
  nb::object attribute = nb::steal(PyObject_GetAttr(object.ptr(), name));
  if (!attribute.is_valid()) throw nb::python_error();
  return attribute;
}

template <class T>
std::vector<T> Numbers(nb::handle sequence, const char* name) {
  std::vector<T> numbers;
  numbers.reserve(nb::len(sequence));
  const std::string item_of = "an item of " + std::string(name);
  for (nb::handle item : sequence) {
    if constexpr (std::is_integral_v<T>) {
      numbers.push_back(Integer(item, item_of.c_str(), "an integer of 64 bits"));
    } else {
      numbers.push_back(Float(item, item_of.c_str(), "a number"));
    }
  }
  return numbers;
}

bool IsList(nb::handle object) { return PyList_Check(object.ptr()) || PyTuple_Check(object.ptr()); }

template <class T>
TensorView ViewOf(const std::vector<T>& numbers, DType dtype) {
  // An empty list has no address of its own, and is no absent tensor.
  static const T none{};
  return View(static_cast<const void*>(numbers.empty() ? &none : numbers.data()), dtype,
              {static_cast<int64_t>(numbers.size())});
}

}  // namespace

// ---------------------------------------------------------------- borrowing

Borrower::~Borrower() {
  for (int i = 0; i < n_few_; ++i) PyBuffer_Release(&few_[i]);
  for (Py_buffer& buffer : many_) PyBuffer_Release(&buffer);
}

MutableTensorView Borrower::Borrow(nb::handle array, const char* name, bool writable, bool bits) {
  const TypeInfo info = InfoOf(array);
  if (info.is_masked) {
    Raise(PyExc_TypeError,
          std::string(name) +
              " is a masked array, whose mask would be lost: use filled(), or mask= of this call");
  }
  if (info.is_torch && !trusted_) CheckTorch(array, name);
  switch (info.protocol) {
    case TypeInfo::Protocol::kExchange:
      return FromExchange(info, array, name, writable, bits);
    case TypeInfo::Protocol::kBuffer:
      return FromBuffer(info, array, name, writable, bits);
    case TypeInfo::Protocol::kDLPack:
      return FromDLPack(array, name, writable, bits);
    case TypeInfo::Protocol::kNone:
      break;
  }
  RaiseNoArray(array, name);
}

// Gradients do not flow through us, and PyTorch's lazily negated views hold numbers that are not
// what memory says.
void Borrower::CheckTorch(nb::handle tensor, const char* name) {
  static PyObject* const requires_grad = PyUnicode_InternFromString("requires_grad");
  static PyObject* const is_neg = PyUnicode_InternFromString("is_neg");
  if (grad_mode_ == GradMode::kUnknown)
    grad_mode_ = nb::cast<bool>(Torch().is_grad_enabled()) ? GradMode::kOn : GradMode::kOff;
  if (grad_mode_ == GradMode::kOn && Attribute(tensor, requires_grad).ptr() == Py_True) {
    Raise(
        PyExc_ValueError,
        std::string(name) +
            " requires a gradient, which Fovea does not compute: use torch.no_grad() or detach()");
  }
  const nb::object negated = nb::steal(PyObject_CallMethodObjArgs(tensor.ptr(), is_neg, nullptr));
  if (!negated.is_valid()) throw nb::python_error();
  if (negated.ptr() == Py_True)
    Raise(PyExc_ValueError, std::string(name) + " is a lazily negated view: use resolve_neg()");
}

MutableTensorView Borrower::FromExchange(const TypeInfo& info, nb::handle array, const char* name,
                                         bool writable, bool bits) {
  // Without an owner only PyTorch's tensors, which know no read-only ones: a DLTensor cannot say
  // that it is.
  if (info.exchange->dltensor_from_py_object_no_sync == nullptr || !info.is_torch)
    return FromDLPack(array, name, writable, bits);
  DLTensor tensor;
  if (info.exchange->dltensor_from_py_object_no_sync(array.ptr(), &tensor) != 0) {
    // takes the pending exception, of which the first line is for people
    const nb::python_error reason;
    const std::string message = nb::cast<std::string>(nb::str(reason.value()));
    Raise(PyExc_ValueError, std::string(name) + " is no dense tensor in the CPU's memory: " +
                                message.substr(0, message.find('\n')));
  }
  return ViewOf(tensor, name, bits, codes_);
}

MutableTensorView Borrower::FromBuffer(const TypeInfo& info, nb::handle array, const char* name,
                                       bool writable, bool bits) {
  nb::object view;
  DType foreign = DType::kNone;  // of ml_dtypes
  if (info.is_numpy) {
    // NumPy exports no buffers of types that are not its own; as uint16 the same memory can be had.
    static PyObject* const dtype_attribute = PyUnicode_InternFromString("dtype");
    // a dtype that is known to be none of those, kept alive: nearly always the one that comes next
    static PyObject* last_plain = nullptr;
    const nb::object dtype = Attribute(array, dtype_attribute);
    if (dtype.ptr() != last_plain) {
      const std::string dtype_name = nb::cast<std::string>(nb::str(dtype.attr("name")));
      foreign = dtype_name == "bfloat16"                  ? DType::kBF16
                : codes_ && dtype_name == "float8_e4m3fn" ? DType::kF8E4M3FN
                : codes_ && dtype_name == "float8_e5m2"   ? DType::kF8E5M2
                                                          : DType::kNone;
      if (foreign != DType::kNone) {
        view = array.attr("view")(SizeOf(foreign) == 2 ? Numpy().uint16 : Numpy().uint8);
        array = view;
        objects_.push_back(view);
      } else {
        Py_XDECREF(last_plain);
        last_plain = dtype.inc_ref().ptr();
      }
    }
  }
  Py_buffer* buffer;
  if (n_few_ < kFewBuffers) {
    buffer = &few_[n_few_];
  } else {
    buffer = &many_.emplace_back();
  }
  if (PyObject_GetBuffer(array.ptr(), buffer, PyBUF_STRIDED_RO | PyBUF_FORMAT) != 0) {
    if (n_few_ >= kFewBuffers) many_.pop_back();
    const nb::python_error reason;  // takes the pending exception
    Raise(PyExc_TypeError, std::string(name) + " gives no strided buffer: " +
                               nb::cast<std::string>(nb::str(reason.value())));
  }
  if (n_few_ < kFewBuffers) ++n_few_;

  MutableTensorView result;
  std::string given;
  if (foreign != DType::kNone) {
    result.dtype = foreign;
    if (bits) RaiseElement(name, Name(foreign), bits);
  } else if (!ParseFormat(buffer->format, buffer->itemsize, bits, codes_, &result.dtype, &given)) {
    RaiseElement(name, given, bits);
  }
  CheckRank(buffer->ndim, name);
  if (writable && buffer->readonly)
    Raise(PyExc_ValueError, std::string(name) + " is read-only, and is to be written");
  result.data = buffer->buf;
  result.rank = buffer->ndim;
  for (int a = 0; a < buffer->ndim; ++a) {
    result.shape[a] = buffer->shape[a];
    result.stride[a] = buffer->strides[a];
  }
  return result;
}

MutableTensorView Borrower::FromDLPack(nb::handle array, const char* name, bool writable,
                                       bool bits) {
  if (nb::hasattr(array, "__dlpack_device__")) {
    const nb::object device = array.attr("__dlpack_device__")();
    const int type = nb::cast<int>(device[0]);
    if (type != kDLCPU)
      Raise(PyExc_ValueError, std::string(name) +
                                  " is not in the CPU's memory (DLPack device type " +
                                  std::to_string(type) + ")");
  }
  nb::object capsule;
  try {
    capsule = array.attr("__dlpack__")(nb::arg("max_version") = nb::make_tuple(1, 0),
                                       nb::arg("copy") = false);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
    capsule = array.attr("__dlpack__")();  // a producer from before version 1
  }
  // The capsule keeps its name, so it stays the owner and frees the tensor when the call is over.
  objects_.push_back(capsule);
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    const auto& tensor = *static_cast<const DLManagedTensorVersioned*>(
        PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (tensor.version.major != kDLPackMajor)
      Raise(PyExc_TypeError, std::string(name) + " speaks an unknown version of DLPack");
    if (tensor.flags & kDLIsCopied)
      Raise(PyExc_ValueError, std::string(name) + " can only be had as a copy");
    if (writable && (tensor.flags & kDLReadOnly))
      Raise(PyExc_ValueError, std::string(name) + " is read-only, and is to be written");
    return ViewOf(tensor.dl_tensor, name, bits, codes_);
  }
  if (!PyCapsule_IsValid(capsule.ptr(), "dltensor")) RaiseNoArray(array, name);
  return ViewOf(static_cast<const DLManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"))
                    ->dl_tensor,
                name, bits, codes_);
}

QuantisedArray::QuantisedArray(nb::object of, const std::string& type)
    : array(std::move(of)), dtype(DType::kNone) {
  std::string names;
  for (int n = static_cast<int>(DType::kI8); n <= static_cast<int>(DType::kF32Z4); ++n) {
    const char* const name = Name(static_cast<DType>(n));
    if (type == name) dtype = static_cast<DType>(n);
    names += (names.empty() ? "'" : ", '") + std::string(name) + "'";
  }
  if (dtype == DType::kNone)
    Raise(PyExc_ValueError, "type = '" + type + "', expected one of " + names);
}

MutableTensorView Borrower::BorrowCodes(nb::handle array, const char* name, bool writable) {
  codes_ = true;
  if (!nb::isinstance<QuantisedArray>(array)) {
    const MutableTensorView plain = Borrow(array, name, writable, false);
    codes_ = false;
    return plain;
  }
  const QuantisedArray& given = *nb::inst_ptr<QuantisedArray>(array);
  MutableTensorView view = Borrow(given.array, name, writable, false);
  codes_ = false;
  const bool is_scale = given.dtype == DType::kF32Z4;
  if (is_scale ? view.dtype != DType::kF32 : SizeOf(view.dtype) != 1) {
    RaiseElement(name, fovea::Name(view.dtype), !is_scale);
  }
  const int last = view.rank - 1;
  const int64_t bytes = UnitBytes(given.dtype);
  view.dtype = given.dtype;
  if (is_scale) return view;
  if (view.shape[last] % bytes != 0) {
    Raise(PyExc_ValueError, std::string(name) + ".shape[" + std::to_string(last) +
                                "] = " + std::to_string(view.shape[last]) +
                                " bytes, expected a multiple of " + std::to_string(bytes) +
                                " (a unit of " + fovea::Name(given.dtype) + ")");
  }
  if (bytes > 1 && view.stride[last] != 1)
    Raise(PyExc_ValueError, std::string(name) + " has bytes that lie apart along its last axis");
  view.shape[last] = view.shape[last] / bytes * UnitElements(given.dtype);
  view.stride[last] *= bytes;
  return view;
}

TensorView Borrower::Integers(nb::handle array, const char* name) {
  if (!IsList(array)) return Input(array, name);
  return ViewOf(integers_.emplace_back(Numbers<int64_t>(array, name)), DType::kI64);
}

TensorView Borrower::Floats(nb::handle array, const char* name) {
  if (!IsList(array)) return Input(array, name);
  return ViewOf(floats_.emplace_back(Numbers<float>(array, name)), DType::kF32);
}

Library LibraryOf(nb::handle array) {
  return InfoOf(array).is_torch ? Library::kTorch : Library::kNumpy;
}

// By PyTorch's allocator, without its Python: half the time of torch.empty.
nb::object EmptyTorch(DType dtype, int rank, const int64_t* dense_shape, const int64_t* shape,
                      const int64_t* strides, void** data) {
  static const TypeInfo info = InfoOf(Torch().empty(0));
  if (info.exchange == nullptr) {
    const auto tuple = [rank](const int64_t* numbers) {
      nb::object axes = nb::steal(PyTuple_New(rank));
      for (int a = 0; a < rank; ++a)
        PyTuple_SetItem(axes.ptr(), a, PyLong_FromLongLong(numbers[a]));
      return axes;
    };
    nb::object tensor = Torch().empty(
        tuple(dense_shape), nb::arg("dtype") = Torch().dtypes[static_cast<size_t>(dtype)]);
    *data = Borrower().Output(tensor, "out").data;
    if (strides == nullptr) return tensor;
    return tensor.attr("as_strided")(tuple(shape), tuple(strides));
  }
  DLTensor prototype = {};
  prototype.device = {kDLCPU, 0};
  prototype.ndim = rank;
  prototype.dtype = {static_cast<uint8_t>(dtype == DType::kBF16 ? kDLBfloat : kDLFloat),
                     static_cast<uint8_t>(8 * SizeOf(dtype)), 1};
  prototype.shape = const_cast<int64_t*>(dense_shape);
  DLManagedTensorVersioned* managed = nullptr;
  const auto set_error = [](void*, const char*, const char* message) {
    PyErr_SetString(PyExc_MemoryError, message);
  };
  if (info.exchange->managed_tensor_allocator(&prototype, &managed, nullptr, set_error) != 0)
    throw nb::python_error();
  *data = managed->dl_tensor.data;
  if (strides != nullptr) {
    std::copy(shape, shape + rank, managed->dl_tensor.shape);
    std::copy(strides, strides + rank, managed->dl_tensor.strides);
  }
  void* tensor = nullptr;
  if (info.exchange->managed_tensor_to_py_object_no_sync(managed, &tensor) != 0)
    throw nb::python_error();
  return nb::steal(static_cast<PyObject*>(tensor));
}

namespace {

nb::object EmptyNumpy(DType dtype, int rank, const int64_t* shape, void** data) {
  nb::object axes = nb::steal(PyTuple_New(rank));
  if (!axes.is_valid()) throw nb::python_error();
  for (int a = 0; a < rank; ++a) {
    PyObject* const n = PyLong_FromLongLong(shape[a]);
    if (n == nullptr) throw nb::python_error();
    PyTuple_SetItem(axes.ptr(), a, n);  // takes n
  }
  nb::object array = Numpy().empty(
      axes, dtype == DType::kBF16 ? NumpyBF16() : Numpy().dtypes[static_cast<size_t>(dtype)]);
  // The array owns its memory, which stays where it is when the buffer is given back.
  *data = Borrower().Output(array, "out").data;
  return array;
}

}  // namespace

nb::object Empty(Library library, DType dtype, int rank, const int64_t* shape, void** data) {
  return library == Library::kTorch ? EmptyTorch(dtype, rank, shape, nullptr, nullptr, data)
                                    : EmptyNumpy(dtype, rank, shape, data);
}

}  // namespace fovea::python
