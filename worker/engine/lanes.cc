#include "worker/engine/lanes.h"

#include "worker/engine/frozen_run.h"

namespace atl::engine {

using transport::Lane;
using transport::LaneKind;

int32_t RankOf(const planner::Plan& plan, int32_t replica, int32_t stage) {
  return replica * plan.schedule.rank_count() + plan.schedule.rank_of_stage[static_cast<size_t>(stage)];
}

std::optional<Lane> LaneBefore(const planner::Plan& plan, int32_t replica, int32_t stage, LaneKind kind) {
  const bool feedback = stage == 0 && kind == LaneKind::kSelfConditioning;
  if ((stage == 0 && !feedback) || stage == plan.schedule.stages) return std::nullopt;
  const int32_t before = RankOf(plan, replica, feedback ? plan.schedule.stages - 1 : stage - 1);
  const int32_t after = RankOf(plan, replica, stage);
  if (before == after) return std::nullopt;
  if (kind == LaneKind::kGradient) return Lane{after, before, stage, kind};
  return Lane{before, after, stage, kind};
}

Lane ReduceLane(const planner::Plan& plan, int32_t stage, int32_t from_replica, int32_t to_replica) {
  return {RankOf(plan, from_replica, stage), RankOf(plan, to_replica, stage), stage, LaneKind::kReduce};
}

std::vector<Lane> LanesOf(const planner::Plan& plan) {
  std::vector<Lane> lanes;
  for (int32_t replica = 0; replica < plan.replicas; ++replica) {
    for (int32_t stage = 1; stage < plan.schedule.stages; ++stage) {
      for (const LaneKind kind : {LaneKind::kForward, LaneKind::kGradient}) {
        if (const std::optional<Lane> lane = LaneBefore(plan, replica, stage, kind)) lanes.push_back(*lane);
      }
    }
  }
  for (int32_t replica = 0; replica < plan.replicas && plan.is_self_conditioned(); ++replica) {
    for (int32_t stage = 0; stage < plan.schedule.stages; ++stage) {
      if (const auto lane = LaneBefore(plan, replica, stage, LaneKind::kSelfConditioning)) lanes.push_back(*lane);
    }
  }
  for (int32_t stage = 0; stage < plan.schedule.stages; ++stage) {
    for (int32_t from = 0; from < plan.replicas; ++from) {
      for (int32_t to = 0; to < plan.replicas; ++to) {
        if (from != to) lanes.push_back(ReduceLane(plan, stage, from, to));
      }
    }
  }
  const std::vector<Lane> frozen = FrozenLanesOf(plan);
  lanes.insert(lanes.end(), frozen.begin(), frozen.end());
  return lanes;
}

}  // namespace atl::engine
