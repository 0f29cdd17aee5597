#include "common/planner/frozen_flow.h"

#include <algorithm>
#include <string>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/schedule/self_conditioning.h"
#include "common/spec/frozen.h"
#include "fmt/format.h"

namespace atl::planner {
namespace {

absl::Status Invalid(const std::string& message) {
  return MakeError(absl::StatusCode::kInvalidArgument, "FROZEN_PIECES", "frozen pieces: " + message);
}

int32_t EndSample(const FrozenPiece& piece) {
  return piece.first_sample + piece.samples;
}

absl::Status CheckPieces(const Plan& plan, int32_t batch) {
  if (static_cast<int32_t>(plan.frozen.size()) != plan.schedule.frozen_pieces) {
    return Invalid(
        fmt::format("expected {}, as in the schedule, found {}", plan.schedule.frozen_pieces, plan.frozen.size()));
  }
  for (size_t c = 0; c < plan.components.size(); ++c) {
    const FrozenComponent& component = plan.components[c];
    if (component.layers >= 1 && component.reads >= -1 && component.reads < static_cast<int32_t>(c)) continue;
    return Invalid(
        fmt::format("component {}: expected layers that read the batch or an earlier component, found {} "
                    "that read {}",
                    c, component.layers, component.reads));
  }
  for (size_t p = 0; p < plan.frozen.size(); ++p) {
    const FrozenPiece& piece = plan.frozen[p];
    const bool known = piece.component >= 0 && piece.component < static_cast<int32_t>(plan.components.size());
    if (!known || piece.first_layer < 0 || piece.first_layer >= piece.end_layer ||
        piece.end_layer > plan.components[static_cast<size_t>(piece.component)].layers || piece.samples < 1 ||
        piece.first_sample < 0 || piece.samples > batch - piece.first_sample) {
      return Invalid(fmt::format(
          "piece {}: expected layers of one of {} components and samples below {}, found layers {} to {} of "
          "component {} and {} samples from {}",
          p, plan.components.size(), batch, piece.first_layer, piece.end_layer, piece.component, piece.samples,
          piece.first_sample));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRanks(const Plan& plan) {
  for (int32_t rank = 0; rank < plan.schedule.rank_count(); ++rank) {
    for (const schedule::Action& action : plan.schedule.ranks[static_cast<size_t>(rank)]) {
      if (action.kind != schedule::ActionKind::kFrozen) continue;
      const FrozenPiece& piece = plan.frozen[static_cast<size_t>(action.micro_batch)];
      if (piece.rank == rank) continue;
      return Invalid(fmt::format("piece {}: expected rank {}, as in the schedule, found {}", action.micro_batch, rank,
                                 piece.rank));
    }
  }
  return absl::OkStatus();
}

// The pieces of `component` that pass `layer`, in order of their samples.
std::vector<int32_t> PiecesOver(const Plan& plan, int32_t component, int32_t layer) {
  std::vector<int32_t> pieces;
  for (size_t p = 0; p < plan.frozen.size(); ++p) {
    const FrozenPiece& piece = plan.frozen[p];
    if (piece.component == component && piece.first_layer <= layer && layer < piece.end_layer) {
      pieces.push_back(static_cast<int32_t>(p));
    }
  }
  std::sort(pieces.begin(), pieces.end(), [&plan](int32_t a, int32_t b) {
    return plan.frozen[static_cast<size_t>(a)].first_sample < plan.frozen[static_cast<size_t>(b)].first_sample;
  });
  return pieces;
}

absl::Status CheckCoverage(const Plan& plan, int32_t batch) {
  for (size_t c = 0; c < plan.components.size(); ++c) {
    for (int32_t layer = 0; layer < plan.components[c].layers; ++layer) {
      int32_t next = 0;
      for (const int32_t p : PiecesOver(plan, static_cast<int32_t>(c), layer)) {
        const FrozenPiece& piece = plan.frozen[static_cast<size_t>(p)];
        if (piece.first_sample != next) break;
        next = EndSample(piece);
      }
      if (next == batch) continue;
      return Invalid(
          fmt::format("component {}, layer {}: expected one piece for every sample of {}, found none or "
                      "several for sample {}",
                      c, layer, batch, next));
    }
  }
  return absl::OkStatus();
}

// The pieces whose outputs piece p reads: they end where it begins, or at the end of the component that its own reads.
absl::StatusOr<std::vector<int32_t>> ReadsOf(const Plan& plan, size_t p) {
  const FrozenPiece& piece = plan.frozen[p];
  const bool inside = piece.first_layer > 0;
  const int32_t component = inside ? piece.component : plan.components[static_cast<size_t>(piece.component)].reads;
  std::vector<int32_t> reads;
  if (component < 0) return reads;
  const int32_t layer = (inside ? piece.first_layer : plan.components[static_cast<size_t>(component)].layers) - 1;
  for (const int32_t q : PiecesOver(plan, component, layer)) {
    const FrozenPiece& before = plan.frozen[static_cast<size_t>(q)];
    if (before.first_sample >= EndSample(piece) || EndSample(before) <= piece.first_sample) continue;
    if (before.end_layer != layer + 1) {
      return Invalid(fmt::format("piece {} begins at layer {}: expected piece {} to end there, found it to end at {}",
                                 p, piece.first_layer, q, before.end_layer));
    }
    reads.push_back(q);
  }
  return reads;
}

absl::Status CheckOrder(const schedule::Schedule& schedule, const schedule::FrozenReads& reads) {
  const schedule::ActionIndex index(schedule);
  const schedule::DependencyOrder order = OrderActions(schedule, index, reads);
  return order.stuck.empty() ? absl::OkStatus() : DeadlockError(schedule, index, reads, order);
}

void Need(int32_t rank, std::vector<int32_t>* ranks) {
  const auto at = std::lower_bound(ranks->begin(), ranks->end(), rank);
  if (at == ranks->end() || *at != rank) ranks->insert(at, rank);
}

}  // namespace

std::vector<FrozenComponent> ComponentsOf(const std::vector<spec::FrozenSpec>& specs) {
  std::vector<FrozenComponent> components;
  for (const spec::FrozenSpec& spec : specs) {
    const bool latent = spec.output == "latent";
    components.push_back({.layers = spec::FrozenLayerCount(spec),
                          .reads = spec::FindFrozen(specs, spec.input).value_or(-1),
                          .to_first_stage = latent || spec.output == "condition",
                          .to_last_stage = latent});
  }
  return components;
}

void AppendPieces(Plan* plan) {
  const bool twice = plan->is_self_conditioned();
  const int32_t batch = plan->micro_batches * plan->micro_batch_size;
  const int32_t ranks = plan->schedule.rank_count();
  for (size_t c = 0; c < plan->components.size(); ++c) {
    int32_t first = 0;
    for (int32_t rank = 0; rank < ranks; ++rank) {
      const int32_t end = static_cast<int32_t>(int64_t{batch} * (rank + 1) / ranks);
      if (end == first) continue;
      const schedule::Action piece{schedule::ActionKind::kFrozen, 0, plan->schedule.frozen_pieces++};
      plan->schedule.ranks[static_cast<size_t>(rank)].push_back(piece);
      if (twice) plan->self_conditioned.ranks[static_cast<size_t>(rank)].push_back(piece);
      plan->frozen.push_back({.component = static_cast<int32_t>(c),
                              .end_layer = plan->components[c].layers,
                              .rank = rank,
                              .first_sample = first,
                              .samples = end - first});
      first = end;
    }
  }
  if (twice) plan->self_conditioned.frozen_pieces = plan->schedule.frozen_pieces;
}

absl::StatusOr<FrozenFlow> FrozenFlowOf(const Plan& plan) {
  const int32_t batch = plan.micro_batches * plan.micro_batch_size;
  ATOLL_RETURN_IF_ERROR(CheckPieces(plan, batch));
  FrozenFlow flow;
  if (plan.components.empty()) return flow;
  ATOLL_RETURN_IF_ERROR(schedule::Validate(plan.schedule));
  ATOLL_RETURN_IF_ERROR(CheckRanks(plan));
  if (plan.is_self_conditioned()) {
    // The same pieces on the same ranks, then.
    ATOLL_RETURN_IF_ERROR(schedule::CheckSelfConditioned(plan.self_conditioned, plan.schedule));
    ATOLL_RETURN_IF_ERROR(schedule::Validate(plan.self_conditioned));
  }
  ATOLL_RETURN_IF_ERROR(CheckCoverage(plan, batch));
  flow.needed_by.resize(plan.frozen.size());
  for (size_t p = 0; p < plan.frozen.size(); ++p) {
    const FrozenPiece& piece = plan.frozen[p];
    const FrozenComponent& component = plan.components[static_cast<size_t>(piece.component)];
    ATOLL_ASSIGN_OR_RETURN(flow.reads.emplace_back(), ReadsOf(plan, p));
    for (const int32_t q : flow.reads.back()) Need(piece.rank, &flow.needed_by[static_cast<size_t>(q)]);
    if (piece.end_layer < component.layers) continue;
    if (component.to_first_stage) Need(plan.schedule.rank_of_stage.front(), &flow.needed_by[p]);
    if (component.to_last_stage) Need(plan.schedule.rank_of_stage.back(), &flow.needed_by[p]);
  }
  ATOLL_RETURN_IF_ERROR(CheckOrder(plan.schedule, flow.reads));
  if (plan.is_self_conditioned()) ATOLL_RETURN_IF_ERROR(CheckOrder(plan.self_conditioned, flow.reads));
  return flow;
}

}  // namespace atl::planner
