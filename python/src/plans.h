// The class Plan of the Python module.
#ifndef FOVEA_PYTHON_PLANS_H_
#define FOVEA_PYTHON_PLANS_H_

#include "errors.h"

namespace fovea::python {

// Adds Plan to the module, and how long calls take in C++ alone, for python/bench.
void BindPlans(nb::module_& m);

}  // namespace fovea::python

#endif  // FOVEA_PYTHON_PLANS_H_
