#include "cli/files/npy.h"

#include <cstring>

namespace fovea::files {
namespace {

constexpr char kMagic[] = "\x93NUMPY";
constexpr size_t kMagicBytes = 6;

// A cursor over the header's Python literal. Every Take… moves on only when it succeeds, and skips
// blanks before what it takes.
class Scanner {
 public:
  Scanner(const char* begin, const char* end) : at_(begin), end_(end) {}

  bool AtEnd() {
    SkipBlanks();
    return at_ == end_;
  }

  bool Take(char c) {
    SkipBlanks();
    if (at_ == end_ || *at_ != c) return false;
    ++at_;
    return true;
  }

  bool TakeWord(const char* word) {
    SkipBlanks();
    const size_t n = std::strlen(word);
    if (static_cast<size_t>(end_ - at_) < n || std::memcmp(at_, word, n) != 0) return false;
    at_ += n;
    return true;
  }

  // 'text' or "text", without escapes: no key or type name of the format needs one.
  bool TakeString(std::string* text) {
    SkipBlanks();
    if (at_ == end_ || (*at_ != '\'' && *at_ != '"')) return false;
    const void* const close = std::memchr(at_ + 1, *at_, static_cast<size_t>(end_ - at_ - 1));
    if (close == nullptr) return false;
    text->assign(at_ + 1, static_cast<const char*>(close));
    if (text->find('\\') != std::string::npos) return false;
    at_ = static_cast<const char*>(close) + 1;
    return true;
  }

  // A size: decimal digits, at most 2^63 − 1, and the L that Python 2 wrote behind long ones.
  bool TakeSize(int64_t* size) {
    SkipBlanks();
    const char* p = at_;
    int64_t value = 0;
    for (; p != end_ && *p >= '0' && *p <= '9'; ++p) {
      if (__builtin_mul_overflow(value, 10, &value) ||
          __builtin_add_overflow(value, *p - '0', &value))
        return false;
    }
    if (p == at_) return false;
    at_ = p != end_ && *p == 'L' ? p + 1 : p;
    *size = value;
    return true;
  }

 private:
  void SkipBlanks() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\t' || *at_ == '\r')) ++at_;
  }

  const char* at_;
  const char* end_;
};

// (), (2,), (2, 3) or (2, 3,)
bool TakeShape(Scanner& scanner, std::vector<int64_t>* shape) {
  shape->clear();
  if (!scanner.Take('(')) return false;
  while (!scanner.Take(')')) {
    int64_t size;
    if (shape->size() == kMaxAxes || !scanner.TakeSize(&size)) return false;
    shape->push_back(size);
    if (scanner.Take(',')) continue;
    return shape->size() > 1 && scanner.Take(')');  // without the comma, (2) is a number
  }
  return true;
}

// {'descr': …, 'fortran_order': …, 'shape': …}, in any order, each exactly once.
bool TakeHeader(Scanner& scanner, TensorInfo* info, std::string* error) {
  enum { kDescr = 1, kFortranOrder = 2, kShape = 4, kAll = 7 };
  unsigned seen = 0;
  *error = "the header is not a Python dictionary";
  if (!scanner.Take('{')) return false;
  while (!scanner.Take('}')) {
    std::string key;
    if (!scanner.TakeString(&key) || !scanner.Take(':')) return false;
    const unsigned field = key == "descr"           ? kDescr
                           : key == "fortran_order" ? kFortranOrder
                           : key == "shape"         ? kShape
                                                    : 0;
    if (field == 0 || (seen & field) != 0) {
      *error = "the header has " +
               std::string(field == 0 ? "an unknown key '" : "twice the key '") +
               Printable(key, 40) + "'";
      return false;
    }
    seen |= field;
    if (field == kDescr && !scanner.TakeString(&info->type_name)) {
      *error = "the header's 'descr' is not a type name; structured arrays are not supported";
      return false;
    }
    if (field == kFortranOrder) {
      info->fortran_order = scanner.TakeWord("True");
      if (!info->fortran_order && !scanner.TakeWord("False")) {
        *error = "the header's 'fortran_order' is neither True nor False";
        return false;
      }
    }
    if (field == kShape && !TakeShape(scanner, &info->shape)) {
      *error =
          "the header's 'shape' is not a tuple of at most " + std::to_string(kMaxAxes) + " sizes";
      return false;
    }
    if (scanner.Take(',')) continue;
    if (!scanner.Take('}')) return false;
    break;
  }
  if (!scanner.AtEnd()) return false;
  if (seen != kAll) {
    *error = "the header lacks one of 'descr', 'fortran_order', 'shape'";
    return false;
  }
  return true;
}

// "<f4" and the like → dtype and bytes of an element; dtype kNone for element types of NumPy that
// Fovea lacks.
bool ParseTypeName(const std::string& name, DType* dtype, int64_t* bytes, std::string* error) {
  const std::string shown = "type '" + Printable(name, 40) + "'";
  if (name.size() < 3 || std::strchr("<>|=", name[0]) == nullptr ||
      std::strchr("?bBiufcmMOSUV", name[1]) == nullptr) {
    *error = shown + " is not a NumPy type";
    return false;
  }
  if (name[0] == '>') {
    *error = shown + " is big-endian, expected little-endian";
    return false;
  }
  static constexpr struct {
    const char* name;
    DType dtype;
  } kKnown[] = {{"f4", DType::kF32},  {"f2", DType::kF16}, {"b1", DType::kBool},
                {"u1", DType::kBool}, {"i1", DType::kI8},  {"i4", DType::kI32},
                {"i8", DType::kI64}};
  *dtype = DType::kNone;
  *bytes = 0;
  for (const auto& known : kKnown) {
    if (name.compare(1, std::string::npos, known.name) == 0) {
      *dtype = known.dtype;
      *bytes = SizeOf(known.dtype);
    }
  }
  return true;
}

bool CheckSize(uint64_t file_bytes, int64_t element_bytes, TensorInfo* info, std::string* error) {
  info->end = file_bytes;
  if (info->dtype == DType::kNone) return true;  // size unknown; nobody will read the elements
  uint64_t bytes;
  if (!ShapeBytes(info->shape, element_bytes, &bytes)) {
    *error = "shape " + ToString(info->shape) + " is too large";
    return false;
  }
  if (bytes != file_bytes - info->begin) {
    *error = "shape " + ToString(info->shape) + " of " + Printable(info->type_name, 40) +
             " takes " + std::to_string(bytes) + " bytes, but the file has " +
             std::to_string(file_bytes - info->begin) + " behind its header";
    return false;
  }
  return true;
}

}  // namespace

bool ParseNpy(const void* data, size_t size, uint64_t file_bytes, TensorInfo* info,
              std::string* error) {
  const char* const bytes = static_cast<const char*>(data);
  *info = TensorInfo();
  if (size < kMagicBytes + 4 || std::memcmp(bytes, kMagic, kMagicBytes) != 0) {
    *error = size < kMagicBytes + 4
                 ? "not a .npy file: it is only " + std::to_string(size) + " bytes long"
                 : "not a .npy file: it does not begin with \\x93NUMPY";
    return false;
  }
  const int version = static_cast<unsigned char>(bytes[6]);
  if (version < 1 || version > 3 || bytes[7] != 0) {
    *error = ".npy format version " + std::to_string(version) + "." +
             std::to_string(static_cast<unsigned char>(bytes[7])) + ", expected 1.0, 2.0 or 3.0";
    return false;
  }
  const size_t length_bytes = version == 1 ? 2 : 4;
  const size_t start = kMagicBytes + 2 + length_bytes;
  if (size < start) {
    *error = "the file ends inside its header";
    return false;
  }
  size_t length = 0;
  for (size_t i = 0; i < length_bytes; ++i)
    length |= size_t{static_cast<unsigned char>(bytes[kMagicBytes + 2 + i])} << (8 * i);
  if (length > kMaxNpyHeader) {
    *error = "a header of " + std::to_string(length) + " bytes, expected at most " +
             std::to_string(kMaxNpyHeader);
    return false;
  }
  if (length > size - start) {
    *error = "the file ends inside its header";
    return false;
  }
  info->begin = start + length;
  Scanner scanner(bytes + start, bytes + start + length);
  if (!TakeHeader(scanner, info, error)) return false;
  int64_t element_bytes;
  return ParseTypeName(info->type_name, &info->dtype, &element_bytes, error) &&
         CheckSize(file_bytes, element_bytes, info, error);
}

bool NpyHeader(DType dtype, const std::vector<int64_t>& shape, std::string* header,
               std::string* error) {
  const char* const descr = dtype == DType::kF32    ? "<f4"
                            : dtype == DType::kF16  ? "<f2"
                            : dtype == DType::kBool ? "|b1"
                            : dtype == DType::kI8   ? "|i1"
                            : dtype == DType::kI32  ? "<i4"
                            : dtype == DType::kI64  ? "<i8"
                                                    : nullptr;
  if (descr == nullptr) {
    *error = std::string("a .npy file cannot hold ") + Name(dtype) + "; write a .safetensors file";
    return false;
  }
  std::string tuple = "(";
  for (const int64_t size : shape) tuple += std::to_string(size) + ", ";
  std::string literal =
      std::string("{'descr': '") + descr + "', 'fortran_order': False, 'shape': " + tuple + "), }";
  constexpr size_t kBefore = kMagicBytes + 4, kAlignment = 64;
  const size_t end = (kBefore + literal.size() + 1 + kAlignment - 1) / kAlignment * kAlignment;
  literal.resize(end - kBefore - 1, ' ');
  literal += '\n';
  header->assign(kMagic, kMagicBytes);
  header->push_back(1), header->push_back(0);
  header->push_back(static_cast<char>(literal.size() & 0xff)),
      header->push_back(static_cast<char>(literal.size() >> 8));
  *header += literal;
  return true;
}

}  // namespace fovea::files
