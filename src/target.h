// Which instruction set a plan gets.
#ifndef FOVEA_SRC_TARGET_H_
#define FOVEA_SRC_TARGET_H_

#include "fovea/target.h"

namespace fovea {

// The target that plans use which ask for `asked` (options.target). kUnsupported where the library
// knows it but this build lacks it or this CPU cannot run it, so that a host can fall back;
// kInvalidArgument for values outside the enumeration.
Status ChooseTarget(Target asked, Target* target) noexcept;

}  // namespace fovea

#endif  // FOVEA_SRC_TARGET_H_
