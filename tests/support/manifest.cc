#include "support/manifest.h"

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <utility>

#include "support/manifest_tensors.h"
#include "support/safetensors.h"

namespace fovea::test {
namespace {

using nlohmann::json;
using Shape = std::vector<int64_t>;

json ReadJson(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(path + ": cannot be opened");
  return json::parse(file);
}

Causal ParseCausal(const std::string& name) {
  if (name == "none") return Causal::kNone;
  if (name == "top_left") return Causal::kTopLeft;
  if (name == "bottom_right") return Causal::kBottomRight;
  throw std::runtime_error("unknown causal: " + name);
}

void ReadParams(const json& params, Problem* problem) {
  Score* const score = &problem->score;
  const auto given = [&params](const char* key) {
    return params.contains(key) && !params.at(key).is_null();
  };
  if (given("scale")) score->scale = static_cast<float>(params.at("scale").get<double>());
  if (given("softcap")) score->softcap = static_cast<float>(params.at("softcap").get<double>());
  if (given("causal")) score->causal = ParseCausal(params.at("causal"));
  if (given("query_offset")) score->query_offset = params.at("query_offset").get<int64_t>();
  if (given("window")) score->window = {params.at("window").at(0), params.at("window").at(1)};
  if (given("ring")) problem->ring = params.at("ring").get<bool>();
}

// Tensors with a head and a token axis, which a layout can exchange.
bool HasLayout(const std::string& name) {
  for (const char* const known :
       {"q", "k", "v", "k_pages", "v_pages", "dout", "out", "dq", "dk", "dv"}) {
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
      {"k_pages", &c->problem.k},
      {"v_pages", &c->problem.v},
      {"page_table", &c->problem.pages.table},
      {"key_offsets", &score.key_offsets},
      {"k_scale", &c->problem.k_scale},
      {"k_zero", &c->problem.k_zero},
      {"v_scale", &c->problem.v_scale},
      {"v_zero", &c->problem.v_zero},
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

// A tensor of bytes that hold two channels each, the even one in the low nibble.
TensorView AsNibbles(TensorView bytes) {
  bytes.dtype = DType::kU4;
  bytes.shape[3] *= UnitElements(DType::kU4);
  return bytes;
}

// What the library would have to have for a case, by the names of inputs and parameters.
std::set<std::string> MissingFor(const json& source) {
  std::set<std::string> missing;
  Case any;
  for (const auto& [name, spec] : source.at("inputs").items()) {
    if (name != "outs" && name != "lses" && PlaceOf(name, &any) == nullptr) missing.insert(name);
  }
  static const std::set<std::string> kParams = {"scale",  "softcap", "causal",   "query_offset",
                                                "window", "ring",    "page_size"};
  const json params = source.value("params", json::object());
  for (const auto& [name, value] : params.items()) {
    if (!value.is_null() && kParams.count(name) == 0) missing.insert(name);
  }
  // What a case has beside out and lse changes neither.
  missing.erase("key_weights");
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
  if (source.contains("params")) ReadParams(source.at("params"), &c.problem);

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
    if (source.contains("quantised") && source.at("quantised").value(name, 8) == 4)
      tensor.view = AsNibbles(tensor.view);
    *PlaceOf(name, &c) = tensor.view;
  }
  if (c.problem.pages.present() && source.at("params").at("page_size") != c.problem.k.shape[2])
    throw std::runtime_error(c.name + ": page_size is not that of k_pages");
  for (size_t n = 0; n < outs.size(); ++n) c.parts.push_back({outs[n], lses.at(n)});

  for (const auto& [name, spec] : source.at("expect").items()) {
    if (name == "error") c.error = spec;
    if (name == "error" || name == "key_weights") continue;
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
