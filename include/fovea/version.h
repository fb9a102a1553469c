// The version of these headers. For C and C++.
#ifndef FOVEA_VERSION_H_
#define FOVEA_VERSION_H_

#define FOVEA_VERSION_MAJOR 0
#define FOVEA_VERSION_MINOR 1
#define FOVEA_VERSION_PATCH 0

#endif  // FOVEA_VERSION_H_
