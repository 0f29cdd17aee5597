// The inputs of a training task, derived from its grant. Pure except for ReadTrainingInputs and ReadCheckpoint.
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
  // The shards by cluster, then by partition task: for an expert its own cluster's, for a router network every
  // cluster's.
  std::vector<std::vector<dataset::Shard>> partitions;
};

inline bool IsTraining(spec::TaskKind kind) {
  return kind == spec::TaskKind::kTrainExpert || kind == spec::TaskKind::kTrainRouter;
}

// Returns INVALID_ARGUMENT if the task is not training (NOT_A_TRAINING_TASK) or a cluster has no samples
// (EMPTY_PARTITION).
absl::StatusOr<TrainingInputs> MakeTrainingInputs(const spec::TaskGrant& grant,
                                                  const dataset::DatasetManifest& dataset);

// Like MakeTrainingInputs, with the dataset that the grant names.
absl::StatusOr<TrainingInputs> ReadTrainingInputs(storage::BlobStore* store, const spec::TaskGrant& grant);

// Returns the checkpoint that a task resumes from, with every file verified. DATA_LOSS (CHECKPOINT_UNREADABLE) if a
// file is missing or differs from the committed one.
absl::StatusOr<storage::CheckpointReader> ReadCheckpoint(storage::BlobStore* store,
                                                         const spec::CommittedCheckpoint& checkpoint);

// The island that a plan is made for.
struct PlannedIsland {
  int32_t ranks = 1;
  double memory_bytes_per_rank = 0;  // the value of `pipeline.memory: auto`; 0: no limit
  double storage_bytes = 0;          // for stored outputs of frozen components; 0: no limit
};

// Makes the plan for an island with pipeline.stages stages. By default it takes as many as the schedule puts on every
// rank, but at most as many as fit the ranks of one replica or the layers. Frozen components whose costs the profile
// lacks run after the flush; the plan's reason then says so.
absl::StatusOr<planner::Plan> MakeTrainingPlan(const TrainingInputs& inputs, const spec::PipelineSpec& pipeline,
                                               const PlannedIsland& island, const planner::Profile& profile);

// Returns counted (not measured) costs; without those of frozen components if one of them is TorchScript. Returns
// INVALID_ARGUMENT for frozen components that produce no sample.
absl::StatusOr<planner::Profile> CountedProfileOf(const TrainingInputs& inputs);

}  // namespace atl::worker
