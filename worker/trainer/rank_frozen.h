// The frozen pieces on one rank for the engine, and their outputs for the stages.
//
// Pieces work ahead: while an iteration trains on the outputs of one batch, they compute those of the next. None of
// this is saved; a resumed run computes it again, with the shapes of its plan.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <ATen/ATen.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/frozen.h"
#include "common/planner/plan.h"
#include "worker/engine/frozen_compute.h"
#include "worker/trainer/frozen_outputs.h"
#include "worker/trainer/sample_source.h"
#include "worker/trainer/trainer.h"

namespace atl::trainer {

// Called by the engine's one thread. LibTorch's exceptions end here, as in RankStages.
class RankFrozen : public engine::FrozenCompute, public FrozenOutputs {
 public:
  // Runs every layer of the components on one sample, one after the other, and keeps those that the pieces of island
  // rank `rank` need. `data` must outlive it. Returns the errors of model::LoadFrozen, and PLAN_INVALID if the plan has
  // other components.
  static absl::StatusOr<std::unique_ptr<RankFrozen>> Create(const TrainerOptions& options, const planner::Plan& plan,
                                                            int32_t rank, TrainingData* data);

  // From now on, pieces run for the batch whose first sample, over all replicas, is the `cursor`-th of the run.
  void Prepare(int64_t cursor);
  // From now on, stages read the prepared batch.
  void Advance();
  // Returns whether stages read the batch at `cursor`.
  bool Holds(int64_t cursor) const { return current_cursor_ == cursor; }

  bool has_latents() const override { return latent_ >= 0; }
  // Available only where the plan sends them.
  absl::StatusOr<at::Tensor> Latents(int64_t first, const Samples& samples) const override {
    return Output(latent_, first, static_cast<int64_t>(samples.positions.size()));
  }
  absl::StatusOr<at::Tensor> Conditions(int64_t first, const Samples& samples) const override {
    return Output(condition_, first, static_cast<int64_t>(samples.positions.size()));
  }

  const model::FrozenComponent& component(int32_t i) const { return components_[static_cast<size_t>(i)]; }

  absl::StatusOr<std::span<std::byte>> InputBuffer(int32_t piece) override;
  absl::Status Run(int32_t piece) override;
  absl::StatusOr<std::span<const std::byte>> Output(int32_t piece) override;
  void Release(int32_t piece) override;

 private:
  RankFrozen(const TrainerOptions& options, const planner::Plan& plan, int32_t rank,
             std::vector<model::FrozenComponent> components, TrainingData* data);

  // Reads the samples of a piece from the batch itself.
  absl::StatusOr<at::Tensor> ReadBatch(const planner::FrozenPiece& piece, const std::string& input) const;
  at::Tensor Output(int32_t component, int64_t first, int64_t n) const;
  // Returns rows of the output of a component's layer `end_layer`, assembled from the outputs of its pieces.
  at::Tensor Rows(const std::vector<at::Tensor>& outputs, int32_t component, int32_t end_layer, int64_t first,
                  int64_t n) const;

  const TrainerOptions options_;
  const planner::Plan plan_;
  const int64_t first_sample_;  // of the replica, in a batch
  const SampleSource source_;
  std::vector<model::FrozenComponent> components_;
  int32_t latent_ = -1;
  int32_t condition_ = -1;
  std::vector<bool> kept_;  // by piece: a stage of this rank reads its output
  int64_t prepared_cursor_ = -1;
  int64_t current_cursor_ = -1;
  std::vector<at::Tensor> prepared_;  // by piece, from this rank or received
  std::vector<at::Tensor> current_;   // by piece, those that stages read
};

}  // namespace atl::trainer
