// How an inference engine in the manner of ggml takes Fovea in: tensors with their innermost size
// first and strides in bytes, heads interleaved per token, an f16 mask with padded rows, an f16
// cache of keys and values that grows, one scratch buffer for all layers, and a fixed set of
// threads that all walk through every operation together, with a barrier of the engine's own. Each
// step is planned once and serves all layers; nothing is allocated after the first.
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "fovea/fovea.h"

namespace engine {

// ---------------------------------------------------------------- the engine: nothing here knows
// Fovea

enum class Type { kF32, kF16 };

// ne: sizes, innermost first; nb: strides in bytes.
struct Tensor {
  void* data;
  Type type;
  int64_t ne[4];
  int64_t nb[4];
};

// A spinning barrier of n threads.
class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}
  void Wait() {
    const int round = round_.load();
    if (++waiting_ == threads_) {
      waiting_ = 0;
      ++round_;
    } else {
      while (round_.load() == round) std::this_thread::yield();
    }
  }

 private:
  const int threads_;
  std::atomic<int> waiting_{0}, round_{0};
};

// What the threads of a computation share; thread `ith` of `nth`.
struct Shared {
  Barrier* barrier;
  std::atomic<int64_t> next{0};  // chunk that nobody has taken yet
  void* scratch = nullptr;
  size_t scratch_bytes = 0;
};
struct Params {
  int ith, nth;
  Shared* shared;
};

// Of numbers whose magnitude is 0, infinite, or normal in both types.
uint16_t ToHalf(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
  if (magnitude == 0x7F800000) return static_cast<uint16_t>(sign | 0x7C00);
  if (magnitude < 0x38800000) return static_cast<uint16_t>(sign);
  return static_cast<uint16_t>(sign |
                               ((magnitude + 0x0FFF + (magnitude >> 13 & 1) - 0x38000000) >> 13));
}
float FromHalf(uint16_t x) {
  const int exponent = x >> 10 & 31, fraction = x & 1023;
  const float magnitude = exponent == 31 ? std::numeric_limits<float>::infinity()
                          : exponent == 0
                              ? std::ldexp(static_cast<float>(fraction), -24)
                              : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  return (x & 0x8000) != 0 ? -magnitude : magnitude;
}

double Read(const Tensor& t, int64_t i0, int64_t i1, int64_t i2) {
  const char* const p =
      static_cast<const char*>(t.data) + i0 * t.nb[0] + i1 * t.nb[1] + i2 * t.nb[2];
  if (t.type == Type::kF32) {
    float x;
    std::memcpy(&x, p, sizeof(x));
    return static_cast<double>(x);
  }
  uint16_t x;
  std::memcpy(&x, p, sizeof(x));
  return static_cast<double>(FromHalf(x));
}

struct Sizes {
  int64_t layers = 3, heads = 8, kv_heads = 2, size = 64, context = 512;
};

// The operation: q [size, tokens, heads], k and v [size, keys, kv_heads], mask [keys, tokens] f16,
// 0 or −inf → dst [size, heads, tokens].
struct FlashAttention {
  Tensor q, k, v, mask, dst;
};

// ---------------------------------------------------------------- the glue: all of it

fovea::DType TypeOf(const Tensor& t) {
  return t.type == Type::kF32 ? fovea::DType::kF32 : fovea::DType::kF16;
}

// The same memory as Fovea sees it, outermost axis first.
template <class View>
View ViewOf(const Tensor& t) {
  View view;
  view.data = t.data;
  view.dtype = TypeOf(t);
  view.rank = 4;
  for (int a = 0; a < 4; ++a) view.shape[a] = t.ne[3 - a], view.stride[a] = t.nb[3 - a];
  return view;
}

fovea::Problem ProblemOf(const FlashAttention& op) {
  fovea::Problem problem;
  problem.q = ViewOf<fovea::TensorView>(op.q);
  problem.k = ViewOf<fovea::TensorView>(op.k);
  problem.v = ViewOf<fovea::TensorView>(op.v);
  problem.score.bias = ViewOf<fovea::TensorView>(op.mask);
  // [B, T, H, d] in memory
  problem.out = fovea::SwapAxes(ViewOf<fovea::MutableTensorView>(op.dst), 1, 2);
  return problem;
}

// Called by every thread of the engine for each operation of the graph.
void Compute(const Params& params, const fovea::BoundCall& call) {
  Shared& shared = *params.shared;
  for (int phase = 0; phase < call.Phases(); ++phase) {
    if (params.ith == 0) shared.next = 0;
    shared.barrier->Wait();
    const int64_t tasks = call.Tasks(phase);
    for (int64_t task = shared.next++; task < tasks; task = shared.next++)
      call.RunTask(phase, task, params.ith);
    shared.barrier->Wait();
  }
}

// ---------------------------------------------------------------- a model that is nothing but
// attention, and its check

class Model {
 public:
  explicit Model(const Sizes& s) : s_(s) {
    const size_t cache = static_cast<size_t>(s.layers * s.context * s.kv_heads * s.size);
    k_cache_.resize(cache), v_cache_.resize(cache);
    q_.resize(static_cast<size_t>(s.layers * s.context * s.heads * s.size));
    dst_.resize(q_.size());
    mask_.resize(static_cast<size_t>(s.context * MaskRow()));
  }

  int64_t MaskRow() const { return s_.context + 32; }  // halves, more than there are keys

  // The operation of a layer for `tokens` tokens behind the `past` ones.
  FlashAttention Op(int64_t layer, int64_t past, int64_t tokens) {
    const int64_t row = s_.heads * s_.size, kv_row = s_.kv_heads * s_.size, keys = past + tokens;
    const int64_t f32 = sizeof(float), f16 = sizeof(uint16_t);
    FlashAttention op;
    op.q = {q_.data() + layer * s_.context * row,
            Type::kF32,
            {s_.size, tokens, s_.heads, 1},
            {f32, row * f32, s_.size * f32, 0}};
    op.k = {k_cache_.data() + layer * s_.context * kv_row,
            Type::kF16,
            {s_.size, keys, s_.kv_heads, 1},
            {f16, kv_row * f16, s_.size * f16, 0}};
    op.v = op.k;
    op.v.data = v_cache_.data() + layer * s_.context * kv_row;
    op.mask = {mask_.data(), Type::kF16, {keys, tokens, 1, 1}, {f16, MaskRow() * f16, 0, 0}};
    op.dst = {dst_.data() + layer * s_.context * row,
              Type::kF32,
              {s_.size, s_.heads, tokens, 1},
              {f32, s_.size * f32, row * f32, 0}};
    return op;
  }

  // What the layers before attention would write: new queries, and new keys and values behind the
  // old ones. What lies behind the mask's keys is NaN.
  void Prepare(int64_t past, int64_t tokens) {
    for (float& x : q_) x = Number();
    for (int64_t layer = 0; layer < s_.layers; ++layer) {
      const int64_t kv_row = s_.kv_heads * s_.size, first = (layer * s_.context + past) * kv_row;
      for (int64_t n = first; n < first + tokens * kv_row; ++n) {
        k_cache_[static_cast<size_t>(n)] = ToHalf(Number());
        v_cache_[static_cast<size_t>(n)] = ToHalf(Number());
      }
    }
    for (uint16_t& x : mask_) x = 0x7E00;
    for (int64_t i = 0; i < tokens; ++i) {
      for (int64_t j = 0; j < past + tokens; ++j) {
        mask_[static_cast<size_t>(i * MaskRow() + j)] =
            ToHalf(j <= past + i ? 0.0f : -std::numeric_limits<float>::infinity());
      }
    }
  }

  // The largest difference to the textbook formula in double; every seventh row.
  double Error(const FlashAttention& op) const {
    double worst = 0;
    const int64_t keys = op.k.ne[1];
    std::vector<double> p(static_cast<size_t>(keys));
    for (int64_t row = 0; row < s_.heads * op.q.ne[1]; row += 7) {
      const int64_t h = row % s_.heads, i = row / s_.heads, g = h / (s_.heads / s_.kv_heads);
      double m = -INFINITY, l = 0;
      for (int64_t j = 0; j < keys; ++j) {
        double s = 0;
        for (int64_t c = 0; c < s_.size; ++c) s += Read(op.q, c, i, h) * Read(op.k, c, j, g);
        p[static_cast<size_t>(j)] =
            s / std::sqrt(static_cast<double>(s_.size)) + Read(op.mask, j, i, 0);
        m = std::max(m, p[static_cast<size_t>(j)]);
      }
      for (double& x : p) l += x = std::exp(x - m);
      for (int64_t c = 0; c < s_.size; ++c) {
        double o = 0;
        for (int64_t j = 0; j < keys; ++j) o += p[static_cast<size_t>(j)] / l * Read(op.v, c, j, g);
        worst = std::fmax(worst, std::fabs(o - Read(op.dst, c, h, i)));
      }
    }
    return worst;
  }

 private:
  float Number() {
    seed_ = seed_ * 1664525u + 1013904223u;
    return static_cast<float>(seed_ >> 8) / 8388608.0f - 1.0f;
  }

  Sizes s_;
  uint32_t seed_ = 1;
  std::vector<uint16_t> k_cache_, v_cache_;  // [layers, context, kv_heads · size]
  std::vector<float> q_, dst_;               // [layers, context, heads · size]
  std::vector<uint16_t> mask_;
};

// A prompt in two chunks, then tokens one by one: all layers of each step by `nth` threads. True if
// all agree with the textbook.
bool Generate(int nth) {
  const Sizes s;
  Model model(s);
  // The most that any step needs, asked for before there is any data: the largest chunk, and one
  // token over the whole context.
  const int64_t chunks[] = {120, 77, 1, 1, 1, 1};
  fovea::PlanOptions options;
  options.max_queries = 120;
  options.max_keys = s.context;
  fovea::Plan plan;
  fovea::Status status =
      fovea::Plan::Create(ProblemOf(model.Op(0, s.context - 1, 1)), options, &plan);
  if (!status.ok()) {
    std::printf("plan: %s\n", status.message());
    return false;
  }
  size_t scratch_bytes = plan.WorkspaceBytes(nth);
  status = plan.Update(ProblemOf(model.Op(0, s.context - 120, 120)));
  if (status.ok()) scratch_bytes = std::max(scratch_bytes, plan.WorkspaceBytes(nth));
  std::vector<char> scratch(scratch_bytes);

  Barrier barrier(nth);
  Shared shared;
  shared.barrier = &barrier;
  shared.scratch = scratch.data();
  shared.scratch_bytes = scratch.size();
  int64_t past = 0;
  double worst = 0;
  for (int64_t tokens : chunks) {
    model.Prepare(past, tokens);
    // in place, for all layers
    if (status.ok()) status = plan.Update(ProblemOf(model.Op(0, past, tokens)));
    std::vector<fovea::BoundCall> graph(static_cast<size_t>(s.layers));
    for (int64_t layer = 0; layer < s.layers && status.ok(); ++layer) {
      status = fovea::Bind(plan, ProblemOf(model.Op(layer, past, tokens)),
                           {shared.scratch, shared.scratch_bytes}, nth,
                           &graph[static_cast<size_t>(layer)]);
    }
    if (!status.ok()) {
      std::printf("%s\n", status.message());
      return false;
    }
    const auto walk = [&](int ith) {
      for (const fovea::BoundCall& call : graph) Compute({ith, nth, &shared}, call);
    };
    std::vector<std::thread> threads;
    for (int ith = 1; ith < nth; ++ith) threads.emplace_back(walk, ith);
    walk(0);
    for (std::thread& thread : threads) thread.join();
    for (int64_t layer = 0; layer < s.layers; ++layer)
      worst = std::fmax(worst, model.Error(model.Op(layer, past, tokens)));
    past += tokens;
  }
  std::printf("%d threads: %zu bytes of scratch, largest error %.2g\n", nth, scratch.size(), worst);
  return worst <= 1e-5;  // the contract's bound where |v| ≤ 1
}

}  // namespace engine

int main() {
  bool ok = true;
  for (int threads : {1, 2, 4}) ok &= engine::Generate(threads);
  return ok ? 0 : 1;
}
