// Element types as the buffer protocol and DLPack say them.
#ifndef FOVEA_PYTHON_FORMATS_H_
#define FOVEA_PYTHON_FORMATS_H_

#include <cstdint>
#include <string>

#include "dlpack.h"
#include "fovea/tensor.h"

namespace fovea::python {

// The element type of a buffer's format (struct module's letters), or of DLPack's. `bits`: only
// bytes will do; `codes`: those of 8 bits too. On failure *given says in words what it is.
bool ParseFormat(const char* format, int64_t itemsize, bool bits, bool codes, DType* dtype,
                 std::string* given);
bool ParseDLType(DLDataType type, bool bits, bool codes, DType* dtype, std::string* given);

}  // namespace fovea::python

#endif  // FOVEA_PYTHON_FORMATS_H_
