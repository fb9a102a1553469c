#include "embedded/support.h"

#include <cmath>
#include <cstring>
#include <string>
#include <type_traits>

#include "fovea/target.h"
#include "reference/element.h"
#include "support/check.h"
#include "support/compare.h"

namespace fovea::test {

bool IsUsable() {
  const std::string isa = Instance().isa;
  const auto has = [](Target target) {
    for (Target usable : UsableTargets()) {
      if (usable == target) return true;
    }
    return false;
  };
  if (isa == "avx512") return has(Target::kAvx512);
  if (isa == "avx2_fma_f16c") return has(Target::kAvx2);
  return true;
}

namespace {

bool IsType(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF16; }

}  // namespace

bool IsCovered(const Problem& p) {
  const Score& s = p.score;
  return IsType(p.q.dtype) && IsType(p.k.dtype) && IsType(p.v.dtype) &&
         (!p.out.present() || IsType(p.out.dtype)) && s.softcap == 0 && !s.alibi_slopes.present() &&
         (!s.bias.present() || IsType(s.bias.dtype)) && !s.mask.present() &&
         !s.block_map.visible.present() && !s.parents.present() && !s.sinks.present() &&
         !p.cu_seqlens_q.present() && !p.cu_seqlens_k.present() && !p.pages.present() &&
         !s.key_offsets.present();
}

std::unique_ptr<Converted> Convert(const Problem& p) {
  auto converted = std::make_unique<Converted>();
  embedded::Problem& e = converted->problem;
  const Score& s = p.score;
  const auto read = [&](const TensorView& view, auto& to) {
    for (double x : reference::ReadAll(view))
      to.push_back(static_cast<typename std::decay_t<decltype(to)>::value_type>(x));
    return to.data();
  };
  e.B = p.q.shape[0], e.Hq = p.q.shape[1], e.Hkv = p.k.shape[1], e.Tq = p.q.shape[2],
  e.Tk = p.k.shape[2], e.dk = p.q.shape[3];
  e.dv = p.v.shape[3];
  e.q = TensorOf<embedded::Tensor>(p.q), e.k = TensorOf<embedded::Tensor>(p.k),
  e.v = TensorOf<embedded::Tensor>(p.v);
  e.out = TensorOf<embedded::MutableTensor>(p.out),
  e.lse = TensorOf<embedded::MutableTensor>(p.lse);
  if (s.head_scales.present()) e.head_scales = read(s.head_scales, converted->head_scales);
  if (s.bias_scales.present()) e.bias_scales = read(s.bias_scales, converted->bias_scales);
  e.score_function = s.function.apply, e.score_context = s.function.context;
  if (s.key_ranges.present()) {
    e.key_ranges.data = s.key_ranges.data;
    e.key_ranges.is_64_bit = s.key_ranges.dtype == DType::kI64;
    for (int a = 0; a < 3; ++a)
      e.key_ranges.stride[a] = s.key_ranges.shape[a] == 1 ? 0 : s.key_ranges.stride[a];
  }
  if (s.bias.present()) {
    e.bias.data = s.bias.data;
    e.bias.type = s.bias.dtype == DType::kF16 ? embedded::Type::kF16 : embedded::Type::kF32;
    for (int a = 0; a < s.bias.rank; ++a)
      e.bias.stride[4 - s.bias.rank + a] = s.bias.shape[a] == 1 ? 0 : s.bias.stride[a];
  }
  e.has_scale = s.scale.has_value();
  e.scale = s.scale.value_or(0);
  e.causal = static_cast<embedded::Causal>(s.causal);
  e.window_left = s.window.left, e.window_right = s.window.right;
  e.query_offset = s.query_offset.value_or(embedded::kNoOffset);
  if (s.q_lengths.present()) e.q_lengths = read(s.q_lengths, converted->q_lengths);
  if (s.kv_lengths.present()) e.kv_lengths = read(s.kv_lengths, converted->kv_lengths);
  if (p.ring) {
    for (int64_t b = 0; b < e.B; ++b)
      converted->rings.push_back({e.Tk, e.kv_lengths == nullptr ? e.Tk : e.kv_lengths[b]});
    e.rings = converted->rings.data();
    e.kv_lengths = nullptr;
  }
  if (s.query_offsets.present()) e.query_offsets = read(s.query_offsets, converted->offsets);
  return converted;
}

Error Compute(const embedded::Problem& p, Scratch kind, Placement placement) {
  const int64_t group = p.Hkv > 0 ? p.Hq / p.Hkv : 1;
  const auto bytes =
      kind == Scratch::kFast ? Instance().scratch_bytes : Instance().least_scratch_bytes;
  const Memory scratch(bytes(p.dk, p.dv, p.Tq * group), placement, 1);
  std::memset(scratch.data(), 0xFF, scratch.bytes());
  return Attention(Instance(), p, scratch.data(), scratch.bytes());
}

testing::AssertionResult AgreesWithLibrary(const Problem& p, const std::vector<double>& library,
                                           const reference::ForwardResult& expected) {
  const std::vector<double> got = reference::ReadAll(p.out);
  const size_t dv = static_cast<size_t>(p.v.shape[3]);
  for (size_t n = 0; n < got.size(); ++n) {
    const size_t row = n / dv;
    if (std::isinf(expected.relative_tolerance[row]) ||
        (std::isnan(got[n]) && std::isnan(library[n])) || got[n] == library[n])
      continue;
    const double bound = expected.relative_tolerance[row] * expected.max_abs_value[row] +
                         static_cast<double>(std::numeric_limits<float>::min());
    const double both = reference::StoredBound(p.out.dtype, got[n], expected.out[n], bound) +
                        reference::StoredBound(p.out.dtype, library[n], expected.out[n], bound);
    if (!(std::fabs(got[n] - library[n]) <= both)) {
      return testing::AssertionFailure() << "out element " << n << " is " << got[n]
                                         << ", the library's " << library[n] << " ± " << both;
    }
  }
  return testing::AssertionSuccess();
}

void ExpectMatches(RandomProblem& p) {
  const reference::ForwardResult expected = reference::Forward(p.problem);
  p.ResetOutputs();
  const Status status = Attention(p.problem);
  ASSERT_TRUE(status.ok()) << status.message() << "\n" << ToString(p.spec);
  const std::vector<double> library = reference::ReadAll(p.problem.out);
  std::vector<unsigned char> bits;
  for (Scratch scratch : {Scratch::kFast, Scratch::kLeast}) {
    p.ResetOutputs();
    const Placement placement =
        scratch == Scratch::kFast ? Placement::kBeforeGuard : Placement::kAfterGuard;
    ASSERT_EQ(Compute(Convert(p.problem)->problem, scratch, placement), Error::kOk)
        << ToString(p.spec);
    EXPECT_TRUE(Matches(p.problem, expected)) << ToString(p.spec);
    EXPECT_TRUE(AgreesWithLibrary(p.problem, library, expected)) << ToString(p.spec);
    EXPECT_TRUE(p.OutputPaddingUntouched()) << "wrote outside its outputs\n" << ToString(p.spec);
    if (scratch == Scratch::kFast) bits = p.out.Bytes();
  }
  EXPECT_TRUE(p.out.Bytes() == bits) << "results depend on scratch\n" << ToString(p.spec);
}

ProblemSpec RandomSpec(Random& random) {
  const auto size = [&] {
    return random.Pick(std::vector<int64_t>{1, 2, 3, 5, 8, 13, 16, 17, 31, 33, 48, 67});
  };
  const auto type = [&] { return random.Chance(0.7) ? DType::kF32 : DType::kF16; };
  const auto lengths = [&] {
    return random.Chance(0.6) ? DType::kNone : random.Chance(0.5) ? DType::kI32 : DType::kI64;
  };
  const auto storage = [&] {
    Storage x;
    if (random.Chance(0.5))
      x.layout = random.Pick(std::vector<Layout>(std::begin(kLayouts), std::end(kLayouts)));
    x.placement =
        random.Pick(std::vector<Placement>(std::begin(kPlacements), std::end(kPlacements)));
    return x;
  };
  ProblemSpec s;
  s.B = random.Between(1, 3), s.Hkv = random.Between(1, 3),
  s.Hq = s.Hkv * random.Pick(std::vector<int64_t>{1, 1, 2, 3, 5, 8});
  s.Tq = random.Chance(0.3) ? 1 : size() * random.Between(1, 2);
  s.Tk = size() * random.Between(1, 3), s.dk = size(), s.dv = size();
  if (random.Chance(0.3)) s.scale = static_cast<float>(random.Normal());
  s.head_scales = random.Chance(0.3);
  if (random.Chance(0.4))
    s.bias = random.Pick(std::vector<Axes>(std::begin(kAllAxes), std::end(kAllAxes)));
  s.bias_type = type();
  s.bias_removes = random.Chance(0.5) ? 0.3 : 0;
  s.bias_scales = random.Chance(0.3);
  s.function = random.Chance(0.3), s.function_removes = random.Chance(0.5) ? 0.3 : 0;
  s.key_ranges = lengths(), s.one_key_ranges = random.Chance(0.3);
  s.causal =
      random.Pick(std::vector<Causal>{Causal::kNone, Causal::kTopLeft, Causal::kBottomRight});
  if (random.Chance(0.4)) s.window.left = random.Below(40);
  if (random.Chance(0.3)) s.window.right = random.Below(40);
  if (random.Chance(0.2)) {
    s.query_offset = random.Between(-30, 60);
  } else if (random.Chance(0.2)) {
    s.query_offsets = DType::kI64;
  }
  s.q_lengths = lengths(), s.kv_lengths = lengths();
  s.q_type = type(), s.k_type = type(), s.v_type = type(), s.out_type = type();
  s.lse = random.Chance(0.7);
  s.q = storage(), s.k = storage(), s.v = storage(), s.out = storage(), s.rest = storage();
  return s;
}

}  // namespace fovea::test
