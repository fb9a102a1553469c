#include "tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <utility>

namespace fovea::same_bits {
namespace {

uint16_t ToF16(double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  if (std::isnan(value)) return 0x7E00;
  if (magnitude >= 65520) return sign | 0x7C00;  // half a unit above the largest finite value
  const int exponent = magnitude == 0 ? -14 : std::max(std::ilogb(magnitude), -14);
  const int fraction = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
  // A fraction of 2048 carries into the exponent by itself; less than 1024 is subnormal.
  return static_cast<uint16_t>(sign | ((exponent + 14) * 1024 + fraction));
}

double FromF16(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 31) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  return sign *
         (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

uint16_t ToBF16(double value) {
  if (std::isnan(value)) return 0x7FC0;
  const float narrow = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &narrow, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

int64_t BytesOf(DType dtype) { return dtype == DType::kBit ? 1 : SizeOf(dtype); }

template <class T>
void Store(T value, char* to) {
  std::memcpy(to, &value, sizeof value);
}

}  // namespace

void Encode(DType dtype, double value, char* to) {
  switch (dtype) {
    case DType::kF32:
      return Store(static_cast<float>(value), to);
    case DType::kF16:
      return Store(ToF16(value), to);
    case DType::kBF16:
      return Store(ToBF16(value), to);
    case DType::kBool:
      return Store(static_cast<char>(value != 0), to);
    case DType::kI32:
      return Store(static_cast<int32_t>(value), to);
    case DType::kI64:
      return Store(static_cast<int64_t>(value), to);
    default:
      throw std::logic_error("an element without an address");
  }
}

double Decode(DType dtype, const char* from) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, from, sizeof value);
    return static_cast<double>(value);
  }
  uint16_t half;
  std::memcpy(&half, from, sizeof half);
  if (dtype == DType::kF16) return FromF16(half);
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return static_cast<double>(value);
}

Tensor::Tensor(DType dtype, std::vector<int64_t> shape, const Storage& storage) {
  const int rank = static_cast<int>(shape.size());
  const bool bits = dtype == DType::kBit;
  view_.dtype = dtype;
  view_.rank = rank;
  std::copy(shape.begin(), shape.end(), view_.shape);
  if (bits) shape.back() = (shape.back() + 7) / 8;

  std::vector<int> order = storage.order;
  if (bits || static_cast<int>(order.size()) != rank) {
    order.clear();
    for (int a = rank - 1; a >= 0; --a) order.push_back(a);
  }
  const int64_t element = BytesOf(dtype);
  int64_t step = element * (bits ? 1 : storage.step);
  for (const int a : order) {
    const bool once = (storage.broadcast >> a & 1) != 0 && !(bits && a == rank - 1);
    view_.stride[a] = once ? 0 : step;
    if (!once) step *= std::max<int64_t>(shape[static_cast<size_t>(a)], 1);
    if (a == order[0]) step += storage.padding * element;
  }
  int64_t span = view_.size() == 0 ? 0 : element, origin = storage.first * element;
  for (int a = 0; a < rank && span != 0; ++a) {
    const int64_t reach = (shape[static_cast<size_t>(a)] - 1) * view_.stride[a];
    span += reach;
    if (!storage.reversed || (bits && a == rank - 1)) continue;
    origin += reach;
    view_.stride[a] = -view_.stride[a];
  }
  bytes_ = static_cast<size_t>(span + storage.first * element);
  memory_ = std::shared_ptr<char>(new char[bytes_ + 1], std::default_delete<char[]>());
  view_.data = memory_.get() + (span == 0 ? 0 : origin);
  Reset();
}

Tensor::Tensor(std::shared_ptr<char> memory, size_t bytes, const MutableTensorView& view)
    : memory_(std::move(memory)), bytes_(bytes), view_(view) {}

char* Tensor::Address(int64_t element) const {
  int64_t offset = 0;
  for (int a = view_.rank - 1; a >= 0; --a) {
    int64_t index = element % view_.shape[a];
    element /= view_.shape[a];
    if (view_.dtype == DType::kBit && a == view_.rank - 1) index /= 8;
    offset += index * view_.stride[a];
  }
  return static_cast<char*>(view_.data) + offset;
}

void Tensor::Set(int64_t element, double value) {
  char* const address = Address(element);
  if (view_.dtype != DType::kBit) return Encode(view_.dtype, value, address);
  const int bit = 1 << element % view_.shape[view_.rank - 1] % 8;
  *address = static_cast<char>(value != 0 ? *address | bit : *address & ~bit);
}

void Tensor::Fill(const std::function<double()>& next) {
  for (int64_t n = 0; n < size(); ++n) Set(n, next());
}

void Tensor::ForEach(const std::function<void(char* address)>& f) const {
  for (int64_t n = 0; n < size(); ++n) f(Address(n));
}

void Tensor::Reset() { std::fill_n(memory_.get(), bytes_, static_cast<char>(kFill)); }

uint64_t Tensor::Hash() {
  const DType dtype = view_.dtype;
  ForEach([dtype](char* address) {
    if (std::isnan(Decode(dtype, address))) Encode(dtype, std::nan(""), address);
  });
  // FNV-1a (Fowler, Noll, Vo 1991).
  uint64_t hash = 0xCBF29CE484222325u;
  for (size_t n = 0; n < bytes_; ++n) {
    hash = (hash ^ static_cast<unsigned char>(memory_.get()[n])) * 0x100000001B3u;
  }
  return hash;
}

}  // namespace fovea::same_bits
