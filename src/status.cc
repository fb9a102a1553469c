#include "fovea/status.h"

#include <cstdarg>
#include <cstdio>

#include "errors.h"

namespace fovea {
namespace {

Status Formatted(StatusCode code, const char* format, va_list arguments) {
  char message[Status::kMaxMessage];
  std::vsnprintf(message, sizeof(message), format, arguments);
  return Status(code, message);
}

}  // namespace

Status::Status(StatusCode code, const char* message) noexcept : code_(code) {
  std::snprintf(message_, sizeof(message_), "%s", message);
}

Status Invalid(const char* format, ...) noexcept {
  va_list arguments;
  va_start(arguments, format);
  const Status status = Formatted(StatusCode::kInvalidArgument, format, arguments);
  va_end(arguments);
  return status;
}

Status Unsupported(const char* format, ...) noexcept {
  va_list arguments;
  va_start(arguments, format);
  const Status status = Formatted(StatusCode::kUnsupported, format, arguments);
  va_end(arguments);
  return status;
}

Status TooSmall(const char* format, ...) noexcept {
  va_list arguments;
  va_start(arguments, format);
  const Status status = Formatted(StatusCode::kOutOfMemory, format, arguments);
  va_end(arguments);
  return status;
}

}  // namespace fovea
