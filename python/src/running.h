// Where a call runs: how many threads, whose, and in which memory.
#ifndef FOVEA_PYTHON_RUNNING_H_
#define FOVEA_PYTHON_RUNNING_H_

#include "call.h"
#include "fovea/attention.h"
#include "fovea/gradient.h"
#include "fovea/kv_cache.h"
#include "gil.h"

namespace fovea::python {

// Threads for a plan of that cost: 1 where handing out its tasks would cost as much as doing them.
int ThreadsFor(const Cost& cost, int asked);

// Runs `problem` on a workspace that belongs to the calling thread, and on the threads that go with
// the library of its arrays. Without the GIL, which it takes back now and then to look for signals:
// where the program's handler of one raises (Ctrl-C), the call ends between two tasks, the
// exception is set, *interrupted is true, and what the outputs hold is unspecified.
Status RunHere(const Plan& plan, const Problem& problem, Library library, int threads,
               WithoutGil* released, bool* interrupted) noexcept;
Status RunHere(const GradientPlan& plan, const GradientProblem& problem, Library library,
               int threads, WithoutGil* released, bool* interrupted) noexcept;

// Plans a call, makes the arrays that are not the caller's, and runs it. Throws what the library, a
// handler of a signal or an allocation says.
void RunOnce(Call* call, const Options& options);

// For kernels that PyTorch calls without the GIL, which take no exceptions of Python's: what the
// handler of a signal raises ends the call too (*interrupted), and is raised when Python goes on.
Status RunWithoutPython(const Plan& plan, const Problem& problem, int threads,
                        bool* interrupted) noexcept;

// Likewise Append; `threads` 0: as many as are worth it.
Status AppendHere(const KVCache& cache, const NewTokens& tokens, const AppendOptions& options,
                  AppendResult* result, Library library, int threads, WithoutGil* released,
                  bool* interrupted) noexcept;

}  // namespace fovea::python

#endif  // FOVEA_PYTHON_RUNNING_H_
