// What is going on, on stderr: one line that the next replaces on a terminal, a line each
// elsewhere.
#ifndef FOVEA_CLI_PROGRESS_H_
#define FOVEA_CLI_PROGRESS_H_

#include <unistd.h>

#include <cstdio>
#include <string>

namespace fovea::cli {

class Progress {
 public:
  explicit Progress(size_t steps) : steps_(steps), terminal_(isatty(STDERR_FILENO) != 0) {}
  ~Progress() { Clear(); }

  void Step(const std::string& what) {
    std::fflush(stdout);  // what was printed before comes before, also where both go to one file
    std::fprintf(stderr, terminal_ ? "\r\033[K[%zu/%zu] %s" : "[%zu/%zu] %s\n", ++step_, steps_,
                 what.c_str());
    std::fflush(stderr);
  }

  // Before something else is printed.
  void Clear() const {
    if (terminal_ && step_ > 0) std::fputs("\r\033[K", stderr);
  }

 private:
  size_t steps_, step_ = 0;
  bool terminal_;
};

}  // namespace fovea::cli

#endif  // FOVEA_CLI_PROGRESS_H_
