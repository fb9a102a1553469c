#include "support/manifest.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <utility>

#include "support/owned_tensor.h"
#include "support/safetensors.h"

namespace fovea::test {
namespace {

using nlohmann::json;
using Shape = std::vector<int64_t>;
using Stored = std::map<std::string, StoredTensor>;

json ReadJson(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(path + ": cannot be opened");
  return json::parse(file);
}

int64_t Product(const Shape& shape) {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return n;
}

// ---- elements

DType ParseDType(const std::string& name) {
  for (const DType dtype :
       {DType::kF32, DType::kF16, DType::kBF16, DType::kBool, DType::kI32, DType::kI64}) {
    if (name == Name(dtype)) return dtype;
  }
  throw std::runtime_error("dtype " + name + " is not one of the library's");
}

// A number, a boolean, or "nan", "inf", "-inf" as text.
double ParseValue(const json& value) {
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  if (value.is_number()) return value;
  if (value == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (value == "inf") return std::numeric_limits<double>::infinity();
  if (value == "-inf") return -std::numeric_limits<double>::infinity();
  throw std::runtime_error("not a value: " + value.dump());
}

// ---- buffers

std::shared_ptr<void> Allocate(int64_t bytes) {
  return std::shared_ptr<void>(new char[static_cast<size_t>(bytes)],
                               [](void* p) { delete[] static_cast<char*>(p); });
}

// Addresses without memory behind them: pages appear when touched. Null where the system does not
// give that many.
std::shared_ptr<void> Reserve(int64_t bytes) {
  const size_t size = static_cast<size_t>(bytes);
  void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                 -1, 0);
  if (p == MAP_FAILED) return nullptr;
  return std::shared_ptr<void>(p, [size](void* q) { munmap(q, size); });
}

// x[n+1] = (1664525·x[n] + 1013904223) mod 2^32, x[0] = seed; element n is gain·(t − 128)/64 with t
// the top byte of x[n+1].
void Generate(uint32_t seed, double gain, DType dtype, int64_t count, char* data) {
  uint32_t x = seed;
  for (int64_t n = 0; n < count; ++n) {
    x = 1664525u * x + 1013904223u;
    const int t = static_cast<int>(x >> 24);
    EncodeElement(dtype, gain * (t - 128) / 64, data + n * SizeOf(dtype));
  }
}

// Calls f(element number) for every element of `box` ([[begin, end], …]) in a dense tensor.
void ForEachInBox(const json& box, const Shape& shape, const std::function<void(int64_t)>& f) {
  const std::function<void(size_t, int64_t)> walk = [&](size_t axis, int64_t number) {
    if (axis == shape.size()) return f(number);
    const int64_t begin = axis < box.size() ? box[axis][0].get<int64_t>() : 0;
    const int64_t end = axis < box.size() ? box[axis][1].get<int64_t>() : shape[axis];
    for (int64_t n = begin; n < std::min(end, shape[axis]); ++n)
      walk(axis + 1, number * shape[axis] + n);
  };
  walk(0, 0);
}

// The buffer that `spec` describes: stored, filled or generated, then patched.
std::shared_ptr<void> MakeBuffer(const json& spec, DType dtype, const Shape& shape,
                                 const Stored& stored) {
  const int64_t count = Product(shape);
  std::shared_ptr<void> memory = Allocate(count * SizeOf(dtype));
  char* data = static_cast<char*>(memory.get());
  if (spec.contains("tensor")) {
    const StoredTensor& tensor = stored.at(spec.at("tensor"));
    if (tensor.shape != shape ||
        static_cast<int64_t>(tensor.bytes.size()) != count * SizeOf(dtype)) {
      throw std::runtime_error("stored tensor does not fit " + spec.dump());
    }
    std::copy(tensor.bytes.begin(), tensor.bytes.end(), data);
  } else if (spec.contains("generator")) {
    if (spec.at("generator") != "lcg")
      throw std::runtime_error("unknown generator: " + spec.dump());
    Generate(spec.at("seed"), spec.value("gain", 1.0), dtype, count, data);
  } else {
    const double value = ParseValue(spec.at("fill"));
    for (int64_t n = 0; n < count; ++n) EncodeElement(dtype, value, data + n * SizeOf(dtype));
  }
  for (const json& patch : spec.value("patch", json::array())) {
    const double value = ParseValue(patch.at("value"));
    ForEachInBox(patch.at("box"), shape,
                 [&](int64_t n) { EncodeElement(dtype, value, data + n * SizeOf(dtype)); });
  }
  return memory;
}

Shape DenseStrides(const Shape& shape) {
  Shape strides(shape.size());
  int64_t step = 1;
  for (size_t a = shape.size(); a-- > 0;) {
    strides[a] = step;
    step *= shape[a];
  }
  return strides;
}

TensorView MakeView(void* data, DType dtype, const Shape& shape, const Shape& element_strides) {
  if (shape.size() > static_cast<size_t>(kMaxRank)) throw std::runtime_error("more than four axes");
  TensorView view;
  view.data = data;
  view.dtype = dtype;
  view.rank = static_cast<int32_t>(shape.size());
  for (size_t a = 0; a < shape.size(); ++a) {
    view.shape[a] = shape[a];
    view.stride[a] = element_strides[a] * SizeOf(dtype);
  }
  return view;
}

// The dense tensor `dense` laid out again with `element_strides`. Without memory where the system
// cannot reserve the addresses.
Tensor Place(const void* dense, DType dtype, const Shape& shape, const Shape& element_strides) {
  int64_t bytes = SizeOf(dtype);
  for (size_t a = 0; a < shape.size(); ++a)
    bytes += (shape[a] - 1) * element_strides[a] * SizeOf(dtype);
  Tensor tensor;
  tensor.memory = Reserve(bytes);
  tensor.view = MakeView(tensor.memory.get(), dtype, shape, element_strides);
  if (tensor.memory == nullptr) return tensor;
  for (int64_t n = 0; n < Product(shape); ++n) {
    int64_t rest = n, target = 0;
    for (size_t a = shape.size(); a-- > 0;) {
      target += rest % shape[a] * element_strides[a];
      rest /= shape[a];
    }
    std::memcpy(static_cast<char*>(tensor.memory.get()) + target * SizeOf(dtype),
                static_cast<const char*>(dense) + n * SizeOf(dtype),
                static_cast<size_t>(SizeOf(dtype)));
  }
  return tensor;
}

// Builds the tensors of one case. Tensors of the same stored, unpatched name look at the same
// buffer, as in a packed QKV projection.
class TensorBuilder {
 public:
  explicit TensorBuilder(const Stored& stored) : stored_(stored) {}

  // The axes as in the manifest; more than four are allowed for `outs` of the merge suite, which
  // MakeParts takes apart.
  Tensor Build(const json& spec) {
    const Shape shape = spec.at("shape");
    const DType dtype = ParseDType(spec.at("dtype"));
    const Shape buffer_shape = spec.value("buffer_shape", shape);
    Tensor tensor;
    tensor.memory = Buffer(spec, dtype, buffer_shape);
    if (spec.contains("place_strides_elements"))
      return Place(tensor.memory.get(), dtype, shape, spec.at("place_strides_elements"));
    const Shape strides = spec.value("strides_elements", DenseStrides(shape));
    char* data = static_cast<char*>(tensor.memory.get()) +
                 spec.value("offset_elements", int64_t{0}) * SizeOf(dtype);
    tensor.view = MakeView(data, dtype, shape, strides);
    return tensor;
  }

  // Slice n of a dense [N, …] tensor.
  std::vector<TensorView> BuildSlices(const json& spec, Tensor* whole) {
    const Shape shape = spec.at("shape");
    const Shape part(shape.begin() + 1, shape.end());
    const DType dtype = ParseDType(spec.at("dtype"));
    whole->memory = Buffer(spec, dtype, shape);
    std::vector<TensorView> slices;
    for (int64_t n = 0; n < shape[0]; ++n) {
      char* data = static_cast<char*>(whole->memory.get()) + n * Product(part) * SizeOf(dtype);
      slices.push_back(MakeView(data, dtype, part, DenseStrides(part)));
    }
    return slices;
  }

 private:
  std::shared_ptr<void> Buffer(const json& spec, DType dtype, const Shape& shape) {
    if (!spec.contains("tensor") || spec.contains("patch"))
      return MakeBuffer(spec, dtype, shape, stored_);
    std::shared_ptr<void>& shared = shared_[spec.at("tensor")];
    if (shared == nullptr) shared = MakeBuffer(spec, dtype, shape, stored_);
    return shared;
  }

  const Stored& stored_;
  std::map<std::string, std::shared_ptr<void>> shared_;
};

// ---- cases

Causal ParseCausal(const std::string& name) {
  if (name == "none") return Causal::kNone;
  if (name == "top_left") return Causal::kTopLeft;
  if (name == "bottom_right") return Causal::kBottomRight;
  throw std::runtime_error("unknown causal: " + name);
}

void ReadParams(const json& params, Score* score) {
  const auto given = [&params](const char* key) {
    return params.contains(key) && !params.at(key).is_null();
  };
  if (given("scale")) score->scale = static_cast<float>(params.at("scale").get<double>());
  if (given("softcap")) score->softcap = static_cast<float>(params.at("softcap").get<double>());
  if (given("causal")) score->causal = ParseCausal(params.at("causal"));
  if (given("query_offset")) score->query_offset = params.at("query_offset").get<int64_t>();
  if (given("window")) score->window = {params.at("window").at(0), params.at("window").at(1)};
}

// Tensors with a head and a token axis, which a layout can exchange.
bool HasLayout(const std::string& name) {
  for (const char* const known : {"q", "k", "v", "dout", "out", "dq", "dk", "dv"}) {
    if (name == known) return true;
  }
  return false;
}

// Where the input of a name belongs; null for one that the library does not have.
TensorView* PlaceOf(const std::string& name, Case* c) {
  Score& score = c->problem.score;
  const std::map<std::string, TensorView*> places = {
      {"q", &c->problem.q},
      {"k", &c->problem.k},
      {"v", &c->problem.v},
      {"head_scales", &score.head_scales},
      {"bias", &score.bias},
      {"bias_scales", &score.bias_scales},
      {"mask", &score.mask},
      {"alibi_slopes", &score.alibi_slopes},
      {"sinks", &score.sinks},
      {"q_lengths", &score.q_lengths},
      {"kv_lengths", &score.kv_lengths},
      {"key_ranges", &score.key_ranges},
      {"dout", &c->dout},
  };
  const auto place = places.find(name);
  return place == places.end() ? nullptr : place->second;
}

// What the library would have to have for a case, by the names of inputs and parameters.
std::set<std::string> MissingFor(const json& source) {
  std::set<std::string> missing;
  Case any;
  for (const auto& [name, spec] : source.at("inputs").items()) {
    if (name != "outs" && name != "lses" && PlaceOf(name, &any) == nullptr) missing.insert(name);
  }
  static const std::set<std::string> kParams = {"scale", "softcap", "causal", "query_offset",
                                                "window"};
  const json params = source.value("params", json::object());
  for (const auto& [name, value] : params.items()) {
    if (!value.is_null() && kParams.count(name) == 0) missing.insert(name);
  }
  // a cache in pages has four names
  for (const char* const part : {"k_pages", "v_pages", "page_size"}) missing.erase(part);
  return missing;
}

Tolerance ParseTolerance(const json& tol) { return {tol.at("atol"), tol.at("rtol")}; }

}  // namespace

struct Suite::Contents {
  json manifest;
  Stored stored;
};

Suite::Suite(const std::string& folder) : contents_(new Contents) {
  contents_->manifest = ReadJson(folder + "/manifest.json");
  contents_->stored = ReadSafetensors(folder + "/tensors.safetensors");
}
Suite::~Suite() = default;
Suite::Suite(Suite&&) noexcept = default;

size_t Suite::size() const { return contents_->manifest.at("cases").size(); }

std::string Suite::CaseName(size_t index) const {
  return contents_->manifest.at("cases").at(index).at("name");
}

bool Suite::ExpectsError(size_t index) const {
  return contents_->manifest.at("cases").at(index).at("expect").contains("error");
}

std::string Suite::Needs(size_t index) const {
  std::string needs;
  for (const std::string& name : MissingFor(contents_->manifest.at("cases").at(index)))
    needs += (needs.empty() ? "" : ", ") + name;
  return needs;
}

Case Suite::Load(size_t index) const {
  const json& source = contents_->manifest.at("cases").at(index);
  TensorBuilder builder(contents_->stored);
  Case c;
  c.suite = contents_->manifest.at("suite");
  c.name = source.at("name");
  c.about = source.at("about");
  if (!Needs(index).empty()) throw std::runtime_error(c.name + " needs " + Needs(index));
  c.token_major = source.value("layout", "BHTD") == "BTHD";
  if (source.contains("params")) ReadParams(source.at("params"), &c.problem.score);

  std::vector<TensorView> outs, lses;
  for (const auto& [name, spec] : source.at("inputs").items()) {
    Tensor& tensor = c.inputs[name];
    if (name == "outs" || name == "lses") {
      (name == "outs" ? outs : lses) = builder.BuildSlices(spec, &tensor);
      continue;
    }
    tensor = builder.Build(spec);
    if (tensor.memory == nullptr)
      c.unavailable = "the system does not reserve the addresses of " + name;
    if (c.token_major && HasLayout(name)) tensor.view = SwapAxes(tensor.view, 1, 2);
    *PlaceOf(name, &c) = tensor.view;
  }
  for (size_t n = 0; n < outs.size(); ++n) c.parts.push_back({outs[n], lses.at(n)});

  for (const auto& [name, spec] : source.at("expect").items()) {
    if (name == "error") {
      c.error = spec;
      continue;
    }
    Expectation& expectation = c.expect[name];
    expectation.tensor = builder.Build(spec);
    if (c.token_major && HasLayout(name))
      expectation.tensor.view = SwapAxes(expectation.tensor.view, 1, 2);
    expectation.tolerance =
        ParseTolerance(spec.contains("tol") ? spec.at("tol") : source.at("tol"));
  }
  return c;
}

std::vector<std::string> RealProblems(const std::string& folder) {
  const json manifest = ReadJson(folder + "/manifest.json");
  std::vector<std::string> names;
  for (const auto& [name, entry] : manifest.items()) names.push_back(name);
  return names;
}

Case LoadRealProblem(const std::string& folder, const std::string& name) {
  const json manifest = ReadJson(folder + "/manifest.json");
  const json& entry = manifest.at(name);
  if (entry.at("layout") != "BHTD") throw std::runtime_error(name + ": layout is not BHTD");
  const Stored stored = ReadSafetensors(folder + "/" + name + ".safetensors");
  TensorBuilder builder(stored);
  const auto build = [&](const std::string& tensor) {
    return builder.Build(
        {{"dtype", "f32"}, {"shape", stored.at(tensor).shape}, {"tensor", tensor}});
  };
  Case c;
  c.suite = "real";
  c.name = name;
  c.about = entry.at("source");
  c.problem.score.scale = static_cast<float>(entry.at("scale").get<double>());
  if (entry.at("causal")) c.problem.score.causal = Causal::kTopLeft;
  for (const char* const tensor : {"q", "k", "v"}) {
    c.inputs[tensor] = build(tensor);
    *PlaceOf(tensor, &c) = c.inputs[tensor].view;
  }
  if (entry.contains("kv_lengths")) {
    const std::vector<int32_t> lengths = entry.at("kv_lengths");
    Tensor& tensor = c.inputs["kv_lengths"];
    const Shape shape = {static_cast<int64_t>(lengths.size())};
    tensor.memory = Allocate(shape[0] * SizeOf(DType::kI32));
    std::memcpy(tensor.memory.get(), lengths.data(), lengths.size() * sizeof(int32_t));
    tensor.view = MakeView(tensor.memory.get(), DType::kI32, shape, {1});
    c.problem.score.kv_lengths = tensor.view;
  }
  for (const char* const tensor : {"out", "lse"}) c.expect[tensor].tensor = build(tensor);
  return c;
}

}  // namespace fovea::test
