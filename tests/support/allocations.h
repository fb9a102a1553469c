// Counts heap allocations of the whole process: operator new, and malloc where the C library lets a
// program see it.
#ifndef FOVEA_TESTS_SUPPORT_ALLOCATIONS_H_
#define FOVEA_TESTS_SUPPORT_ALLOCATIONS_H_

#include <cstdint>

namespace fovea::test {

// Since the start of the process, all threads together.
int64_t Allocations();

// Whether malloc itself is counted, not only operator new.
bool CountsMalloc();

}  // namespace fovea::test

#endif  // FOVEA_TESTS_SUPPORT_ALLOCATIONS_H_
