// fovea attend: attention of tensors in files.
#include <cstdio>
#include <deque>

#include "cli/commands.h"
#include "cli/execution.h"
#include "cli/failure.h"
#include "cli/files/tensor_file.h"
#include "fovea/fovea.h"
#include "measure/accuracy.h"
#include "measure/clock.h"

namespace fovea::cli {
namespace {

// The tensors of one call and the problem that views them.
struct Loaded {
  Problem problem;
  std::deque<files::FileTensor> inputs;
  files::Buffer out, lse, weights;
};

// The tensor that an option names, as a view, or an absent one. `axes`: what it must have, for
// messages; empty: up to four of any meaning.
TensorView LoadView(const Args& args, const char* option, const char* axes, Loaded* loaded) {
  if (!args.Has(option)) return {};
  files::FileTensor& tensor = loaded->inputs.emplace_back();
  std::string error;
  if (!files::Load(args.Text(option), &tensor, &error))
    throw Failure(std::string(option) + ": " + error);
  const size_t rank = tensor.info.shape.size();
  size_t expected = 0;
  for (const char* p = axes; *p != '\0'; ++p) expected += *p == ',' || *p == '[';
  if (expected != 0 ? rank != expected : rank < 1 || rank > kMaxRank) {
    throw Failure(std::string(option) + ": " + args.Text(option) + " has the shape " +
                  files::ToString(tensor.info.shape) + ", expected " +
                  (expected != 0 ? axes : "one to four axes"));
  }
  return tensor.View();
}

// Bytes of a file as codes: of the type that an option names, or u8.
TensorView AsCodes(TensorView view, const std::string& type, const char* option) {
  if (type.empty()) {
    if (view.dtype == DType::kBool) view.dtype = DType::kU8;  // a file's u8
    return view;
  }
  DType dtype = DType::kNone;
  for (int32_t n = 1; n < internal::kFormatCount; ++n) {
    if (type == Name(static_cast<DType>(n))) dtype = static_cast<DType>(n);
  }
  if (!IsQuantised(dtype))
    throw Failure(std::string(option) + " = '" + type + "', expected a quantised type: i8, u8, …");
  const int last = view.rank - 1;
  const int64_t bytes = UnitBytes(dtype), elements = UnitElements(dtype);
  if (SizeOf(view.dtype) != 1 || view.shape[last] % bytes != 0 || view.stride[last] != 1) {
    throw Failure(std::string(option) + " = '" + type + "': the file has rows of " +
                  std::to_string(view.shape[last]) + " " + Name(view.dtype) +
                  ", expected bytes, a multiple of " + std::to_string(bytes));
  }
  view.dtype = dtype;
  view.shape[last] = view.shape[last] / bytes * elements;
  view.stride[last] = bytes;
  return view;
}

void LoadTensors(const Args& args, bool bthd, Loaded* loaded) {
  for (const char* option : {"--q", "--k", "--v"}) {
    if (!args.Has(option))
      throw Failure(std::string(option) + " is missing; see fovea attend --help");
  }
  Problem& p = loaded->problem;
  p.q = LoadView(args, "--q", bthd ? "[B, Tq, Hq, dk]" : "[B, Hq, Tq, dk]", loaded);
  if (args.Has("--page-table")) {
    p.k = LoadView(args, "--k", bthd ? "[pages, page, Hkv, dk]" : "[pages, Hkv, page, dk]", loaded);
    p.v = LoadView(args, "--v", bthd ? "[pages, page, Hkv, dv]" : "[pages, Hkv, page, dv]", loaded);
  } else {
    p.k = LoadView(args, "--k", bthd ? "[B, Tk, Hkv, dk]" : "[B, Hkv, Tk, dk]", loaded);
    p.v = LoadView(args, "--v", bthd ? "[B, Tk, Hkv, dv]" : "[B, Hkv, Tk, dv]", loaded);
  }
  p.k = AsCodes(p.k, args.Text("--k-type", ""), "--k-type");
  p.v = AsCodes(p.v, args.Text("--v-type", ""), "--v-type");
  const char* const axes = "[B, H, T, n]";
  p.k_scale = LoadView(args, "--k-scale", axes, loaded);
  p.k_zero = AsCodes(LoadView(args, "--k-zero", axes, loaded), "", "--k-zero");
  p.v_scale = LoadView(args, "--v-scale", axes, loaded);
  p.v_zero = AsCodes(LoadView(args, "--v-zero", axes, loaded), "", "--v-zero");
  if (bthd) {
    for (TensorView* view : {&p.q, &p.k, &p.v, &p.k_scale, &p.k_zero, &p.v_scale, &p.v_zero}) {
      if (view->present()) *view = SwapAxes(*view, 1, 2);
    }
  }
  p.score.head_scales = LoadView(args, "--head-scales", "[Hq]", loaded);
  p.score.mask = LoadView(args, "--mask", "", loaded);
  p.score.bias = LoadView(args, "--bias", "", loaded);
  p.score.bias_scales = LoadView(args, "--bias-scales", "[Hq]", loaded);
  p.score.alibi_slopes = LoadView(args, "--alibi", "[Hq]", loaded);
  p.score.sinks = LoadView(args, "--sinks", "[Hq]", loaded);
  p.score.key_ranges = LoadView(args, "--key-ranges", "[B, Tq, 2]", loaded);
  p.score.q_lengths = LoadView(args, "--q-lengths", "[B]", loaded);
  p.score.kv_lengths = LoadView(args, "--kv-lengths", "[B]", loaded);
  p.score.key_offsets = LoadView(args, "--key-offsets", "[B]", loaded);
  const bool in_a_list = args.Has("--page-begins");
  p.pages.table = LoadView(args, "--page-table", in_a_list ? "[numbers]" : "[B, max]", loaded);
  p.pages.begins = LoadView(args, "--page-begins", "[B + 1]", loaded);
  p.pages.keys = args.Integer("--page-keys", 0, 1, INT64_MAX);
  if (in_a_list && p.pages.keys == 0)
    throw Failure("--page-begins without --page-keys; see fovea attend --help");
  p.ring = args.Has("--ring");
}

// Tk of what was loaded.
int64_t KeysOf(const Problem& p) {
  if (!p.pages.present()) return p.k.shape[2];
  int64_t keys;
  if (p.pages.keys > 0) return p.pages.keys;
  // What does not fit into 64 bits the library refuses.
  return __builtin_mul_overflow(p.pages.table.shape[1], p.k.shape[2], &keys) ? 0 : keys;
}

void ReadScore(const Args& args, Loaded* loaded) {
  Score& score = loaded->problem.score;
  if (args.Has("--scale")) score.scale = args.Float("--scale", 0);
  score.softcap = args.Float("--softcap", 0);
  if (args.Has("--causal")) {
    const std::string causal = args.Text("--causal");
    if (causal != "top-left" && causal != "bottom-right")
      throw Failure("--causal = '" + causal + "', expected top-left or bottom-right");
    score.causal = causal == "top-left" ? Causal::kTopLeft : Causal::kBottomRight;
  }
  if (args.Has("--window")) {
    const std::vector<int64_t> window = args.Integers("--window", "", -1, INT64_MAX);
    if (window.size() != 2)
      throw Failure("--window = '" + args.Text("--window") + "', expected LEFT,RIGHT");
    score.window = {window[0], window[1]};
  }
  if (args.Has("--query-offset")) {
    const std::string offset = args.Text("--query-offset");
    if (offset.find(".npy") != std::string::npos ||
        offset.find(".safetensors") != std::string::npos) {
      score.query_offsets = LoadView(args, "--query-offset", "[B]", loaded);
    } else {
      score.query_offset = args.Integer("--query-offset", 0, INT64_MIN, INT64_MAX);
    }
  }
}

// An output of that shape: memory in *buffer, or none if `buffer` is null.
template <size_t N>
MutableTensorView Output(const char* name, DType dtype, const int64_t (&shape)[N],
                         files::Buffer* buffer) {
  uint64_t bytes;
  const std::vector<int64_t> sizes(shape, shape + N);
  if (!files::ShapeBytes(sizes, SizeOf(dtype), &bytes))
    throw Failure(std::string(name) + " of shape " + files::ToString(sizes) + " is too large");
  if (buffer != nullptr) *buffer = files::Buffer(static_cast<size_t>(bytes));
  return View(static_cast<void*>(buffer != nullptr ? buffer->data() : nullptr), dtype, shape);
}

// The problem's outputs, with memory or without: a plan wants their shapes first.
void SetOutputs(const Args& args, bool bthd, bool with_memory, Loaded* loaded) {
  Problem& p = loaded->problem;
  const int64_t B = p.q.shape[0], Hq = p.q.shape[1], Tq = p.q.shape[2], Tk = KeysOf(p),
                dv = p.v.shape[3];
  if (bthd) {
    p.out = SwapAxes(
        Output("out", p.q.dtype, {B, Tq, Hq, dv}, with_memory ? &loaded->out : nullptr), 1, 2);
  } else {
    p.out = Output("out", p.q.dtype, {B, Hq, Tq, dv}, with_memory ? &loaded->out : nullptr);
  }
  if (args.Has("--lse") || args.Has("--check"))
    p.lse = Output("lse", DType::kF32, {B, Hq, Tq}, with_memory ? &loaded->lse : nullptr);
  if (args.Has("--weights"))
    p.weights =
        Output("weights", DType::kF32, {B, Hq, Tq, Tk}, with_memory ? &loaded->weights : nullptr);
}

files::Writer CollectOutputs(const Args& args, bool bthd, const Loaded& loaded) {
  const Problem& problem = loaded.problem;
  std::vector<files::FileId> inputs;
  inputs.reserve(loaded.inputs.size());
  for (const files::FileTensor& tensor : loaded.inputs) inputs.push_back(tensor.file);
  files::Writer writer(inputs);
  const auto add = [&](const char* option, const char* name, const TensorView& view) {
    std::string error;
    if (args.Has(option) && !writer.Add(args.Text(option), name, view, &error))
      throw Failure(std::string(option) + ": " + error);
  };
  add("--out", "out", bthd ? SwapAxes(problem.out, 1, 2) : problem.out);
  add("--lse", "lse", problem.lse);
  add("--weights", "weights", problem.weights);
  return writer;
}

int ReportAccuracy(const Problem& problem, Product product) {
  const measure::Accuracy accuracy = measure::CompareAllRows(problem, product);
  std::printf("check     largest error %.3g (bound %.3g there), lse %.3g, weights %.3g: %s\n",
              accuracy.max_error, accuracy.bound, accuracy.max_lse_error,
              accuracy.max_weights_error, accuracy.ok() ? "within bounds" : "OUT OF BOUNDS");
  return accuracy.ok() ? kFine : kWrong;
}

int RunAttend(const Args& args) {
  if (!args.Has("--out") && !args.Has("--lse") && !args.Has("--weights") && !args.Has("--check")) {
    throw Failure(
        "nothing to do: give --out, --lse, --weights or --check; see fovea attend --help");
  }
  const std::string layout = args.Text("--layout", "BHTD");
  if (layout != "BHTD" && layout != "BTHD")
    throw Failure("--layout = '" + layout + "', expected BHTD or BTHD");
  const bool bthd = layout == "BTHD";
  PlanOptions options;
  options.target = TargetFor(args.Text("--isa", "auto"));
  options.engine = EngineFor(args.Text("--engine", "auto"));
  options.product = ProductFor(args.Text("--product", "auto"));
  const Threads threads(static_cast<int>(args.Integer("--threads", 1, 1, 1024)));

  Loaded loaded;
  LoadTensors(args, bthd, &loaded);
  ReadScore(args, &loaded);
  SetOutputs(args, bthd, /*with_memory=*/false, &loaded);
  Plan plan;
  Check(Plan::Create(loaded.problem, options, &plan));  // before any large allocation
  SetOutputs(args, bthd, /*with_memory=*/true, &loaded);
  const files::Writer writer = CollectOutputs(args, bthd, loaded);
  const OwnedWorkspace workspace(plan, threads.executor());

  const double start = measure::WallSeconds();
  Check(Run(plan, loaded.problem, workspace.get(), threads.executor()));
  const double seconds = measure::WallSeconds() - start;
  std::string error;
  if (!writer.Write(&error)) throw Failure(error);

  std::printf("%s", plan.ToString().c_str());
  std::printf("time      %.3f ms, first run\n", 1e3 * seconds);
  return args.Has("--check") ? ReportAccuracy(loaded.problem, plan.product()) : kFine;
}

}  // namespace

Command AttendCommand() {
  return {
      "attend",
      "Computes attention of tensors in files. FILE is FILE.npy or FILE.safetensors:NAME; the "
      "outputs of one .safetensors file are\n"
      "written together. Files appear whole or not at all, and never in the place of an input.",
      {
          {"--q", "FILE", "queries [B, Hq, Tq, dk]"},
          {"--k", "FILE", "keys [B, Hkv, Tk, dk]"},
          {"--v", "FILE", "values [B, Hkv, Tk, dv]"},
          {"--k-type", "NAME",
           "bytes of --k are codes: i8, u8, i4, u4, q8_0, … (docs/quantised.md)"},
          {"--v-type", "NAME", "likewise of --v"},
          {"--k-scale", "FILE", "of codes, (u − zero)·scale: four axes, f32, f16 or bf16"},
          {"--k-zero", "FILE", "four axes, f32, f16, bf16, i32, i8 or u8"},
          {"--v-scale", "FILE", "of --v, as --k-scale"},
          {"--v-zero", "FILE", "of --v, as --k-zero"},
          {"--layout", "BHTD|BTHD", "order of axes of q, k, v and out (default BHTD)"},
          {"--out", "FILE", "write the output"},
          {"--lse", "FILE", "write the logarithm of the softmax denominators, [B, Hq, Tq]"},
          {"--weights", "FILE", "write the softmax weights, [B, Hq, Tq, Tk]"},
          {"--scale", "X", "factor of q·k (default 1/sqrt(dk))"},
          {"--head-scales", "FILE", "multiply the scale of each head, f32 [Hq]"},
          {"--softcap", "X", "scores become X·tanh(score/X)"},
          {"--alibi", "FILE", "ALiBi slopes, f32 [Hq]"},
          {"--bias", "FILE",
           "added to the scores; up to four axes that broadcast to [B, Hq, Tq, Tk]"},
          {"--bias-scales", "FILE", "multiply the bias of each head, f32 [Hq]"},
          {"--mask", "FILE", "bool or u8, true = attend; broadcasts as the bias does"},
          {"--causal", "top-left|bottom-right",
           "queries see no later key; aligned at the first or at the last query and key"},
          {"--window", "LEFT,RIGHT",
           "keys seen before and behind a query's own position; -1 = no limit"},
          {"--key-ranges", "FILE",
           "first key that each query sees and first behind, i32 or i64 [B or 1, Tq, 2]"},
          {"--query-offset", "N|FILE",
           "position of query 0 among the keys; a file holds one per sequence, i32 or i64 [B]"},
          {"--q-lengths", "FILE", "queries of each sequence, i32 or i64 [B]"},
          {"--kv-lengths", "FILE", "keys of each sequence, i32 or i64 [B]; of a ring, keys so far"},
          {"--key-offsets", "FILE", "position of the first key of each sequence, i32 or i64 [B]"},
          {"--page-table", "FILE",
           "numbers of pages, i32 or i64 [B, max]; K and V are then [pages, Hkv, page, d]"},
          {"--page-begins", "FILE",
           "where the numbers of each sequence begin in a page table [numbers], i32 or i64 [B + "
           "1]"},
          {"--page-keys", "N", "Tk of pages (default max·page)"},
          {"--ring", nullptr, "K and V are rings: the key of position p lies in row p mod Tk"},
          {"--sinks", "FILE", "a logit per head that only adds to the denominator, f32 [Hq]"},
          {"--isa", "NAME", "instruction set (default auto; see fovea info)"},
          {"--engine", "auto|tile|row", "kernel (default auto)"},
          {"--product", "auto|f32|bf16", "what multiplies (default auto)"},
          {"--threads", "N", "default 1"},
          {"--check", nullptr,
           "compare with the reference in double; exit code 1 if out of bounds"},
      },
      RunAttend};
}

}  // namespace fovea::cli
