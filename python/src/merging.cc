#include "merging.h"

#include <string>
#include <vector>

#include "array.h"
#include "fovea/merge.h"
#include "gil.h"
#include "overlap.h"

namespace fovea::python {
namespace {

bool Same(const TensorView& a, const TensorView& b) {
  bool same = a.data == b.data && a.rank == b.rank;
  for (int axis = 0; axis < a.rank; ++axis) {
    same = same && a.shape[axis] == b.shape[axis] &&
           (a.stride[axis] == b.stride[axis] || a.shape[axis] == 1);
  }
  return same;
}

// A part is read where the result is written, so that out and lse may be those of a part; nothing
// else may be shared.
void RefuseOverlap(const std::vector<PartialState>& parts, const TensorView& out,
                   const TensorView& lse) {
  const auto refuse = [](const char* what, const TensorView& a, const TensorView& b,
                         bool may_be_same) {
    if ((may_be_same && Same(a, b)) || !Overlap(a, b)) return;
    Raise(PyExc_ValueError,
          std::string(what) +
              " overlap, expected an output in memory of its own, or that of one part");
  };
  refuse("out and lse", out, lse, false);
  for (const PartialState& part : parts) {
    refuse("out and out of a part", out, part.out, true);
    refuse("out and lse of a part", out, part.lse, false);
    refuse("lse and lse of a part", lse, part.lse, true);
    refuse("lse and out of a part", lse, part.out, false);
  }
}

// (out, lse) of the union of disjoint key sets.
nb::object MergeParts(nb::handle parts, nb::handle out, nb::handle lse) {
  Borrower borrower;
  std::vector<PartialState> states;
  Library library = Library::kNumpy;
  int drop = 0;
  for (nb::handle part : parts) {
    if ((!PyTuple_Check(part.ptr()) && !PyList_Check(part.ptr())) || nb::len(part) != 2) {
      Raise(PyExc_TypeError, "parts: expected pairs (out, lse)");
    }
    const nb::object part_out = part[0], part_lse = part[1];
    PartialState state;
    state.out = borrower.Input(part_out, "out of a part");
    state.lse = borrower.Input(part_lse, "lse of a part");
    if (states.empty()) {
      library = LibraryOf(part_out);
      drop = state.out.rank == 3 && state.lse.rank == 2 ? 1 : 0;
    }
    states.push_back(state);
  }
  const auto lift = [drop](auto view, int rank) {
    if (drop == 0 || view.rank != rank - 1) return view;
    for (int a = rank - 1; a > 0; --a)
      view.shape[a] = view.shape[a - 1], view.stride[a] = view.stride[a - 1];
    view.shape[0] = 1, view.stride[0] = 0, view.rank = rank;
    return view;
  };
  for (PartialState& state : states) state.out = lift(state.out, 4), state.lse = lift(state.lse, 3);

  const auto result = [&](nb::handle given, const char* name, int rank, const TensorView* like,
                          nb::object* object) {
    if (!given.is_none()) {
      *object = nb::borrow(given);
    } else {
      int64_t shape[kMaxRank] = {};
      for (int a = 0; like != nullptr && a < rank; ++a) shape[a] = like->shape[a];
      void* data;
      *object = Empty(library, DType::kF32, rank - drop, shape + drop, &data);
    }
    return lift(borrower.Output(*object, name), rank);
  };
  nb::object out_object, lse_object;
  const MutableTensorView out_view =
      result(out, "out", 4, states.empty() ? nullptr : &states[0].out, &out_object);
  const MutableTensorView lse_view =
      result(lse, "lse", 3, states.empty() ? nullptr : &states[0].lse, &lse_object);
  if (!out.is_none() || !lse.is_none()) RefuseOverlap(states, out_view, lse_view);
  Status status;
  {
    const WithoutGil release;
    status = fovea::Merge(states.data(), static_cast<int64_t>(states.size()), out_view, lse_view);
  }
  Check(status);
  return nb::make_tuple(out_object, lse_object);
}

}  // namespace

void BindMerging(nb::module_& m) {
  m.def(
      "merge", &MergeParts, nb::arg("parts"), nb::arg("out") = nb::none(),
      nb::arg("lse") = nb::none(),
      R"(The attention state (out, lse) over the union of disjoint key sets, from the states of each: [(out, lse), …].

out is float32 [B, Hq, Tq, dv], lse float32 [B, Hq, Tq], as attention(…, return_lse=True) gives them; all parts have the same shapes. A part with lse −inf counts for
nothing. Parts merge in the order given, so results are repeatable. `out` and `lse` are arrays to write instead of new ones, and may be those of one part.)");
}

}  // namespace fovea::python
