#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/schedule/action.h"
#include "common/schedule/dependency_order.h"

namespace atl::schedule {
namespace {

absl::Status Invalid(std::string_view reason, const std::string& message) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason, "schedule: " + message);
}

absl::Status InvalidAt(std::string_view reason, ActionPlace place, const Action& action, std::string_view message) {
  return Invalid(reason,
                 fmt::format("rank {}, position {}, {}: {}", place.rank, place.position, ToString(action), message));
}

// Numbers in range and every stage on its rank; a schedule built by hand may break what ParseText guarantees.
absl::Status CheckShape(const Schedule& schedule) {
  if (schedule.stages < 1 || schedule.micro_batches < 1 || schedule.ranks.empty()) {
    return Invalid("SCHEDULE_SHAPE",
                   fmt::format("expected at least one stage, micro-batch and rank, found {}, {} and {}",
                               schedule.stages, schedule.micro_batches, schedule.ranks.size()));
  }
  if (schedule.frozen_pieces < 0) {
    return Invalid("SCHEDULE_SHAPE", fmt::format("expected 0 or more frozen pieces, found {}", schedule.frozen_pieces));
  }
  if (schedule.rank_of_stage.size() != static_cast<size_t>(schedule.stages)) {
    return Invalid("SCHEDULE_SHAPE", fmt::format("expected a rank for each of {} stages, found {}", schedule.stages,
                                                 schedule.rank_of_stage.size()));
  }
  std::vector<int64_t> count(schedule.stages, 0);
  int64_t frozen = 0;
  for (int32_t rank = 0; rank < schedule.rank_count(); ++rank) {
    for (int32_t position = 0; position < static_cast<int32_t>(schedule.ranks[rank].size()); ++position) {
      const Action& action = schedule.ranks[rank][position];
      if (action.kind == ActionKind::kFrozen) {
        ++frozen;
        if (action.micro_batch >= 0 && action.micro_batch < schedule.frozen_pieces) continue;
        return InvalidAt("SCHEDULE_SHAPE", {rank, position}, action,
                         fmt::format("expected a piece below {}", schedule.frozen_pieces));
      }
      if (action.stage < 0 || action.stage >= schedule.stages || action.micro_batch < 0 ||
          action.micro_batch >= schedule.micro_batches) {
        return InvalidAt("SCHEDULE_SHAPE", {rank, position}, action,
                         fmt::format("expected a stage below {} and a micro-batch below {}", schedule.stages,
                                     schedule.micro_batches));
      }
      if (schedule.rank_of_stage[action.stage] != rank) {
        return InvalidAt("SCHEDULE_SHAPE", {rank, position}, action,
                         fmt::format("stage {} lies on rank {}", action.stage, schedule.rank_of_stage[action.stage]));
      }
      if (HasMicroBatch(action.kind) && action.kind != ActionKind::kSelfConditioning) ++count[action.stage];
    }
  }
  // Also bounds what the later checks allocate by the number of actions.
  for (int32_t stage = 0; stage < schedule.stages; ++stage) {
    if (count[stage] < 2 * static_cast<int64_t>(schedule.micro_batches)) {
      return Invalid("SCHEDULE_INCOMPLETE",
                     fmt::format("rank {}, stage {}: expected a forward and a backward of each of {} micro-batches, "
                                 "found {} actions",
                                 schedule.rank_of_stage[stage], stage, schedule.micro_batches, count[stage]));
    }
  }
  if (frozen < schedule.frozen_pieces) {
    return Invalid("SCHEDULE_INCOMPLETE",
                   fmt::format("expected each of {} frozen pieces once, found {}", schedule.frozen_pieces, frozen));
  }
  return absl::OkStatus();
}

// The progress of one (stage, micro-batch).
enum class Progress : uint8_t { kNone, kForward, kInputGradient, kDone };

std::string Describe(Progress progress) {
  switch (progress) {
    case Progress::kNone:
      return "nothing";
    case Progress::kForward:
      return "F";
    case Progress::kInputGradient:
      return "F and I";
    case Progress::kDone:
      return "forward and backward";
  }
  return "";
}

// Returns the error of a stage that lacks an action of a micro-batch; it names the micro-batch's last action there.
absl::Status MissingAction(const Schedule& schedule, int32_t stage, int32_t micro_batch, Progress done) {
  const int32_t rank = schedule.rank_of_stage[stage];
  const auto& actions = schedule.ranks[rank];
  for (int32_t position = static_cast<int32_t>(actions.size()) - 1; position >= 0; --position) {
    const Action& action = actions[position];
    if (!HasMicroBatch(action.kind) || action.kind == ActionKind::kSelfConditioning || action.stage != stage ||
        action.micro_batch != micro_batch) {
      continue;
    }
    return InvalidAt("SCHEDULE_INCOMPLETE", {rank, position}, action,
                     done == Progress::kInputGradient ? "expected W of the micro-batch after it, found none"
                                                      : "expected a backward of the micro-batch after it, found none");
  }
  return Invalid("SCHEDULE_INCOMPLETE", fmt::format("rank {}, stage {}: expected a forward and a backward of "
                                                    "micro-batch {}, found neither",
                                                    rank, stage, micro_batch));
}

// F once, then B once or I and W once, in the order of the rank.
absl::Status CheckEachStage(const Schedule& schedule) {
  std::vector<Progress> progress(static_cast<size_t>(schedule.stages) * schedule.micro_batches, Progress::kNone);
  for (int32_t rank = 0; rank < schedule.rank_count(); ++rank) {
    for (int32_t position = 0; position < static_cast<int32_t>(schedule.ranks[rank].size()); ++position) {
      const Action& action = schedule.ranks[rank][position];
      if (!HasMicroBatch(action.kind) || action.kind == ActionKind::kSelfConditioning) continue;
      Progress& done = progress[static_cast<size_t>(action.stage) * schedule.micro_batches + action.micro_batch];
      const bool weight = action.kind == ActionKind::kWeightGradient;
      const Progress needed = action.kind == ActionKind::kForward ? Progress::kNone
                              : weight                            ? Progress::kInputGradient
                                                                  : Progress::kForward;
      if (done != needed) {
        return InvalidAt(
            "SCHEDULE_ORDER", {rank, position}, action,
            fmt::format("expected {} of the micro-batch done before it, found {}", Describe(needed), Describe(done)));
      }
      done = action.kind == ActionKind::kForward         ? Progress::kForward
             : action.kind == ActionKind::kInputGradient ? Progress::kInputGradient
                                                         : Progress::kDone;
    }
  }
  const auto missing = std::find_if(progress.begin(), progress.end(), [](Progress p) { return p != Progress::kDone; });
  if (missing == progress.end()) return absl::OkStatus();
  const auto at = static_cast<int32_t>(missing - progress.begin());
  return MissingAction(schedule, at / schedule.micro_batches, at % schedule.micro_batches, *missing);
}

// No C at all, or one of every stage and micro-batch, before its F. Every F is there once: CheckEachStage saw to that.
absl::Status CheckSelfConditioning(const Schedule& schedule) {
  std::vector<int32_t> forward(static_cast<size_t>(schedule.stages) * schedule.micro_batches, -1);
  std::vector<int32_t> seen(forward.size(), -1);  // positions on the stage's rank
  bool any = false;
  for (int32_t rank = 0; rank < schedule.rank_count(); ++rank) {
    for (int32_t position = 0; position < static_cast<int32_t>(schedule.ranks[rank].size()); ++position) {
      const Action& action = schedule.ranks[rank][position];
      if (action.kind != ActionKind::kForward && action.kind != ActionKind::kSelfConditioning) continue;
      const size_t at = static_cast<size_t>(action.stage) * schedule.micro_batches + action.micro_batch;
      if (action.kind == ActionKind::kForward) {
        forward[at] = position;
        continue;
      }
      any = true;
      if (seen[at] >= 0) {
        return InvalidAt("SCHEDULE_ORDER", {rank, position}, action,
                         fmt::format("expected C of the micro-batch once, found it at position {}, too", seen[at]));
      }
      if (forward[at] >= 0) {
        return InvalidAt(
            "SCHEDULE_ORDER", {rank, position}, action,
            fmt::format("expected C of the micro-batch before its F, found F at position {}", forward[at]));
      }
      seen[at] = position;
    }
  }
  const auto missing = std::find(seen.begin(), seen.end(), -1);
  if (!any || missing == seen.end()) return absl::OkStatus();
  const auto at = missing - seen.begin();
  const int32_t rank = schedule.rank_of_stage[static_cast<int32_t>(at / schedule.micro_batches)];
  return InvalidAt("SCHEDULE_INCOMPLETE", {rank, forward[at]}, schedule.ranks[rank][forward[at]],
                   "expected C of the stage's micro-batch before it, as of others, found none");
}

// Every piece once, on whichever rank.
absl::Status CheckFrozen(const Schedule& schedule) {
  std::vector<ActionPlace> seen(schedule.frozen_pieces, ActionPlace{-1, -1});
  for (int32_t rank = 0; rank < schedule.rank_count(); ++rank) {
    for (int32_t position = 0; position < static_cast<int32_t>(schedule.ranks[rank].size()); ++position) {
      const Action& action = schedule.ranks[rank][position];
      if (action.kind != ActionKind::kFrozen) continue;
      ActionPlace& first = seen[action.micro_batch];
      if (first.rank >= 0) {
        return InvalidAt(
            "SCHEDULE_ORDER", {rank, position}, action,
            fmt::format("expected the piece once, found it on rank {}, position {}, too", first.rank, first.position));
      }
      first = {rank, position};
    }
  }
  const auto missing = std::find(seen.begin(), seen.end(), ActionPlace{-1, -1});
  if (missing == seen.end()) return absl::OkStatus();
  return Invalid("SCHEDULE_INCOMPLETE", fmt::format("expected each of {} frozen pieces once, found none of piece {}",
                                                    schedule.frozen_pieces, missing - seen.begin()));
}

// No reduction at all, or one of every stage, when nothing is left to add to the stage's gradients.
absl::Status CheckReductions(const Schedule& schedule) {
  std::vector<ActionPlace> reduced(schedule.stages, ActionPlace{-1, -1});
  std::optional<ActionPlace> any;
  for (int32_t rank = 0; rank < schedule.rank_count(); ++rank) {
    for (int32_t position = 0; position < static_cast<int32_t>(schedule.ranks[rank].size()); ++position) {
      const Action& action = schedule.ranks[rank][position];
      if (action.kind == ActionKind::kFrozen) continue;
      ActionPlace& place = reduced[action.stage];
      if (place.rank >= 0) {
        return InvalidAt("SCHEDULE_ORDER", {rank, position}, action,
                         fmt::format("expected nothing of the stage after its R at position {}", place.position));
      }
      if (action.kind == ActionKind::kReduce) any = place = {rank, position};
    }
  }
  const auto missing = std::find(reduced.begin(), reduced.end(), ActionPlace{-1, -1});
  if (!any.has_value() || missing == reduced.end()) return absl::OkStatus();
  const auto stage = static_cast<int32_t>(missing - reduced.begin());
  return InvalidAt("SCHEDULE_INCOMPLETE", *any, schedule.ranks[any->rank][any->position],
                   fmt::format("expected an R of every stage where there is one, found none of stage {} on rank {}",
                               stage, schedule.rank_of_stage[stage]));
}

// Positions on rank `rank` of the actions that `selects` picks, in order.
template <typename Selects>
std::vector<ActionPlace> Select(const Schedule& schedule, int32_t rank, Selects selects) {
  std::vector<ActionPlace> places;
  for (int32_t position = 0; position < static_cast<int32_t>(schedule.ranks[rank].size()); ++position) {
    if (selects(schedule.ranks[rank][position])) places.push_back({rank, position});
  }
  return places;
}

// One end of a lane: the actions of a stage that send on it or receive from it.
struct LaneEnd {
  int32_t stage = 0;
  ActionKind kind = ActionKind::kForward;  // kInputGradient: or kBackward
};

// Lanes carry messages in order and without tags: both ends must name the micro-batches in the same order.
absl::Status CheckLane(const Schedule& schedule, std::string_view name, LaneEnd from, LaneEnd to) {
  if (schedule.rank_of_stage[from.stage] == schedule.rank_of_stage[to.stage]) return absl::OkStatus();
  const auto of = [](LaneEnd end) {
    return [end](const Action& action) {
      const bool gradient = end.kind == ActionKind::kInputGradient && action.kind == ActionKind::kBackward;
      return action.stage == end.stage && (action.kind == end.kind || gradient);
    };
  };
  const std::vector<ActionPlace> sends = Select(schedule, schedule.rank_of_stage[from.stage], of(from));
  const std::vector<ActionPlace> receives = Select(schedule, schedule.rank_of_stage[to.stage], of(to));
  for (size_t i = 0; i < sends.size(); ++i) {
    const Action& sent = schedule.ranks[sends[i].rank][sends[i].position];
    const Action& received = schedule.ranks[receives[i].rank][receives[i].position];
    if (sent.micro_batch == received.micro_batch) continue;
    return InvalidAt("SCHEDULE_LANE_ORDER", receives[i], received,
                     fmt::format("expected micro-batch {} as message {} of the {} lane from rank {} (its {}), found {}",
                                 sent.micro_batch, i, name, sends[i].rank, ToString(sent), received.micro_batch));
  }
  return absl::OkStatus();
}

absl::Status CheckLanes(const Schedule& schedule, bool self_conditioned) {
  constexpr ActionKind kForward = ActionKind::kForward;
  constexpr ActionKind kGradient = ActionKind::kInputGradient;
  constexpr ActionKind kConditioning = ActionKind::kSelfConditioning;
  for (int32_t stage = 0; stage + 1 < schedule.stages; ++stage) {
    ATOLL_RETURN_IF_ERROR(CheckLane(schedule, "forward", {stage, kForward}, {stage + 1, kForward}));
    ATOLL_RETURN_IF_ERROR(CheckLane(schedule, "gradient", {stage + 1, kGradient}, {stage, kGradient}));
    if (!self_conditioned) continue;
    ATOLL_RETURN_IF_ERROR(CheckLane(schedule, "self-conditioning", {stage, kConditioning}, {stage + 1, kConditioning}));
  }
  if (!self_conditioned) return absl::OkStatus();
  return CheckLane(schedule, "feedback", {schedule.stages - 1, kConditioning}, {0, kForward});
}

}  // namespace

absl::Status Validate(const Schedule& schedule) {
  ATOLL_RETURN_IF_ERROR(CheckShape(schedule));
  ATOLL_RETURN_IF_ERROR(CheckEachStage(schedule));
  ATOLL_RETURN_IF_ERROR(CheckSelfConditioning(schedule));
  ATOLL_RETURN_IF_ERROR(CheckFrozen(schedule));
  ATOLL_RETURN_IF_ERROR(CheckReductions(schedule));
  const ActionIndex index(schedule);
  ATOLL_RETURN_IF_ERROR(CheckLanes(schedule, index.self_conditioned()));
  const DependencyOrder order = OrderActions(schedule, index);
  return order.stuck.empty() ? absl::OkStatus() : DeadlockError(schedule, index, {}, order);
}

}  // namespace atl::schedule
