// Tensors in files by the names that a command line uses: "q.npy", or
// "model.safetensors:layer.0.q".
#ifndef FOVEA_CLI_FILES_TENSOR_FILE_H_
#define FOVEA_CLI_FILES_TENSOR_FILE_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/files/output_file.h"
#include "cli/files/tensor_info.h"
#include "fovea/tensor.h"

namespace fovea::files {

// Memory for elements, aligned to 64 bytes.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes);  // throws std::bad_alloc
  char* data() const { return data_.get(); }
  size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(char* p) const;
  };
  std::unique_ptr<char, Free> data_;
  size_t bytes_ = 0;
};

// A tensor read from a file.
struct FileTensor {
  FileId file;
  TensorInfo info;
  Buffer buffer;

  // Strides follow the file's order of axes. info.shape must have 1 … kMaxRank axes.
  TensorView View() const;
};

// Reads one tensor; of a .safetensors file only the header and that tensor. The name may be left
// out where a file has only one. The tensor has one of Fovea's types. False with one line in *error
// that names the file. Throws std::bad_alloc.
bool Load(const std::string& spec, FileTensor* tensor, std::string* error);

// The tensors that a .safetensors file holds.
bool List(const std::string& path, std::vector<TensorInfo>* tensors, std::string* error);

// Collects outputs and writes them, all tensors of one .safetensors file together. Existing files
// are replaced when all of all outputs is on the disk: before that, a failure leaves them as they
// were.
class Writer {
 public:
  // Files that outputs must not replace.
  explicit Writer(std::vector<FileId> inputs = {}) : inputs_(std::move(inputs)) {}

  // `spec` as above; `default_name` stands in where a .safetensors file is given without a name.
  // The view is dense in C order after Write copies it, whatever its strides, and must live until
  // then. Refuses unknown endings, names given twice, types that the format lacks, inputs, one file
  // by two paths, and places where nothing can be written.
  bool Add(const std::string& spec, const std::string& default_name, const TensorView& view,
           std::string* error);
  bool Write(std::string* error) const;

 private:
  struct Output {
    std::string name;
    TensorView view;
  };
  struct File {
    OutputPlace place;
    bool npy = false;
    std::vector<Output> outputs;
  };
  static bool HeaderOf(const File& file, std::string* header, std::string* error);

  std::vector<FileId> inputs_;
  std::vector<File> files_;
};

}  // namespace fovea::files

#endif  // FOVEA_CLI_FILES_TENSOR_FILE_H_
