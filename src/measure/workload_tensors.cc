#include "measure/workload_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace fovea::measure {
namespace {

size_t WholeLines(int64_t elements, DType type) {
  return (static_cast<size_t>(BytesOf(type, elements)) + 511) / 512 * 512;
}

// To nearest, ties to even. Values are finite and far from overflow.
uint16_t ToBF16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

uint16_t ToF16(float value) {
  const float magnitude = std::fabs(value);
  // −14: subnormals, too
  const int exponent = magnitude == 0 ? -14 : std::max(std::ilogb(magnitude), -14);
  // 1024 and the fraction bits
  const int fraction = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
  return static_cast<uint16_t>((std::signbit(value) ? 0x8000 : 0) + (exponent + 14) * 1024 +
                               fraction);  // a fraction of 2048 carries by itself
}

class Normal {
 public:
  explicit Normal(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 0x853c49e6748fea9bu) {}
  float Next() {
    // Four 16-bit uniform values have the variance 4 · 2^32 / 12.
    const uint64_t r = Bits();
    const int32_t sum =
        static_cast<int32_t>((r & 0xffff) + (r >> 16 & 0xffff) + (r >> 32 & 0xffff) + (r >> 48)) -
        2 * 0xffff;
    return static_cast<float>(sum) * 2.6428e-5f;
  }
  // In [0, 1).
  double Uniform() { return static_cast<double>(Bits() >> 11) * 0x1p-53; }

 private:
  uint64_t Bits() {
    // xorshift64* (Vigna 2016)
    state_ ^= state_ >> 12, state_ ^= state_ << 25, state_ ^= state_ >> 27;
    return state_ * 0x2545f4914f6cdd1du;
  }

  uint64_t state_;
};

// Press et al. 2021, §3, for a power of two of heads; that formula for other numbers, too.
float AlibiSlope(int64_t h, int64_t Hq) {
  return std::exp2(-8.0f * static_cast<float>(h + 1) / static_cast<float>(Hq));
}

// Writes NaN over the last `keys` rows of each of `heads` dense matrices of Tk rows and d channels.
void PoisonLastRows(char* matrices, DType type, int64_t heads, int64_t Tk, int64_t d,
                    int64_t keys) {
  for (int64_t h = 0; h < heads; ++h) {
    char* const first = matrices + ((h + 1) * Tk - keys) * d * SizeOf(type);
    // All bits set are a NaN in every floating type.
    std::memset(first, 0xff, static_cast<size_t>(keys * d * SizeOf(type)));
  }
}

bool HaveSameTensors(const Workload& a, const Workload& b) {
  return a.HasShapeOf(b) && a.type == b.type && a.kv_type == b.kv_type &&
         a.page_keys == b.page_keys && a.nan == b.nan && a.values_in_keys == b.values_in_keys;
}

}  // namespace

void FillNormal(float* values, size_t count, uint64_t seed) {
  Normal normal(seed);
  for (size_t i = 0; i < count; ++i) values[i] = normal.Next();
}

void FillNormal(void* values, DType type, size_t count, uint64_t seed) {
  if (type == DType::kF32) return FillNormal(static_cast<float*>(values), count, seed);
  Normal normal(seed);
  uint16_t* const bits = static_cast<uint16_t*>(values);
  for (size_t i = 0; i < count; ++i)
    bits[i] = type == DType::kF16 ? ToF16(normal.Next()) : ToBF16(normal.Next());
}

void FillCodes(void* values, DType type, size_t bytes, uint64_t seed) {
  constexpr uint16_t kScale = 0x2400;  // 2^−6 as f16
  uint8_t* const p = static_cast<uint8_t*>(values);
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 0x853c49e6748fea9bu;
  for (size_t n = 0; n < bytes; ++n) {
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    p[n] = static_cast<uint8_t>(state * 0x2545f4914f6cdd1du >> 56);
    // numbers of about 1
    if (type == DType::kF8E4M3FN) p[n] = static_cast<uint8_t>((p[n] & 0x8f) | 0x30);
    if (type == DType::kF8E5M2) p[n] = static_cast<uint8_t>((p[n] & 0x87) | 0x38);
  }
  if (HasScaleViews(type)) return;
  const size_t unit = static_cast<size_t>(UnitBytes(type));
  const bool has_least = type == DType::kQ4_1 || type == DType::kQ5_1;
  for (size_t n = 0; n + unit <= bytes; n += unit) {
    std::memcpy(p + n, &kScale, sizeof(kScale));
    if (has_least) std::memcpy(p + n + 2, &kScale, sizeof(kScale));
  }
}

WorkloadTensors::WorkloadTensors(const Workload& workload, uint64_t seed,
                                 const WorkloadTensors* like)
    : workload_(workload) {
  const Workload& w = workload_;
  q_bytes_ = WholeLines(w.B * w.Hq * w.Tq * w.dk, w.type);
  out_bytes_ = WholeLines(w.B * w.Hq * w.Tq * w.dv, w.type);
  k_bytes_ = WholeLines(w.B * w.Hkv * w.StoredKeys() * w.dk, w.TypeOfKv());
  v_bytes_ = w.values_in_keys ? 0 : WholeLines(w.B * w.Hkv * w.StoredKeys() * w.dv, w.TypeOfKv());
  scale_bytes_ = WholeLines(w.ScaleBytes() / 4, DType::kF32);
  const size_t kv = CopyBytes();
  if (w.IsDecode())
    copies_ = static_cast<int64_t>(std::max<size_t>(1, (StreamBytes() + kv - 1) / kv));
  const bool share = like != nullptr && HaveSameTensors(w, like->workload_);
  tensors_ = share ? like->tensors_
                   : std::make_shared<const HugeBuffer>(q_bytes_ + out_bytes_ +
                                                        static_cast<size_t>(copies_) * kv);

  per_head_bytes_ = WholeLines(w.Hq, DType::kF32);
  if (w.documents) ranges_bytes_ = WholeLines(2 * w.Tq, DType::kI32);
  table_bytes_ = WholeLines(w.B * w.Pages(), DType::kI32);
  if (w.bias != BiasKind::kNone)
    bias_bytes_ = WholeLines(w.bias == BiasKind::kKeys ? w.Tk : w.Hq * w.Tq * w.Tk, DType::kF32);
  if (w.mask != MaskKind::kNone)
    mask_bytes_ = WholeLines(w.mask == MaskKind::kPadding ? w.B * w.Tk : w.Tq * w.Tk,
                             w.additive ? DType::kF32 : DType::kBool);
  modifiers_ = std::make_shared<const HugeBuffer>(3 * per_head_bytes_ + ranges_bytes_ +
                                                  table_bytes_ + bias_bytes_ + mask_bytes_);

  if (!ok()) return;
  if (!share) FillTensors(seed);
  FillModifiers(seed + 2);
}

WorkloadTensors::Modifiers WorkloadTensors::modifiers() const {
  char* at = static_cast<char*>(modifiers_->data());
  const auto next = [&](size_t bytes) -> void* {
    at += bytes;
    return at - bytes;
  };
  Modifiers m;
  for (float** values : {&m.slopes, &m.sinks, &m.head_scales})
    *values = static_cast<float*>(next(per_head_bytes_));
  m.ranges = static_cast<int32_t*>(next(ranges_bytes_));
  m.table = static_cast<int32_t*>(next(table_bytes_));
  m.bias = static_cast<float*>(next(bias_bytes_));
  m.mask = next(mask_bytes_);
  return m;
}

void WorkloadTensors::FillTensors(uint64_t seed) {
  const Workload& w = workload_;
  char* const q = static_cast<char*>(tensors_->data());
  char* const k = q + q_bytes_ + out_bytes_;
  const size_t kv = CopyBytes(), size = static_cast<size_t>(SizeOf(w.type));
  FillNormal(q, w.type, q_bytes_ / size, seed);
  if (w.kv_type == DType::kNone) {
    FillNormal(k, w.type, kv / size, seed + 1);
  } else {
    FillCodes(k, w.kv_type, k_bytes_, seed + 1);
    FillCodes(k + k_bytes_, w.kv_type, v_bytes_, seed + 2);
    float* const scales = reinterpret_cast<float*>(k + k_bytes_ + v_bytes_);
    std::fill_n(scales, 2 * scale_bytes_ / sizeof(float), SizeOf(w.kv_type) == 1 ? 0x1p-6f : 0.25f);
  }
  if (w.nan) {
    PoisonLastRows(k, w.type, w.B * w.Hkv, w.Tk, w.dk, w.PaddingKeys());
    if (!w.values_in_keys)
      PoisonLastRows(k + k_bytes_, w.type, w.B * w.Hkv, w.Tk, w.dv, w.PaddingKeys());
  }
  for (int64_t copy = 1; copy < copies_; ++copy)
    std::memcpy(k + static_cast<size_t>(copy) * kv, k, kv);
}

void WorkloadTensors::FillModifiers(uint64_t seed) {
  const Workload& w = workload_;
  const Modifiers to = modifiers();
  for (int64_t h = 0; h < w.Hq; ++h) to.slopes[h] = AlibiSlope(h, w.Hq);
  FillNormal(to.sinks, static_cast<size_t>(w.Hq), seed);
  for (int64_t h = 0; h < w.Hq; ++h)
    to.head_scales[h] = 1 + static_cast<float>(h) / static_cast<float>(w.Hq);
  for (int64_t i = 0; w.documents && i < w.Tq; ++i) {
    int64_t first, end;
    w.DocumentOf(i, &first, &end);
    to.ranges[2 * i] = static_cast<int32_t>(first);
    to.ranges[2 * i + 1] = static_cast<int32_t>(end);
  }

  // Fisher and Yates
  Normal random(seed + 3);
  const int64_t pages = w.B * w.Pages();
  for (int64_t n = 0; n < pages; ++n) {
    const int64_t other =
        std::min(static_cast<int64_t>(random.Uniform() * static_cast<double>(n + 1)), n);
    to.table[n] = to.table[other];
    to.table[other] = static_cast<int32_t>(n);
  }

  float* bias = to.bias;
  if (w.bias == BiasKind::kDistance) {
    for (int64_t h = 0; h < w.Hq; ++h) {
      for (int64_t i = 0; i < w.Tq; ++i) {
        for (int64_t j = 0; j < w.Tk; ++j)
          *bias++ = -to.slopes[h] * std::fabs(static_cast<float>(w.Position(i) - j));
      }
    }
  } else {
    FillNormal(bias, bias_bytes_ / sizeof(float), seed + 1);
  }

  if (w.mask == MaskKind::kNone) return;
  char* mask = static_cast<char*>(to.mask);
  float* added = static_cast<float*>(to.mask);
  const int64_t rows = w.mask == MaskKind::kPadding ? w.B : w.Tq;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t j = 0; j < w.Tk; ++j) {
      const bool allows = w.MaskAllows(row, j);
      if (w.additive) {
        *added++ = allows ? 0.0f : -std::numeric_limits<float>::infinity();
      } else {
        *mask++ = allows ? 1 : 0;
      }
    }
  }
}

void WorkloadTensors::AddModifiers(Score* score) const {
  const Workload& w = workload_;
  const Modifiers from = modifiers();
  const auto per_head = [&](const float* values) { return View(values, {w.Hq}); };
  const float* const bias = from.bias;
  const void* const mask = from.mask;

  if (w.causal) {
    score->causal = Causal::kBottomRight;
  } else if (w.alibi || w.window > 0) {
    score->query_offset = w.Position(0);
  }
  if (w.window > 0) score->window = {w.window - 1, 0};
  score->softcap = w.softcap;
  if (w.alibi) score->alibi_slopes = per_head(from.slopes);
  if (w.sinks) score->sinks = per_head(from.sinks);
  if (w.head_scales) score->head_scales = per_head(from.head_scales);
  if (w.documents) {
    score->key_ranges =
        View(static_cast<const int32_t*>(from.ranges), {int64_t{1}, w.Tq, int64_t{2}});
  }
  switch (w.bias) {
    case BiasKind::kNone:
      break;
    case BiasKind::kDense:
      score->bias = View(bias, {w.Hq, w.Tq, w.Tk});
      break;
    case BiasKind::kDistance:
      score->bias = View(bias, {int64_t{1}, w.Hq, w.Tq, w.Tk});
      break;
    case BiasKind::kKeys:
      score->bias = View(bias, {int64_t{1}, int64_t{1}, int64_t{1}, w.Tk});
      break;
  }
  TensorView& removing = w.additive ? score->bias : score->mask;
  const DType removes = w.additive ? DType::kF32 : DType::kBool;
  switch (w.mask) {
    case MaskKind::kNone:
      break;
    case MaskKind::kRandom:
      removing = View(mask, removes, {w.Tq, w.Tk});
      break;
    case MaskKind::kPadding:
      removing = View(mask, removes, {w.B, int64_t{1}, int64_t{1}, w.Tk});
      break;
    case MaskKind::kTriangle:
    case MaskKind::kBand:
      removing = View(mask, removes, {int64_t{1}, int64_t{1}, w.Tq, w.Tk});
      break;
  }
}

Problem WorkloadTensors::At(int64_t index) const {
  const Workload& w = workload_;
  char* const base = static_cast<char*>(tensors_->data());
  const char* const k =
      base + q_bytes_ + out_bytes_ + static_cast<size_t>(index % copies_) * CopyBytes();
  Problem problem;
  problem.q = View(static_cast<const void*>(base), w.type, {w.B, w.Hq, w.Tq, w.dk});
  // Pages lie as sequences do.
  const bool paged = w.page_keys > 0;
  const int64_t batches = paged ? w.B * w.Pages() : w.B, keys = paged ? w.page_keys : w.Tk;
  problem.k = View(static_cast<const void*>(k), w.TypeOfKv(), {batches, w.Hkv, keys, w.dk});
  if (w.values_in_keys) {
    problem.v = problem.k;
    problem.v.shape[3] = w.dv;
  } else {
    problem.v =
        View(static_cast<const void*>(k + k_bytes_), w.TypeOfKv(), {batches, w.Hkv, keys, w.dv});
  }
  if (w.ScaleBytes() > 0) {
    const float* const scales = reinterpret_cast<const float*>(k + k_bytes_ + v_bytes_);
    problem.k_scale = View(scales, {batches, w.Hkv, keys, int64_t{1}});
    problem.v_scale =
        View(scales + scale_bytes_ / sizeof(float), {batches, w.Hkv, keys, int64_t{1}});
  }
  if (paged) {
    problem.pages.table = View(static_cast<const int32_t*>(modifiers().table), {w.B, w.Pages()});
    problem.pages.keys = w.Tk;
  }
  problem.out = View(static_cast<void*>(base + q_bytes_), w.type, {w.B, w.Hq, w.Tq, w.dv});
  AddModifiers(&problem.score);
  return problem;
}

const void* WorkloadTensors::kv_data() const {
  return static_cast<const char*>(tensors_->data()) + q_bytes_ + out_bytes_;
}
size_t WorkloadTensors::kv_bytes() const { return static_cast<size_t>(copies_) * CopyBytes(); }

}  // namespace fovea::measure
