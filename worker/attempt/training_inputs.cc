#include "worker/attempt/training_inputs.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "common/base/counter_random.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/formats/frozen_files.h"
#include "common/planner/fit_stages.h"
#include "common/planner/frozen_flow.h"
#include "common/spec/frozen.h"
#include "common/spec/spec_io.h"

namespace atl::worker {
namespace {

std::vector<dataset::Shard> ShardsOfCluster(const spec::TaskGrant& grant, int32_t cluster) {
  std::vector<const spec::TaskInput*> tasks;
  for (const spec::TaskInput& input : grant.inputs) {
    if (input.kind == spec::TaskKind::kPartition) tasks.push_back(&input);
  }
  std::sort(tasks.begin(), tasks.end(), [](const auto* a, const auto* b) { return a->index < b->index; });
  const std::string name = fmt::format("partition/{}", cluster);
  std::vector<dataset::Shard> shards;
  for (const spec::TaskInput* task : tasks) {
    for (const spec::Artifact& artifact : task->artifacts) {
      if (artifact.name != name || artifact.rows == 0) continue;
      shards.push_back({.uri = artifact.uri,
                        .split = "train",
                        .rows = artifact.rows,
                        .bytes = artifact.bytes,
                        .sha256 = artifact.sha256});
    }
  }
  return shards;
}

// Every expert and the router network start from weights of their own.
uint64_t SeedOf(const spec::TaskGrant& grant) {
  return CounterRandom(grant.spec.seed, RandomPurpose::kSubset, static_cast<uint64_t>(grant.kind),
                       static_cast<uint64_t>(grant.index))
      .Bits64();
}

planner::FrozenInputs FrozenInputsOf(const TrainingInputs& inputs) {
  int64_t samples = 0;
  for (const auto& partition : inputs.partitions) {
    for (const dataset::Shard& shard : partition) samples += shard.rows;
  }
  return planner::FrozenInputsOf(inputs.options.frozen, inputs.options.training, samples, inputs.options.classes);
}

}  // namespace

absl::StatusOr<TrainingInputs> MakeTrainingInputs(const spec::TaskGrant& grant,
                                                  const dataset::DatasetManifest& dataset) {
  if (!IsTraining(grant.kind)) {
    return MakeError(absl::StatusCode::kInvalidArgument, "NOT_A_TRAINING_TASK",
                     fmt::format("task {}: expected training, found {}", grant.token.task_id, ToString(grant.kind)));
  }
  const bool router = grant.kind == spec::TaskKind::kTrainRouter;
  TrainingInputs inputs;
  inputs.options = {.objective = router ? trainer::Objective::kCluster : trainer::Objective::kVelocity,
                    .model = router ? grant.spec.router_model : grant.spec.model,
                    .training = router ? grant.spec.router_training : grant.spec.training,
                    .channels = dataset.channels,
                    .height = dataset.height,
                    .width = dataset.width,
                    .classes = static_cast<int32_t>(dataset.classes.size()),
                    .clusters = router ? grant.spec.experts : 0,
                    .seed = SeedOf(grant),
                    .skipped = grant.skipped,
                    .frozen = router ? spec::LatentChain(grant.spec.frozen) : grant.spec.frozen,
                    .frozen_seed = grant.spec.seed};
  const int32_t first = router ? 0 : grant.index;
  const int32_t end = router ? grant.spec.experts : grant.index + 1;
  for (int32_t cluster = first; cluster < end; ++cluster) {
    inputs.partitions.push_back(ShardsOfCluster(grant, cluster));
    if (inputs.partitions.back().empty()) {
      return MakeError(absl::StatusCode::kInvalidArgument, "EMPTY_PARTITION",
                       fmt::format("task {}: cluster {} of {} holds no samples; fewer experts are expected",
                                   grant.token.task_id, cluster, grant.spec.experts));
    }
  }
  return inputs;
}

absl::StatusOr<TrainingInputs> ReadTrainingInputs(storage::BlobStore* store, const spec::TaskGrant& grant) {
  ATOLL_ASSIGN_OR_RETURN(const dataset::DatasetManifest dataset,
                         dataset::ReadDatasetManifest(store, grant.dataset_manifest_uri));
  ATOLL_ASSIGN_OR_RETURN(TrainingInputs inputs, MakeTrainingInputs(grant, dataset));
  // Named by the job's fields: a router network needs some of the components only.
  std::vector<spec::FrozenFileField> named = spec::FrozenFileFields(grant.spec.frozen);
  const std::vector<std::string> needed = spec::FrozenFiles(inputs.options.frozen);
  std::erase_if(named, [&](const spec::FrozenFileField& file) {
    return std::find(needed.begin(), needed.end(), file.uri) == needed.end();
  });
  ATOLL_ASSIGN_OR_RETURN(auto files, storage::ReadFrozenFiles(store, named));
  inputs.options.frozen_files = std::make_shared<const std::map<std::string, std::string>>(std::move(files));
  return inputs;
}

absl::StatusOr<storage::CheckpointReader> ReadCheckpoint(storage::BlobStore* store,
                                                         const spec::CommittedCheckpoint& checkpoint) {
  absl::StatusOr<storage::CheckpointReader> reader =
      storage::CheckpointReader::Open(store, checkpoint.manifest_uri, checkpoint.manifest_sha256);
  if (!absl::IsDataLoss(reader.status()) && !absl::IsNotFound(reader.status())) return reader;
  return MakeError(
      absl::StatusCode::kDataLoss, "CHECKPOINT_UNREADABLE",
      fmt::format("the checkpoint of step {} is damaged: {}", checkpoint.step, std::string(reader.status().message())));
}

absl::StatusOr<planner::Plan> MakeTrainingPlan(const TrainingInputs& inputs, const spec::PipelineSpec& pipeline,
                                               const PlannedIsland& island, const planner::Profile& profile) {
  const trainer::TrainerOptions& options = inputs.options;
  planner::PlanRequest request{.pipeline = pipeline,
                               .precision = options.training.precision,
                               .batch_size = options.training.batch_size,
                               .ranks = island.ranks,
                               .frozen_inputs = FrozenInputsOf(inputs),
                               .device_memory_bytes = island.memory_bytes_per_rank};
  request.pipeline.stages = planner::FitStages(pipeline, island.ranks, spec::LayerCount(options.model));
  request.profile = profile;
  request.frozen_inputs.storage_limit_bytes = island.storage_bytes;
  const bool expert = options.objective == trainer::Objective::kVelocity;
  if (expert && options.model.self_conditioning) {
    request.self_conditioning_rate = options.training.self_conditioning_rate;
  }
  const bool known = !profile.frozen.empty();
  if (known) request.components = planner::ComponentsOf(options.frozen);
  ATOLL_ASSIGN_OR_RETURN(planner::Plan plan, planner::MakePlan(request));
  if (known || options.frozen.empty()) return plan;
  if (pipeline.frozen_cache == "always") {
    plan.reads_frozen_cache = true;
    plan.reason += "; frozen outputs are computed once and kept, as asked for";
    return plan;
  }
  plan.components = planner::ComponentsOf(options.frozen);
  planner::AppendPieces(&plan);
  plan.reason += "; frozen work after the flush, for its costs are not known";
  return plan;
}

absl::StatusOr<planner::Profile> CountedProfileOf(const TrainingInputs& inputs) {
  const trainer::TrainerOptions& options = inputs.options;
  ATOLL_ASSIGN_OR_RETURN(const spec::SampleShape learnt,
                         spec::LearntShape(options.frozen, {options.channels, options.height, options.width}));
  const int32_t tokens = (learnt[1] / options.model.patch) * (learnt[2] / options.model.patch);
  planner::Profile profile = planner::CountedProfile(options.model, tokens, learnt[0]);
  profile.frozen = planner::CountedFrozen(options.frozen, {options.channels, options.height, options.width},
                                          options.classes, options.training.batch_size);
  return profile;
}

}  // namespace atl::worker
