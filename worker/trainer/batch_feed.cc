#include "worker/trainer/batch_feed.h"

#include "common/base/status_macros.h"

namespace atl::trainer {
BatchFeed::BatchFeed(const TrainerOptions& options, const planner::Plan& plan, int32_t replica, TrainingData* data,
                     const FrozenOutputs* frozen)
    : options_(options),
      micro_batch_size_(plan.micro_batch_size),
      first_sample_(int64_t{replica} * plan.micro_batches * plan.micro_batch_size),
      frozen_(frozen),
      source_(options_, data),
      built_(static_cast<size_t>(plan.micro_batches)) {}

void BatchFeed::Begin(int64_t cursor) {
  cursor_ = cursor;
  for (std::optional<MicroBatch>& batch : built_) batch.reset();
}

absl::StatusOr<const MicroBatch*> BatchFeed::Get(int32_t m) {
  std::optional<MicroBatch>& batch = built_[static_cast<size_t>(m)];
  if (!batch.has_value()) {
    ATOLL_ASSIGN_OR_RETURN(batch, Build(m));
  }
  return &*batch;
}

absl::StatusOr<MicroBatch> BatchFeed::Build(int32_t m) {
  const int64_t n = micro_batch_size_;
  const int64_t first = static_cast<int64_t>(m) * n;  // in the replica's batch
  ATOLL_ASSIGN_OR_RETURN(const Samples samples, source_.Read(cursor_ + first_sample_ + first, n));
  const at::Device device(options_.device);
  MicroBatch batch{.clusters = samples.clusters.to(device, /*non_blocking=*/true)};
  at::Tensor x0;
  if (frozen_ != nullptr && frozen_->has_latents()) {
    ATOLL_ASSIGN_OR_RETURN(x0, frozen_->Latents(first, samples));
  } else {
    x0 = samples.images.to(device, /*non_blocking=*/true);
  }
  if (frozen_ != nullptr) {
    ATOLL_ASSIGN_OR_RETURN(batch.condition, frozen_->Conditions(first, samples));
  }
  batch.noised = model::Noise(x0, samples.classes, samples.sequence, options_.seed, options_.classes,
                              options_.training.class_dropout);
  return batch;
}

}  // namespace atl::trainer
