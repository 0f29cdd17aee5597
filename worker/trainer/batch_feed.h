// The micro-batches of one step, as tensors: samples in the run's shuffled order, noised. First and last stage each
// build what they read from the same counter-based draws, wherever they lie.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/ATen.h>

#include "absl/status/statusor.h"
#include "common/dataset/dataset.h"
#include "common/model/flow_matching.h"
#include "worker/trainer/trainer.h"

namespace atl::trainer {

struct MicroBatch {
  model::NoisedBatch noised;
  at::Tensor clusters;  // [n] int64, of the samples (kCluster)
};

// Not thread-safe.
class BatchFeed {
 public:
  // `data` must outlive the feed and hold at least one sample.
  BatchFeed(const TrainerOptions& options, int32_t micro_batches, int32_t micro_batch_size, TrainingData* data);

  // Starts the step whose first sample is the `cursor`-th of the run; forgets the last step's micro-batches.
  void Begin(int64_t cursor);

  // Micro-batch m of the step, built when first asked for. DATA_LOSS for a sample that the data cannot read,
  // FAILED_PRECONDITION for a label or cluster outside the options' range.
  absl::StatusOr<const MicroBatch*> Get(int32_t m);

 private:
  absl::StatusOr<MicroBatch> Build(int32_t m);

  const TrainerOptions options_;
  const int32_t micro_batch_size_;
  TrainingData* const data_;
  const dataset::ShuffledOrder order_;
  int64_t cursor_ = 0;
  std::vector<std::optional<MicroBatch>> built_;
};

}  // namespace atl::trainer
