// The stages that lie on one rank, as the engine sees them: layers, micro-batches under way, and the loss.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include <ATen/ATen.h>

#include "common/model/dit.h"
#include "common/model/ops.h"
#include "common/planner/plan.h"
#include "worker/engine/stage_compute.h"
#include "worker/trainer/batch_feed.h"

namespace atl::trainer {

// Mean over the micro-batches of one step; on the rank of the last stage.
struct StepLoss {
  double loss = 0;
  double accuracy = 0;  // kCluster
};

// A stage's graph begins at detached leaves, its inputs, and ends at its outputs: what flows between stages is plain
// memory. Weight gradients accumulate in the parameters' own gradients, as the micro-batches' backwards come.
//
// Called by the engine's one thread. LibTorch's exceptions end here: INTERNAL, or RESOURCE_EXHAUSTED without memory.
class RankStages : public engine::StageCompute {
 public:
  // Builds the layers of this rank's stages. `feed` may be null on a rank with neither first nor last stage.
  RankStages(const TrainerOptions& options, const model::DitConfig& config, const planner::Plan& plan, int32_t rank,
             BatchFeed* feed);

  struct Stage {
    int32_t index = 0;
    model::LayerList layers;
    engine::Boundary input;
    engine::Boundary output;
  };
  // In order of the model.
  const std::vector<Stage>& stages() const { return stages_; }

  // Forgets the losses of the last step.
  void Begin() { losses_.clear(), correct_.clear(); }
  bool has_loss() const { return !losses_.empty(); }
  StepLoss Loss() const;

  const engine::Boundary& InputOf(int32_t stage) const override { return StageAt(stage).input; }
  const engine::Boundary& OutputOf(int32_t stage) const override { return StageAt(stage).output; }
  absl::StatusOr<std::vector<std::span<std::byte>>> InputBuffers(int32_t stage, int32_t micro_batch) override;
  absl::StatusOr<std::vector<std::span<std::byte>>> OutputGradientBuffers(int32_t stage, int32_t micro_batch) override;
  absl::Status Forward(int32_t stage, int32_t micro_batch) override;
  absl::Status InputGradient(int32_t stage, int32_t micro_batch) override;
  absl::Status WeightGradient(int32_t stage, int32_t micro_batch) override;
  absl::Status Backward(int32_t stage, int32_t micro_batch) override;
  absl::StatusOr<std::vector<std::span<const std::byte>>> Outputs(int32_t stage, int32_t micro_batch) override;
  absl::StatusOr<std::vector<std::span<const std::byte>>> InputGradients(int32_t stage, int32_t micro_batch) override;
  absl::Status HandOver(int32_t stage, int32_t micro_batch) override;
  absl::Status HandOverGradient(int32_t stage, int32_t micro_batch) override;
  void Release(int32_t stage, int32_t micro_batch) override;

 private:
  // One micro-batch in one stage.
  struct Run {
    std::vector<at::Tensor> inputs;            // leaves
    std::vector<at::Tensor> outputs;           // roots of the backward pass; the loss, in the last stage
    std::vector<at::Tensor> output_gradients;  // none in the last stage
    model::WeightGradientQueue weight_gradients;
  };

  const Stage& StageAt(int32_t stage) const;
  Run& RunOf(int32_t stage, int32_t micro_batch) { return runs_[{stage, micro_batch}]; }
  std::vector<at::Tensor> Allocate(const engine::Boundary& boundary) const;
  absl::StatusOr<model::Flow> InputFlow(const Stage& stage, int32_t micro_batch);
  absl::Status ComputeLoss(int32_t micro_batch, const at::Tensor& out, Run& run);
  void RunBackward(Run& run, model::WeightGradientQueue* queue);

  const TrainerOptions options_;
  const at::ScalarType compute_;
  const int32_t micro_batches_;
  const int32_t last_stage_;
  BatchFeed* const feed_;
  std::vector<Stage> stages_;
  std::map<std::pair<int32_t, int32_t>, Run> runs_;
  std::vector<at::Tensor> losses_;
  std::vector<at::Tensor> correct_;
};

}  // namespace atl::trainer
