// Builds the micro-batches of one step and one replica as tensors: samples in the run's shuffled order, noised. First
// and last stage each build their inputs from the same counter-based draws, on any rank.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/ATen.h>

#include "absl/status/statusor.h"
#include "common/dataset/dataset.h"
#include "common/model/flow_matching.h"
#include "common/planner/plan.h"
#include "worker/trainer/frozen_outputs.h"
#include "worker/trainer/sample_source.h"
#include "worker/trainer/trainer.h"

namespace atl::trainer {

struct MicroBatch {
  model::NoisedBatch noised;
  at::Tensor clusters;   // [n] int64, of the samples (kCluster)
  at::Tensor condition;  // [n, width] of a frozen component; undefined without one
};

// Not thread-safe.
class BatchFeed {
 public:
  // `data` must outlive the feed and hold at least one sample. `replica` is the one that uses the samples. `frozen` has
  // the latents and conditions of the step's batch; may be null for a job without frozen components.
  BatchFeed(const TrainerOptions& options, const planner::Plan& plan, int32_t replica, TrainingData* data,
            const FrozenOutputs* frozen = nullptr);

  // Starts the step whose first sample, over all replicas, is the `cursor`-th of the run; drops the last step's
  // micro-batches.
  void Begin(int64_t cursor);

  // Returns micro-batch m of the step, built on first use. DATA_LOSS for a sample that the data cannot read,
  // FAILED_PRECONDITION for a label or cluster outside the options' range.
  absl::StatusOr<const MicroBatch*> Get(int32_t m);

  // Micro-batch m is not used again in this step: its memory may be freed.
  void Release(int32_t m) { built_[static_cast<size_t>(m)].reset(); }

 private:
  absl::StatusOr<MicroBatch> Build(int32_t m);

  const TrainerOptions options_;
  const int32_t micro_batch_size_;
  const int64_t first_sample_;  // of the replica, in a batch
  const FrozenOutputs* const frozen_;
  const SampleSource source_;
  int64_t cursor_ = 0;
  std::vector<std::optional<MicroBatch>> built_;
};

}  // namespace atl::trainer
