#include "cli/files/tensor_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <new>

#include "cli/files/npy.h"
#include "cli/files/safetensors.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "both formats hold little-endian elements, which are used as they are");

namespace fovea::files {
namespace {

constexpr std::align_val_t kAlignment{64};
constexpr char kSafetensors[] = ".safetensors";
constexpr char kNpy[] = ".npy";

bool EndsWith(const std::string& text, const std::string& end) {
  return text.size() > end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

struct Spec {
  std::string path, name;
  bool npy = false;
};

bool ParseSpec(const std::string& text, Spec* spec, std::string* error) {
  *spec = Spec();
  const size_t colon = text.find(std::string(kSafetensors) + ":");
  if (colon != std::string::npos) {
    const size_t end = colon + std::strlen(kSafetensors);
    spec->path = text.substr(0, end);
    spec->name = text.substr(end + 1);
    return true;
  }
  spec->path = text;
  spec->npy = EndsWith(text, kNpy);
  if (spec->npy || EndsWith(text, kSafetensors)) return true;
  *error = text + ": expected FILE.npy or FILE.safetensors:NAME";
  return false;
}

// A regular file opened for reading.
class InputFile {
 public:
  ~InputFile() {
    if (descriptor_ >= 0) close(descriptor_);
  }

  bool Open(const std::string& path, std::string* error) {
    // a FIFO without a writer must not block
    descriptor_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat status;
    if (descriptor_ < 0 || fstat(descriptor_, &status) != 0) {
      *error = path + ": " + std::strerror(errno);
      return false;
    }
    if (!S_ISREG(status.st_mode)) {
      *error = path + ": not a regular file";
      return false;
    }
    bytes_ = static_cast<uint64_t>(status.st_size);
    id_ = {status.st_dev, status.st_ino};
    return true;
  }

  uint64_t bytes() const { return bytes_; }
  FileId id() const { return id_; }

  bool Read(uint64_t offset, void* to, size_t bytes) const {
    for (char* p = static_cast<char*>(to); bytes > 0;) {
      const ssize_t n = pread(descriptor_, p, bytes, static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      p += n, offset += static_cast<uint64_t>(n), bytes -= static_cast<size_t>(n);
    }
    return true;
  }

  // The first min(bytes, size of the file) bytes.
  bool ReadStart(uint64_t bytes, std::vector<char>* start) const {
    start->resize(static_cast<size_t>(std::min(bytes, bytes_)));
    return Read(0, start->data(), start->size());
  }

 private:
  int descriptor_ = -1;
  uint64_t bytes_ = 0;
  FileId id_;
};

bool ReadSafetensors(const InputFile& file, std::vector<TensorInfo>* tensors, std::string* error) {
  std::vector<char> start;
  *error = "cannot be read";
  if (!file.ReadStart(8, &start)) return false;
  if (start.size() == 8) {
    const uint64_t length = SafetensorsHeaderLength(start.data());
    if (length <= kMaxSafetensorsHeader && !file.ReadStart(8 + length, &start)) return false;
  }
  return ParseSafetensors(start.data(), start.size(), file.bytes(), tensors, error);
}

std::string SomeNames(const std::vector<TensorInfo>& tensors) {
  constexpr size_t kShown = 8;
  std::string text;
  for (size_t n = 0; n < tensors.size() && n < kShown; ++n)
    text += (n > 0 ? ", " : "") + tensors[n].name.substr(0, 60);
  return text + (tensors.size() > kShown ? ", …" : "");
}

bool FindTensor(const std::vector<TensorInfo>& tensors, const std::string& name, TensorInfo* info,
                std::string* error) {
  if (name.empty() && tensors.size() == 1) {
    *info = tensors[0];
    return true;
  }
  for (const TensorInfo& tensor : tensors) {
    if (tensor.name == name && !name.empty()) {
      *info = tensor;
      return true;
    }
  }
  *error =
      (name.empty() ? "name one of its tensors behind a colon" : "has no tensor '" + name + "'") +
      (tensors.empty() ? "; it has none" : "; it has " + SomeNames(tensors));
  return false;
}

bool FindInFile(const InputFile& file, const Spec& spec, TensorInfo* info, std::string* error) {
  if (spec.npy) {
    std::vector<char> start;
    if (!file.ReadStart(kMaxNpyHeader + 12, &start)) {
      *error = "cannot be read";
      return false;
    }
    return ParseNpy(start.data(), start.size(), file.bytes(), info, error);
  }
  std::vector<TensorInfo> tensors;
  return ReadSafetensors(file, &tensors, error) && FindTensor(tensors, spec.name, info, error);
}

// Element n of the view, counted in C order.
const char* ElementAt(const TensorView& view, int64_t n) {
  const char* p = static_cast<const char*>(view.data);
  for (int a = view.rank - 1; a >= 0; --a) {
    p += n % view.shape[a] * view.stride[a];
    n /= view.shape[a];
  }
  return p;
}

// The elements of the view, in C order.
bool WriteElements(const TensorView& view, OutputFile* file) {
  constexpr size_t kChunk = size_t{1} << 20;
  const size_t element = static_cast<size_t>(SizeOf(view.dtype));
  std::vector<char> chunk;
  chunk.reserve(kChunk);
  for (int64_t n = 0, size = view.size(); n < size; ++n) {
    const char* const p = ElementAt(view, n);
    chunk.insert(chunk.end(), p, p + element);
    if (chunk.size() + element > kChunk || n + 1 == size) {
      if (!file->Write(chunk.data(), chunk.size())) return false;
      chunk.clear();
    }
  }
  return true;
}

std::vector<int64_t> ShapeOf(const TensorView& view) {
  return {view.shape, view.shape + view.rank};
}

}  // namespace

Buffer::Buffer(size_t bytes)
    : data_(static_cast<char*>(::operator new(std::max<size_t>(bytes, 1), kAlignment))),
      bytes_(bytes) {}
void Buffer::Free::operator()(char* p) const { ::operator delete(p, kAlignment); }

TensorView FileTensor::View() const {
  TensorView view;
  view.data = buffer.data();
  view.dtype = info.dtype;
  view.rank = static_cast<int32_t>(info.shape.size());
  int64_t stride = SizeOf(info.dtype);
  for (int n = 0; n < view.rank; ++n) {
    const int a = info.fortran_order ? n : view.rank - 1 - n;
    view.shape[a] = info.shape[static_cast<size_t>(a)];
    view.stride[a] = stride;
    stride *= std::max<int64_t>(view.shape[a], 1);  // does not overflow: ShapeBytes
  }
  return view;
}

bool Load(const std::string& text, FileTensor* tensor, std::string* error) {
  Spec spec;
  InputFile file;
  if (!ParseSpec(text, &spec, error) || !file.Open(spec.path, error)) return false;
  TensorInfo info;
  bool ok = FindInFile(file, spec, &info, error);
  if (ok && info.dtype == DType::kNone) {
    *error = (spec.npy ? "" : "tensor '" + Printable(info.name, 80) + "': ") + "type " +
             Printable(info.type_name, 40) +
             " is not supported; expected f32, f16, bf16, bool, u8, i8, fp8, i32 or i64";
    ok = false;
  }
  if (ok) {
    Buffer buffer(static_cast<size_t>(info.end - info.begin));
    ok = file.Read(info.begin, buffer.data(), buffer.bytes());
    if (ok) {
      tensor->file = file.id();
      tensor->info = std::move(info);
      tensor->buffer = std::move(buffer);
      return true;
    }
    *error = "cannot be read";
  }
  *error = spec.path + ": " + *error;
  return false;
}

bool List(const std::string& path, std::vector<TensorInfo>* tensors, std::string* error) {
  InputFile file;
  if (!file.Open(path, error)) return false;
  if (ReadSafetensors(file, tensors, error)) return true;
  *error = path + ": " + *error;
  return false;
}

bool Writer::Add(const std::string& text, const std::string& default_name, const TensorView& view,
                 std::string* error) {
  Spec spec;
  if (!ParseSpec(text, &spec, error)) return false;
  std::string header;
  OutputPlace place;
  if ((spec.npy && !NpyHeader(view.dtype, ShapeOf(view), &header, error)) ||
      !FindPlace(spec.path, &place, error)) {
    *error = spec.path + ": " + *error;
    return false;
  }
  if (place.exists && std::find(inputs_.begin(), inputs_.end(), place.id) != inputs_.end()) {
    *error = spec.path + ": is an input, which no output replaces";
    return false;
  }
  if (!spec.npy && spec.name.empty()) spec.name = default_name;
  auto file = std::find_if(files_.begin(), files_.end(),
                           [&](const File& f) { return SameFile(f.place, place); });
  if (file == files_.end()) {
    file = files_.insert(files_.end(), File{place, spec.npy, {}});
  } else if (file->place.path != spec.path) {
    *error = text + ": two outputs in one file, which the other one calls " + file->place.path;
    return false;
  }
  for (const Output& output : file->outputs) {
    if (spec.npy || output.name == spec.name) {
      *error = text + ": two outputs have this name";
      return false;
    }
  }
  file->outputs.push_back({spec.name, view});
  return true;
}

bool Writer::HeaderOf(const File& file, std::string* header, std::string* error) {
  if (file.npy) {
    const TensorView& view = file.outputs[0].view;
    return NpyHeader(view.dtype, ShapeOf(view), header, error);
  }
  std::vector<TensorInfo> tensors(file.outputs.size());
  for (size_t n = 0; n < tensors.size(); ++n) {
    tensors[n].name = file.outputs[n].name;
    tensors[n].dtype = file.outputs[n].view.dtype;
    tensors[n].shape = ShapeOf(file.outputs[n].view);
  }
  return SafetensorsHeader(&tensors, header, error);
}

bool Writer::Write(std::string* error) const {
  const WritingSignals signals;
  std::deque<OutputFile> written;
  const auto failed = [&](const File& file, const std::string& reason) {
    *error = file.place.path + ": " + reason;
    return false;
  };
  const auto cannot = [&](const File& file) {
    return failed(file, std::string("cannot be written: ") + std::strerror(errno));
  };
  for (const File& file : files_) {
    std::string header;
    if (!HeaderOf(file, &header, error)) return failed(file, *error);
    OutputFile& output = written.emplace_back(file.place);
    bool ok = output.Create() && output.Write(header.data(), header.size());
    for (size_t n = 0; ok && n < file.outputs.size(); ++n)
      ok = WriteElements(file.outputs[n].view, &output);
    if (!ok || !output.Complete()) return cannot(file);
  }
  for (size_t n = 0; n < files_.size(); ++n) {
    if (!written[n].Publish()) return cannot(files_[n]);
  }
  return true;
}

}  // namespace fovea::files
