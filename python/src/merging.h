// merge() of the Python module.
#ifndef FOVEA_PYTHON_MERGING_H_
#define FOVEA_PYTHON_MERGING_H_

#include "errors.h"

namespace fovea::python {

void BindMerging(nb::module_& m);

}  // namespace fovea::python

#endif  // FOVEA_PYTHON_MERGING_H_
