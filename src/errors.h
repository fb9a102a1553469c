// Errors as the library makes them: a message that names the field, what was given and what was
// expected.
#ifndef FOVEA_SRC_ERRORS_H_
#define FOVEA_SRC_ERRORS_H_

#include "fovea/status.h"

namespace fovea {

// An error whose message is formatted as by printf.
Status Invalid(const char* format, ...) noexcept __attribute__((format(printf, 1, 2)));
Status Unsupported(const char* format, ...) noexcept __attribute__((format(printf, 1, 2)));
Status TooSmall(const char* format, ...) noexcept __attribute__((format(printf, 1, 2)));

}  // namespace fovea

// Returns the status of `expression` from the calling function unless it is ok.
#define FOVEA_RETURN_IF_ERROR(expression)               \
  do {                                                  \
    if (Status status_ = (expression); !status_.ok()) { \
      return status_;                                   \
    }                                                   \
  } while (false)

#endif  // FOVEA_SRC_ERRORS_H_
