// The kernels that PyTorch's dispatcher calls, but for what Python decides: see fovea/_operator.py
// and fovea/_patch.py.
#ifndef FOVEA_PYTHON_OPERATOR_H_
#define FOVEA_PYTHON_OPERATOR_H_

#include <nanobind/nanobind.h>

#include "errors.h"

namespace fovea::python {

// What comes beside the result.
enum class Second { kNothing, kLogSumExp, kNoWeights };

// Attention on tensors that the dispatcher has resolved: neither gradients nor lazy views are asked
// about. `attn_mask` is bool, or added to the scores; more query heads than others only where
// `groups` says so, or where there is one; `options` is a dict of further keywords of attention(),
// or None; `out` a tensor to write, or None for a new one, dense in C order.
//
// None, and nothing done, where the shapes are others than [B, H, T, d] with one B and as many
// heads of v as of k, or where q is not dense and no `out` is given.
//
// kLogSumExp: (out, lse) as PyTorch's flash kernel for CPUs gives them, lse [B, H, T] with T before
// H in memory and 0 where a row has no key; for dk = dv alone, else None.
// kNoWeights: (out, weights), where the weights [B, H, Tq, Tk] are one NaN with strides of 0.
nb::object RunOperator(nb::handle q, nb::handle k, nb::handle v, nb::handle attn_mask, bool causal,
                       nb::handle scale, bool groups, int threads, int second, nb::handle options,
                       nb::handle out);

}  // namespace fovea::python

#endif  // FOVEA_PYTHON_OPERATOR_H_
