// What PyTorch's dispatcher calls with Python's tensors, but for what Python decides: see
// fovea/_operator.py and fovea/_patch.py.
#ifndef FOVEA_PYTHON_OPERATOR_H_
#define FOVEA_PYTHON_OPERATOR_H_

#include "errors.h"
#include "fovea/attention.h"

namespace fovea::python {

// Attention on tensors that the dispatcher has resolved: neither gradients nor lazy views are asked
// about. `attn_mask` is bool, or added to the scores; more query heads than others only where
// `groups` says so, or where there is one; `options` is a dict of further keywords of attention(),
// or None; `out` a tensor to write, or None for a new one, dense in C order. With `wants_weights`
// the result is (out, weights), where the weights [B, H, Tq, Tk] are one NaN with strides of 0.
//
// None, and nothing done, where the shapes are others than [B, H, T, d] or [H, T, d] with one B and
// as many heads of v as of k, or where q is not dense and no `out` is given.
nb::object RunOperator(nb::handle q, nb::handle k, nb::handle v, nb::handle attn_mask, bool causal,
                       nb::handle scale, bool groups, int threads, bool wants_weights,
                       nb::handle options, nb::handle out);

// Whether q, k and v are such, wherever they lie.
bool FitsPyTorch(const Problem& problem, bool groups);
// In C order, without gaps.
bool IsDense(const TensorView& view);

// How often Fovea computed what PyTorch's dispatcher asked for, in this process.
uint64_t KernelRuns();
void CountRun();

// For tests: a function that is called behind each such run with (q, k, v, attn_mask, causal,
// scale, out), or None.
void Observe(nb::handle observer);
bool IsObserved();

}  // namespace fovea::python

#endif  // FOVEA_PYTHON_OPERATOR_H_
