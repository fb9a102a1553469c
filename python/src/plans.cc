#include "plans.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <utility>

#include "call.h"
#include "gil.h"
#include "numbers.h"
#include "running.h"

namespace fovea::python {
namespace {

const char* const kPlanDoc =
    R"(How a problem will be computed, kept for many runs: Plan(q, k, v, **keywords) with the keywords of attention().

A plan binds shapes, types, lengths, offsets, causal and window, and which arrays are present; run() refuses what differs. Data, strides, scale and softcap may
change, and which score_function it is, but not whether there is one. It keeps references to what the keywords hold (masks, lengths, functions, …) and none to q, k, v.
Further keywords:
  max_queries, max_keys   the largest Tq and Tk that update() will be asked for
  fixed_mask              the mask's contents do not change until the next update(): where it removes what is noted once
  fixed_tables            page_table and page_begins do not change until the next update(): checked once
  fixed_bias              where the bias is -inf or 0 does not change until the next update(): noted once; its other values may change

Thread safety: run() may be called from several threads at the same time; update() waits until no run is under way.)";

template <class Function>
double Least(int repeats, Function function) {
  double least = 1e9;
  for (int round = 0; round < 5; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < repeats; ++i) Check(function());
    least = std::min(
        least,
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / repeats);
  }
  return least;
}

// Seconds of one call in C++, plan and workspace included.
double TimeAttention(nb::handle q, nb::handle k, nb::handle v, int repeats) {
  const Options options;
  Call call(q, k, v, options);
  call.Allocate();
  return Least(repeats, [&] { return fovea::Attention(call.problem()); });
}

class PlanObject {
 public:
  PlanObject(nb::handle q, nb::handle k, nb::handle v, const nb::kwargs& keywords) {
    options_.Read(keywords, Options::Kind::kPlan);
    const Call call(q, k, v, options_);
    Describe(call, keywords);
    if (options_.plan.max_queries == 0) keywords_["max_queries"] = call.problem().q.shape[2];
    if (options_.plan.max_keys == 0) keywords_["max_keys"] = call.problem().k.shape[2];
    Status status;
    {
      const WithoutGil release;
      status = Plan::Create(call.problem(), options_.plan, &plan_);
      if (status.ok()) cost_ = plan_.cost();
    }
    Check(status);
  }

  void Update(nb::handle q, nb::handle k, nb::handle v, const nb::kwargs& keywords) {
    Options options = options_;
    options.Read(keywords, Options::Kind::kRun);
    const Call call(q, k, v, options);
    Status status;
    {
      // The lock is taken without the GIL, which those who hold the lock need to let go of it.
      const WithoutGil release;
      std::unique_lock<std::shared_mutex> lock(mutex_);
      status = plan_.Update(call.problem());
      if (status.ok()) cost_ = plan_.cost();
    }
    Check(status);
    options_ = std::move(options);
    Describe(call, keywords);
  }

  // Of a plan without data: (function, arguments) that make it again.
  nb::object Reduce() const {
    if (options_.score.function.present()) {
      Raise(PyExc_TypeError,
            "a plan with a score_function, which is an address in this process, cannot be pickled "
            "or copied");
    }
    return nb::make_tuple(nb::module_::import_("fovea._plan").attr("plan_of"),
                          nb::make_tuple(tensors_, keywords_));
  }

  nb::object Run(nb::handle q, nb::handle k, nb::handle v, const nb::kwargs& keywords) {
    // A copy, whose references outlive the run: update() may replace options_ while the GIL is
    // released.
    Options options = options_;
    options.Read(keywords, Options::Kind::kRun);
    Call call(q, k, v, options);
    call.Allocate();
    Status status;
    bool interrupted;
    {
      WithoutGil release;
      std::shared_lock<std::shared_mutex> lock(mutex_);
      status = RunHere(plan_, call.problem(), call.library(), ThreadsFor(cost_, options.threads),
                       &release, &interrupted);
    }
    if (interrupted) throw nb::python_error();
    Check(status);
    return call.Results();
  }

  // Seconds of one run in C++, without Python: the least of five rounds.
  double TimeRun(nb::handle q, nb::handle k, nb::handle v, int repeats) {
    Call call(q, k, v, options_);
    call.Allocate();
    return Least(repeats, [&] {
      bool interrupted;
      WithoutGil release;
      const Status status = RunHere(plan_, call.problem(), call.library(),
                                    ThreadsFor(cost_, options_.threads), &release, &interrupted);
      return interrupted ? Status(StatusCode::kInvalidArgument, "interrupted") : status;
    });
  }

  std::string ToString() const { return plan_.ToString(); }
  const char* target() const { return Name(plan_.target()); }
  const char* engine() const { return Name(plan_.engine()); }
  const char* product() const { return Name(plan_.product()); }
  double flops() const { return cost_.flops; }
  double kv_bytes() const { return cost_.kv_bytes; }
  double pairs() const { return cost_.pairs; }
  int64_t tasks() const { return cost_.tasks; }
  size_t WorkspaceBytes(nb::handle threads) const {
    return plan_.WorkspaceBytes(SmallInteger(threads, "threads", "an integer"));
  }

 private:
  void Describe(const Call& call, const nb::kwargs& keywords) {
    const auto tensor = [&](const TensorView& view) {
      nb::list shape;
      for (int a = call.lifted() ? 1 : 0; a < view.rank; ++a) shape.append(view.shape[a]);
      return nb::make_tuple(nb::tuple(shape), Name(view.dtype));
    };
    const Problem& problem = call.problem();
    tensors_ = nb::make_tuple(tensor(problem.q), tensor(problem.k), tensor(problem.v));
    for (auto [name, value] : keywords) keywords_[name] = value;
  }

  Options options_;
  nb::object tensors_;  // shapes [B, H, T, d] and types of q, k and v
  nb::dict keywords_;   // all that it was made and updated with
  Plan plan_;
  Cost cost_;
  std::shared_mutex mutex_;
};

}  // namespace

void BindPlans(nb::module_& m) {
  nb::class_<PlanObject>(m, "Plan", kPlanDoc)
      .def(nb::init<nb::handle, nb::handle, nb::handle, const nb::kwargs&>(), nb::arg("q").none(),
           nb::arg("k").none(), nb::arg("v").none(), nb::arg("kwargs"))
      .def("run", &PlanObject::Run, nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(),
           nb::arg("kwargs"),
           "Runs the plan on these tensors; keywords as of attention(), over those that the plan "
           "was made with. Returns as attention() "
           "does.")
      .def("update", &PlanObject::Update, nb::arg("q").none(), nb::arg("k").none(),
           nb::arg("v").none(), nb::arg("kwargs"),
           "Plans again, in place, for new lengths, offsets, Tq and Tk within max_queries and "
           "max_keys. On an error the plan is as it was.")
      .def("workspace_bytes", &PlanObject::WorkspaceBytes, nb::arg("threads") = 1,
           "Bytes of scratch memory that a run with so many threads uses.")
      .def_prop_ro("isa", &PlanObject::target, "The instruction set.")
      .def_prop_ro("engine", &PlanObject::engine, "'tile' or 'row'.")
      .def_prop_ro("product", &PlanObject::product, "'f32' or 'bf16'.")
      .def_prop_ro("flops", &PlanObject::flops,
                   "Floating-point operations, 2·pairs·(dk + dv), pairs counted as visible ones.")
      .def_prop_ro("kv_bytes", &PlanObject::kv_bytes,
                   "Bytes of K and V that are read at least once.")
      .def_prop_ro("pairs", &PlanObject::pairs, "Visible (query, key) pairs over all heads.")
      .def_prop_ro("tasks", &PlanObject::tasks, "More threads than this cannot help.")
      .def("__reduce__", &PlanObject::Reduce)
      .def("_time_run", &PlanObject::TimeRun, nb::arg("q"), nb::arg("k"), nb::arg("v"),
           nb::arg("repeats"))
      .def("__str__", &PlanObject::ToString);
  m.def("_time_attention", &TimeAttention, nb::arg("q"), nb::arg("k"), nb::arg("v"),
        nb::arg("repeats"));
}

}  // namespace fovea::python
