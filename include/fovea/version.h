// The version of these headers. For C and C++.
#ifndef FOVEA_VERSION_H_
#define FOVEA_VERSION_H_

// Raised when callers must change.
#define FOVEA_VERSION_MAJOR 0
// Raised for what is new; before version 1.0 also when callers must change.
#define FOVEA_VERSION_MINOR 1
// Raised for faults that were removed.
#define FOVEA_VERSION_PATCH 0

#endif  // FOVEA_VERSION_H_
