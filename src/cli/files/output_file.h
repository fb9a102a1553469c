// Files that the program writes. Each appears whole or not at all: what is written goes to a
// temporary file beside the target and takes its place at the end. Devices and pipes, which cannot
// be replaced, are written as they are.
#ifndef FOVEA_CLI_FILES_OUTPUT_FILE_H_
#define FOVEA_CLI_FILES_OUTPUT_FILE_H_

#include <sys/types.h>

#include <cstddef>
#include <string>

namespace fovea::files {

// A file, whatever its paths are.
struct FileId {
  dev_t device = 0;
  ino_t inode = 0;
};
bool operator==(const FileId& a, const FileId& b);

// Where an output goes, with symbolic links followed.
struct OutputPlace {
  std::string path;          // as given
  std::string folder, name;  // of what is replaced, or comes into being
  FileId folder_id;
  bool exists = false;               // then …
  FileId id;                         // … this file,
  mode_t mode = 0;                   // with these permissions
  uid_t owner = 0;                   // and
  gid_t group = 0;                   // owners
  bool in_place = false;             // no regular file, or one without a path: written as it is
  bool is_character_device = false;  // /dev/null: takes any number of outputs
};

// Looks, and changes nothing. False with a message where nothing could be written: no folder, no
// permission, a folder at the path.
bool FindPlace(const std::string& path, OutputPlace* place, std::string* error);

// Whether what is written to one of them would be lost to the other, however they are spelled.
bool SameFile(const OutputPlace& a, const OutputPlace& b);

// An output on its way: Create, Write as often as needed, Complete, Publish. A temporary file that
// was not published is removed. Functions return false with errno set.
class OutputFile {
 public:
  explicit OutputFile(const OutputPlace& place) : place_(place) {}
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  bool Create();
  bool Write(const char* data, size_t bytes);
  // All of it is on the disk, and the file closed.
  bool Complete();
  // It stands at the path.
  bool Publish();

 private:
  bool TakeOver();

  const OutputPlace place_;
  int descriptor_ = -1;
  std::string temporary_;  // empty: none exists
};

// While one lives, temporary files are removed where a signal ends the program, and a limit of file
// sizes is an error of writing, not a signal.
class WritingSignals {
 public:
  WritingSignals();
  ~WritingSignals();
  WritingSignals(const WritingSignals&) = delete;
  WritingSignals& operator=(const WritingSignals&) = delete;
};

// Whether AppendLine could write there, as far as can be known without writing.
bool CanAppend(const std::string& path);

// Adds a line to a file, whole or not at all, behind those that other processes add meanwhile.
// False with errno set.
bool AppendLine(const std::string& path, const std::string& line);

}  // namespace fovea::files

#endif  // FOVEA_CLI_FILES_OUTPUT_FILE_H_
