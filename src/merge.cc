#include "fovea/merge.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

#include "float_state.h"
#include "views.h"

namespace fovea {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

template <class View>
auto* AddressOf(const View& view, int64_t b, int64_t h, int64_t i, int64_t c) {
  const int64_t offset =
      b * view.stride[0] + h * view.stride[1] + i * view.stride[2] + c * view.stride[3];
  if constexpr (std::is_const_v<std::remove_pointer_t<decltype(view.data)>>) {
    return static_cast<const char*>(view.data) + offset;
  } else {
    return static_cast<char*>(view.data) + offset;
  }
}

float Read(const TensorView& view, int64_t b, int64_t h, int64_t i, int64_t c = 0) {
  float x;
  std::memcpy(&x, AddressOf(view, b, h, i, c), sizeof(x));
  return x;
}

void Write(const MutableTensorView& view, float x, int64_t b, int64_t h, int64_t i, int64_t c = 0) {
  std::memcpy(AddressOf(view, b, h, i, c), &x, sizeof(x));
}

Status CheckPart(const char* name, const TensorView& view, int rank, const int64_t* shape,
                 const char* source) {
  const TensorFacts t = Facts(name, view);
  FOVEA_RETURN_IF_ERROR(CheckTensor(t, rank));
  FOVEA_RETURN_IF_ERROR(CheckType(t, DType::kF32));
  for (int a = 0; a < rank; ++a) FOVEA_RETURN_IF_ERROR(CheckShape(t, a, shape[a], source));
  return CheckNotNull(t);
}

// One row. Doubles: a row is read once, and N parts then lose nothing to each other.
void MergeRow(const PartialState* parts, int64_t count, const MutableTensorView& out,
              const MutableTensorView& lse, int64_t b, int64_t h, int64_t i) {
  float m = kMinusInfinity;
  bool not_a_number = false;
  for (int64_t n = 0; n < count; ++n) {
    const float x = Read(parts[n].lse, b, h, i);
    not_a_number = not_a_number || std::isnan(x) || x == std::numeric_limits<float>::infinity();
    m = std::max(m, x);
  }
  const int64_t dv = out.shape[3];
  if (not_a_number || m == kMinusInfinity) {
    const float out_value = not_a_number ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
    for (int64_t c = 0; c < dv; ++c) Write(out, out_value, b, h, i, c);
    if (lse.present()) Write(lse, not_a_number ? out_value : kMinusInfinity, b, h, i);
    return;
  }
  double total = 0;
  for (int64_t n = 0; n < count; ++n)
    total += std::exp(static_cast<double>(Read(parts[n].lse, b, h, i)) - static_cast<double>(m));
  constexpr int64_t kChannels = 64;
  for (int64_t first = 0; first < dv; first += kChannels) {
    const int64_t channels = std::min(dv - first, kChannels);
    double sum[kChannels] = {};
    for (int64_t n = 0; n < count; ++n) {
      const float x = Read(parts[n].lse, b, h, i);
      if (x == kMinusInfinity) continue;
      const double weight = std::exp(static_cast<double>(x) - static_cast<double>(m)) / total;
      for (int64_t c = 0; c < channels; ++c)
        sum[c] += weight * static_cast<double>(Read(parts[n].out, b, h, i, first + c));
    }
    for (int64_t c = 0; c < channels; ++c)
      Write(out, static_cast<float>(sum[c]), b, h, i, first + c);
  }
  if (lse.present())
    Write(lse, static_cast<float>(static_cast<double>(m) + std::log(total)), b, h, i);
}

}  // namespace

Status Merge(const PartialState* parts, int64_t count, const MutableTensorView& out,
             const MutableTensorView& lse) noexcept {
  if (count < 1) return Invalid("count = %" PRId64 ", expected 1 or greater", count);
  if (parts == nullptr) return Invalid("parts = null, expected %" PRId64 " parts", count);
  FOVEA_RETURN_IF_ERROR(CheckTensor(Facts("out", out), 4));
  FOVEA_RETURN_IF_ERROR(CheckType(Facts("out", out), DType::kF32));
  FOVEA_RETURN_IF_ERROR(CheckNotNull(Facts("out", out)));
  if (lse.present()) FOVEA_RETURN_IF_ERROR(CheckPart("lse", lse, 3, out.shape, "out's shape"));
  for (int64_t n = 0; n < count; ++n) {
    char name[48];
    std::snprintf(name, sizeof(name), "parts[%" PRId64 "].out", n);
    FOVEA_RETURN_IF_ERROR(CheckPart(name, parts[n].out, 4, out.shape, "out's shape"));
    std::snprintf(name, sizeof(name), "parts[%" PRId64 "].lse", n);
    FOVEA_RETURN_IF_ERROR(CheckPart(name, parts[n].lse, 3, out.shape, "out's shape"));
  }
  InDefaultFloatState([&] {
    for (int64_t b = 0; b < out.shape[0]; ++b) {
      for (int64_t h = 0; h < out.shape[1]; ++h) {
        for (int64_t i = 0; i < out.shape[2]; ++i) MergeRow(parts, count, out, lse, b, h, i);
      }
    }
  });
  return Status();
}

}  // namespace fovea
