// Marks what the shared library exports; everything else in it is hidden. For C and C++.
#ifndef FOVEA_EXPORT_H_
#define FOVEA_EXPORT_H_

#if !defined(__GNUC__)
#define FOVEA_EXPORT
#elif defined(__cplusplus)
#define FOVEA_EXPORT [[gnu::visibility("default")]]
#else
#define FOVEA_EXPORT __attribute__((visibility("default")))
#endif

#endif  // FOVEA_EXPORT_H_
