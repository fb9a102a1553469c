#include "fovea/status.h"

#include <cstdio>

namespace fovea {

Status::Status(StatusCode code, const char* message) noexcept : code_(code) {
  std::snprintf(message_, sizeof(message_), "%s", message);
}

}  // namespace fovea
