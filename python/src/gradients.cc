#include "gradients.h"

#include <algorithm>
#include <string>
#include <vector>

#include "call.h"
#include "fovea/gradient.h"
#include "gil.h"
#include "numbers.h"
#include "overlap.h"
#include "running.h"

namespace fovea::python {
namespace {

const char* const kDoc =
    R"(The gradients of attention: of a loss whose derivatives by out (and lse) are given.

q, k, v and the keywords are those of attention() as it was called; out and lse are what it returned (return_lse=True), and are only read. dout has out's shape and
layout, dlse lse's. Further keywords:
  of          which gradients, a tuple of 'q', 'k', 'v', 'bias', 'sinks', 'head_scales'; default ('q', 'k', 'v')
  into        a dict of arrays to write instead of new ones, by the same names: of the shape of what they are the gradients of, in memory of their own
  accumulate  True: adds to what those arrays hold; all of them must be given

Returns the gradients in the order of `of`, as a tuple: each of the type and library of what it is of. A bias that broadcasts has its gradient summed over the
axes along which it has one element.

lse decides the weights: with the lse of more keys than k has (of merged parts) these are the gradients of that part. Weights and scores are not asked for here;
score_function, and whatever has no gradient, is an UnsupportedError.

Raises as attention() does. Thread safety: as attention(). Results do not depend on threads.)";

// The library's axes of an array of the caller's.
template <class View>
View AsHeadsFirst(View view, bool lifted, bool bthd) {
  if (lifted) {
    for (int a = view.rank; a > 0; --a)
      view.shape[a] = view.shape[a - 1], view.stride[a] = view.stride[a - 1];
    view.rank += 1;
    view.shape[0] = 1, view.stride[0] = 0;
  }
  return bthd && view.rank == 4 ? SwapAxes(view, 1, 2) : view;
}

struct Gradient {
  const char* name;
  MutableTensorView GradientProblem::* view;
  const TensorView& (*of)(const Problem&);
  bool has_layout;  // its axes are the caller's B, H, T, d
};
constexpr Gradient kGradients[] = {
    {"q", &GradientProblem::dq, [](const Problem& p) -> const TensorView& { return p.q; }, true},
    {"k", &GradientProblem::dk, [](const Problem& p) -> const TensorView& { return p.k; }, true},
    {"v", &GradientProblem::dv, [](const Problem& p) -> const TensorView& { return p.v; }, true},
    {"bias", &GradientProblem::dbias,
     [](const Problem& p) -> const TensorView& { return p.score.bias; }, false},
    {"sinks", &GradientProblem::dsinks,
     [](const Problem& p) -> const TensorView& { return p.score.sinks; }, false},
    {"head_scales", &GradientProblem::dhead_scales,
     [](const Problem& p) -> const TensorView& { return p.score.head_scales; }, false}};

const Gradient& GradientCalled(nb::handle name) {
  if (!PyUnicode_Check(name.ptr())) Raise(PyExc_TypeError, "of: expected a tuple of names");
  const std::string text = nb::cast<std::string>(name);
  for (const Gradient& gradient : kGradients) {
    if (text == gradient.name) return gradient;
  }
  Raise(PyExc_ValueError,
        "of: '" + text + "', expected 'q', 'k', 'v', 'bias', 'sinks' or 'head_scales'");
}

// Takes a keyword off.
nb::object Take(nb::dict& keywords, const char* name) {
  if (!keywords.contains(name)) return nb::none();
  nb::object value = keywords[name];
  nb::del(keywords[name]);
  return value;
}

// A new array like `view`, which has the library's axes, and its view of the same axes.
MutableTensorView NewLike(const TensorView& view, bool lifted, bool bthd, Library library,
                          nb::object* array) {
  int64_t shape[kMaxRank];
  std::copy_n(view.shape, view.rank, shape);
  if (bthd && view.rank == 4) std::swap(shape[1], shape[2]);
  const int lacked = lifted ? 1 : 0;
  const DType dtype = kFloats.Has(view.dtype) ? view.dtype : DType::kF32;  // of codes
  MutableTensorView dense;
  dense.dtype = dtype;
  dense.rank = view.rank - lacked;
  std::copy_n(shape + lacked, dense.rank, dense.shape);
  int64_t step = SizeOf(dtype);
  for (int a = dense.rank; a-- > 0;) {
    dense.stride[a] = step;
    step *= std::max<int64_t>(1, dense.shape[a]);
  }
  *array = Empty(library, dtype, dense.rank, dense.shape, &dense.data);
  return AsHeadsFirst(dense, lifted, bthd);
}

struct NamedView {
  std::string name;
  TensorView view;
};

// Inputs are read while gradients are written.
void RefuseOverlap(const std::vector<NamedView>& outputs, const std::vector<NamedView>& inputs) {
  for (size_t n = 0; n < outputs.size(); ++n) {
    std::vector<NamedView> others = inputs;
    others.insert(others.end(), outputs.begin() + static_cast<std::ptrdiff_t>(n) + 1,
                  outputs.end());
    for (const NamedView& other : others) {
      if (other.view.present() && Overlap(outputs[n].view, other.view)) {
        Raise(PyExc_ValueError, outputs[n].name + " and " + other.name +
                                    " overlap, expected an output in memory of its own");
      }
    }
  }
}

nb::object Gradients(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse,
                     nb::handle dout, nb::handle dlse, const nb::kwargs& given) {
  nb::dict keywords = nb::borrow<nb::dict>(nb::steal(PyDict_Copy(given.ptr())));
  nb::object of = Take(keywords, "of");
  const nb::object into = Take(keywords, "into"), accumulate = Take(keywords, "accumulate");
  if (of.is_none()) of = nb::make_tuple("q", "k", "v");
  if (!PyTuple_Check(of.ptr()) && !PyList_Check(of.ptr()))
    Raise(PyExc_TypeError, "of: expected a tuple of names");
  if (!into.is_none() && !PyDict_Check(into.ptr()))
    Raise(PyExc_TypeError, "into: expected a dict of arrays");

  Options options;
  options.Read(nb::borrow<nb::kwargs>(keywords), Options::Kind::kAttention);
  const Call call(q, k, v, options);
  const bool lifted = call.lifted();
  Borrower borrower;
  GradientProblem problem;
  problem.forward = call.problem();
  if (problem.forward.weights.present() || problem.forward.scores.present())
    Raise(PyExc_ValueError, "weights and scores are not asked for with gradients");
  const auto read_only = [](const TensorView& view) {
    MutableTensorView as;
    as.data = const_cast<void*>(view.data);
    as.dtype = view.dtype, as.rank = view.rank;
    std::copy_n(view.shape, kMaxRank, as.shape);
    std::copy_n(view.stride, kMaxRank, as.stride);
    return as;
  };
  const TensorView out_view = AsHeadsFirst(borrower.Input(out, "out"), lifted, options.out_bthd);
  const TensorView lse_view = AsHeadsFirst(borrower.Input(lse, "lse"), lifted, false);
  problem.forward.out = read_only(out_view);
  problem.forward.lse = read_only(lse_view);
  problem.dout = AsHeadsFirst(borrower.Input(dout, "dout"), lifted, options.out_bthd);
  if (!dlse.is_none()) problem.dlse = AsHeadsFirst(borrower.Input(dlse, "dlse"), lifted, false);
  problem.accumulate = !accumulate.is_none() && Flag(accumulate, "accumulate");

  std::vector<nb::object> results;
  std::vector<NamedView> outputs;
  std::vector<MutableTensorView> views;
  for (nb::handle name : of) {
    const Gradient& gradient = GradientCalled(name);
    const std::string called = std::string("the gradient of ") + gradient.name;
    const TensorView& like = gradient.of(problem.forward);
    MutableTensorView& view = problem.*gradient.view;
    if (view.present()) Raise(PyExc_ValueError, "of: '" + std::string(gradient.name) + "' twice");
    if (!like.present()) Raise(PyExc_ValueError, called + " is asked for without " + gradient.name);
    const bool bthd = gradient.has_layout && options.bthd;
    const bool lift = gradient.has_layout && lifted;
    nb::object array;
    if (!into.is_none() && nb::borrow<nb::dict>(into).contains(name)) {
      array = nb::borrow<nb::dict>(into)[name];
      view = AsHeadsFirst(borrower.Output(array, called.c_str()), lift, bthd);
      outputs.push_back({called, view});
    } else if (problem.accumulate) {
      Raise(PyExc_ValueError, "accumulate: expected an array of " + called + " in into");
    } else {
      view = NewLike(like, lift, bthd, call.library(), &array);
    }
    results.push_back(array);
  }
  if (!outputs.empty()) {
    const Problem& forward = problem.forward;
    RefuseOverlap(outputs, {{"q", forward.q},
                            {"k", forward.k},
                            {"v", forward.v},
                            {"out", out_view},
                            {"lse", lse_view},
                            {"dout", problem.dout},
                            {"dlse", problem.dlse},
                            {"bias", forward.score.bias},
                            {"mask", forward.score.mask},
                            {"sinks", forward.score.sinks},
                            {"head_scales", forward.score.head_scales}});
  }
  GradientPlan plan;
  Status status;
  {
    const WithoutGil release;
    status = GradientPlan::Create(problem, options.plan, &plan);
  }
  Check(status);
  bool interrupted;
  {
    WithoutGil release;
    status = RunHere(plan, problem, call.library(), ThreadsFor(plan.cost(), options.threads),
                     &release, &interrupted);
  }
  if (interrupted) throw nb::python_error();
  Check(status);
  nb::object tuple = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(results.size())));
  Py_ssize_t i = 0;
  for (nb::object& result : results) PyTuple_SetItem(tuple.ptr(), i++, result.release().ptr());
  return tuple;
}

}  // namespace

void BindGradients(nb::module_& m) {
  m.def("gradients", &Gradients, nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(),
        nb::arg("out"), nb::arg("lse"), nb::arg("dout"), nb::arg("dlse") = nb::none(),
        nb::arg("kwargs"), kDoc);
}

}  // namespace fovea::python
