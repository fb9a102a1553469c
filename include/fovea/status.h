// What a call reports: a code for programs and one sentence for people. Nothing in Fovea throws,
// aborts or prints.
#ifndef FOVEA_STATUS_H_
#define FOVEA_STATUS_H_

#include "fovea/detail/macros_begin.h"
#include "fovea/export.h"

namespace fovea {

// What kind of error a call reports.
enum class StatusCode : int {
  kOk = 0,  // done
  // the call contradicts itself: message names the field, the value given and the value expected
  kInvalidArgument = 1,
  // a legal call that this build or this CPU cannot carry out (a target that it lacks, a head that
  // is too large): a host can fall back
  kUnsupported = 2,
  kOutOfMemory = 3,  // an allocation of ours failed, or the caller's workspace is too small
};

// A code and a message in place: no heap, trivially copyable, so that a status can be returned
// where nothing may allocate.
//
// Every call that returns a Status checks everything before it writes any output; on an error all
// outputs are untouched. (But for one, of an executor that does not do what it promises: outputs
// then hold anything.)
//
// X11's Xlib.h defines a macro of this name. These headers compile behind it; who wants to write
// fovea::Status there has to undefine the macro first.
class [[nodiscard]] FOVEA_EXPORT Status {
 public:
  // bytes, the terminating zero included; longer messages are cut
  static constexpr int kMaxMessage = 240;

  // kOk, with an empty message.
  Status() noexcept : code_(StatusCode::kOk) { message_[0] = '\0'; }
  // `message`, zero-terminated, is copied.
  Status(StatusCode code, const char* message) noexcept;

  // No error.
  bool ok() const noexcept { return code_ == StatusCode::kOk; }
  // The kind of error, for programs.
  StatusCode code() const noexcept { return code_; }
  // For example "v.shape[2] = 96, expected 128 (k.shape[2])"; empty when ok(). Lives as long as
  // this object.
  const char* message() const noexcept { return message_; }

 private:
  StatusCode code_;
  char message_[kMaxMessage];
};

}  // namespace fovea

#include "fovea/detail/macros_end.h"

#endif  // FOVEA_STATUS_H_
