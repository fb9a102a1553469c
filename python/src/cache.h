// Caches of keys and values from Python: fovea.append, and where MakeCache puts what.
#ifndef FOVEA_PYTHON_CACHE_H_
#define FOVEA_PYTHON_CACHE_H_

#include <nanobind/nanobind.h>

#include "array.h"

namespace fovea::python {

// Adds append and _cache_layout to the module.
void DefineCaches(nb::module_& m);

}  // namespace fovea::python

#endif  // FOVEA_PYTHON_CACHE_H_
