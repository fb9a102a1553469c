// All functions of fovea/embedded.h, for the instruction set of this unit's flags. Nothing here
// runs before it is called.
#include "embedded/instance.h"

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
    embedded::Attention,
    ScratchBytes,
    LeastScratchBytes,
    Widened,
    internal::Narrowed,
    internal::LoadRow,
};

}  // namespace fovea::test
