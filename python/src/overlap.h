// Whether two arrays share memory. Knows views, and nothing of attention or Python.
#ifndef FOVEA_PYTHON_OVERLAP_H_
#define FOVEA_PYTHON_OVERLAP_H_

#include "fovea/tensor.h"

namespace fovea::python {

// Some byte belongs to an element of both. Exact for all layouts that programs have, arrays that
// lie interleaved in one buffer included; where an answer would take more than some ten thousand
// steps it is false. A few comparisons where the one begins behind the end of the other. Allocates
// nothing.
bool Overlap(const TensorView& a, const TensorView& b);

}  // namespace fovea::python

#endif  // FOVEA_PYTHON_OVERLAP_H_
