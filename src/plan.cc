#include "plan.h"

#include <algorithm>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <exception>

#include "kernels/registry.h"
#include "target.h"

namespace fovea {
namespace {

// A tile-engine item has few enough tiles for a worker's scratch to stay in L2 beside K and V: at
// usual head sizes (EngineKernels::usual_scratch), and at any.
constexpr int64_t kUsualHead = 128;
constexpr size_t kScratchBytes = size_t{1} << 20;
// Keys of a block. Tile: S of a tile (16 KiB for 32 queries) stays in L1, and O is loaded and
// stored seldom. Row: long runs of K and of V keep DRAM pages and prefetchers busy.
constexpr int32_t kTileBlockKeys = 128;
constexpr int32_t kShortBlockKeys = 64;
constexpr int32_t kRowBlockKeys = 128;
// Up to half a vector of stacked rows, but at least four, streaming K and V with lanes along the
// head dimension beats lanes that hold queries: a tile would leave half of its lanes empty. Twice
// the rows reverse it, on AVX2 and AVX-512 alike.
constexpr int64_t kLeastRowEngineRows = 4;
// A split streams about this much of K and V, so that its partial state and its task cost nothing
// next to it …
constexpr int64_t kSplitBytes = int64_t{1} << 20;
constexpr int64_t kLeastSplitKeys = 512;
// … and there are at most this many, so that partial states stay small next to K and V.
constexpr int64_t kMostSplits = 32;

// Of the map of a fixed mask: that of a mask of 256 GiB. More is not worth asking for.
constexpr int64_t kMostMapEntries = int64_t{1} << 28;

// Sums and products of sizes that are checked one by one stay below this: more than any workspace
// holds, so that a run of such a plan is refused.
constexpr int64_t kMostFloats = int64_t{1} << 58;

int64_t Times(int64_t a, int64_t b) {
  int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? kMostFloats : std::min(product, kMostFloats);
}
int64_t Plus(int64_t a, int64_t b) { return std::min(a, kMostFloats) + std::min(b, kMostFloats); }

int64_t CeilDiv(int64_t n, int64_t by) { return n / by + (n % by != 0 ? 1 : 0); }
// Down where up would be beyond 2^63.
int64_t RoundUp(int64_t n, int64_t multiple) {
  return std::min(CeilDiv(n, multiple), INT64_MAX / multiple) * multiple;
}

Engine ChooseEngine(const Plan::State& plan, int64_t rows) {
  if (plan.options.engine != Engine::kAuto) return plan.options.engine;
  if (plan.options.product == Product::kBF16) return Engine::kTile;
  const int64_t lanes = FindKernels(plan.target, Engine::kTile, Product::kF32)->min_tile_rows;
  return rows <= std::max(lanes / 2, kLeastRowEngineRows) ? Engine::kRow : Engine::kTile;
}

bool AllAreBF16(const Plan::State& plan) {
  return plan.q_type == DType::kBF16 && plan.k_type == DType::kBF16 && plan.v_type == DType::kBF16;
}

Product ChooseProduct(const Plan::State& plan, Engine engine) {
  if (plan.options.product != Product::kAuto) return plan.options.product;
  return engine == Engine::kTile && AllAreBF16(plan) && IsNativeProduct(plan.target, Product::kBF16)
             ? Product::kBF16
             : Product::kF32;
}

// A sequence with nothing to read has geometry of the least scratch.
SequencePlan PlanSequence(const Plan::State& plan, int64_t b) {
  const PlanOptions& options = plan.options;
  const Sizes& sizes = plan.sizes;
  const SequenceLengths& lengths = plan.lengths[static_cast<size_t>(b)];
  const int64_t rows = lengths.q_length * sizes.group();
  const int64_t keys = std::max<int64_t>(lengths.kv_length, 1);

  SequencePlan s;
  s.sequence = b;
  s.engine = ChooseEngine(plan, rows);
  s.product = ChooseProduct(plan, s.engine);
  s.kernels = FindKernels(plan.target, s.engine, s.product);
  const bool is_tile = s.engine == Engine::kTile;

  Geometry& g = s.geometry;
  g.dk = sizes.dk;
  g.dv = sizes.dv;
  g.group = sizes.group();
  const int64_t min_rows = s.kernels->min_tile_rows;
  int64_t tile_rows = is_tile ? (rows <= min_rows ? min_rows : s.kernels->max_tile_rows)
                              : std::clamp<int64_t>(rows, 1, s.kernels->max_tile_rows);
  g.tile_lanes = static_cast<int32_t>(tile_rows);
  if (options.tile_rows > 0) tile_rows = std::min<int64_t>(tile_rows, options.tile_rows);
  g.tile_rows = static_cast<int32_t>(tile_rows);
  g.block_keys = is_tile ? kTileBlockKeys : kRowBlockKeys;
  if (options.block_keys > 0) g.block_keys = std::min(g.block_keys, options.block_keys);
  g.block_keys = static_cast<int32_t>(std::min<int64_t>(g.block_keys, RoundUp(keys, 16)));
  const int64_t most_tiles =
      is_tile ? std::max(s.kernels->item_rows / s.kernels->max_tile_rows, 1) : 1;
  g.tiles = static_cast<int32_t>(std::clamp<int64_t>(CeilDiv(rows, tile_rows), 1, most_tiles));
  // Over budget, shorter blocks first: they cost less than fewer tiles, which read K and V from L2
  // more often.
  const size_t most_bytes =
      std::max(g.dk, g.dv) <= kUsualHead ? s.kernels->usual_scratch : kScratchBytes;
  if (is_tile && s.kernels->scratch_bytes(g) > most_bytes)
    g.block_keys = std::min(g.block_keys, kShortBlockKeys);
  while (g.tiles > 1 && s.kernels->scratch_bytes(g) > most_bytes) --g.tiles;
  s.item_rows = g.tiles * tile_rows;

  s.row_blocks = CeilDiv(lengths.queries * g.group, s.item_rows);
  s.matrix_blocks = CeilDiv(sizes.Tq * g.group, s.item_rows);
  s.costly_rows_last = plan.causal != Causal::kNone;
  if (rows > 0 && rows <= s.item_rows) {
    int64_t split_keys = std::max(kLeastSplitKeys, kSplitBytes / (SizeOf(plan.k_type) * sizes.dk +
                                                                  SizeOf(plan.v_type) * sizes.dv));
    split_keys = std::max(split_keys, CeilDiv(keys, kMostSplits));
    if (options.split_keys > 0) split_keys = std::min(split_keys, options.split_keys);
    s.split_keys = RoundUp(split_keys, g.block_keys);
    s.splits = CeilDiv(keys, s.split_keys);
  }
  s.pairs = VisiblePairs(lengths, plan.causal, plan.window, 0, lengths.q_length);
  return s;
}

MaskMapLayout MapOf(const Sizes& sizes, const TensorView& mask) {
  return sizes.Hq == 0 || sizes.B == 0 || sizes.Tq == 0 ? MaskMapLayout() : LayoutOf(mask);
}

// Memory for the map of a fixed mask that Update may reach.
Status ReserveFixedMap(Plan::State& plan, const TensorView& mask) {
  FOVEA_RETURN_IF_ERROR(CheckNotNull(Facts("mask", mask)));
  const MaskMapLayout most = LayoutWith(mask, plan.room.Tq, plan.room.Tk);
  int64_t entries = most.batches;
  for (int64_t n : {most.heads, most.query_groups, most.key_groups}) {
    if (__builtin_mul_overflow(entries, n, &entries))
      return Status(StatusCode::kOutOfMemory, "no memory for the map of the fixed mask");
  }
  if (entries > kMostMapEntries)
    return Status(StatusCode::kOutOfMemory, "no memory for the map of the fixed mask");
  plan.fixed_map.reserve(static_cast<size_t>(entries));
  return Status();
}

// Fills lengths and everything that follows from them. Allocates only what the vectors lack.
Status Lay(Plan::State& plan, const Problem& problem) {
  const int64_t B = plan.sizes.B;
  plan.lengths.resize(static_cast<size_t>(B));
  plan.sequences.clear();
  for (int64_t b = 0; b < B; ++b) {
    FOVEA_RETURN_IF_ERROR(
        ReadLengths(problem, plan.sizes, b, &plan.lengths[static_cast<size_t>(b)]));
    plan.sequences.push_back(PlanSequence(plan, b));
  }
  std::sort(plan.sequences.begin(), plan.sequences.end(),
            [](const SequencePlan& x, const SequencePlan& y) {
              return x.pairs != y.pairs ? x.pairs > y.pairs : x.sequence < y.sequence;
            });
  const bool empty = plan.sizes.Hq == 0;
  plan.items = plan.merges = plan.matrix_items = plan.partial_floats = 0;
  plan.worker_bytes = 64;  // the scratch header; slices stay multiples of 64 bytes
  for (SequencePlan& s : plan.sequences) {
    s.first_item = plan.items;
    s.first_merge = plan.merges;
    s.first_matrix = plan.matrix_items;
    s.first_partial = plan.partial_floats;
    if (empty) s.row_blocks = s.matrix_blocks = 0;
    plan.items = Plus(plan.items, Times(plan.sizes.Hkv, s.items_per_head()));
    plan.merges = Plus(plan.merges, Times(plan.sizes.Hkv, s.merges_per_head()));
    if (plan.sizes.Tk > 0)
      plan.matrix_items = Plus(plan.matrix_items, Times(plan.sizes.Hkv, s.matrix_blocks));
    const int64_t rows = std::min(
        s.item_rows, plan.lengths[static_cast<size_t>(s.sequence)].queries * s.geometry.group);
    if (s.merges_per_head() > 0) {
      plan.partial_floats = Plus(plan.partial_floats, Times(Times(plan.sizes.Hkv, s.splits),
                                                            PartialFloats(rows, plan.sizes.dv)));
    }
    if (s.row_blocks + s.matrix_blocks > 0)
      plan.worker_bytes = std::max(plan.worker_bytes, s.kernels->scratch_bytes(s.geometry));
  }
  // worker slices behind them stay aligned to 64 bytes
  plan.partial_floats = RoundUp(plan.partial_floats, 16);
  plan.phases = 0;
  plan.map_layout = MapOf(plan.sizes, problem.score.mask);
  if (plan.options.fixed_mask) {
    plan.fixed_map.resize(static_cast<size_t>(plan.map_layout.entries()));
    for (int64_t task = 0; task < plan.map_layout.tasks(); ++task) {
      FillMaskMap(problem.score.mask, plan.map_layout, task, plan.fixed_map.data());
    }
  }
  for (Phase p : {Phase::kMap, Phase::kItems, Phase::kMerges, Phase::kWeights, Phase::kScores}) {
    if (plan.Tasks(p) > 0) plan.phase[plan.phases++] = p;
  }
  return Status();
}

Present PresentIn(const Problem& problem) {
  const Score& score = problem.score;
  return {problem.lse.rank,         problem.weights.rank,
          problem.scores.rank,      score.alibi_slopes.rank,
          score.bias.rank,          score.mask.rank,
          score.sinks.rank,         score.block_map.visible.rank,
          score.parents.rank,       problem.cu_seqlens_q.rank,
          problem.cu_seqlens_k.rank};
}

Status CheckOptions(const PlanOptions& o) {
  if (o.engine < Engine::kAuto || o.engine > Engine::kRow) {
    return Invalid("options.engine = %d, expected 0 (auto), 1 (tile) or 2 (row)",
                   static_cast<int>(o.engine));
  }
  if (o.product < Product::kAuto || o.product > Product::kBF16) {
    return Invalid("options.product = %d, expected 0 (auto), 1 (f32) or 2 (bf16)",
                   static_cast<int>(o.product));
  }
  const struct {
    const char* name;
    int64_t value;
  } counts[] = {{"max_queries", o.max_queries},
                {"max_keys", o.max_keys},
                {"tile_rows", o.tile_rows},
                {"block_keys", o.block_keys},
                {"split_keys", o.split_keys}};
  for (const auto& count : counts) {
    if (count.value < 0)
      return Invalid("options.%s = %" PRId64 ", expected 0 (the plan's choice) or greater",
                     count.name, count.value);
  }
  if ((o.allocator.allocate == nullptr) != (o.allocator.release == nullptr)) {
    return Invalid("options.allocator.%s = null, expected both functions or none",
                   o.allocator.allocate == nullptr ? "allocate" : "release");
  }
  return Status();
}

// A forced product must be one that target, engine and types have.
Status CheckProduct(const Plan::State& plan) {
  if (plan.options.product != Product::kBF16) return Status();
  if (!AllAreBF16(plan)) {
    return Invalid("options.product = bf16, expected bf16 for q, k and v, which are %s, %s and %s",
                   Name(plan.q_type), Name(plan.k_type), Name(plan.v_type));
  }
  if (plan.options.engine == Engine::kRow)
    return Invalid("options.product = bf16, expected f32 with options.engine = row");
  if (!HasProduct(plan.target, Product::kBF16)) {
    return Unsupported(
        "options.product = bf16, expected f32 for target %s, which has no dot products of bf16",
        Name(plan.target));
  }
  return Status();
}

const SequencePlan& SequenceOf(const Plan::State& plan, int64_t task,
                               int64_t SequencePlan::* first) {
  const auto after =
      std::upper_bound(plan.sequences.begin(), plan.sequences.end(), task,
                       [&](int64_t t, const SequencePlan& s) { return t < s.*first; });
  // sequences without tasks share their first with the next one, which upper_bound steps over
  return *(after - 1);
}

// Row block `block` of the sequence, whole key range.
Item RowBlock(const Plan::State& plan, const SequencePlan& s, int64_t head, int64_t block,
              int64_t queries) {
  Item item;
  item.sequence = s.sequence;
  item.kv_head = head;
  item.first_row = block * s.item_rows;
  item.rows = std::min(s.item_rows, queries * s.geometry.group - item.first_row);
  item.keys = {0, plan.lengths[static_cast<size_t>(s.sequence)].kv_length};
  return item;
}

// Where the partial states of a split row block lie.
float* PartialsOf(const Plan::State& plan, const SequencePlan& s, int64_t head, int64_t rows,
                  float* partials) {
  return partials + s.first_partial + head * s.splits * PartialFloats(rows, plan.sizes.dv);
}

// The row block that comes `index`-th of `blocks`.
int64_t InCostOrder(const SequencePlan& s, int64_t blocks, int64_t index) {
  return s.costly_rows_last ? blocks - 1 - index : index;
}

int64_t QueriesOf(const Plan::State& plan, const SequencePlan& s) {
  return plan.lengths[static_cast<size_t>(s.sequence)].queries;
}

void Append(std::string& text, const char* format, ...) __attribute__((format(printf, 2, 3)));
void Append(std::string& text, const char* format, ...) {
  char line[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof(line), format, arguments);
  va_end(arguments);
  text += line;
}

// What a plan was made for, and what it is given now.
struct PlannedFact {
  const char* name;
  int64_t given;
  int64_t planned;
};

template <size_t N>
Status CheckFacts(const PlannedFact (&facts)[N]) {
  for (const PlannedFact& fact : facts) {
    if (fact.given != fact.planned)
      return Invalid("%s = %" PRId64 ", expected %" PRId64 " (the plan)", fact.name, fact.given,
                     fact.planned);
  }
  return Status();
}

// What neither Run nor Update may change.
Status CheckBound(const Plan::State& plan, const Sizes& s, const Problem& problem) {
  const Sizes& p = plan.sizes;
  const PlannedFact sizes[] = {
      {problem.cu_seqlens_q.present() ? "sequences of cu_seqlens_q" : "q.shape[0]", s.B, p.B},
      {"q.shape[1]", s.Hq, p.Hq},
      {"k.shape[1]", s.Hkv, p.Hkv},
      {"q.shape[3]", s.dk, p.dk},
      {"v.shape[3]", s.dv, p.dv}};
  FOVEA_RETURN_IF_ERROR(CheckFacts(sizes));
  const struct {
    const char* name;
    DType given, planned;
  } types[] = {{"q.dtype", problem.q.dtype, plan.q_type},
               {"k.dtype", problem.k.dtype, plan.k_type},
               {"v.dtype", problem.v.dtype, plan.v_type},
               {"out.dtype", problem.out.dtype, plan.out_type},
               {"bias.dtype", problem.score.bias.dtype, plan.bias_type}};
  for (const auto& type : types) {
    if (type.given != type.planned)
      return Invalid("%s = %s, expected %s (the plan)", type.name, Name(type.given),
                     Name(type.planned));
  }
  const Present given = PresentIn(problem);
  const PlannedFact present[] = {
      {"lse.rank", given.lse, plan.present.lse},
      {"weights.rank", given.weights, plan.present.weights},
      {"scores.rank", given.scores, plan.present.scores},
      {"alibi_slopes.rank", given.alibi_slopes, plan.present.alibi_slopes},
      {"bias.rank", given.bias, plan.present.bias},
      {"mask.rank", given.mask, plan.present.mask},
      {"sinks.rank", given.sinks, plan.present.sinks},
      {"block_map.visible.rank", given.block_map, plan.present.block_map},
      {"parents.rank", given.parents, plan.present.parents},
      {"cu_seqlens_q.rank", given.cu_seqlens_q, plan.present.cu_seqlens_q},
      {"cu_seqlens_k.rank", given.cu_seqlens_k, plan.present.cu_seqlens_k},
      {"score_stage", static_cast<int64_t>(problem.score_stage),
       static_cast<int64_t>(plan.score_stage)}};
  return CheckFacts(present);
}

}  // namespace

Item ItemOf(const Plan::State& plan, int64_t task, float* partials,
            const SequencePlan** sequence) noexcept {
  const SequencePlan& s = SequenceOf(plan, task, &SequencePlan::first_item);
  *sequence = &s;
  const int64_t head = (task - s.first_item) / s.items_per_head();
  const int64_t index = (task - s.first_item) % s.items_per_head();
  const int64_t queries = QueriesOf(plan, s);
  if (s.splits == 1) return RowBlock(plan, s, head, InCostOrder(s, s.row_blocks, index), queries);
  if (index >= s.splits) return RowBlock(plan, s, head, index - s.splits + 1, queries);
  Item item = RowBlock(plan, s, head, 0, queries);
  item.keys = {index * s.split_keys, std::min((index + 1) * s.split_keys, item.keys.end)};
  item.partial = PartialsOf(plan, s, head, item.rows, partials) +
                 index * PartialFloats(item.rows, plan.sizes.dv);
  item.takes_sink = index == 0;
  return item;
}

MergeItem MergeOf(const Plan::State& plan, int64_t task, float* partials,
                  const SequencePlan** sequence) noexcept {
  const SequencePlan& s = SequenceOf(plan, task, &SequencePlan::first_merge);
  *sequence = &s;
  const int64_t head = task - s.first_merge;
  const Item item = RowBlock(plan, s, head, 0, QueriesOf(plan, s));
  return {item.sequence,
          head,
          item.first_row,
          item.rows,
          PartialsOf(plan, s, head, item.rows, partials),
          s.splits};
}

Item MatrixItemOf(const Plan::State& plan, int64_t task, const SequencePlan** sequence) noexcept {
  const SequencePlan& s = SequenceOf(plan, task, &SequencePlan::first_matrix);
  *sequence = &s;
  const int64_t head = (task - s.first_matrix) / s.matrix_blocks,
                index = (task - s.first_matrix) % s.matrix_blocks;
  return RowBlock(plan, s, head, InCostOrder(s, s.matrix_blocks, index), plan.sizes.Tq);
}

int64_t Plan::State::Tasks(Phase p) const noexcept {
  switch (p) {
    case Phase::kMap:
      return options.fixed_mask ? 0 : map_layout.tasks();
    case Phase::kItems:
      return items;
    case Phase::kMerges:
      return merges;
    case Phase::kWeights:
      return present.weights > 0 ? matrix_items : 0;
    case Phase::kScores:
      return present.scores > 0 ? matrix_items : 0;
  }
  return 0;
}

uint64_t Plan::State::map_bytes() const noexcept {
  if (options.fixed_mask) return 0;
  return static_cast<uint64_t>(RoundUp(Times(map_layout.entries(), sizeof(MaskMapEntry)), 64));
}

Status CheckAgainstPlan(const Plan::State& plan, const Problem& problem) noexcept {
  Sizes s;
  FOVEA_RETURN_IF_ERROR(CheckProblem(problem, &s));
  FOVEA_RETURN_IF_ERROR(CheckBound(plan, s, problem));
  const Sizes& p = plan.sizes;
  const Score& score = problem.score;
  const MaskMapLayout map = MapOf(s, score.mask);
  const PlannedFact facts[] = {
      {problem.cu_seqlens_q.present() ? "the longest of cu_seqlens_q" : "q.shape[2]", s.Tq, p.Tq},
      {problem.cu_seqlens_k.present() ? "the longest of cu_seqlens_k" : "k.shape[2]", s.Tk, p.Tk},
      {"sequences that the mask tells apart", map.batches, plan.map_layout.batches},
      {"heads that the mask tells apart", map.heads, plan.map_layout.heads},
      {"groups of queries that the mask tells apart", map.query_groups,
       plan.map_layout.query_groups},
      {"groups of keys that the mask tells apart", map.key_groups, plan.map_layout.key_groups},
      {"causal", static_cast<int64_t>(score.causal), static_cast<int64_t>(plan.causal)},
      {"window.left", score.window.left, plan.window.left},
      {"window.right", score.window.right, plan.window.right}};
  FOVEA_RETURN_IF_ERROR(CheckFacts(facts));
  for (int64_t b = 0; b < p.B; ++b) {
    SequenceLengths given;
    FOVEA_RETURN_IF_ERROR(ReadLengths(problem, p, b, &given));
    const SequenceLengths& planned = plan.lengths[static_cast<size_t>(b)];
    const struct {
      const char* name;
      int64_t given, planned;
    } lengths[] = {
        {"cu_seqlens_q", given.q_first, planned.q_first},
        {"cu_seqlens_k", given.kv_first, planned.kv_first},
        {"the rows of cu_seqlens_q", given.queries, planned.queries},
        {"q_lengths", given.q_length, planned.q_length},
        {score.kv_lengths.present() || !problem.cu_seqlens_k.present() ? "kv_lengths"
                                                                       : "the rows of cu_seqlens_k",
         given.kv_length, planned.kv_length},
        {score.query_offsets.present() ? "query_offsets" : "query_offset", given.offset,
         planned.offset}};
    for (const auto& length : lengths) {
      if (length.given != length.planned) {
        return Invalid("%s[%" PRId64 "] = %" PRId64 ", expected %" PRId64 " (the plan)",
                       length.name, b, length.given, length.planned);
      }
    }
  }
  return Status();
}

void Plan::Destroy::operator()(State* state) const noexcept {
  const Allocator allocator = state->options.allocator;
  state->~State();
  Release(allocator, state, sizeof(State));
}

Plan::Plan() noexcept = default;
Plan::~Plan() = default;
Plan::Plan(Plan&&) noexcept = default;
Plan& Plan::operator=(Plan&&) noexcept = default;

Status Plan::Create(const Problem& problem, const PlanOptions& options, Plan* plan) noexcept try {
  Sizes sizes;
  FOVEA_RETURN_IF_ERROR(CheckProblem(problem, &sizes));
  FOVEA_RETURN_IF_ERROR(CheckOptions(options));
  void* const memory = Allocate(options.allocator, sizeof(State));
  if (memory == nullptr) return Status(StatusCode::kOutOfMemory, "no memory for the plan");
  std::unique_ptr<State, Destroy> state(new (memory) State(options));
  FOVEA_RETURN_IF_ERROR(ChooseTarget(options.target, &state->target));
  state->sizes = sizes;
  state->room = sizes;
  state->room.Tq = std::max(sizes.Tq, options.max_queries);
  state->room.Tk = std::max(sizes.Tk, options.max_keys);
  state->q_type = problem.q.dtype;
  state->k_type = problem.k.dtype;
  state->v_type = problem.v.dtype;
  state->out_type = problem.out.dtype;
  state->bias_type = problem.score.bias.dtype;
  FOVEA_RETURN_IF_ERROR(CheckProduct(*state));
  state->present = PresentIn(problem);
  state->score_stage = problem.score_stage;
  state->causal = problem.score.causal;
  state->window = problem.score.window;
  if (static_cast<uint64_t>(sizes.B) > state->sequences.max_size())  // in 32 bits too
    return Status(StatusCode::kOutOfMemory, "no memory for the plan");
  state->sequences.reserve(static_cast<size_t>(sizes.B));
  if (options.fixed_mask) FOVEA_RETURN_IF_ERROR(ReserveFixedMap(*state, problem.score.mask));
  FOVEA_RETURN_IF_ERROR(Lay(*state, problem));
  plan->state_ = std::move(state);
  return Status();
} catch (const std::exception&) {  // bad_alloc, or length_error for more sequences than a vector
                                   // may hold
  return Status(StatusCode::kOutOfMemory, "no memory for the plan");
}

Status Plan::Update(const Problem& problem) noexcept {
  if (!valid()) return Invalid("plan = empty, expected one that Create has made");
  State& state = *state_;
  Sizes sizes;
  FOVEA_RETURN_IF_ERROR(CheckProblem(problem, &sizes));
  if (sizes.Tq > state.room.Tq)
    return Invalid("q.shape[2] = %" PRId64 ", expected at most %" PRId64 " (the plan's room)",
                   sizes.Tq, state.room.Tq);
  if (sizes.Tk > state.room.Tk)
    return Invalid("k.shape[2] = %" PRId64 ", expected at most %" PRId64 " (the plan's room)",
                   sizes.Tk, state.room.Tk);
  // All lengths first: after this nothing can fail, so a refused update leaves the plan as it was.
  for (int64_t b = 0; b < sizes.B; ++b) {
    SequenceLengths lengths;
    FOVEA_RETURN_IF_ERROR(ReadLengths(problem, sizes, b, &lengths));
  }
  FOVEA_RETURN_IF_ERROR(CheckBound(state, sizes, problem));
  if (state.options.fixed_mask) {
    FOVEA_RETURN_IF_ERROR(CheckNotNull(Facts("mask", problem.score.mask)));
    if (static_cast<size_t>(MapOf(sizes, problem.score.mask).entries()) >
        state.fixed_map.capacity()) {
      return Invalid(
          "mask.rank = %d has axes that broadcast no more, expected those of the plan (its fixed "
          "mask)",
          problem.score.mask.rank);
    }
  }
  state.sizes.Tq = sizes.Tq;
  state.sizes.Tk = sizes.Tk;
  state.causal = problem.score.causal;
  state.window = problem.score.window;
  return Lay(state, problem);
}

size_t Plan::WorkspaceBytes(int workers) const noexcept {
  if (!valid() || workers < 1) return 0;
  constexpr uint64_t kAlignment = 64;
  // In 64 bits on hosts of 32 too.
  uint64_t bytes = kAlignment - 1 + state_->map_bytes() +
                   static_cast<uint64_t>(state_->partial_floats) * sizeof(float),
           slices;
  const bool too_many =
      __builtin_mul_overflow(static_cast<uint64_t>(workers), state_->worker_bytes, &slices) ||
      __builtin_add_overflow(bytes, slices, &bytes) || bytes > SIZE_MAX;
  return too_many ? SIZE_MAX : static_cast<size_t>(bytes);
}

Target Plan::target() const noexcept { return valid() ? state_->target : Target::kAuto; }

Engine Plan::engine() const noexcept {
  if (!valid()) return Engine::kAuto;
  return state_->sequences.empty() ? state_->options.engine : state_->sequences.front().engine;
}

Product Plan::product() const noexcept {
  if (!valid()) return Product::kAuto;
  for (const SequencePlan& s : state_->sequences) {
    if (s.product == Product::kBF16) return s.product;
  }
  return state_->sequences.empty() ? state_->options.product : state_->sequences.front().product;
}

Cost Plan::cost() const noexcept {
  Cost cost;
  if (!valid()) return cost;
  const Sizes& sizes = state_->sizes;
  for (const SequencePlan& s : state_->sequences) {
    cost.pairs += s.pairs * static_cast<double>(sizes.Hq);
    const SequenceLengths& lengths = state_->lengths[static_cast<size_t>(s.sequence)];
    // Intervals move up with the query: together they run from the first query's start to the last
    // one's end.
    const KeyRange first = VisibleKeys(lengths, state_->causal, state_->window, 0);
    const KeyRange last =
        VisibleKeys(lengths, state_->causal, state_->window, lengths.q_length - 1);
    const double keys = s.pairs > 0 ? static_cast<double>(last.end - first.first) : 0;
    cost.kv_bytes += keys * static_cast<double>(sizes.Hkv) *
                     (static_cast<double>(sizes.dk * SizeOf(state_->k_type)) +
                      static_cast<double>(sizes.dv * SizeOf(state_->v_type)));
  }
  cost.flops = cost.pairs * 2 * (static_cast<double>(sizes.dk) + static_cast<double>(sizes.dv));
  for (int p = 0; p < state_->phases; ++p)
    cost.tasks = std::max(cost.tasks, state_->Tasks(state_->phase[p]));
  return cost;
}

std::string Plan::ToString() const {
  std::string text;
  if (!valid()) return "empty plan\n";
  const State& state = *state_;
  const Sizes& z = state.sizes;
  Append(text,
         "attention  B %" PRId64 "  Hq/Hkv %" PRId64 "/%" PRId64 "  Tq×Tk %" PRId64 "×%" PRId64
         "  dk/dv %" PRId64 "/%" PRId64 "\n",
         z.B, z.Hq, z.Hkv, z.Tq, z.Tk, z.dk, z.dv);
  Append(text, "types      q %s  k %s  v %s  out %s%s%s\n", Name(state.q_type), Name(state.k_type),
         Name(state.v_type), Name(state.out_type), state.present.lse > 0 ? "  lse" : "",
         state.present.weights > 0 ? "  weights" : "");
  if (state.map_layout.entries() > 0) {
    Append(text, "mask       read %s, in groups of %" PRId64 " queries × %" PRId64 " keys\n",
           state.options.fixed_mask ? "once by this plan" : "once by each run", kMapQueries,
           kMapKeys);
  }
  Append(text, "target     %s\n", fovea::Name(state.target));
  constexpr size_t kListed = 8;
  for (size_t x = 0; x < state.sequences.size() && x < kListed; ++x) {
    const SequencePlan& s = state.sequences[x];
    const SequenceLengths& l = state.lengths[static_cast<size_t>(s.sequence)];
    Append(text,
           "sequence %" PRId64 "  queries %" PRId64 "  keys %" PRId64 "  offset %" PRId64
           "  pairs %.0f\n",
           s.sequence, l.q_length, l.kv_length, l.offset, s.pairs);
    Append(text,
           "           engine %s  product %s  tile %d rows × %d keys  items %" PRId64 " × %" PRId64
           " rows a KV head  splits %" PRId64 " of %" PRId64 " keys\n",
           fovea::Name(s.engine), fovea::Name(s.product), s.geometry.tile_rows,
           s.geometry.block_keys, s.row_blocks, s.item_rows, s.splits,
           s.splits > 1 ? s.split_keys : l.kv_length);
  }
  if (state.sequences.size() > kListed)
    Append(text, "           … and %zu more sequences\n", state.sequences.size() - kListed);
  Append(text,
         "tasks      map %" PRId64 "  items %" PRId64 "  merges %" PRId64 "  weights %" PRId64
         "  scores %" PRId64 "\n",
         state.Tasks(Phase::kMap), state.items, state.merges, state.Tasks(Phase::kWeights),
         state.Tasks(Phase::kScores));
  const Cost c = cost();
  Append(text, "cost       %.3g FLOP  %.3g bytes of K and V\n", c.flops, c.kv_bytes);
  Append(text,
         "workspace  workers × %zu + %" PRId64 " bytes of partial states + %" PRIu64
         " of the mask's map (+ 63 to align)\n",
         state.worker_bytes, state.partial_floats * 4, state.map_bytes());
  return text;
}

const char* Name(Engine engine) noexcept {
  switch (engine) {
    case Engine::kAuto:
      return "auto";
    case Engine::kTile:
      return "tile";
    case Engine::kRow:
      return "row";
  }
  return "unknown";
}

const char* Name(Product product) noexcept {
  switch (product) {
    case Product::kAuto:
      return "auto";
    case Product::kF32:
      return "f32";
    case Product::kBF16:
      return "bf16";
  }
  return "unknown";
}

}  // namespace fovea
