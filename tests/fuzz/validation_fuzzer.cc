// Bytes → a Problem and PlanOptions with anything in them: validation must answer with a status,
// whatever the ranks, types, shapes, strides and options, and what it accepts must run when it is
// tiny and in memory. Every tensor has memory of exactly its own size, so that AddressSanitizer
// sees a byte too many.
//
// A small dense problem is drawn first and then damaged in a few places: most damages alone are
// refused at once, and a whole problem drawn at random would never come further than to the first
// check.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "fovea/attention.h"
#include "support/random.h"

namespace fovea::fuzz {
namespace {

using Wide = __int128;

constexpr int64_t kMostBytes = 4096;    // of a tensor that is stored
constexpr int64_t kMostWork = 100'000;  // multiply-adds of a problem that is run
// of a problem that is planned, beside those that no address space could hold
constexpr int64_t kMostSequences = 256;
constexpr int64_t kBeyondMemory = int64_t{1} << 57;

// A size, stride, offset or option from the edges of its type as well as from the middle.
int64_t DrawNumber(FuzzedDataProvider& bytes) {
  switch (bytes.ConsumeIntegralInRange<int>(0, 4)) {
    case 0:
      return bytes.ConsumeIntegral<int64_t>();
    case 1:
      return (bytes.ConsumeBool() ? 1 : -1) *
                 (int64_t{1} << bytes.ConsumeIntegralInRange<int>(0, 62)) +
             bytes.ConsumeIntegralInRange<int>(-1, 1);
    case 2:
      return bytes.ConsumeBool() ? INT64_MAX : INT64_MIN;
    default:
      return bytes.ConsumeIntegralInRange<int64_t>(-4, 40);
  }
}

float DrawFloat(FuzzedDataProvider& bytes) {
  if (bytes.ConsumeBool()) return bytes.ConsumeFloatingPointInRange<float>(-4, 4);
  const uint32_t bits = bytes.ConsumeIntegral<uint32_t>();
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Reads and writes a view of either kind alike.
struct Slot {
  TensorView* input = nullptr;
  MutableTensorView* output = nullptr;
  bool planned = false;  // may be read while a plan is made

  TensorView Get() const { return input != nullptr ? *input : TensorView(*output); }
  void Set(const TensorView& view, void* data) const {
    if (input != nullptr) {
      *input = view;
      input->data = data;
    } else {
      output->data = data;
      output->dtype = view.dtype;
      output->rank = view.rank;
      std::copy(std::begin(view.shape), std::end(view.shape), output->shape);
      std::copy(std::begin(view.stride), std::end(view.stride), output->stride);
    }
  }
};

std::vector<Slot> SlotsOf(Problem& p) {
  Score& s = p.score;
  return {{&p.q, nullptr, false},           {&p.k, nullptr, false},
          {&p.v, nullptr, false},           {nullptr, &p.out, false},
          {nullptr, &p.lse, false},         {nullptr, &p.weights, false},
          {nullptr, &p.scores, false},      {&s.alibi_slopes, nullptr, false},
          {&s.bias, nullptr, false},        {&s.sinks, nullptr, false},
          {&s.mask, nullptr, true},         {&s.block_map.visible, nullptr, true},
          {&s.parents, nullptr, true},      {&s.query_offsets, nullptr, true},
          {&s.q_lengths, nullptr, true},    {&s.kv_lengths, nullptr, true},
          {&p.cu_seqlens_q, nullptr, true}, {&p.cu_seqlens_k, nullptr, true},
          {&s.head_scales, nullptr, false}, {&s.bias_scales, nullptr, false},
          {&s.key_ranges, nullptr, false},  {&p.k_scale, nullptr, false},
          {&p.k_zero, nullptr, false},      {&p.v_scale, nullptr, false},
          {&p.v_zero, nullptr, false},      {&p.pages.table, nullptr, true},
          {&p.pages.begins, nullptr, true}, {&s.key_offsets, nullptr, true}};
}

TensorView Dense(DType dtype, const std::vector<int64_t>& shape) {
  TensorView view;
  view.dtype = dtype;
  view.rank = static_cast<int32_t>(shape.size());
  int64_t step = UnitBytes(dtype);
  for (size_t a = shape.size(); a-- > 0;) {
    view.shape[a] = shape[a];
    view.stride[a] = step;
    step *= a + 1 == shape.size() ? (shape[a] + UnitElements(dtype) - 1) / UnitElements(dtype)
                                  : shape[a];
  }
  return view;
}

// Makes k or v quantised: mostly whole units, scales and zeros of most kinds.
void DrawCodes(FuzzedDataProvider& bytes, Problem& p, bool of_k) {
  TensorView& codes = of_k ? p.k : p.v;
  const DType type = static_cast<DType>(bytes.ConsumeIntegralInRange<int>(8, 21));
  const int64_t d = bytes.ConsumeBool() ? codes.shape[3] : 32;
  codes = Dense(type, {codes.shape[0], codes.shape[1], codes.shape[2], d});
  const Slot like = of_k ? Slot{&p.q, nullptr, false} : Slot{nullptr, &p.out, false};
  const TensorView before = like.Get();
  like.Set(Dense(before.dtype, {before.shape[0], before.shape[1], before.shape[2], d}), nullptr);
  for (TensorView* factors : {of_k ? &p.k_scale : &p.v_scale, of_k ? &p.k_zero : &p.v_zero}) {
    if (bytes.ConsumeIntegralInRange<int>(0, 5) == 0) continue;
    std::vector<int64_t> shape;
    for (int a = 0; a < kMaxRank; ++a)
      shape.push_back(bytes.ConsumeBool() ? 1 : std::max<int64_t>(codes.shape[a] / 2, 1));
    constexpr DType kTypes[] = {DType::kF32, DType::kF16,   DType::kBF16, DType::kI32,
                                DType::kU8,  DType::kF32Z4, DType::kI8};
    *factors = Dense(bytes.PickValueInArray(kTypes), shape);
  }
}

void DrawProblem(FuzzedDataProvider& bytes, Problem& p, PlanOptions& options) {
  const auto size = [&](int least, int most) {
    return bytes.ConsumeIntegralInRange<int64_t>(least, most);
  };
  const int64_t B = size(0, 3), Hkv = size(0, 2), Hq = Hkv * size(1, 3), Tq = size(0, 9),
                Tk = size(0, 20), dk = size(1, 9), dv = size(1, 9);
  Score& s = p.score;
  p.q = Dense(DType::kF32, {B, Hq, Tq, dk});
  p.k = Dense(DType::kF32, {B, Hkv, Tk, dk});
  p.v = Dense(DType::kF32, {B, Hkv, Tk, dv});
  const auto output = [](MutableTensorView& view, const TensorView& as) {
    Slot{nullptr, &view, false}.Set(as, nullptr);
  };
  output(p.out, Dense(DType::kF32, {B, Hq, Tq, dv}));
  if (bytes.ConsumeBool()) output(p.lse, Dense(DType::kF32, {B, Hq, Tq}));
  if (bytes.ConsumeBool()) output(p.weights, Dense(DType::kF32, {B, Hq, Tq, Tk}));
  if (bytes.ConsumeBool()) s.alibi_slopes = Dense(DType::kF32, {Hq});
  if (bytes.ConsumeBool()) s.sinks = Dense(DType::kF32, {Hq});
  if (bytes.ConsumeBool()) s.bias = Dense(DType::kF16, {Hq, 1, Tk});
  if (bytes.ConsumeBool()) s.mask = Dense(DType::kBool, {Tq, Tk});
  if (bytes.ConsumeBool()) s.q_lengths = Dense(DType::kI32, {B});
  if (bytes.ConsumeBool()) s.kv_lengths = Dense(DType::kI64, {B});
  if (bytes.ConsumeBool()) s.query_offsets = Dense(DType::kI32, {B});
  if (bytes.ConsumeBool()) s.query_offset = DrawNumber(bytes);
  if (bytes.ConsumeBool()) s.scale = DrawFloat(bytes);
  if (bytes.ConsumeBool()) s.softcap = DrawFloat(bytes);
  if (bytes.ConsumeBool()) s.causal = static_cast<Causal>(bytes.ConsumeIntegralInRange<int>(-1, 3));
  if (bytes.ConsumeBool()) s.window = {DrawNumber(bytes), DrawNumber(bytes)};
  if (bytes.ConsumeBool())
    options.target = static_cast<Target>(bytes.ConsumeIntegralInRange<int>(-1, 9));
  if (bytes.ConsumeBool())
    options.engine = static_cast<Engine>(bytes.ConsumeIntegralInRange<int>(-1, 3));
  if (bytes.ConsumeBool()) options.max_queries = DrawNumber(bytes);
  if (bytes.ConsumeBool()) options.max_keys = DrawNumber(bytes);
  if (bytes.ConsumeBool()) options.tile_rows = static_cast<int32_t>(DrawNumber(bytes));
  if (bytes.ConsumeBool()) options.block_keys = static_cast<int32_t>(DrawNumber(bytes));
  if (bytes.ConsumeBool()) options.split_keys = DrawNumber(bytes);
  options.fixed_mask = bytes.ConsumeBool();
  if (bytes.ConsumeBool()) s.head_scales = Dense(DType::kF32, {Hq});
  if (bytes.ConsumeBool()) s.bias_scales = Dense(DType::kF32, {Hq});
  if (bytes.ConsumeBool())
    s.key_ranges = Dense(DType::kI64, {bytes.ConsumeBool() ? B : int64_t{1}, Tq, 2});
  if (bytes.ConsumeIntegralInRange<int>(0, 3) == 0) DrawCodes(bytes, p, true);
  if (bytes.ConsumeIntegralInRange<int>(0, 3) == 0) DrawCodes(bytes, p, false);
  if (bytes.ConsumeBool()) s.key_offsets = Dense(DType::kI64, {B});
  p.ring = bytes.ConsumeBool();
  if (!bytes.ConsumeBool()) return;
  options.fixed_tables = bytes.ConsumeBool();
  const int64_t pages = size(0, 5), page = size(1, 7);
  p.k = Dense(DType::kF32, {pages, Hkv, page, dk});
  p.v = Dense(DType::kF32, {pages, Hkv, page, dv});
  if (bytes.ConsumeBool()) {
    p.pages.table = Dense(DType::kI32, {size(0, 20)});
    p.pages.begins = Dense(DType::kI64, {B + 1});
  } else {
    p.pages.table = Dense(DType::kI32, {B, size(0, 7)});
  }
  if (bytes.ConsumeBool()) p.pages.keys = bytes.ConsumeBool() ? Tk : DrawNumber(bytes);
}

void Damage(FuzzedDataProvider& bytes, Problem& p, const std::vector<Slot>& slots) {
  const Slot& slot = slots[bytes.ConsumeIntegralInRange<size_t>(0, slots.size() - 1)];
  TensorView view = slot.Get();
  const int axis = bytes.ConsumeIntegralInRange<int>(0, kMaxRank - 1);
  switch (bytes.ConsumeIntegralInRange<int>(0, 6)) {
    case 0:
      view.dtype = static_cast<DType>(bytes.ConsumeIntegralInRange<int>(-1, 24));
      break;
    case 1:
      view.rank = bytes.ConsumeIntegralInRange<int>(-1, 6);
      break;
    case 2:
      view.shape[axis] = DrawNumber(bytes);
      break;
    case 3:
      view.stride[axis] = DrawNumber(bytes);
      break;
    case 4: {  // a shape that others share
      const int64_t from = view.shape[axis], to = DrawNumber(bytes);
      for (const Slot& other : slots) {
        TensorView same = other.Get();
        for (int64_t& n : same.shape) n = n == from ? to : n;
        other.Set(same, nullptr);
      }
      return;
    }
    case 5:  // broadcast
      for (int64_t& stride : view.stride) stride = 0;
      break;
    default:
      p.score.block_map.queries = DrawNumber(bytes);
      p.score.block_map.keys = DrawNumber(bytes);
      p.score_stage = static_cast<ScoreStage>(bytes.ConsumeIntegralInRange<int>(-1, 4));
  }
  slot.Set(view, nullptr);
}

// The bytes from a view's data to its lowest element and behind its highest one. False where a view
// has no elements or makes no sense.
bool ReachOf(const TensorView& view, Wide* below, Wide* above) {
  if (view.rank < 1 || view.rank > kMaxRank) return false;
  const Wide elements = UnitElements(view.dtype);
  *below = 0, *above = UnitBytes(view.dtype);
  if (*above == 0) return false;
  for (int a = 0; a < view.rank; ++a) {
    if (view.shape[a] < 1) return false;
    const Wide count =
        a == view.rank - 1 ? (Wide{view.shape[a]} + elements - 1) / elements : Wide{view.shape[a]};
    const Wide reach = (count - 1) * view.stride[a];
    (reach < 0 ? *below : *above) += reach;
  }
  return true;
}

// Values that are ordinary for the type; integers that are lengths or offsets more often than not.
void Fill(unsigned char* data, int64_t bytes, DType dtype, test::Random& random) {
  const auto put = [&](auto value, int64_t at) {
    if (at + static_cast<int64_t>(sizeof(value)) <= bytes)
      std::memcpy(data + at, &value, sizeof(value));
  };
  std::memset(data, 0, static_cast<size_t>(bytes));
  const int64_t step = std::max<int64_t>(SizeOf(dtype), 1);
  for (int64_t at = 0; at < bytes; at += step) {
    const int64_t number = random.Between(random.Chance(0.02) ? -1 : 0, 9);
    switch (dtype) {
      case DType::kF32:
        put(static_cast<float>(random.Uniform()), at);
        break;
      case DType::kI64:
        put(number, at);
        break;
      case DType::kI32:
        put(static_cast<int32_t>(number), at);
        break;
      default:
        put(static_cast<unsigned char>(number & 1), at);
    }
  }
}

// What the tensors of one problem lie in.
class Storage {
 public:
  // Gives every tensor memory of exactly its own size; those too large get an address that must not
  // be used.
  void Place(FuzzedDataProvider& bytes, const std::vector<Slot>& slots) {
    test::Random random(bytes.ConsumeIntegral<uint8_t>());
    const uint32_t null = bytes.ConsumeBool() ? bytes.ConsumeIntegral<uint32_t>() : 0;
    for (size_t n = 0; n < slots.size(); ++n) {
      TensorView view = slots[n].Get();
      Wide below = 0, above = 0;
      const bool some = ReachOf(view, &below, &above);
      const bool fits = !some || above - below <= kMostBytes;
      const auto size = static_cast<size_t>(some && fits ? above - below : 0);
      memory_.push_back(std::make_unique<unsigned char[]>(size));
      Fill(memory_.back().get(), static_cast<int64_t>(size), view.dtype, random);
      sizes_.push_back(size);
      slots[n].Set(view, null >> n & 1 ? nullptr
                                       : memory_.back().get() +
                                             (some && fits ? static_cast<int64_t>(-below) : 0));
      const bool is_null = null >> n & 1;
      all_fit_ = all_fit_ && (fits || is_null);
      planned_fit_ = planned_fit_ && (!slots[n].planned || fits || is_null);
    }
  }
  bool all_fit() const { return all_fit_; }
  bool planned_fit() const { return planned_fit_; }

  std::vector<std::string> Contents() const {
    std::vector<std::string> contents;
    for (size_t n = 0; n < memory_.size(); ++n)
      contents.emplace_back(reinterpret_cast<const char*>(memory_[n].get()), sizes_[n]);
    return contents;
  }

 private:
  std::vector<std::unique_ptr<unsigned char[]>> memory_;
  std::vector<size_t> sizes_;
  bool all_fit_ = true, planned_fit_ = true;
};

void Print(const Problem& problem) {
  static const char* const kNames[] = {"q",
                                       "k",
                                       "v",
                                       "out",
                                       "lse",
                                       "weights",
                                       "scores",
                                       "slopes",
                                       "bias",
                                       "sinks",
                                       "mask",
                                       "block map",
                                       "parents",
                                       "query_offsets",
                                       "q_lengths",
                                       "kv_lengths",
                                       "cu_seqlens_q",
                                       "cu_seqlens_k",
                                       "head_scales",
                                       "bias_scales",
                                       "key_ranges",
                                       "page table",
                                       "page begins",
                                       "key_offsets"};
  Problem p = problem;
  const std::vector<Slot> slots = SlotsOf(p);
  for (size_t n = 0; n < slots.size(); ++n) {
    const TensorView view = slots[n].Get();
    if (!view.present()) continue;
    std::fprintf(stderr, "  %s %s rank %d%s", kNames[n], Name(view.dtype), view.rank,
                 view.data == nullptr ? " null" : "");
    for (int64_t size : view.shape) std::fprintf(stderr, " %" PRId64, size);
    std::fprintf(stderr, " strides");
    for (int64_t stride : view.stride) std::fprintf(stderr, " %" PRId64, stride);
    std::fprintf(stderr, "\n");
  }
}

[[noreturn]] void Fail(const Problem& problem, const char* what) {
  std::fprintf(stderr, "validation_fuzzer: %s\n", what);
  Print(problem);
  std::abort();
}

// A status that says nothing is a fault, too.
bool Accepts(const Problem& problem, const Status& status) {
  const size_t length = strnlen(status.message(), Status::kMaxMessage);
  if (length == Status::kMaxMessage) Fail(problem, "a message without an end");
  if ((length == 0) != status.ok()) Fail(problem, "an error without a message");
  if (std::strchr(status.message(), '\n') != nullptr) Fail(problem, "a message of two lines");
  return status.ok();
}

Wide WorkOf(const Problem& p) {
  Wide work = Wide{std::max<int64_t>(p.q.shape[3], 1)} + std::max<int64_t>(p.v.shape[3], 1);
  const TensorView& table = p.pages.table;
  const int64_t numbers = table.rank == 1 ? table.shape[0] : table.rank == 2 ? table.shape[1] : 1;
  for (int64_t n : {p.q.shape[0], p.q.shape[1], p.q.shape[2], p.k.shape[2], numbers}) {
    work *= std::max<int64_t>(n, 1);
    if (work > kMostWork) return work;
  }
  return work;
}

void TryBytes(const uint8_t* data, size_t size) {
  FuzzedDataProvider bytes(data, size);
  Problem p;
  PlanOptions options;
  DrawProblem(bytes, p, options);
  const std::vector<Slot> slots = SlotsOf(p);
  for (int damages = bytes.ConsumeIntegralInRange<int>(0, 6); damages > 0; --damages)
    Damage(bytes, p, slots);
  Storage storage;
  storage.Place(bytes, slots);

  // Lengths are read while planning, a sequence after the other: many of them take long and say
  // nothing new. (And AddressSanitizer ends the program where memory is short instead of throwing.)
  if (!storage.planned_fit()) return;
  if (p.q.shape[0] > kMostSequences && p.q.shape[0] < kBeyondMemory) return;
  for (const TensorView* starts : {&p.cu_seqlens_q, &p.cu_seqlens_k, &p.pages.begins}) {
    // read one by one, and legal where they share memory
    if (starts->present() && starts->shape[0] > kMostSequences) return;
  }
  if ((options.fixed_mask || options.fixed_tables) && WorkOf(p) > kMostWork) return;
  Plan plan;
  if (!Accepts(p, Plan::Create(p, options, &plan))) {
    if (plan.valid()) Fail(p, "a plan in spite of an error");
    return;
  }
  if (plan.ToString().empty() || !(plan.cost().pairs >= 0))
    Fail(p, "a plan that cannot tell about itself");
  if (!Accepts(p, plan.Update(p))) Fail(p, "an update to the same problem is refused");
  const size_t needed = plan.WorkspaceBytes(2);
  if (needed < plan.WorkspaceBytes(1)) Fail(p, "two workers need less than one");

  if (!storage.all_fit() || WorkOf(p) > kMostWork || needed > (size_t{16} << 20)) return;
  const std::unique_ptr<unsigned char[]> workspace(new unsigned char[needed]);
  BoundCall call;
  if (Accepts(p, Bind(plan, p, {workspace.get(), needed - 1}, 2, &call)))
    Fail(p, "a workspace too small is accepted");
  const std::vector<std::string> before = storage.Contents();
  if (!Accepts(p, Run(plan, p, {workspace.get(), needed})) && storage.Contents() != before)
    Fail(p, "an error after something was written");
}

}  // namespace
}  // namespace fovea::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fovea::fuzz::TryBytes(data, size);
  return 0;
}
