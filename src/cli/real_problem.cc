#include "cli/real_problem.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/failure.h"

namespace fovea::cli {
namespace {

using nlohmann::ordered_json;

files::FileTensor LoadTensor(const std::string& path, const char* name, size_t axes) {
  files::FileTensor tensor;
  std::string error;
  if (!files::Load(path + ":" + name, &tensor, &error)) throw Failure(error);
  if (tensor.info.shape.size() != axes || tensor.info.dtype != DType::kF32) {
    throw Failure(path + ": tensor '" + name + "' is " + Name(tensor.info.dtype) + " " +
                  files::ToString(tensor.info.shape) + ", expected f32 with " +
                  std::to_string(axes) + " axes");
  }
  return tensor;
}

std::unique_ptr<RealProblem> LoadRealProblem(const std::string& folder, const std::string& name,
                                             const ordered_json& entry) {
  auto problem = std::make_unique<RealProblem>();
  const std::string path = folder + "/" + name + ".safetensors";
  problem->name = name;
  problem->source = entry.value("source", "");
  problem->q = LoadTensor(path, "q", 4);
  problem->k = LoadTensor(path, "k", 4);
  problem->v = LoadTensor(path, "v", 4);
  problem->out = LoadTensor(path, "out", 4);
  problem->lse = LoadTensor(path, "lse", 3);
  problem->kv_lengths = entry.value("kv_lengths", std::vector<int32_t>());
  problem->tokens = entry.value("tokens", std::vector<std::vector<std::string>>());
  problem->score.scale = entry.at("scale").get<float>();
  if (entry.at("causal").get<bool>()) problem->score.causal = Causal::kBottomRight;
  const std::vector<int64_t>&q = problem->q.info.shape, &v = problem->v.info.shape;
  if (problem->out.info.shape != std::vector<int64_t>{q[0], q[1], q[2], v[3]} ||
      problem->lse.info.shape != std::vector<int64_t>{q[0], q[1], q[2]}) {
    throw Failure(path + ": out or lse do not have the shape that q and v ask for");
  }
  if (!problem->kv_lengths.empty() && problem->kv_lengths.size() != static_cast<size_t>(q[0])) {
    throw Failure(folder + "/manifest.json: " + name +
                  " does not have a key length for each sequence");
  }
  return problem;
}

}  // namespace

Problem RealProblem::View() const {
  Problem problem;
  problem.q = q.View();
  problem.k = k.View();
  problem.v = v.View();
  problem.score = score;
  if (!kv_lengths.empty()) {
    problem.score.kv_lengths =
        fovea::View(kv_lengths.data(), {static_cast<int64_t>(kv_lengths.size())});
  }
  return problem;
}

std::vector<std::unique_ptr<RealProblem>> LoadRealProblems(const std::string& folder) {
  const std::string path = folder + "/manifest.json";
  std::ifstream file(path);
  if (!file)
    throw Failure(path + ": cannot be read; --data names the folder of the captured problems");
  std::vector<std::unique_ptr<RealProblem>> problems;
  try {
    const ordered_json manifest = ordered_json::parse(file);
    for (const auto& [name, entry] : manifest.items()) {
      problems.push_back(LoadRealProblem(folder, name, entry));
    }
  } catch (const nlohmann::json::exception&) {
    throw Failure(path + ": not a manifest of captured problems");
  }
  return problems;
}

}  // namespace fovea::cli
