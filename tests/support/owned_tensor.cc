#include "support/owned_tensor.h"

#if !defined(__wasi__)
#include <sys/mman.h>
#include <unistd.h>
#endif

#include <cmath>
#include <cstdlib>
#include <cstring>

namespace fovea::test {
namespace {

[[noreturn]] void Fail(const char* what) {
  std::perror(what);
  std::abort();
}

// IEEE binary16 by arithmetic: slow and obvious. Subnormals are multiples of 2^-24.
uint16_t DoubleToHalf(double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return sign | 0x7E00;
  const double magnitude = std::fabs(value);
  if (magnitude == 0) return sign;
  // half a unit above the largest finite value, ties to even
  if (magnitude >= 65520) return sign | 0x7C00;
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int unit = std::max(exponent - 11, -24);  // of the last place
  const double units = std::nearbyint(std::ldexp(magnitude, -unit));
  // A normal number holds 1024 … 2047 units, and 2048 carries into the exponent by itself.
  return static_cast<uint16_t>(sign + (unit + 24) * 1024 + static_cast<int>(units));
}

}  // namespace

std::string ToString(const Storage& storage) {
  static const char* const kLayoutNames[] = {"dense",  "swapped", "transposed", "reversed",
                                             "padded", "page",    "sparse"};
  static const char* const kPlacementNames[] = {"aligned", "unaligned", "before-guard",
                                                "after-guard"};
  std::string text = std::string(kLayoutNames[static_cast<int>(storage.layout)]) + "/" +
                     kPlacementNames[static_cast<int>(storage.placement)];
  for (int a = 0; a < kMaxRank; ++a) {
    if (storage.broadcast >> a & 1) text += "/broadcast" + std::to_string(a);
  }
  return text;
}

Memory::Memory(size_t bytes, Placement placement, size_t element) : bytes_(bytes) {
#if defined(__wasi__)  // no pages that trap
  if (placement != Placement::kUnaligned) placement = Placement::kAligned;
#endif
  if (placement == Placement::kAligned || placement == Placement::kUnaligned) {
    const size_t shift = placement == Placement::kUnaligned ? element : 0;
    void* raw = nullptr;
    if (posix_memalign(&raw, 64, bytes + shift + 1) != 0) Fail("posix_memalign");
    owner_ = std::shared_ptr<void>(raw, std::free);
    data_ = static_cast<unsigned char*>(raw) + shift;
    return;
  }
#if !defined(__wasi__)
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t used = (bytes + page - 1) / page * page;
  const size_t total = used + page;
  void* raw = mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) Fail("mmap");
  owner_ = std::shared_ptr<void>(raw, [total](void* p) { munmap(p, total); });
  unsigned char* const first = static_cast<unsigned char*>(raw);
  const bool before = placement == Placement::kBeforeGuard;
  if (mprotect(before ? first + used : first, page, PROT_NONE) != 0) Fail("mprotect");
  data_ = before ? first + used - bytes : first + page;
#endif
}

OwnedTensor::OwnedTensor(DType dtype, std::vector<int64_t> shape, Storage storage) {
  const int rank = static_cast<int>(shape.size());
  view_.dtype = dtype;
  view_.rank = rank;
  const int64_t element = ElementBytes();
  const int row_of_units = has_rows_of_units() ? rank - 1 : -1;  // the axis that units are in
  if (has_rows_of_units()) {
    if (storage.layout == Layout::kTransposed || storage.layout == Layout::kSparse)
      storage.layout = Layout::kPadded;
    storage.broadcast &= ~(1u << row_of_units);
  }
  const auto extent = [&](int a) {
    const int64_t elements = a == rank - 1 ? UnitElements(dtype) : 1;
    return (view_.shape[a] + elements - 1) / elements;
  };

  // Axes from the innermost in memory to the outermost.
  std::vector<int> order;
  for (int a = rank - 1; a >= 0; --a) order.push_back(a);
  if (storage.layout == Layout::kSwapped && rank >= 3) std::swap(order[1], order[2]);
  if (storage.layout == Layout::kTransposed && rank >= 2) std::swap(order[0], order[1]);

  int64_t step = element * (storage.layout == Layout::kSparse ? 2 : 1);
  for (int n = 0; n < rank; ++n) {
    const int a = order[static_cast<size_t>(n)];
    view_.shape[a] = shape[static_cast<size_t>(a)];
    const bool broadcast = storage.broadcast >> a & 1;
    view_.stride[a] = broadcast ? 0 : step;
    if (!broadcast) step *= std::max<int64_t>(extent(a), 1);
    if (n == 0 && storage.layout == Layout::kPadded) step += 3 * element;
    if (n == 0 && storage.layout == Layout::kPage) step = (step + 4095) / 4096 * 4096;
  }

  // The bytes from the first element to the last: what lies behind the last one does not belong to
  // the tensor.
  int64_t span = view_.size() == 0 ? 0 : element;
  int64_t origin = 0;
  if (view_.size() != 0) {
    for (int a = 0; a < rank; ++a) span += (extent(a) - 1) * view_.stride[a];
  }
  if (storage.layout == Layout::kReversed && view_.size() != 0) {
    for (int a = 0; a < rank; ++a) {
      if (a == row_of_units) continue;
      origin += (extent(a) - 1) * view_.stride[a];
      view_.stride[a] = -view_.stride[a];
    }
  }
  dense_ = UnitElements(dtype) == 1;
  for (int64_t a = rank - 1, next = element; a >= 0; next *= view_.shape[a--])
    dense_ = dense_ && view_.stride[a] == next;
  memory_ = Memory(static_cast<size_t>(span), storage.placement, static_cast<size_t>(element));
  view_.data = memory_.data() + origin;
  Reset();
}

unsigned char* OwnedTensor::Address(int64_t element) const {
  if (element < 0 || element >= size()) Fail("an element outside of a tensor");
  if (dense_) return static_cast<unsigned char*>(view_.data) + element * ElementBytes();
  int64_t offset = 0;
  for (int a = view_.rank - 1; a >= 0; --a) {
    const int64_t index = element % view_.shape[a];
    const int64_t elements = a == view_.rank - 1 ? UnitElements(view_.dtype) : 1;
    offset += index / elements * view_.stride[a];
    element /= view_.shape[a];
  }
  return static_cast<unsigned char*>(view_.data) + offset;
}

int64_t OwnedTensor::Number(std::initializer_list<int64_t> index) const {
  int64_t number = 0;
  int a = 0;
  for (int64_t i : index) {
    if (a == view_.rank || i < 0 || i >= view_.shape[a]) Fail("an index outside of a tensor");
    number = number * view_.shape[a++] + i;
  }
  return number;
}

double OwnedTensor::Get(int64_t element) const {
  if (bits()) return *Address(element) >> BitOf(element) & 1;
  if (IsQuantised(view_.dtype)) {
    const int64_t in_row = element % view_.shape[view_.rank - 1];
    return reference::DecodeQuantised(view_.dtype, Address(element),
                                      static_cast<int>(in_row % UnitElements(view_.dtype)));
  }
  return DecodeElement(view_.dtype, Address(element));
}

void OwnedTensor::Set(int64_t element, double value) {
  if (!bits()) return EncodeElement(view_.dtype, value, Address(element));
  const unsigned char bit = static_cast<unsigned char>(1u << BitOf(element));
  unsigned char& byte = *Address(element);
  byte = static_cast<unsigned char>(value != 0 ? byte | bit : byte & ~bit);
}

void OwnedTensor::Fill(const std::function<double()>& next) {
  for (int64_t n = 0; n < size(); ++n) Set(n, next());
}

std::vector<double> OwnedTensor::Dense() const {
  std::vector<double> values(static_cast<size_t>(size()));
  for (int64_t n = 0; n < size(); ++n) values[static_cast<size_t>(n)] = Get(n);
  return values;
}

std::vector<unsigned char> OwnedTensor::Bytes() const {
  const int64_t element = ElementBytes();
  std::vector<unsigned char> bytes(static_cast<size_t>(size() * element));
  if (bytes.empty()) return bytes;
  if (dense_) {  // large results are compared often
    std::memcpy(bytes.data(), view_.data, bytes.size());
    return bytes;
  }
  for (int64_t n = 0; n < size(); ++n) {
    std::memcpy(bytes.data() + n * element, Address(n), static_cast<size_t>(element));
    if (bits()) bytes[static_cast<size_t>(n)] = bytes[static_cast<size_t>(n)] >> BitOf(n) & 1;
  }
  return bytes;
}

void OwnedTensor::Reset() {
  if (memory_.bytes() != 0) std::memset(memory_.data(), kFill, memory_.bytes());
}

bool OwnedTensor::Untouched() const {
  for (size_t n = 0; n < memory_.bytes(); ++n) {
    if (memory_.data()[n] != kFill) return false;
  }
  return true;
}

bool OwnedTensor::PaddingUntouched() const {
  if (dense_) return true;  // there is none
  std::vector<unsigned char> bytes(memory_.data(), memory_.data() + memory_.bytes());
  for (int64_t n = 0; n < size(); ++n) {
    unsigned char* const copy = bytes.data() + (Address(n) - memory_.data());
    if (bits()) {
      *copy = static_cast<unsigned char>(*copy | 1u << BitOf(n));  // a bit of kFill
    } else {
      std::memset(copy, kFill, static_cast<size_t>(ElementBytes()));
    }
  }
  for (unsigned char byte : bytes) {
    if (byte != kFill) return false;
  }
  return true;
}

bool OwnedTensor::ElementUntouched(int64_t element) const {
  for (int64_t n = 0; n < ElementBytes(); ++n) {
    if (Address(element)[n] != kFill) return false;
  }
  return true;
}

OwnedTensor OwnedTensor::CopiedTo(Storage storage) const {
  if (!present()) return OwnedTensor();
  OwnedTensor copy(view_.dtype, std::vector<int64_t>(view_.shape, view_.shape + view_.rank),
                   storage);
  for (int64_t n = 0; n < size(); ++n) {
    if (bits()) {
      copy.Set(n, Get(n));
    } else {
      std::memcpy(copy.Address(n), Address(n), static_cast<size_t>(ElementBytes()));
    }
  }
  return copy;
}

void EncodeElement(DType dtype, double value, void* to) {
  switch (dtype) {
    case DType::kF32: {
      const float rounded = static_cast<float>(value);
      std::memcpy(to, &rounded, sizeof rounded);
      return;
    }
    case DType::kF16: {
      const uint16_t bits = DoubleToHalf(value);
      std::memcpy(to, &bits, sizeof bits);
      return;
    }
    case DType::kBF16: {
      // f32 has enough bits more for rounding twice to be harmless to a test
      const float rounded = static_cast<float>(value);
      uint32_t bits;
      std::memcpy(&bits, &rounded, sizeof bits);
      const uint32_t nearest = bits + 0x7FFF + (bits >> 16 & 1);
      const uint16_t half = static_cast<uint16_t>(std::isnan(value) ? 0x7FC0 : nearest >> 16);
      std::memcpy(to, &half, sizeof half);
      return;
    }
    case DType::kBool: {
      const unsigned char byte = value != 0;
      std::memcpy(to, &byte, 1);
      return;
    }
    case DType::kI32: {
      const int32_t number = static_cast<int32_t>(value);
      std::memcpy(to, &number, sizeof number);
      return;
    }
    case DType::kI64: {
      const int64_t number = static_cast<int64_t>(value);
      std::memcpy(to, &number, sizeof number);
      return;
    }
    case DType::kF32Z4:  // a scale of zero 0
      EncodeElement(DType::kF32, value, to);
      *static_cast<unsigned char*>(to) &= 0xf0;
      return;
    case DType::kI8: {
      const int8_t number = static_cast<int8_t>(value);
      std::memcpy(to, &number, sizeof number);
      return;
    }
    case DType::kU8: {
      const uint8_t number = static_cast<uint8_t>(value);
      std::memcpy(to, &number, sizeof number);
      return;
    }
    default:  // packed: no address of its own
      break;
  }
  Fail("element type");
}

}  // namespace fovea::test
