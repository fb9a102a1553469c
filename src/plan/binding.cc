#include "plan/binding.h"

#include <cinttypes>

namespace fovea {
namespace {

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

const char* NameOfTk(const ValidProblem& problem) {
  return problem->cu_seqlens_k.present() ? "the longest of cu_seqlens_k"
         : problem->pages.present()      ? "Tk of pages"
                                         : "k.shape[2]";
}

// Ranks, and so which tensors are present, and types.
Status CheckTensors(const Problem& problem, const Problem& bound) {
  struct Difference {
    const TensorRow* row = nullptr;
    int32_t rank, planned_rank;
    DType dtype, planned_dtype;
  } first;
  ForEachTensor(
      [&](const TensorRow& row, const auto& given, const auto& planned) {
        const bool differs = (row.rank_bound && given.rank != planned.rank) ||
                             (row.type_bound && given.dtype != planned.dtype);
        if (differs && first.row == nullptr)
          first = {&row, given.rank, planned.rank, given.dtype, planned.dtype};
      },
      problem, bound);
  if (first.row == nullptr) return Status();
  if (first.rank != first.planned_rank)
    return Invalid("%s.rank = %d, expected %d (the plan)", first.row->name, first.rank,
                   first.planned_rank);
  return Invalid("%s.dtype = %s, expected %s (the plan)", first.row->name, Name(first.dtype),
                 Name(first.planned_dtype));
}

// What neither Run nor Update may change.
Status CheckBound(const Plan::State& plan, const ValidProblem& problem) {
  const ProblemSizes &s = problem.sizes(), &p = plan.sizes;
  const PlannedFact facts[] = {
      {problem->cu_seqlens_q.present() ? "sequences of cu_seqlens_q" : "q.shape[0]", s.B, p.B},
      {"q.shape[1]", s.Hq, p.Hq},
      {"k.shape[1]", s.Hkv, p.Hkv},
      {"q.shape[3]", s.dk, p.dk},
      {"v.shape[3]", s.dv, p.dv},
      {"k.shape[2] (keys of a page)", s.page, p.page},
      {"ring", problem->ring, plan.bound.ring},
      {"score_stage", static_cast<int64_t>(problem->score_stage),
       static_cast<int64_t>(plan.bound.score_stage)},
      {"function (0: none)", problem->score.function.present(),
       plan.bound.score.function.present()}};
  FOVEA_RETURN_IF_ERROR(CheckFacts(facts));
  return CheckTensors(*problem, plan.bound);
}

// What kv_lengths says: of a ring, where its keys end.
int64_t KeysOf(const ValidProblem& problem, const SequenceLengths& lengths) {
  return problem->ring ? lengths.keys.end : lengths.kv_length();
}

// Lengths, offsets and starts of all sequences.
Status CheckLengths(const Plan::State& plan, const ValidProblem& problem) {
  for (int64_t b = 0; b < plan.sizes.B; ++b) {
    SequenceLengths given;
    FOVEA_RETURN_IF_ERROR(ReadLengths(problem, b, &given));
    const SequenceLengths& planned = plan.lengths[static_cast<size_t>(b)];
    const PlannedFact facts[] = {
        {"cu_seqlens_q", given.q_first, planned.q_first},
        {"cu_seqlens_k", given.kv_first, planned.kv_first},
        {"key_offsets", problem->ring ? 0 : given.keys.first,
         problem->ring ? 0 : planned.keys.first},
        {"the rows of cu_seqlens_q", given.queries, planned.queries},
        {"q_lengths", given.q_length, planned.q_length},
        {problem->score.kv_lengths.present() || !problem->cu_seqlens_k.present()
             ? "kv_lengths"
             : "the rows of cu_seqlens_k",
         KeysOf(problem, given), KeysOf(problem, planned)},
        {problem->score.query_offsets.present() ? "query_offsets" : "query_offset", given.offset,
         planned.offset}};
    for (const PlannedFact& fact : facts) {
      if (fact.given != fact.planned)
        return Invalid("%s[%" PRId64 "] = %" PRId64 ", expected %" PRId64 " (the plan)", fact.name,
                       b, fact.given, fact.planned);
    }
  }
  return Status();
}

// All but the tensors. Every member of Problem and Score is here: either it is compared, or it may
// be anything that its own check allows.
bool SameNumbers(const Problem& problem, const Problem& planned) {
  const Score &score = problem.score, &bound = planned.score;
  const bool same = problem.ring == planned.ring && problem.pages.keys == planned.pages.keys &&
                    problem.k_group_stride == planned.k_group_stride &&
                    problem.v_group_stride == planned.v_group_stride &&
                    problem.score_stage == planned.score_stage &&
                    score.function.present() == bound.function.present() &&
                    score.block_map.queries == bound.block_map.queries &&
                    score.block_map.keys == bound.block_map.keys && score.causal == bound.causal &&
                    score.window.left == bound.window.left &&
                    score.window.right == bound.window.right &&
                    score.query_offset == bound.query_offset;
  return same && (!score.scale.has_value() || IsScale(*score.scale)) && IsSoftcap(score.softcap);
}

// Of a tensor that both have: the same type and sizes, and strides and data that pass every check.
template <class View>
bool SameView(const View& view, const View& planned) {
  uint64_t differs = static_cast<uint64_t>(view.dtype != planned.dtype);
  for (int a = 0; a < kMaxRank; ++a)
    differs |= static_cast<uint64_t>(view.shape[a] ^ planned.shape[a]);
  return differs == 0 && view.data != nullptr && view.dtype != DType::kBit &&
         IsPlain(Facts("", view));
}

}  // namespace

Repetition CompareWithPlanned(const Plan::State& plan, const Problem& problem) noexcept {
  Repetition result = {SameNumbers(problem, plan.bound), true};
  ForEachTensor(
      [&](const TensorRow& row, const auto& view, const auto& planned) {
        if (planned.rank == 0 || view.rank == 0) {
          result.same = result.same && view.rank == planned.rank;
        } else if (row.types.set == kIntegers.set) {
          result.same = false;
        } else if (result.same) {
          result.same = view.rank == planned.rank && SameView(view, planned);
          if (result.same && row.walked)
            result.settled = result.settled && IsSettled(Facts("", view));
        }
      },
      problem, plan.bound);
  return result;
}

void BindProblem(const ValidProblem& problem, Plan::State* plan) noexcept {
  for (int n = 0; n < kMaps; ++n) plan->maps[n].layout = MapLayoutOf(kMapSources[n], problem);
  plan->fixed_pages = plan->options.fixed_tables ? problem->k.shape[0] : 0;
}

Status CheckUpdate(const Plan::State& plan, const ValidProblem& problem) noexcept {
  const ProblemSizes &s = problem.sizes(), &room = plan.room;
  if (s.Tq > room.Tq)
    return Invalid("q.shape[2] = %" PRId64 ", expected at most %" PRId64 " (the plan's room)", s.Tq,
                   room.Tq);
  if (s.Tk > room.Tk)
    return Invalid("%s = %" PRId64 ", expected at most %" PRId64 " (the plan's room)",
                   NameOfTk(problem), s.Tk, room.Tk);
  FOVEA_RETURN_IF_ERROR(CheckBound(plan, problem));
  for (int n = 0; n < kMaps; ++n) {
    const MapSource& source = kMapSources[n];
    if (!source.fixed(plan.options)) continue;
    const TensorView& view = source.view(*problem);
    FOVEA_RETURN_IF_ERROR(CheckNotNull(Facts(source.name, view)));
    const int64_t entries = MapLayoutOf(source, problem).entries();
    if (static_cast<size_t>(entries) > plan.maps[n].fixed.capacity())
      return Invalid(
          "%s.rank = %d has axes that broadcast no more, expected those of the plan (its fixed %s)",
          source.name, view.rank, source.name);
  }
  return Status();
}

// How mask and bias broadcast: their maps have room in the plan or the workspace.
Status CheckMaps(const Plan::State& plan, const ValidProblem& problem) {
  for (int n = 0; n < kMaps; ++n) {
    const MapSource& source = kMapSources[n];
    const MaskMapLayout given = MapLayoutOf(source, problem), &planned = plan.maps[n].layout;
    if (given == planned) continue;
    const PlannedFact facts[] = {{source.axes[0], given.batches, planned.batches},
                                 {source.axes[1], given.heads, planned.heads},
                                 {source.axes[2], given.query_groups, planned.query_groups},
                                 {source.axes[3], given.key_groups, planned.key_groups}};
    FOVEA_RETURN_IF_ERROR(CheckFacts(facts));
  }
  return Status();
}

Status CheckAgainstPlan(const Plan::State& plan, const ValidProblem& problem) noexcept {
  FOVEA_RETURN_IF_ERROR(CheckBound(plan, problem));
  const ProblemSizes &s = problem.sizes(), &p = plan.sizes;
  const Score &score = problem->score, &bound = plan.bound.score;
  const PlannedFact facts[] = {
      {problem->cu_seqlens_q.present() ? "the longest of cu_seqlens_q" : "q.shape[2]", s.Tq, p.Tq},
      {NameOfTk(problem), s.Tk, p.Tk},
      {"k.shape[0] (of a fixed table)", plan.options.fixed_tables ? problem->k.shape[0] : 0,
       plan.fixed_pages},
      {"causal", static_cast<int64_t>(score.causal), static_cast<int64_t>(bound.causal)},
      {"window.left", score.window.left, bound.window.left},
      {"window.right", score.window.right, bound.window.right}};
  FOVEA_RETURN_IF_ERROR(CheckFacts(facts));
  FOVEA_RETURN_IF_ERROR(CheckMaps(plan, problem));
  return CheckLengths(plan, problem);
}

MaskMapLayout MapLayoutOf(const MapSource& source, const ValidProblem& problem) noexcept {
  const ProblemSizes& s = problem.sizes();
  return s.Hq == 0 || s.B == 0 || s.Tq == 0 ? MaskMapLayout() : LayoutOf(source.view(*problem));
}

}  // namespace fovea
