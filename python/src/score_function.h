// The keyword score_function: pointers that belong to ctypes, cffi, numba or nobody.
#ifndef FOVEA_PYTHON_SCORE_FUNCTION_H_
#define FOVEA_PYTHON_SCORE_FUNCTION_H_

#include <nanobind/nanobind.h>

#include "errors.h"
#include "fovea/score.h"

namespace fovea::python {

// `value` is a compiled function or a pair of one and its context. TypeError for anything else,
// functions of Python among it. Who runs the result keeps `value` alive, and *memory, which keeps a
// buffer that is the context from moving.
ScoreFunction ReadScoreFunction(nb::handle value, nb::object* memory);

}  // namespace fovea::python

#endif  // FOVEA_PYTHON_SCORE_FUNCTION_H_
