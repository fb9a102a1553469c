#include "formats.h"

namespace fovea::python {

bool ParseFormat(const char* format, int64_t itemsize, bool bits, bool codes, DType* dtype,
                 std::string* given) {
  const char* f = format == nullptr ? "B" : format;
  const uint16_t one = 1;
  const bool little = *reinterpret_cast<const unsigned char*>(&one) == 1;
  bool swapped = false;
  if (*f == '@' || *f == '=') {
    ++f;
  } else if (*f == '<' || *f == '>' || *f == '!') {
    swapped = (*f == '<') != little && itemsize > 1;
    ++f;
  }
  const char letter = f[0] != '\0' && f[1] == '\0' ? f[0] : '\0';
  if (swapped) {
    *given = std::string("'") + format + "' (foreign byte order)";
    return false;
  }
  if (bits) {
    if (letter == 'B') return *dtype = DType::kBit, true;
    *given = std::string("'") + f + "'";
    return false;
  }
  const bool integer = letter == 'i' || letter == 'l' || letter == 'q' || letter == 'n';
  if (codes && letter == 'b' && itemsize == 1) return *dtype = DType::kI8, true;
  if (codes && letter == 'B' && itemsize == 1) return *dtype = DType::kU8, true;
  if (letter == 'f' && itemsize == 4) return *dtype = DType::kF32, true;
  if (letter == 'e' && itemsize == 2) return *dtype = DType::kF16, true;
  if (letter == '?' && itemsize == 1) return *dtype = DType::kBool, true;
  if (integer && itemsize == 4) return *dtype = DType::kI32, true;
  if (integer && itemsize == 8) return *dtype = DType::kI64, true;
  switch (letter) {
    case 'd':
      *given = "float64";
      break;
    case 'B':
      *given = "uint8";
      break;
    case 'b':
      *given = "int8";
      break;
    case 'h':
      *given = "int16";
      break;
    case 'H':
      *given = "uint16";
      break;
    default:
      *given = std::string("'") + f + "'";
  }
  return false;
}

bool ParseDLType(DLDataType type, bool bits, bool codes, DType* dtype, std::string* given) {
  if (type.lanes == 1) {
    if (bits && type.code == kDLUInt && type.bits == 8) return *dtype = DType::kBit, true;
    if (codes && type.bits == 8) {
      if (type.code == kDLInt) return *dtype = DType::kI8, true;
      if (type.code == kDLUInt) return *dtype = DType::kU8, true;
      if (type.code == kDLFloat8E4M3FN) return *dtype = DType::kF8E4M3FN, true;
      if (type.code == kDLFloat8E5M2) return *dtype = DType::kF8E5M2, true;
    }
    if (!bits) {
      if (type.code == kDLFloat && type.bits == 32) return *dtype = DType::kF32, true;
      if (type.code == kDLFloat && type.bits == 16) return *dtype = DType::kF16, true;
      if (type.code == kDLBfloat && type.bits == 16) return *dtype = DType::kBF16, true;
      if (type.code == kDLBool && type.bits == 8) return *dtype = DType::kBool, true;
      if (type.code == kDLInt && type.bits == 32) return *dtype = DType::kI32, true;
      if (type.code == kDLInt && type.bits == 64) return *dtype = DType::kI64, true;
    }
  }
  static const char* const kCodes[] = {"int",    "uint",    "float", "opaque",
                                       "bfloat", "complex", "bool"};
  *given = (type.code < 7 ? std::string(kCodes[type.code])
                          : "DLPack code " + std::to_string(type.code) + " of bits ") +
           std::to_string(type.bits);
  if (type.lanes != 1) *given += " × " + std::to_string(type.lanes);
  return false;
}

}  // namespace fovea::python
