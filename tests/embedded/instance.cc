// All functions of fovea/embedded.h, for the instruction set of this unit's flags. Nothing here
// runs before it is called.
#include "embedded/instance.h"

#include <cstring>

#include "fovea/embedded.h"

#define FOVEA_TO_STRING_OF(x) #x
#define FOVEA_TO_STRING(x) FOVEA_TO_STRING_OF(x)

namespace fovea::test {
namespace {

namespace internal = embedded::internal;

size_t ScratchBytes(int64_t dk, int64_t dv, int64_t rows) {
  return embedded::ScratchBytes(dk, dv, rows);
}
size_t LeastScratchBytes(int64_t dk, int64_t dv, int64_t rows) {
  return embedded::LeastScratchBytes(dk, dv, rows);
}
int Attention(const void* problem, void* scratch, size_t scratch_bytes) {
  embedded::Problem own;
  std::memcpy(&own, problem, sizeof(own));
  return static_cast<int>(embedded::Attention(own, scratch, scratch_bytes));
}
void LoadHalves(const uint16_t* from, int64_t n, float* to) {
  internal::LoadRow(embedded::Type::kF16, reinterpret_cast<const char*>(from), 2, n, to);
}
float Widened(uint16_t h) { return internal::Widened(h); }

static_assert(embedded::ScratchBytes(64, 64) == embedded::ScratchBytes(64, 64, 1000),
              "scratch does not depend on Tq");
static_assert(embedded::ScratchBytes(64, 64, 1) < embedded::ScratchBytes(64, 64),
              "decoding needs less");

}  // namespace

extern const EmbeddedInstance FOVEA_EMBEDDED_INSTANCE;
const EmbeddedInstance FOVEA_EMBEDDED_INSTANCE = {
    FOVEA_TO_STRING(FOVEA_EMBEDDED_ISA),
    internal::kLanes,
    Attention,
    ScratchBytes,
    LeastScratchBytes,
    Widened,
    internal::Narrowed,
    LoadHalves,
};

}  // namespace fovea::test
