// Marks what the shared library exports; everything else in it is hidden.
#ifndef FOVEA_EXPORT_H_
#define FOVEA_EXPORT_H_

#if defined(__GNUC__)
#define FOVEA_EXPORT [[gnu::visibility("default")]]
#else
#define FOVEA_EXPORT
#endif

#endif  // FOVEA_EXPORT_H_
