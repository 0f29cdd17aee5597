// What a training task trains on, worked out from its grant. Pure but for ReadTrainingInputs and ReadCheckpoint.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/dataset/dataset.h"
#include "common/formats/checkpoint.h"
#include "common/planner/plan.h"
#include "common/spec/task.h"
#include "common/storage/blob_store.h"
#include "worker/trainer/trainer.h"

namespace atl::worker {

struct TrainingInputs {
  trainer::TrainerOptions options;
  // An expert: its own cluster's shards. A router network: every cluster's. By cluster, then by partition task.
  std::vector<std::vector<dataset::Shard>> partitions;
};

inline bool IsTraining(spec::TaskKind kind) {
  return kind == spec::TaskKind::kTrainExpert || kind == spec::TaskKind::kTrainRouter;
}

// INVALID_ARGUMENT for a task that is no training (NOT_A_TRAINING_TASK), or when a cluster holds no samples
// (EMPTY_PARTITION).
absl::StatusOr<TrainingInputs> MakeTrainingInputs(const spec::TaskGrant& grant,
                                                  const dataset::DatasetManifest& dataset);

// The same, of the dataset that the grant names.
absl::StatusOr<TrainingInputs> ReadTrainingInputs(storage::BlobStore* store, const spec::TaskGrant& grant);

// The checkpoint that a task goes on from, every file verified. DATA_LOSS (CHECKPOINT_UNREADABLE) when one is missing
// or not what was committed.
absl::StatusOr<storage::CheckpointReader> ReadCheckpoint(storage::BlobStore* store,
                                                         const spec::CommittedCheckpoint& checkpoint);

// What a plan is for.
struct PlannedIsland {
  int32_t ranks = 1;
  double memory_bytes_per_rank = 0;  // what pipeline.memory: auto means; 0: no limit
  double storage_bytes = 0;          // that kept outputs of frozen components may take; 0: no limit
};

// The plan for an island: pipeline.stages, or as many as the schedule puts on every rank, but never more than fit
// the ranks of one replica or the layers. Frozen components whose costs the profile lacks run after the flush; the
// plan's reason says so.
absl::StatusOr<planner::Plan> MakeTrainingPlan(const TrainingInputs& inputs, const spec::PipelineSpec& pipeline,
                                               const PlannedIsland& island, const planner::Profile& profile);

// Costs counted, not measured; without those of frozen components where one of them is TorchScript. INVALID_ARGUMENT
// for frozen components that make no sample.
absl::StatusOr<planner::Profile> CountedProfileOf(const TrainingInputs& inputs);

}  // namespace atl::worker
