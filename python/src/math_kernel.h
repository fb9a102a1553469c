// Fovea as the kernel of PyTorch's _scaled_dot_product_attention_math, for calls that need no
// thought; others go to Python: see fovea/_patch.py.
#ifndef FOVEA_PYTHON_MATH_KERNEL_H_
#define FOVEA_PYTHON_MATH_KERNEL_H_

#include "errors.h"

namespace fovea::python {

// A function for torch.library.Library.impl, with_keyset: (keyset, query, key, value,
// attn_mask=None, dropout_p=0.0, is_causal=False, dropout_mask=None, *, scale=None,
// enable_gqa=False). `slow` has the same arguments, and is called for whatever is not plain: other
// sets of dispatch keys than those in `plain` (integers), gradients, dropout, tracers, shapes and
// types other than the operator's own.
nb::object MathKernel(nb::handle slow, nb::handle plain);

}  // namespace fovea::python

#endif  // FOVEA_PYTHON_MATH_KERNEL_H_
