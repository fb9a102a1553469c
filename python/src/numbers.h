// Numbers, booleans and integers as Python programs write them: Python's own, NumPy's scalars, and
// arrays of no axes. Knows nothing of attention.
#ifndef FOVEA_PYTHON_NUMBERS_H_
#define FOVEA_PYTHON_NUMBERS_H_

#include <cstdint>

#include "errors.h"

namespace fovea::python {

// One thing rather than an array of things: what has no axes.
bool IsScalar(nb::handle value);

// By __index__, as NumPy and operator.index do: floats and strings are none. TypeError, for what
// does not fit into the type too.
int64_t Integer(nb::handle value, const char* name, const char* expected);
int SmallInteger(nb::handle value, const char* name, const char* expected);

// By __float__ or __index__, as float() does, but strings, complex numbers and arrays with axes are
// none. ValueError for what Narrow of src/narrow.h refuses: numbers that would be infinity or 0.
float Float(nb::handle value, const char* name, const char* expected);

// True, False and NumPy's. False where the value is neither.
bool IsBool(nb::handle value, bool* result);

}  // namespace fovea::python

#endif  // FOVEA_PYTHON_NUMBERS_H_
