// Gradients from Python: fovea.gradients.
#ifndef FOVEA_PYTHON_GRADIENTS_H_
#define FOVEA_PYTHON_GRADIENTS_H_

#include "errors.h"

namespace fovea::python {

void BindGradients(nb::module_& m);

}  // namespace fovea::python

#endif  // FOVEA_PYTHON_GRADIENTS_H_
