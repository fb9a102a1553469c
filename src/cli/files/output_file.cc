#include "cli/files/output_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>

namespace fovea::files {
namespace {

constexpr int kMostLinks = 40;  // of a path, as Linux has it
constexpr mode_t kPermissions = 07777;

// What a handler of signals removes. Files beyond these slots stay behind after a signal.
std::atomic<const char*> g_temporaries[16];

void Register(const char* path) {
  for (auto& slot : g_temporaries) {
    const char* expected = nullptr;
    if (slot.compare_exchange_strong(expected, path)) return;
  }
}

void Unregister(const char* path) {
  for (auto& slot : g_temporaries) {
    const char* expected = path;
    if (slot.compare_exchange_strong(expected, nullptr)) return;
  }
}

// Ends as the signal would have: its action is the default one again.
void RemoveTemporaries(int signal) {
  for (const auto& slot : g_temporaries) {
    const char* const path = slot.load();
    if (path != nullptr) unlink(path);
  }
  raise(signal);
}

// All whose default action ends a program, but for SIGKILL, which nobody sees, and SIGXFSZ.
constexpr int kEnding[] = {SIGINT,  SIGTERM,   SIGHUP,  SIGQUIT, SIGPIPE, SIGALRM,
                           SIGUSR1, SIGUSR2,   SIGPROF, SIGXCPU, SIGSYS,  SIGTRAP,
                           SIGABRT, SIGVTALRM, SIGSEGV, SIGBUS,  SIGFPE,  SIGILL};
struct sigaction g_before[std::size(kEnding)];
struct sigaction g_before_size_limit;

// "a/b" → "a/", "b" → "".
std::string FolderOf(const std::string& path) { return path.substr(0, path.rfind('/') + 1); }

bool Fail(std::string* error) {
  *error = std::strerror(errno);
  return false;
}

// The path behind all symbolic links, whether or not there is a file.
bool FollowLinks(const std::string& path, std::string* target, std::string* error) {
  *target = path;
  for (int links = 0;; ++links) {
    char to[4096];
    const ssize_t n = readlink(target->c_str(), to, sizeof(to));
    if (n < 0) return true;  // no link
    if (links == kMostLinks || n == static_cast<ssize_t>(sizeof(to))) {
      errno = ELOOP;
      return Fail(error);
    }
    const std::string next(to, static_cast<size_t>(n));
    *target = next[0] == '/' ? next : FolderOf(*target) + next;
  }
}

bool WriteAll(int descriptor, const char* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = write(descriptor, data, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    data += n, bytes -= static_cast<size_t>(n);
  }
  return true;
}

}  // namespace

bool operator==(const FileId& a, const FileId& b) {
  return a.device == b.device && a.inode == b.inode;
}

bool FindPlace(const std::string& path, OutputPlace* place, std::string* error) {
  *place = OutputPlace();
  place->path = path;
  struct stat status;
  place->exists = stat(path.c_str(), &status) == 0;
  if (!place->exists && errno != ENOENT) return Fail(error);
  if (place->exists) {
    place->id = {status.st_dev, status.st_ino};
    place->mode = status.st_mode & kPermissions;
    place->owner = status.st_uid;
    place->group = status.st_gid;
    if (S_ISDIR(status.st_mode)) {
      errno = EISDIR;
      return Fail(error);
    }
    place->in_place = !S_ISREG(status.st_mode);
    place->is_character_device = S_ISCHR(status.st_mode);
    if (access(path.c_str(), W_OK) != 0) return Fail(error);
    if (place->in_place) return true;
  }
  std::string target;
  if (!FollowLinks(path, &target, error)) return false;
  place->folder = FolderOf(target);
  place->name = target.substr(place->folder.size());
  if (place->folder.empty()) place->folder = "./";
  if (place->exists && (lstat(target.c_str(), &status) != 0 ||
                        !(FileId{status.st_dev, status.st_ino} == place->id))) {
    place->in_place = true;  // a link of /proc to what is open, which may have no path
    return true;
  }
  if (stat(place->folder.c_str(), &status) != 0) return Fail(error);
  place->folder_id = {status.st_dev, status.st_ino};
  if (place->name.empty()) {
    errno = EISDIR;
    return Fail(error);
  }
  if (access(place->folder.c_str(), W_OK | X_OK) != 0) {
    *error = "no file can be made in its folder: " + std::string(std::strerror(errno));
    return false;
  }
  return true;
}

bool SameFile(const OutputPlace& a, const OutputPlace& b) {
  if (a.path == b.path) return true;
  if (a.exists && b.exists) return a.id == b.id && !a.is_character_device;
  return !a.exists && !b.exists && a.folder_id == b.folder_id && a.name == b.name;
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (temporary_.empty()) return;
  unlink(temporary_.c_str());
  Unregister(temporary_.c_str());
}

bool OutputFile::Create() {
  if (place_.in_place) {
    descriptor_ = open(place_.path.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
    return descriptor_ >= 0;
  }
  // Never more open than what it replaces.
  const mode_t mode = place_.exists ? place_.mode & 0777 : 0666;
  for (int n = 0; descriptor_ < 0; ++n) {
    temporary_ = place_.folder + ".fovea-" + std::to_string(getpid()) + "-" + std::to_string(n);
    descriptor_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (descriptor_ < 0 && errno != EEXIST) {
      temporary_.clear();  // there is none
      return false;
    }
  }
  Register(temporary_.c_str());
  return !place_.exists || TakeOver();
}

// Owner and permissions of the file that is replaced. Who may not give files away keeps them, as
// `cp` does.
bool OutputFile::TakeOver() {
  struct stat status;
  if (fstat(descriptor_, &status) != 0) return false;
  mode_t mode = place_.mode;
  if ((status.st_uid != place_.owner || status.st_gid != place_.group) &&
      fchown(descriptor_, place_.owner, place_.group) != 0)
    mode &= 0777;  // what other owners' files had beyond is not for this one
  return fchmod(descriptor_, mode) == 0;
}

bool OutputFile::Write(const char* data, size_t bytes) {
  return WriteAll(descriptor_, data, bytes);
}

bool OutputFile::Complete() {
  // Some file systems have nothing to wait for.
  const bool stored =
      place_.in_place || fsync(descriptor_) == 0 || errno == EINVAL || errno == ENOTSUP;
  const int reason = errno;
  const bool closed = close(descriptor_) == 0;
  descriptor_ = -1;
  if (!stored) errno = reason;
  return stored && closed;
}

bool OutputFile::Publish() {
  if (place_.in_place) return true;
  if (std::rename(temporary_.c_str(), (place_.folder + place_.name).c_str()) != 0) return false;
  Unregister(temporary_.c_str());
  temporary_.clear();
  return true;
}

WritingSignals::WritingSignals() {
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGXFSZ, &ignore, &g_before_size_limit);
  for (size_t n = 0; n < std::size(kEnding); ++n) {
    struct sigaction action = {};
    action.sa_handler = RemoveTemporaries;
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    sigaction(kEnding[n], nullptr, &g_before[n]);
    if (g_before[n].sa_handler == SIG_DFL) sigaction(kEnding[n], &action, nullptr);
  }
}

WritingSignals::~WritingSignals() {
  for (size_t n = 0; n < std::size(kEnding); ++n) sigaction(kEnding[n], &g_before[n], nullptr);
  sigaction(SIGXFSZ, &g_before_size_limit, nullptr);
}

bool CanAppend(const std::string& path) {
  if (access(path.c_str(), F_OK) == 0) return access(path.c_str(), W_OK) == 0;
  const std::string folder = FolderOf(path);
  return errno == ENOENT && access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) == 0;
}

bool AppendLine(const std::string& path, const std::string& line) {
  const WritingSignals signals;
  const int descriptor = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor < 0) return false;
  struct stat status;
  const std::string whole = line + "\n";
  flock(descriptor, LOCK_EX);  // where the file system has locks
  bool ok = fstat(descriptor, &status) == 0;
  if (ok && !WriteAll(descriptor, whole.data(), whole.size())) {
    const int reason = errno;
    ok = false;
    if (ftruncate(descriptor, status.st_size) == 0) errno = reason;
  }
  const int reason = errno;
  const bool closed = close(descriptor) == 0;
  if (!ok) errno = reason;
  return ok && closed;
}

}  // namespace fovea::files
