#include "suite.h"

#include <sys/mman.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>
#include <vector>

namespace fovea::same_bits {
namespace {

using nlohmann::json;
using Shape = std::vector<int64_t>;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path + ": cannot be opened");
  return {std::istreambuf_iterator<char>(file), {}};
}

int64_t Count(const Shape& shape) {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return n;
}

Shape DenseStrides(const Shape& shape) {
  Shape strides(shape.size());
  int64_t step = 1;
  for (size_t a = shape.size(); a-- > 0; step *= shape[a]) strides[a] = step;
  return strides;
}

DType ParseDType(const std::string& name) {
  for (const DType dtype :
       {DType::kF32, DType::kF16, DType::kBF16, DType::kBool, DType::kI32, DType::kI64}) {
    if (name == Name(dtype)) return dtype;
  }
  throw std::runtime_error("unknown type: " + name);
}

double ParseValue(const json& value) {
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  if (value.is_number()) return value;
  if (value == "nan") return std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  if (value == "inf") return infinity;
  if (value == "-inf") return -infinity;
  throw std::runtime_error("not a value: " + value.dump());
}

MutableTensorView MakeView(char* data, DType dtype, const Shape& shape, const Shape& strides) {
  if (shape.size() > static_cast<size_t>(kMaxRank)) throw std::runtime_error("too many axes");
  MutableTensorView view;
  view.data = data;
  view.dtype = dtype;
  view.rank = static_cast<int32_t>(shape.size());
  for (size_t a = 0; a < shape.size(); ++a) {
    view.shape[a] = shape[a];
    view.stride[a] = strides[a] * SizeOf(dtype);
  }
  return view;
}

// Memory, and the bytes of it that belong to a tensor.
struct Buffer {
  std::shared_ptr<char> memory;
  size_t bytes = 0;
};

// Addresses without memory behind them: pages appear when touched.
Buffer Reserve(size_t bytes) {
  void* const p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::runtime_error("the system does not reserve the addresses");
  const auto release = [bytes](char* q) { munmap(q, bytes); };
  return {std::shared_ptr<char>(static_cast<char*>(p), release), bytes};
}

Buffer Allocate(size_t bytes) {
  return {std::shared_ptr<char>(new char[bytes + 1], std::default_delete<char[]>()), bytes};
}

}  // namespace

struct Suite::Contents {
  json manifest, header;
  std::string tensors;  // the file; data begins at `data`
  size_t data = 0;

  std::string Stored(const std::string& name) const {
    const json& offsets = header.at(name).at("data_offsets");
    const size_t begin = offsets.at(0), end = offsets.at(1);
    return tensors.substr(data + begin, end - begin);
  }

  // Dense data: stored, generated or filled, then patched.
  Buffer MakeBuffer(const json& spec, DType dtype, const Shape& shape) const {
    const int64_t count = Count(shape), element = SizeOf(dtype);
    const Buffer buffer = Allocate(static_cast<size_t>(count * element));
    char* const to = buffer.memory.get();
    if (spec.contains("tensor")) {
      const std::string stored = Stored(spec.at("tensor"));
      if (stored.size() != buffer.bytes) throw std::runtime_error("does not fit: " + spec.dump());
      std::memcpy(to, stored.data(), stored.size());
    } else if (spec.contains("generator")) {
      uint32_t x = spec.at("seed");
      const double gain = spec.value("gain", 1.0);
      for (int64_t n = 0; n < count; ++n) {
        x = 1664525u * x + 1013904223u;
        Encode(dtype, gain * (static_cast<int>(x >> 24) - 128) / 64, to + n * element);
      }
    } else {
      const double value = ParseValue(spec.at("fill"));
      for (int64_t n = 0; n < count; ++n) Encode(dtype, value, to + n * element);
    }
    for (const json& patch : spec.value("patch", json::array())) {
      const json& box = patch.at("box");
      const double value = ParseValue(patch.at("value"));
      const std::function<void(size_t, int64_t)> walk = [&](size_t axis, int64_t number) {
        if (axis == shape.size()) return Encode(dtype, value, to + number * element);
        const int64_t begin = axis < box.size() ? box[axis][0].get<int64_t>() : 0;
        const int64_t end = axis < box.size() ? box[axis][1].get<int64_t>() : shape[axis];
        for (int64_t n = begin; n < std::min(end, shape[axis]); ++n)
          walk(axis + 1, number * shape[axis] + n);
      };
      walk(0, 0);
    }
    return buffer;
  }

  Tensor Build(const json& spec) const {
    const Shape shape = spec.at("shape");
    const DType dtype = ParseDType(spec.at("dtype"));
    const Buffer dense = MakeBuffer(spec, dtype, spec.value("buffer_shape", shape));
    if (!spec.contains("place_strides_elements")) {
      char* const first =
          dense.memory.get() + spec.value("offset_elements", int64_t{0}) * SizeOf(dtype);
      const Shape strides = spec.value("strides_elements", DenseStrides(shape));
      return Tensor(dense.memory, dense.bytes, MakeView(first, dtype, shape, strides));
    }
    const Shape strides = spec.at("place_strides_elements");
    int64_t elements = 1;
    for (size_t a = 0; a < shape.size(); ++a) elements += (shape[a] - 1) * strides[a];
    const Buffer placed = Reserve(static_cast<size_t>(elements * SizeOf(dtype)));
    const Tensor tensor(placed.memory, placed.bytes,
                        MakeView(placed.memory.get(), dtype, shape, strides));
    const char* from = dense.memory.get();
    tensor.ForEach([&](char* to) {
      std::memcpy(to, from, static_cast<size_t>(SizeOf(dtype)));
      from += SizeOf(dtype);
    });
    return tensor;
  }

  const json& CaseOf(int64_t index) const {
    return manifest.at("cases").at(static_cast<size_t>(index));
  }
};

namespace {

void ReadParams(const json& params, Score* score) {
  const auto given = [&](const char* key) {
    return params.contains(key) && !params.at(key).is_null();
  };
  if (given("scale")) score->scale = static_cast<float>(params.at("scale").get<double>());
  if (given("softcap")) score->softcap = static_cast<float>(params.at("softcap").get<double>());
  if (given("query_offset")) score->query_offset = params.at("query_offset").get<int64_t>();
  if (given("window")) score->window = {params.at("window").at(0), params.at("window").at(1)};
  const std::string causal = params.value("causal", "none");
  if (causal == "top_left") score->causal = Causal::kTopLeft;
  if (causal == "bottom_right") score->causal = Causal::kBottomRight;
}

void SetInput(Problem* p, const std::string& name, const TensorView& view) {
  Score& score = p->score;
  const std::map<std::string, TensorView*> places = {
      {"q", &p->q},
      {"k", &p->k},
      {"v", &p->v},
      {"bias", &score.bias},
      {"mask", &score.mask},
      {"alibi_slopes", &score.alibi_slopes},
      {"sinks", &score.sinks},
      {"q_lengths", &score.q_lengths},
      {"kv_lengths", &score.kv_lengths},
  };
  *places.at(name) = view;
}

// The slices of a dense tensor along its first axis.
std::vector<TensorView> Slices(const Buffer& buffer, DType dtype, const Shape& shape) {
  const Shape part(shape.begin() + 1, shape.end());
  std::vector<TensorView> slices;
  for (int64_t n = 0; n < shape[0]; ++n) {
    slices.push_back(MakeView(buffer.memory.get() + n * Count(part) * SizeOf(dtype), dtype, part,
                              DenseStrides(part)));
  }
  return slices;
}

}  // namespace

Suite::Suite(const std::string& name) : contents_(new Contents) {
  const std::string folder = FOVEA_SUITES "/" + name;
  contents_->manifest = json::parse(ReadFile(folder + "/manifest.json"));
  contents_->tensors = ReadFile(folder + "/tensors.safetensors");
  uint64_t header = 0;
  std::memcpy(&header, contents_->tensors.data(), sizeof header);
  contents_->data = sizeof header + header;
  contents_->header = json::parse(contents_->tensors.substr(sizeof header, header));
}
Suite::~Suite() = default;

int64_t Suite::size() const { return static_cast<int64_t>(contents_->manifest.at("cases").size()); }

std::string Suite::NameOf(int64_t index) const {
  return contents_->manifest.at("suite").get<std::string>() + "/" +
         contents_->CaseOf(index).at("name").get<std::string>();
}

Case Suite::Load(int64_t index) const {
  const json& source = contents_->CaseOf(index);
  Case c;
  c.name = NameOf(index);
  const json& inputs = source.at("inputs");
  if (inputs.contains("outs")) {
    std::vector<TensorView> slices[2];
    const char* const names[] = {"outs", "lses"};
    for (int n = 0; n < 2; ++n) {
      const json& spec = inputs.at(names[n]);
      const Shape shape = spec.at("shape");
      const DType dtype = ParseDType(spec.at("dtype"));
      const Buffer buffer = contents_->MakeBuffer(spec, dtype, shape);
      slices[n] = Slices(buffer, dtype, shape);
      c.Own(Tensor(buffer.memory, buffer.bytes, {}));
    }
    for (size_t n = 0; n < slices[0].size(); ++n) c.parts.push_back({slices[0][n], slices[1][n]});
    const TensorView& out = c.parts[0].out;
    c.OwnOutputs(Tensor(DType::kF32, Shape(out.shape, out.shape + 4)),
                 Tensor(DType::kF32, Shape(out.shape, out.shape + 3)), Tensor(), Tensor());
    return c;
  }

  const bool token_major = source.value("layout", "BHTD") == "BTHD";
  ReadParams(source.at("params"), &c.problem.score);
  for (const auto& [name, spec] : inputs.items()) {
    TensorView view = c.Own(contents_->Build(spec));
    const bool swapped = token_major && (name == "q" || name == "k" || name == "v");
    SetInput(&c.problem, name, swapped ? SwapAxes(view, 1, 2) : view);
  }
  const TensorView &q = c.problem.q, &k = c.problem.k, &v = c.problem.v;
  const bool small = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] <= 1 << 20;
  Storage storage;
  if (token_major) storage.order = {3, 1, 2, 0};
  c.OwnOutputs(
      Tensor(q.dtype, {q.shape[0], q.shape[1], q.shape[2], v.shape[3]}, storage),
      Tensor(DType::kF32, {q.shape[0], q.shape[1], q.shape[2]}),
      small ? Tensor(DType::kF32, {q.shape[0], q.shape[1], q.shape[2], k.shape[2]}) : Tensor(),
      Tensor());
  return c;
}

}  // namespace fovea::same_bits
