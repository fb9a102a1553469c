#include "bench/workload.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace fovea::bench {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 24;    // of one axis of a workload
constexpr double kMaxElements = 1099511627776.0;  // 2^40, of one tensor of a workload

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == separator) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

bool ParseSize(const std::string& text, int64_t* size) {
  if (text.empty() || text.size() > 8 || text.find_first_not_of("0123456789") != std::string::npos) return false;
  *size = std::strtoll(text.c_str(), nullptr, 10);
  return *size >= 1 && *size <= kMaxSize;
}

// "32" or "32/8" (`separator` '/'), "512" or "1x4096" ('x'): the second is the first where it is missing.
bool ParsePair(const std::string& text, char separator, int64_t* first, int64_t* second) {
  const std::vector<std::string> parts = Split(text, separator);
  return parts.size() <= 2 && ParseSize(parts.front(), first) && ParseSize(parts.back(), second);
}

bool Parse(const std::string& text, Workload* w) {
  std::vector<std::string> parts = Split(text, ',');
  w->name = text;
  w->causal = parts.back() == "causal";
  if (w->causal) parts.pop_back();
  if (parts.size() != 4 && parts.size() != 5) return false;
  return ParseSize(parts[0], &w->B) && ParsePair(parts[1], '/', &w->Hq, &w->Hkv) && ParsePair(parts[2], 'x', &w->Tq, &w->Tk) &&
         ParseSize(parts[3], &w->dk) && ParseSize(parts.back(), &w->dv);
}

size_t WholeLines(int64_t floats) { return (static_cast<size_t>(floats) * sizeof(float) + 511) / 512 * 512; }

}  // namespace

double Workload::Pairs() const {
  double pairs = static_cast<double>(Tq) * static_cast<double>(Tk);
  if (causal) {
    pairs = 0;
    for (int64_t i = 0; i < Tq; ++i) pairs += static_cast<double>(std::clamp<int64_t>(i + 1 + Tk - Tq, 0, Tk));
  }
  return pairs * static_cast<double>(B * Hq);
}

double Workload::Flops() const { return 2 * Pairs() * static_cast<double>(dk + dv); }

double Workload::KvBytes() const { return static_cast<double>(B * Hkv * Tk) * static_cast<double>(dk + dv) * sizeof(float); }

const std::vector<Workload>& NamedWorkloads() {
  static const std::vector<Workload> kWorkloads = {
      {"P1", 1, 12, 12, 512, 512, 64, 64, false},   {"P2", 1, 8, 8, 2048, 2048, 64, 64, true},  {"P3", 1, 4, 4, 4096, 4096, 128, 128, true},
      {"P4", 1, 32, 8, 1024, 1024, 128, 128, true}, {"P5", 1, 8, 8, 256, 4096, 64, 64, false},  {"P6", 64, 12, 12, 128, 128, 32, 32, false},
      {"D1", 1, 32, 8, 1, 4096, 128, 128, false},   {"D2", 8, 32, 8, 1, 2048, 128, 128, false}, {"D3", 1, 32, 8, 1, 32768, 128, 128, false},
      {"F1", 1, 1, 1, 4096, 4096, 128, 128, false},
  };
  return kWorkloads;
}

bool ParseWorkload(const std::string& text, Workload* workload, std::string* error) {
  for (const Workload& named : NamedWorkloads()) {
    if (named.name == text) {
      *workload = named;
      return true;
    }
  }
  Workload parsed;
  if (!Parse(text, &parsed)) {
    *error = "workload '" + text + "': expected P1 … P6, D1 … D3, F1 or B,Hq[/Hkv],Tq[xTk],d[,dv][,causal]";
    return false;
  }
  if (parsed.Hq % parsed.Hkv != 0) {
    *error = "workload '" + text + "': Hq = " + std::to_string(parsed.Hq) + " is not a multiple of Hkv = " + std::to_string(parsed.Hkv);
    return false;
  }
  const double rows = static_cast<double>(parsed.B) * static_cast<double>(parsed.Hq) * static_cast<double>(std::max(parsed.Tq, parsed.Tk));
  if (rows * static_cast<double>(std::max(parsed.dk, parsed.dv)) > kMaxElements) {
    *error = "workload '" + text + "' is larger than 2^40 elements";
    return false;
  }
  *workload = parsed;
  return true;
}

void FillNormal(float* values, size_t count, uint64_t seed) {
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 0x853c49e6748fea9bu;
  for (size_t i = 0; i < count; ++i) {
    // xorshift64* (Vigna 2016); four 16-bit uniform values have the variance 4 · 2^32 / 12.
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    const uint64_t r = state * 0x2545f4914f6cdd1du;
    const int32_t sum = static_cast<int32_t>((r & 0xffff) + (r >> 16 & 0xffff) + (r >> 32 & 0xffff) + (r >> 48)) - 2 * 0xffff;
    values[i] = static_cast<float>(sum) * 2.6428e-5f;
  }
}

WorkloadTensors::WorkloadTensors(const Workload& workload, uint64_t seed) : workload_(workload) {
  const Workload& w = workload_;
  q_bytes_ = WholeLines(w.B * w.Hq * w.Tq * w.dk);
  out_bytes_ = WholeLines(w.B * w.Hq * w.Tq * w.dv);
  k_bytes_ = WholeLines(w.B * w.Hkv * w.Tk * w.dk);
  v_bytes_ = WholeLines(w.B * w.Hkv * w.Tk * w.dv);
  const size_t kv = k_bytes_ + v_bytes_;
  if (w.IsDecode()) copies_ = static_cast<int64_t>(std::max<size_t>(1, (StreamBytes() + kv - 1) / kv));
  buffer_ = std::make_unique<HugeBuffer>(q_bytes_ + out_bytes_ + static_cast<size_t>(copies_) * kv);
  if (!ok()) return;
  char* const base = static_cast<char*>(buffer_->data());
  char* const kv_base = base + q_bytes_ + out_bytes_;
  FillNormal(reinterpret_cast<float*>(base), q_bytes_ / sizeof(float), seed);
  FillNormal(reinterpret_cast<float*>(kv_base), kv / sizeof(float), seed + 1);
  for (int64_t copy = 1; copy < copies_; ++copy) std::memcpy(kv_base + static_cast<size_t>(copy) * kv, kv_base, kv);
}

Problem WorkloadTensors::At(int64_t index) const {
  const Workload& w = workload_;
  char* const base = static_cast<char*>(buffer_->data());
  const char* const k = base + q_bytes_ + out_bytes_ + static_cast<size_t>(index % copies_) * (k_bytes_ + v_bytes_);
  Problem problem;
  problem.q = View(static_cast<const void*>(base), DType::kF32, {w.B, w.Hq, w.Tq, w.dk});
  problem.k = View(static_cast<const void*>(k), DType::kF32, {w.B, w.Hkv, w.Tk, w.dk});
  problem.v = View(static_cast<const void*>(k + k_bytes_), DType::kF32, {w.B, w.Hkv, w.Tk, w.dv});
  problem.out = View(static_cast<void*>(base + q_bytes_), DType::kF32, {w.B, w.Hq, w.Tq, w.dv});
  if (w.causal) problem.score.causal = Causal::kBottomRight;
  return problem;
}

const void* WorkloadTensors::kv_data() const { return static_cast<const char*>(buffer_->data()) + q_bytes_ + out_bytes_; }
size_t WorkloadTensors::kv_bytes() const { return static_cast<size_t>(copies_) * (k_bytes_ + v_bytes_); }

}  // namespace fovea::bench
