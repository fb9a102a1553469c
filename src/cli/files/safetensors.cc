#include "cli/files/safetensors.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace fovea::files {
namespace {

using nlohmann::json;

struct Type {
  const char* name;
  DType dtype;
  int64_t bytes;
};
// U8 stands behind BOOL, so that kBool is written as BOOL.
constexpr Type kTypes[] = {
    {"F32", DType::kF32, 4},        {"F16", DType::kF16, 2},  {"BF16", DType::kBF16, 2},
    {"BOOL", DType::kBool, 1},      {"U8", DType::kBool, 1},  {"I32", DType::kI32, 4},
    {"I64", DType::kI64, 8},        {"I8", DType::kI8, 1},    {"F8_E4M3", DType::kF8E4M3FN, 1},
    {"F8_E5M2", DType::kF8E5M2, 1}, {"F64", DType::kNone, 8}, {"I16", DType::kNone, 2},
    {"U16", DType::kNone, 2},       {"U32", DType::kNone, 4}, {"U64", DType::kNone, 8}};

const Type* FindType(const std::string& name) {
  for (const Type& type : kTypes) {
    if (name == type.name) return &type;
  }
  return nullptr;
}

std::string Shown(const std::string& name) { return "tensor '" + Printable(name, 80) + "'"; }

// Takes the header event by event, so that no event outside the format's small grammar is ever
// stored:
//   {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, …, "__metadata__": {"key":
//   "text", …}}
class HeaderReader : public json::json_sax_t {
 public:
  explicit HeaderReader(std::vector<TensorInfo>* tensors) : tensors_(tensors) {}

  const std::string& error() const { return error_; }

  bool start_object(std::size_t) override {
    if (place_ == Place::kStart) return Go(Place::kTop);
    if (place_ == Place::kTop && name_ == "__metadata__") return Go(Place::kMetadata);
    if (place_ != Place::kTop) return Unexpected("an object");
    tensors_->emplace_back();
    tensors_->back().name = name_;
    seen_ = 0;
    offsets_ = 0;
    return Go(Place::kTensor);
  }

  bool key(string_t& text) override {
    if (place_ == Place::kTop) {
      name_ = text;
      return true;
    }
    if (place_ == Place::kMetadata) return true;
    field_ = text == "dtype"          ? kDtype
             : text == "shape"        ? kShape
             : text == "data_offsets" ? kOffsets
                                      : kNone;
    if (field_ == kNone || (seen_ & field_) != 0) {
      return Fail(Shown(name_) + " has " + (field_ == kNone ? "an unknown" : "twice the") +
                  " field '" + Printable(text, 40) + "'");
    }
    seen_ |= field_;
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTop) return Go(Place::kEnd);
    if (place_ == Place::kMetadata) return Go(Place::kTop);
    if (seen_ != (kDtype | kShape | kOffsets))
      return Fail(Shown(name_) + " lacks one of dtype, shape, data_offsets");
    return Go(Place::kTop);
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::kTensor && field_ == kShape) return Go(Place::kShapeArray);
    if (place_ == Place::kTensor && field_ == kOffsets) return Go(Place::kOffsetsArray);
    return Unexpected("an array");
  }

  bool end_array() override {
    if (place_ == Place::kOffsetsArray && offsets_ != 2)
      return Fail(Shown(name_) + ": data_offsets are not two numbers");
    return Go(Place::kTensor);
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kShapeArray) {
      std::vector<int64_t>& shape = tensors_->back().shape;
      if (shape.size() == kMaxAxes)
        return Fail(Shown(name_) + " has more than " + std::to_string(kMaxAxes) + " axes");
      if (value > static_cast<uint64_t>(INT64_MAX))
        return Fail(Shown(name_) + " has an axis of " + std::to_string(value));
      shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (place_ == Place::kOffsetsArray && offsets_ < 2) {
      (offsets_++ == 0 ? tensors_->back().begin : tensors_->back().end) = value;
      return true;
    }
    return Unexpected("a number");
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) return true;
    if (place_ != Place::kTensor || field_ != kDtype) return Unexpected("a string");
    tensors_->back().type_name = value.substr(0, 40);
    return true;
  }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a truth value"); }
  bool number_integer(number_integer_t) override { return Unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return Unexpected("a fraction or a huge number");
  }
  bool binary(binary_t&) override { return Unexpected("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const json::exception&) override {
    return Fail("the header is not valid JSON at its byte " + std::to_string(position));
  }

 private:
  enum class Place { kStart, kTop, kTensor, kShapeArray, kOffsetsArray, kMetadata, kEnd };
  enum Field : unsigned { kNone = 0, kDtype = 1, kShape = 2, kOffsets = 4 };

  bool Go(Place place) {
    place_ = place;
    return true;
  }
  bool Fail(std::string error) {
    error_ = std::move(error);
    return false;
  }
  bool Unexpected(const char* what) {
    return Fail(std::string("the header has ") + what +
                (name_.empty() ? " at its start" : " where " + Shown(name_) + " cannot have one"));
  }

  std::vector<TensorInfo>* tensors_;
  Place place_ = Place::kStart;
  std::string name_;  // of the entry being read
  unsigned field_ = kNone, seen_ = 0;
  int offsets_ = 0;
  std::string error_;
};

// The type's size against the offsets, relative to the end of the header.
bool CheckTensor(TensorInfo* tensor, uint64_t data_bytes, std::string* error) {
  if (tensor->begin > tensor->end || tensor->end > data_bytes) {
    *error = Shown(tensor->name) + ": data_offsets [" + std::to_string(tensor->begin) + ", " +
             std::to_string(tensor->end) + "] are not inside the " + std::to_string(data_bytes) +
             " bytes behind the header";
    return false;
  }
  const Type* const type = FindType(tensor->type_name);
  // of a later version of the format: fine as long as nobody asks for it
  if (type == nullptr) return true;
  tensor->dtype = type->dtype;
  uint64_t bytes;
  if (!ShapeBytes(tensor->shape, type->bytes, &bytes) || bytes != tensor->end - tensor->begin) {
    *error = Shown(tensor->name) + ": data_offsets span " +
             std::to_string(tensor->end - tensor->begin) + " bytes, but shape " +
             ToString(tensor->shape) + " of " + Printable(tensor->type_name, 40) + " does not";
    return false;
  }
  return true;
}

bool CheckNames(const std::vector<TensorInfo>& tensors, std::string* error) {
  std::vector<std::string> names;
  names.reserve(tensors.size());
  for (const TensorInfo& tensor : tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return true;
  *error = Shown(*twice) + " occurs twice";
  return false;
}

// Sorted by place, every tensor begins where the one before it ends, and the last ends with the
// file.
bool CheckCoverage(const std::vector<TensorInfo>& tensors, uint64_t data_bytes,
                   std::string* error) {
  std::vector<const TensorInfo*> sorted;
  sorted.reserve(tensors.size());
  for (const TensorInfo& tensor : tensors) sorted.push_back(&tensor);
  std::sort(sorted.begin(), sorted.end(), [](const TensorInfo* a, const TensorInfo* b) {
    return a->begin != b->begin ? a->begin < b->begin : a->end < b->end;
  });
  uint64_t end = 0;
  for (const TensorInfo* tensor : sorted) {
    if (tensor->begin != end) {
      *error = Shown(tensor->name) +
               (tensor->begin < end ? " overlaps the one before it" : " leaves a hole before it");
      return false;
    }
    end = tensor->end;
  }
  if (end != data_bytes) {
    *error = "the tensors end at byte " + std::to_string(end) +
             " behind the header, the file at byte " + std::to_string(data_bytes);
    return false;
  }
  return true;
}

}  // namespace

uint64_t SafetensorsHeaderLength(const void* first_8_bytes) {
  const unsigned char* const bytes = static_cast<const unsigned char*>(first_8_bytes);
  uint64_t length = 0;
  for (int i = 0; i < 8; ++i) length |= uint64_t{bytes[i]} << (8 * i);
  return length;
}

bool ParseSafetensors(const void* data, size_t size, uint64_t file_bytes,
                      std::vector<TensorInfo>* tensors, std::string* error) {
  tensors->clear();
  if (size < 8) {
    *error = "not a .safetensors file: it is only " + std::to_string(size) + " bytes long";
    return false;
  }
  const uint64_t length = SafetensorsHeaderLength(data);
  if (length > kMaxSafetensorsHeader || length > file_bytes - 8 || length > size - 8) {
    *error = "a header of " + std::to_string(length) + " bytes, but " +
             (length > kMaxSafetensorsHeader
                  ? "the format allows " + std::to_string(kMaxSafetensorsHeader)
                  : "only " + std::to_string(std::min<uint64_t>(file_bytes, size) - 8) + " follow");
    return false;
  }
  const char* const header = static_cast<const char*>(data) + 8;
  HeaderReader reader(tensors);
  if (!json::sax_parse(header, header + length, &reader)) {
    *error = reader.error();
    return false;
  }
  const uint64_t data_bytes = file_bytes - 8 - length;
  for (TensorInfo& tensor : *tensors) {
    if (!CheckTensor(&tensor, data_bytes, error)) return false;
  }
  if (!CheckNames(*tensors, error) || !CheckCoverage(*tensors, data_bytes, error)) return false;
  for (TensorInfo& tensor : *tensors) tensor.begin += 8 + length, tensor.end += 8 + length;
  return true;
}

bool SafetensorsHeader(std::vector<TensorInfo>* tensors, std::string* header, std::string* error) {
  json entries = json::object();
  uint64_t end = 0;
  for (TensorInfo& tensor : *tensors) {
    const Type* const type = std::find_if(std::begin(kTypes), std::end(kTypes),
                                          [&](const Type& t) { return t.dtype == tensor.dtype; });
    uint64_t bytes;
    if (type == std::end(kTypes) || tensor.dtype == DType::kNone ||
        !ShapeBytes(tensor.shape, type->bytes, &bytes)) {
      *error = Shown(tensor.name) + " has a type or shape that cannot be written";
      return false;
    }
    if (tensor.name == "__metadata__" || entries.contains(tensor.name)) {
      *error =
          Shown(tensor.name) + (tensor.name == "__metadata__" ? ": the format reserves this name"
                                                              : " would occur twice");
      return false;
    }
    tensor.begin = end;
    tensor.end = end += bytes;
    entries[tensor.name] = {{"dtype", type->name},
                            {"shape", tensor.shape},
                            {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string text;
  try {
    text = entries.dump();
  } catch (const json::exception&) {
    *error = "a tensor's name is not valid UTF-8";
    return false;
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  header->clear();
  for (int i = 0; i < 8; ++i)
    header->push_back(static_cast<char>(uint64_t{text.size()} >> (8 * i) & 0xff));
  *header += text;
  for (TensorInfo& tensor : *tensors) tensor.begin += header->size(), tensor.end += header->size();
  return true;
}

}  // namespace fovea::files
