// Python's global lock, let go of and taken again; also while the interpreter ends.
#ifndef FOVEA_PYTHON_GIL_H_
#define FOVEA_PYTHON_GIL_H_

#include <nanobind/nanobind.h>

namespace fovea::python {

// Takes the lock for a thread that let go of it. A thread that asks for it while the interpreter
// ends would be ended by Python in the middle of C++, which aborts the process: it sleeps instead,
// until the process is gone.
void TakeGil(PyThreadState* state) noexcept;

// Without the lock for as long as it lives.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() { TakeGil(state_); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

  // With the lock again, in between, for as long as this lives.
  class With {
   public:
    explicit With(WithoutGil& outer) : outer_(outer) { TakeGil(outer.state_); }
    ~With() { outer_.state_ = PyEval_SaveThread(); }
    With(const With&) = delete;
    With& operator=(const With&) = delete;

   private:
    WithoutGil& outer_;
  };

 private:
  PyThreadState* state_;
};

// For atexit: from now on nobody takes the lock any more; returns when nobody is about to.
void EndGil();

}  // namespace fovea::python

#endif  // FOVEA_PYTHON_GIL_H_
