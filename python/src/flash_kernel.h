// Fovea as the kernel of PyTorch's _scaled_dot_product_flash_attention_for_cpu: see
// fovea/_patch.py. It makes no Python object, and runs without the GIL.
#ifndef FOVEA_PYTHON_FLASH_KERNEL_H_
#define FOVEA_PYTHON_FLASH_KERNEL_H_

#include "errors.h"

namespace fovea::python {

// From here on it is the kernel of the dispatch key CPU, until LeaveFlash. What it does not compute
// goes to the operator fovea::flash_of_pytorch, which has the same arguments.
void TakeFlash();
void LeaveFlash();

}  // namespace fovea::python

#endif  // FOVEA_PYTHON_FLASH_KERNEL_H_
