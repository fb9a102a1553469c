#include "call.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "overlap.h"

namespace fovea::python {
namespace {

// The longest of packed sequences, for the size of matrices; what is wrong with cu_seqlens the
// library says.
int64_t Longest(const TensorView& cu_seqlens, int64_t rows) {
  int64_t longest = 0;
  if (cu_seqlens.rank != 1 || cu_seqlens.shape[0] < 2 || cu_seqlens.data == nullptr) return rows;
  const auto at = [&](int64_t i) -> int64_t {
    const char* const element =
        static_cast<const char*>(cu_seqlens.data) + i * cu_seqlens.stride[0];
    if (cu_seqlens.dtype == DType::kI64) {
      int64_t value;
      std::memcpy(&value, element, sizeof value);
      return value;
    }
    int32_t value;
    std::memcpy(&value, element, sizeof value);
    return value;
  };
  if (cu_seqlens.dtype != DType::kI64 && cu_seqlens.dtype != DType::kI32) return rows;
  for (int64_t i = 1; i < cu_seqlens.shape[0]; ++i) {
    const int64_t first = std::clamp<int64_t>(at(i - 1), 0, rows),
                  last = std::clamp<int64_t>(at(i), 0, rows);
    longest = std::max(longest, last - first);
  }
  return longest;
}

// Tk of pages; what is wrong with them, or too large, the library says.
int64_t KeysOf(const PageTable& pages, int64_t page) {
  if (pages.keys > 0) return pages.keys;
  const TensorView& table = pages.table;
  const int64_t numbers =
      pages.begins.present() ? Longest(pages.begins, table.shape[0]) : table.shape[1];
  int64_t keys;
  return __builtin_mul_overflow(numbers, page, &keys) ? 0 : keys;
}

// With an axis of size 1 before the others.
template <class View>
View Lifted(View view) {
  for (int a = view.rank; a > 0; --a)
    view.shape[a] = view.shape[a - 1], view.stride[a] = view.stride[a - 1];
  view.rank += 1;
  view.shape[0] = 1;
  view.stride[0] = 0;
  return view;
}

// Whether a layout says how its axes H and T lie.
bool HasLayout(const TensorRow& row) { return row.shape.rank == 4 && row.required; }

// Scales and zeros of quantised k and v: their axes are those of k.
bool IsOfCodes(const TensorRow& row) {
  return row.role == Role::kInput && !row.required && row.shape.rank == 4 &&
         row.shape.axes[0] == Axis::kAny;
}

}  // namespace

Call::Call(nb::handle q, nb::handle k, nb::handle v, const Options& options)
    : options_(options), library_(LibraryOf(q)) {
  if (options.for_dispatcher) borrower_.TrustTensors();
  problem_.score = options.score;
  problem_.score_stage = options.stage;
  problem_.pages.keys = options.page_keys;
  problem_.ring = options.ring;
  problem_.q = borrower_.Input(q, "q");
  problem_.k = borrower_.Codes(k, "k");
  problem_.v = borrower_.Codes(v, "v");
  problem_.k_group_stride = options.k_group_stride;
  problem_.v_group_stride = options.v_group_stride;
  lifted_ = problem_.q.rank == 3 && problem_.k.rank == 3 && problem_.v.rank == 3;
  for (TensorView* view : {&problem_.q, &problem_.k, &problem_.v}) {
    if (lifted_) *view = Lifted(*view);
    if (options.bthd && view->rank == 4) *view = SwapAxes(*view, 1, 2);
  }
  BorrowInputs();

  const TensorView &cu_q = problem_.cu_seqlens_q, &cu_k = problem_.cu_seqlens_k;
  const int64_t q_rows = problem_.q.shape[2], kv_rows = problem_.k.shape[2];
  const auto sequences = [](const TensorView& cu_seqlens) {
    return std::max<int64_t>(0, cu_seqlens.shape[0] - 1);
  };
  int64_t sizes[kAxes] = {};
  const auto size = [&](Axis axis) -> int64_t& { return sizes[static_cast<int>(axis)]; };
  size(Axis::kB) = cu_q.present()   ? sequences(cu_q)
                   : cu_k.present() ? sequences(cu_k)
                                    : problem_.q.shape[0];
  size(Axis::kTq) = cu_q.present() ? Longest(cu_q, q_rows) : q_rows;
  size(Axis::kTk) = cu_k.present()             ? Longest(cu_k, kv_rows)
                    : problem_.pages.present() ? KeysOf(problem_.pages, kv_rows)
                                               : kv_rows;
  size(Axis::kBatchOfQ) = problem_.q.shape[0];
  size(Axis::kHq) = size(Axis::kHeadsOfQ) = problem_.q.shape[1];
  size(Axis::kRowsOfQ) = q_rows;
  size(Axis::kSizeOfV) = problem_.v.shape[3];
  if (options.mask_bits.is_valid()) BorrowMaskBits(size(Axis::kTk));
  BorrowOutputs(sizes);
}

// All but q, k and v. Of tensors of one axis lists will do too.
void Call::BorrowInputs() {
  size_t index = 0;
  ForEachTensor(
      [&](const TensorRow& row, auto& view) {
        const nb::object& given = options_.arrays[index++];
        if constexpr (std::is_same_v<decltype(view), TensorView&>) {
          if (!given.is_valid()) return;
          const char* const name = KeywordOf(row);
          const bool may_be_list = row.shape.rank == 1;
          view = IsOfCodes(row)               ? borrower_.Codes(given, name)
                 : !may_be_list               ? borrower_.Input(given, name)
                 : row.types.Has(DType::kI64) ? borrower_.Integers(given, name)
                                              : borrower_.Floats(given, name);
          if (!IsOfCodes(row)) return;
          if (lifted_ && view.rank == 3) view = Lifted(view);
          if (options_.bthd && view.rank == 4) view = SwapAxes(view, 1, 2);
        }
      },
      problem_);
}

void Call::BorrowMaskBits(int64_t keys) {
  if (problem_.score.mask.present()) Raise(PyExc_ValueError, "mask and mask_bits are both given");
  TensorView bits = borrower_.Bits(options_.mask_bits, "mask_bits");
  const int last = bits.rank - 1;
  const int64_t bytes = bits.shape[last];
  bits.shape[last] = keys;
  if (options_.mask_rank != 0) {
    if (options_.mask_rank != bits.rank) {
      Raise(PyExc_ValueError, "mask_shape has " + std::to_string(options_.mask_rank) +
                                  " axes, expected " + std::to_string(bits.rank) +
                                  " (those of mask_bits)");
    }
    for (int a = 0; a < last; ++a) {
      if (options_.mask_shape[static_cast<size_t>(a)] != bits.shape[a])
        Raise(PyExc_ValueError, "mask_shape and mask_bits differ in axis " + std::to_string(a));
    }
    bits.shape[last] = options_.mask_shape[static_cast<size_t>(last)];
  }
  const int64_t expected = bits.shape[last] / 8 + (bits.shape[last] % 8 != 0 ? 1 : 0);
  if (bits.shape[last] < 0 || expected != bytes) {
    Raise(PyExc_ValueError, "mask_bits.shape[" + std::to_string(last) +
                                "] = " + std::to_string(bytes) + " bytes, expected " +
                                std::to_string(std::max<int64_t>(0, expected)) + " for " +
                                std::to_string(bits.shape[last]) + " keys");
  }
  problem_.score.mask = bits;
}

// Of those that are allocated later, a shape and the strides of a dense array.
void Call::BorrowOutputs(const int64_t (&sizes)[kAxes]) {
  size_t index = 0;
  ForEachTensor(
      [&](const TensorRow& row, auto& view) {
        const size_t tensor = index++;
        if constexpr (std::is_same_v<decltype(view), MutableTensorView&>) {
          const nb::object& given = options_.arrays[tensor];
          const int lacked = LackedAxes(row);
          const bool bthd = options_.out_bthd && HasLayout(row);
          if (given.is_valid()) {
            outputs_[tensor] = given;
            view = borrower_.Output(given, row.name);
          } else if (row.required || options_.wanted[tensor]) {
            view.dtype = row.types.Has(problem_.q.dtype) ? problem_.q.dtype : DType::kF32;
            view.rank = row.shape.rank - lacked;
            for (int a = 0; a < view.rank; ++a)
              view.shape[a] = sizes[static_cast<int>(row.shape.axes[a + lacked])];
            if (bthd) std::swap(view.shape[1 - lacked], view.shape[2 - lacked]);
            int64_t step = SizeOf(view.dtype);
            for (int a = view.rank; a-- > 0;) {
              view.stride[a] = step;
              step *= std::max<int64_t>(1, view.shape[a]);
            }
          } else {
            return;
          }
          if (lacked != 0 && view.rank == row.shape.rank - 1) view = Lifted(view);
          if (bthd && view.rank == 4) view = SwapAxes(view, 1, 2);
        }
      },
      problem_);
}

int Call::LackedAxes(const TensorRow& row) const {
  return lifted_ && (row.shape.axes[0] == Axis::kBatchOfQ || !packed()) ? 1 : 0;
}

// Kernels read inputs after they have written outputs, in an order that depends on threads. Arrays
// that are made here are new.
void Call::CheckOverlap() const {
  struct Entry {
    const char* name;
    TensorView view;
    Role role;
    bool given;  // an output of the caller's
  };
  std::vector<Entry> entries;
  size_t index = 0;
  bool any = false;
  ForEachTensor(
      [&](const TensorRow& row, const auto& view) {
        const bool given = outputs_[index++].is_valid();
        any = any || given;
        if (!view.present()) return;
        const char* const name = view.dtype == DType::kBit ? "mask_bits" : KeywordOf(row);
        entries.push_back({name, view, row.role, given});
      },
      problem_);
  if (!any) return;
  for (const Entry& output : entries) {
    if (!output.given) continue;
    for (int a = 0; a < output.view.rank; ++a) {
      if (output.view.stride[a] == 0 && output.view.shape[a] > 1) {
        Raise(PyExc_ValueError, std::string(output.name) + " has stride 0 along an axis of " +
                                    std::to_string(output.view.shape[a]) +
                                    ", expected memory for every element");
      }
    }
    for (const Entry& other : entries) {
      const bool has_memory = other.role == Role::kInput || (other.given && &other > &output);
      if (has_memory && Overlap(output.view, other.view)) {
        Raise(PyExc_ValueError, std::string(output.name) + " and " + other.name +
                                    " overlap, expected an output in memory of its own");
      }
    }
  }
}

void Call::Allocate() {
  CheckOverlap();
  size_t index = 0;
  ForEachTensor(
      [&](const TensorRow& row, auto& view) {
        nb::object& output = outputs_[index++];
        if constexpr (std::is_same_v<decltype(view), MutableTensorView&>) {
          if (!view.present() || output.is_valid()) return;
          // The view is [B, H, T, d]; the array is as the caller's arrays are.
          int64_t shape[kMaxRank];
          std::copy(view.shape, view.shape + view.rank, shape);
          if (options_.out_bthd && HasLayout(row)) std::swap(shape[1], shape[2]);
          const int lacked = LackedAxes(row);
          output = Empty(library_, view.dtype, view.rank - lacked, shape + lacked, &view.data);
        }
      },
      problem_);
}

nb::object Call::Results() const {
  std::vector<nb::object> results;
  for (const nb::object& output : outputs_) {
    if (output.is_valid()) results.push_back(output);
  }
  if (results.size() == 1) return results[0];
  nb::object tuple = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(results.size())));
  Py_ssize_t i = 0;
  for (nb::object& result : results) PyTuple_SetItem(tuple.ptr(), i++, result.release().ptr());
  return tuple;
}

}  // namespace fovea::python
