#include "fuzz/fuzz_problem.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace fovea::fuzz {
namespace {

using test::OwnedTensor;
using test::Random;
using test::Storage;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// The largest finite value.
double LargestOf(DType type) {
  return type == DType::kF16    ? 65504
         : type == DType::kBF16 ? 0x1.fep127
                                : static_cast<double>(std::numeric_limits<float>::max());
}

// Multiplies what is stored once per element; a broadcast tensor stays as it is.
void Multiply(OwnedTensor& tensor, const Storage& storage, double factor) {
  if (factor == 1 || storage.broadcast != 0) return;
  const double largest = LargestOf(tensor.view().dtype);
  for (int64_t n = 0; n < tensor.size(); ++n) {
    const double value = tensor.Get(n) * factor;
    tensor.Set(n, std::isnan(value) ? value : std::clamp(value, -largest, largest));
  }
}

}  // namespace

FuzzProblem::FuzzProblem(uint64_t seed) : FuzzProblem(seed, Random(seed)) {}

FuzzProblem::FuzzProblem(uint64_t seed, Random random)
    : spec_(DrawSpec(random)), tensors_(spec_.problem, seed) {
  const test::ProblemSpec& s = spec_.problem;
  test::RandomProblem& p = tensors_;
  Multiply(p.q, s.q, spec_.q_size);
  Multiply(p.k, s.k, spec_.k_size);
  Multiply(p.v, s.v, spec_.v_size);
  // Queries behind their length do not exist.
  for (int64_t b = 0; b < s.B && p.q_lengths.present() && s.q.broadcast == 0; ++b) {
    const test::RandomProblem::Rows rows = p.QueriesOf(b);
    for (int64_t h = 0; h < s.Hq; ++h) {
      for (int64_t i = p.QLength(b); i < rows.count; ++i)
        p.q.SetAt({rows.batch, h, rows.first + i, random.Below(s.dk)}, kNaN);
    }
  }
  for (const auto& [tensor, broadcast] :
       {std::pair(&p.bias, spec_.bias_broadcast), std::pair(&p.mask, spec_.mask_broadcast)}) {
    if (broadcast == 0) continue;
    Storage storage = s.rest;
    storage.broadcast = broadcast;
    *tensor = tensor->CopiedTo(storage);
  }
  if (spec_.patterned) FillPatterns(random);
  SetExtremes(random);
  p.Refresh();
  if (spec_.v_in_k) {
    p.problem.v = p.problem.k;
    p.problem.v.shape[3] = s.dv;
  }
  zeros32_ = OwnedTensor(DType::kI32, {s.B});
  zeros64_ = OwnedTensor(DType::kI64, {s.B});
  for (OwnedTensor* zeros : {&zeros32_, &zeros64_}) zeros->Fill([] { return 0.0; });
}

// NaN stays where nothing may be read.
void FuzzProblem::FillPatterns(Random& random) {
  const test::ProblemSpec& s = spec_.problem;
  test::RandomProblem& p = tensors_;
  const auto fill = [](OwnedTensor& tensor, const auto& value) {
    const TensorView view = tensor.view();
    const int64_t T = view.shape[2], d = view.shape[3];
    const double largest = LargestOf(view.dtype);
    for (int64_t n = 0; n < tensor.size(); ++n) {
      const double x = value(n / d % T, n % d, T);
      if (!std::isnan(tensor.Get(n))) tensor.Set(n, std::clamp(x, -largest, largest));
    }
  };
  fill(p.q, [](int64_t, int64_t, int64_t) { return 1.0; });
  fill(p.k, [&](int64_t j, int64_t c, int64_t T) {
    return c == j % s.dk ? test::ScoreOf(spec_.scores, j, T, random) : 0.0;
  });
  std::vector<test::Channel> channels;
  for (int64_t c = 0; c < s.dv; ++c) channels.emplace_back(spec_.values, c == 0, random);
  fill(p.v, [&](int64_t j, int64_t c, int64_t) {
    return spec_.v_size * channels[static_cast<size_t>(c)].Value(j, random);
  });
}

void FuzzProblem::SetExtremes(Random& random) {
  // Not both kinds in one problem: a large score that overflows f32 beside an Inf makes NaN, which
  // double does not foresee.
  const double lowest = static_cast<double>(std::numeric_limits<float>::lowest());
  const bool overflows = spec_.q_size > 1e30;  // scale·q does
  const std::vector<double> values =
      !overflows && random.Chance(0.5) ? std::vector<double>{kNaN, kInf, -kInf}
                                       : std::vector<double>{3e38, -3e38, 1e-40, 0.0, -0.0, lowest};
  test::RandomProblem& p = tensors_;
  const std::vector<std::pair<OwnedTensor*, const char*>> inputs = {
      {&p.q, "q"},       {&p.k, "k"},         {&p.v, "v"},
      {&p.bias, "bias"}, {&p.sinks, "sinks"}, {&p.alibi_slopes, "slopes"}};
  for (int n = 0; n < spec_.extremes; ++n) {
    const auto [tensor, name] = random.Pick(inputs);
    double value = random.Pick(values);
    if (tensor->size() == 0) continue;
    const DType type = tensor->view().dtype;
    if (std::isfinite(value)) value = std::clamp(value, -LargestOf(type), LargestOf(type));
    // products of bf16 may take subnormal inputs for 0
    if (value == 1e-40 && type == DType::kBF16) value = 1e-36;
    const int64_t element = random.Below(tensor->size());
    tensor->Set(element, value);
    extremes_ += std::string(", ") + name + "[" + std::to_string(element) +
                 "] = " + std::to_string(tensor->Get(element));
  }
}

void FuzzProblem::LeaveOpen(int64_t b, int64_t h, int64_t i,
                            reference::ForwardResult* result) const {
  reference::ForwardResult& expected = *result;
  const test::ProblemSpec& s = spec_.problem;
  const test::RandomProblem::Rows queries = tensors_.QueriesOf(b);
  const int64_t heads_before = queries.batch * s.Hq + h;
  const int64_t row = heads_before * problem().q.shape[2] + queries.first + i;  // of out and lse
  // the first of the row
  const int64_t pair = ((b * s.Hq + h) * s.Tq + i) * s.Tk;
  const size_t r = static_cast<size_t>(row);
  const auto any_out = [&](const auto& is) {
    return std::any_of(expected.out.begin() + row * s.dv, expected.out.begin() + (row + 1) * s.dv,
                       is);
  };
  if (std::isnan(expected.lse[r])) {
    // The score of a removed pair is −inf to a kernel, so one that became −inf by itself looks the
    // same: its weight may be 0 in a NaN row.
    for (size_t n = static_cast<size_t>(pair); n < static_cast<size_t>(pair + s.Tk); ++n) {
      if (expected.scores[n] == -kInf) expected.visible[n] = false, expected.weights[n] = 0;
    }
    // What a sink of NaN makes of a row without keys is left open.
    const bool empty =
        std::none_of(expected.visible.begin() + pair, expected.visible.begin() + pair + s.Tk,
                     [](bool v) { return v; });
    if (empty) expected.relative_tolerance[r] = kInf;
  }
  // A weight that kernels take for 0 (exp does below −44.4, of a maximum that may be 1 behind)
  // times an Inf in V is NaN, and Inf in double.
  if (any_out([](double x) { return std::isinf(x); }) &&
      std::any_of(expected.weights.begin() + pair, expected.weights.begin() + pair + s.Tk,
                  [](double w) { return w > 0 && w < 2e-19; })) {
    expected.relative_tolerance[r] = kInf;
  }
  if (expected.lse[r] == -kInf && any_out([](double x) { return std::isnan(x); })) {
    // Every visible score became −inf by itself, and V there is NaN or Inf: 0·Inf is NaN by the
    // textbook, and nothing where the pair counts as removed.
    expected.lse[r] = kNaN;
    expected.relative_tolerance[r] = kInf;
  }
  // an exact row, even where the V of no weight is Inf
  if (expected.lse[r] == -kInf) expected.max_abs_value[r] = 0;
}

reference::ForwardResult FuzzProblem::Expected() const {
  reference::ForwardResult expected = reference::Forward(problem());
  const test::ProblemSpec& s = spec_.problem;
  for (int64_t b = 0; b < s.B; ++b) {
    for (int64_t h = 0; h < s.Hq; ++h) {
      for (int64_t i = 0; i < tensors_.QueriesOf(b).count; ++i) LeaveOpen(b, h, i, &expected);
    }
  }
  return expected;
}

Problem FuzzProblem::WithoutLengths() const {
  Problem problem = tensors_.problem;
  for (TensorView* view :
       {&problem.score.q_lengths, &problem.score.kv_lengths, &problem.score.query_offsets}) {
    if (view->present()) *view = (view->dtype == DType::kI32 ? zeros32_ : zeros64_).view();
  }
  return problem;
}

}  // namespace fovea::fuzz
