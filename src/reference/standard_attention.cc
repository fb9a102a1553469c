#include "reference/standard_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/reference.h"

namespace fovea::reference {
namespace {

const float* Channels(const TensorView& x, int64_t b, int64_t h, int64_t t) {
  return reinterpret_cast<const float*>(static_cast<const char*>(x.data) + b * x.stride[0] +
                                        h * x.stride[1] + t * x.stride[2]);
}
float* Channels(const MutableTensorView& x, int64_t b, int64_t h, int64_t t) {
  return reinterpret_cast<float*>(static_cast<char*>(x.data) + b * x.stride[0] + h * x.stride[1] +
                                  t * x.stride[2]);
}

bool IsPlain(const TensorView& x) {
  return x.dtype == DType::kF32 && x.stride[3] == SizeOf(DType::kF32);
}

// The keys [0, n) that query i sees.
int64_t VisibleKeys(const Problem& problem, const Sequence& sequence, int64_t i) {
  if (i >= sequence.q_length) return 0;
  if (problem.score.causal == Causal::kNone) return sequence.kv_length;
  return std::clamp<int64_t>(i + sequence.offset + 1, 0, sequence.kv_length);
}

// S[i][j] = scale·(q_i·k_j) for j < keys. K is transposed first: the inner loop then runs over
// adjacent keys, which compilers vectorise.
void MultiplyScores(const Problem& problem, const Sizes& n, const Sequence& sequence, int64_t b,
                    int64_t h, float scale, float* scores) {
  const int64_t hkv = h / (n.Hq / n.Hkv);
  std::vector<float> transposed(n.dk * n.Tk);
  for (int64_t j = 0; j < sequence.kv_length; ++j) {
    const float* k = Channels(problem.k, b, hkv, j);
    for (int64_t c = 0; c < n.dk; ++c) transposed[c * n.Tk + j] = k[c];
  }
  for (int64_t i = 0; i < n.Tq; ++i) {
    const float* q = Channels(problem.q, b, h, i);
    float* s = scores + i * n.Tk;
    const int64_t keys = VisibleKeys(problem, sequence, i);
    std::fill(s, s + n.Tk, 0.0f);
    for (int64_t c = 0; c < n.dk; ++c) {
      const float factor = scale * q[c];
      const float* k = transposed.data() + c * n.Tk;
      for (int64_t j = 0; j < keys; ++j) s[j] += factor * k[j];
    }
  }
}

// p = exp(s − m) / Σ exp(s − m) in place over the first `keys` of a row; returns m + ln Σ exp(s −
// m).
float Softmax(float* s, int64_t keys) {
  const float m = *std::max_element(s, s + keys);
  float sum = 0;
  for (int64_t j = 0; j < keys; ++j) sum += s[j] = std::exp(s[j] - m);
  for (int64_t j = 0; j < keys; ++j) s[j] /= sum;
  return m + std::log(sum);
}

}  // namespace

int64_t ScoreMatrixBytes(const Problem& problem) {
  const Sizes n = SizesOf(problem);
  return n.B * n.Hq * n.Tq * n.Tk * static_cast<int64_t>(sizeof(float));
}

bool StandardAttentionSupports(const Problem& problem) {
  const Score& score = problem.score;
  return IsPlain(problem.q) && IsPlain(problem.k) && IsPlain(problem.v) && IsPlain(problem.out) &&
         !problem.weights.present() && !problem.scores.present() &&
         !problem.cu_seqlens_q.present() && !problem.cu_seqlens_k.present() &&
         !problem.pages.present() && !problem.ring && !score.key_offsets.present() &&
         score.softcap == 0 && !score.head_scales.present() && !score.alibi_slopes.present() &&
         !score.bias.present() && !score.function.present() && !score.key_ranges.present() &&
         !score.mask.present() && !score.block_map.visible.present() && !score.parents.present() &&
         !score.sinks.present() && score.window.left < 0 && score.window.right < 0;
}

void StandardAttention(const Problem& problem, std::vector<float>* scores) {
  const Sizes n = SizesOf(problem);
  const float scale = problem.score.scale
                          ? *problem.score.scale
                          : static_cast<float>(1 / std::sqrt(static_cast<double>(n.dk)));
  scores->resize(n.B * n.Hq * n.Tq * n.Tk);

  for (int64_t b = 0; b < n.B; ++b) {
    const Sequence sequence = SequenceOf(problem, b);
    for (int64_t h = 0; h < n.Hq; ++h) {
      MultiplyScores(problem, n, sequence, b, h, scale,
                     scores->data() + (b * n.Hq + h) * n.Tq * n.Tk);
    }
  }

  for (int64_t b = 0; b < n.B; ++b) {
    const Sequence sequence = SequenceOf(problem, b);
    for (int64_t h = 0; h < n.Hq; ++h) {
      for (int64_t i = 0; i < n.Tq; ++i) {
        const int64_t keys = VisibleKeys(problem, sequence, i);
        float* p = scores->data() + ((b * n.Hq + h) * n.Tq + i) * n.Tk;
        const float lse = keys == 0 ? -std::numeric_limits<float>::infinity() : Softmax(p, keys);
        if (problem.lse.present()) *Channels(problem.lse, b, h, i) = lse;

        float* out = Channels(problem.out, b, h, i);
        std::fill(out, out + n.dv, 0.0f);
        for (int64_t j = 0; j < keys; ++j) {
          const float* v = Channels(problem.v, b, h / (n.Hq / n.Hkv), j);
          for (int64_t c = 0; c < n.dv; ++c) out[c] += p[j] * v[c];
        }
      }
    }
  }
}

}  // namespace fovea::reference
