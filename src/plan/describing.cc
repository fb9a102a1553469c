// What a plan tells about itself.
#include <algorithm>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>

#include "float_state.h"
#include "plan/phases.h"
#include "plan/state.h"

namespace fovea {
namespace {

void Append(std::string& text, const char* format, ...) __attribute__((format(printf, 2, 3)));
void Append(std::string& text, const char* format, ...) {
  char line[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof(line), format, arguments);
  va_end(arguments);
  text += line;
}

}  // namespace

Cost CostOf(const Plan::State& state) noexcept {
  Cost cost;
  const ProblemSizes& sizes = state.sizes;
  const Score& score = state.bound.score;
  for (const SequencePlan& s : state.sequences) {
    cost.pairs += s.pairs * static_cast<double>(sizes.Hq);
    const SequenceLengths& lengths = state.LengthsOf(s);
    // Intervals move up with the query: together they run from the first query's start to the last
    // one's end.
    const KeyRange first = VisibleKeys(lengths, score.causal, score.window, 0);
    const KeyRange last = VisibleKeys(lengths, score.causal, score.window, lengths.q_length - 1);
    const double keys = s.pairs > 0 ? static_cast<double>(last.end - first.first) : 0;
    cost.kv_bytes += keys * static_cast<double>(sizes.Hkv) *
                     (static_cast<double>(sizes.dk * SizeOf(state.bound.k.dtype)) +
                      static_cast<double>(sizes.dv * SizeOf(state.bound.v.dtype)));
  }
  cost.flops = cost.pairs * 2 * (static_cast<double>(sizes.dk) + static_cast<double>(sizes.dv));
  for (int p = 0; p < state.phases; ++p)
    cost.tasks = std::max(cost.tasks, state.phase[p]->tasks(state));
  return cost;
}

namespace {

std::string Describe(const Plan::State& state) {
  std::string text;
  const Problem& bound = state.bound;
  const ProblemSizes& z = state.sizes;
  Append(text,
         "attention  B %" PRId64 "  Hq/Hkv %" PRId64 "/%" PRId64 "  Tq×Tk %" PRId64 "×%" PRId64
         "  dk/dv %" PRId64 "/%" PRId64 "\n",
         z.B, z.Hq, z.Hkv, z.Tq, z.Tk, z.dk, z.dv);
  Append(text, "types      q %s  k %s  v %s  out %s%s%s\n", Name(bound.q.dtype),
         Name(bound.k.dtype), Name(bound.v.dtype), Name(bound.out.dtype),
         bound.lse.present() ? "  lse" : "", bound.weights.present() ? "  weights" : "");
  for (int n = 0; n < kMaps; ++n) {
    if (state.maps[n].layout.entries() == 0) continue;
    Append(text, "%s       read %s, in groups of %" PRId64 " queries × %" PRId64 " keys\n",
           kMapSources[n].name,
           kMapSources[n].fixed(state.options) ? "once by this plan" : "once by each run",
           kMapQueries, kMapKeys);
  }
  Append(text, "target     %s\n", fovea::Name(state.target));
  if (bound.ring) Append(text, "cache      ring of %" PRId64 " rows\n", z.Tk);
  if (bound.pages.present()) {
    Append(text, "cache      pages of %" PRId64 " keys, numbers %s, checked %s\n", z.page,
           bound.pages.begins.present() ? "in one list" : "in rows",
           state.options.fixed_tables ? "by this plan" : "by each run");
  }
  constexpr size_t kListed = 8;
  for (size_t x = 0; x < state.sequences.size() && x < kListed; ++x) {
    const SequencePlan& s = state.sequences[x];
    const SequenceLengths& l = state.LengthsOf(s);
    Append(text,
           "sequence %" PRId64 "  queries %" PRId64 "  keys %" PRId64 "  offset %" PRId64
           "  pairs %.0f\n",
           s.sequence, l.q_length, l.kv_length(), l.offset, s.pairs);
    if (l.keys.first > 0) Append(text, "           keys from position %" PRId64 "\n", l.keys.first);
    Append(text,
           "           engine %s  product %s  tile %d rows × %d keys  items %" PRId64 " × %" PRId64
           " rows a KV head  splits %" PRId64 " of %" PRId64 " keys\n",
           fovea::Name(s.engine), fovea::Name(s.product), s.geometry.tile_rows,
           s.geometry.block_keys, s.row_blocks, s.item_rows, s.splits,
           s.is_split ? s.split_keys : l.kv_length());
  }
  if (state.sequences.size() > kListed)
    Append(text, "           … and %zu more sequences\n", state.sequences.size() - kListed);
  text += "tasks    ";
  for (const Phase& phase : kPhases) Append(text, "  %s %" PRId64, phase.name, phase.tasks(state));
  text += '\n';
  const Cost c = CostOf(state);
  Append(text, "cost       %.3g FLOP  %.3g bytes of K and V\n", c.flops, c.kv_bytes);
  Append(text,
         "workspace  workers × %" PRIu64 " + %" PRIu64 " bytes of partial states + %" PRIu64
         " of maps + %" PRIu64 " of trees (+ 63 to align)\n",
         state.workspace.worker_bytes, state.workspace.partial_bytes, state.workspace.map_bytes,
         state.workspace.tree_bytes);
  return text;
}

}  // namespace

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
  return valid() ? InDefaultFloatState([this] { return CostOf(*state_); }) : Cost();
}

// How numbers are printed depends on the state too.
std::string Plan::ToString() const {
  return valid() ? InDefaultFloatState([this] { return Describe(*state_); }) : "empty plan\n";
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
