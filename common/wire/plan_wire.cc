#include "common/wire/plan_wire.h"

#include <algorithm>
#include <cmath>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/planner/frozen_flow.h"
#include "common/schedule/action.h"
#include "common/schedule/self_conditioning.h"
#include "common/spec/frozen.h"
#include "common/spec/spec.h"
#include "common/wire/spec_wire.h"
#include "fmt/format.h"

namespace atl::wire {
namespace {

absl::Status Mismatch(std::string_view field, std::string_view expected_of, int64_t expected, int64_t found) {
  return FieldError(field, "PLAN_MISMATCH", fmt::format("expected {} ({}), found {}", expected_of, expected, found));
}

absl::Status CheckStages(const planner::Plan& plan) {
  int32_t next_layer = 0;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const planner::StagePlacement& stage = plan.stages[s];
    const std::string field = fmt::format("stages[{}]", s);
    if (stage.rank != plan.schedule.rank_of_stage[s]) {
      return Mismatch(field + ".rank", "the schedule's rank", plan.schedule.rank_of_stage[s], stage.rank);
    }
    if (stage.first_layer != next_layer) {
      return Mismatch(field + ".first_layer", "the end of the stage before", next_layer, stage.first_layer);
    }
    if (stage.end_layer <= stage.first_layer) {
      return Mismatch(field + ".end_layer", "more than first_layer", stage.first_layer, stage.end_layer);
    }
    next_layer = stage.end_layer;
  }
  return absl::OkStatus();
}

// The product of the plan's sizes must be a batch that a job can request.
absl::Status CheckBatch(const planner::Plan& plan) {
  const int64_t most = spec::kMaxBatchSize / (int64_t{plan.replicas} * plan.micro_batches);
  if (plan.micro_batch_size >= 1 && plan.micro_batch_size <= most) return absl::OkStatus();
  return FieldError("micro_batch_size", "PLAN_MISMATCH",
                    fmt::format("expected 1 to {} ({} replicas of {} micro-batches, batches of at most {}), found {}",
                                most, plan.replicas, plan.micro_batches, spec::kMaxBatchSize, plan.micro_batch_size));
}

// A schedule, or why the text of `field` is none.
absl::StatusOr<schedule::Schedule> ParseSchedule(std::string_view field, std::string_view text) {
  auto schedule = schedule::ParseText(text);
  if (schedule.ok()) return schedule;
  return FieldError(field, "INVALID_SCHEDULE", std::string(schedule.status().message()));
}

absl::Status CheckSelfConditioned(const planner::Plan& plan) {
  const absl::Status same = schedule::CheckSelfConditioned(plan.self_conditioned, plan.schedule);
  if (same.ok()) return same;
  return FieldError("self_conditioned_schedule", "PLAN_MISMATCH", std::string(same.message()));
}

// Checks values that are given per layer number: of the stages, and of each frozen component.
absl::Status CheckLayers(const planner::Plan& plan) {
  int32_t before = -1;
  for (size_t i = 0; i < plan.recomputed_layers.size(); ++i) {
    const int32_t layer = plan.recomputed_layers[i];
    if (layer <= before || layer >= plan.layer_count()) {
      return FieldError(
          fmt::format("recomputed_layers[{}]", i), "PLAN_MISMATCH",
          fmt::format("expected a layer above {} and below {}, found {}", before, plan.layer_count(), layer));
    }
    before = layer;
  }
  for (size_t c = 0; c < plan.components.size(); ++c) {
    const int32_t layers = plan.components[c].layers;
    if (layers >= 1 && layers <= spec::kMostFrozenLayers) continue;
    return FieldError(fmt::format("components[{}].layers", c), "PLAN_MISMATCH",
                      fmt::format("expected 1 to {}, found {}", spec::kMostFrozenLayers, layers));
  }
  return absl::OkStatus();
}

absl::Status CheckPrediction(const planner::Prediction& predicted) {
  const bool finite = std::isfinite(predicted.iteration_seconds) && std::isfinite(predicted.self_conditioned_seconds) &&
                      std::isfinite(predicted.bubble) &&
                      std::all_of(predicted.peak_bytes.begin(), predicted.peak_bytes.end(),
                                  [](double bytes) { return std::isfinite(bytes); });
  if (finite) return absl::OkStatus();
  return FieldError("predicted", "PLAN_MISMATCH", "expected finite numbers, found others");
}

}  // namespace

atlpb::plan::v1::Plan ToProto(const planner::Plan& plan) {
  atlpb::plan::v1::Plan proto;
  proto.set_ranks(plan.rank_count());
  proto.set_micro_batches(plan.micro_batches);
  proto.set_micro_batch_size(plan.micro_batch_size);
  proto.set_generator(plan.generator);
  for (const planner::StagePlacement& stage : plan.stages) {
    atlpb::plan::v1::Stage* out = proto.add_stages();
    out->set_rank(stage.rank);
    out->set_first_layer(stage.first_layer);
    out->set_end_layer(stage.end_layer);
  }
  proto.set_schedule(schedule::ToText(plan.schedule));
  proto.set_self_conditioned_schedule(schedule::ToText(plan.self_conditioned));
  ToProto(plan.precision, proto.mutable_precision());
  proto.set_reason(plan.reason);
  proto.set_replicas(plan.replicas);
  proto.mutable_recomputed_layers()->Assign(plan.recomputed_layers.begin(), plan.recomputed_layers.end());
  for (const planner::FrozenComponent& component : plan.components) {
    atlpb::plan::v1::FrozenComponent* out = proto.add_components();
    out->set_layers(component.layers);
    out->set_reads(component.reads + 1);
    out->set_to_first_stage(component.to_first_stage);
    out->set_to_last_stage(component.to_last_stage);
  }
  for (const planner::FrozenPiece& piece : plan.frozen) {
    atlpb::plan::v1::FrozenPiece* out = proto.add_frozen();
    out->set_component(piece.component);
    out->set_first_layer(piece.first_layer);
    out->set_end_layer(piece.end_layer);
    out->set_rank(piece.rank);
    out->set_first_sample(piece.first_sample);
    out->set_samples(piece.samples);
  }
  proto.set_reads_frozen_cache(plan.reads_frozen_cache);
  proto.mutable_predicted()->set_iteration_seconds(plan.predicted.iteration_seconds);
  proto.mutable_predicted()->set_self_conditioned_seconds(plan.predicted.self_conditioned_seconds);
  proto.mutable_predicted()->set_bubble(plan.predicted.bubble);
  proto.mutable_predicted()->mutable_peak_bytes()->Assign(plan.predicted.peak_bytes.begin(),
                                                          plan.predicted.peak_bytes.end());
  return proto;
}

absl::StatusOr<planner::Plan> FromProto(const atlpb::plan::v1::Plan& proto) {
  planner::Plan plan;
  plan.micro_batches = proto.micro_batches();
  plan.micro_batch_size = proto.micro_batch_size();
  plan.generator = proto.generator();
  for (const auto& stage : proto.stages()) {
    plan.stages.push_back({.rank = stage.rank(), .first_layer = stage.first_layer(), .end_layer = stage.end_layer()});
  }
  ATOLL_ASSIGN_OR_RETURN(plan.schedule, ParseSchedule("schedule", proto.schedule()));
  if (!proto.self_conditioned_schedule().empty()) {
    ATOLL_ASSIGN_OR_RETURN(plan.self_conditioned,
                           ParseSchedule("self_conditioned_schedule", proto.self_conditioned_schedule()));
  }
  plan.precision = FromProto(proto.precision());
  plan.reason = proto.reason();
  plan.replicas = proto.replicas() == 0 ? 1 : proto.replicas();
  plan.recomputed_layers.assign(proto.recomputed_layers().begin(), proto.recomputed_layers().end());
  for (const auto& component : proto.components()) {
    if (component.reads() < 0) return Mismatch("components.reads", "at least", 0, component.reads());
    plan.components.push_back({.layers = component.layers(),
                               .reads = component.reads() - 1,
                               .to_first_stage = component.to_first_stage(),
                               .to_last_stage = component.to_last_stage()});
  }
  for (const auto& piece : proto.frozen()) {
    plan.frozen.push_back({.component = piece.component(),
                           .first_layer = piece.first_layer(),
                           .end_layer = piece.end_layer(),
                           .rank = piece.rank(),
                           .first_sample = piece.first_sample(),
                           .samples = piece.samples()});
  }
  plan.reads_frozen_cache = proto.reads_frozen_cache();
  plan.predicted.iteration_seconds = proto.predicted().iteration_seconds();
  plan.predicted.self_conditioned_seconds = proto.predicted().self_conditioned_seconds();
  plan.predicted.bubble = proto.predicted().bubble();
  plan.predicted.peak_bytes.assign(proto.predicted().peak_bytes().begin(), proto.predicted().peak_bytes().end());
  if (plan.replicas < 1) return Mismatch("replicas", "at least", 1, plan.replicas);
  if (plan.reads_frozen_cache && !plan.components.empty()) {
    return Mismatch("components", "beside reads_frozen_cache", 0, static_cast<int64_t>(plan.components.size()));
  }
  const auto pieces = static_cast<int64_t>(plan.frozen.size());
  if (pieces != plan.schedule.frozen_pieces) {
    return Mismatch("frozen", "the schedule's frozen pieces", plan.schedule.frozen_pieces, pieces);
  }
  const auto stages = static_cast<int64_t>(plan.stages.size());
  if (stages != plan.schedule.stages) return Mismatch("stages", "the schedule's stages", plan.schedule.stages, stages);
  const int64_t ranks = int64_t{plan.replicas} * plan.schedule.rank_count();
  if (proto.ranks() != ranks) return Mismatch("ranks", "the schedule's ranks, by replicas", ranks, proto.ranks());
  if (plan.micro_batches != plan.schedule.micro_batches) {
    return Mismatch("micro_batches", "the schedule's micro-batches", plan.schedule.micro_batches, plan.micro_batches);
  }
  ATOLL_RETURN_IF_ERROR(CheckBatch(plan));
  ATOLL_RETURN_IF_ERROR(CheckStages(plan));
  if (plan.is_self_conditioned()) ATOLL_RETURN_IF_ERROR(CheckSelfConditioned(plan));
  ATOLL_RETURN_IF_ERROR(CheckLayers(plan));
  ATOLL_RETURN_IF_ERROR(CheckPrediction(plan.predicted));
  ATOLL_RETURN_IF_ERROR(WithContext(planner::FrozenFlowOf(plan).status(), "frozen"));
  return plan;
}

}  // namespace atl::wire
