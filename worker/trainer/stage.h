// The stages on one rank, for the engine: layers, micro-batches under way, and the loss.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/edge.h>

#include "common/model/dit.h"
#include "common/model/ops.h"
#include "common/planner/plan.h"
#include "worker/engine/self_conditioning_compute.h"
#include "worker/engine/stage_compute.h"
#include "worker/trainer/batch_feed.h"

namespace atl::trainer {

// A stage's graph begins at detached leaves, its inputs, and ends at its outputs: stages exchange plain memory. Weight
// gradients accumulate in the parameters' own gradients, in the order of the micro-batches' backwards.
//
// Within a stage, each recomputed layer is a part with its own graph, and so is each run of layers between them. Of a
// recomputed layer only the inputs live from F to I. I builds its graph, runs it backward and drops it before it
// continues with the previous part. No layer draws random numbers, so that the second forward reproduces the first
// one's bits.
//
// Memory of a (stage, micro-batch): from F to I the graph, without the outputs after they are sent; from I to W the
// tensors that the weight gradients read; then none.
//
// The extra forward of a self-conditioned step runs the same layers with zeros as estimate and keeps only the tensors
// that the next stage reads. The feedback is the last stage's velocity. The first stage, which has x_t and t, converts
// it into the estimate of the clean sample that its F reads. Without feedback F reads zeros.
//
// Called by the engine's one thread. Converts LibTorch's exceptions: INTERNAL, or RESOURCE_EXHAUSTED if memory is
// exhausted.
class RankStages : public engine::StageCompute, public engine::SelfConditioningCompute {
 public:
  // Builds the layers of this rank's stages. `rank` is the rank in the island. `feed` may be null on a rank with
  // neither first nor last stage.
  RankStages(const TrainerOptions& options, const model::DitConfig& config, const planner::Plan& plan, int32_t rank,
             BatchFeed* feed);

  // Layers of a stage, [begin, end), whose graph is built as one.
  struct LayerRun {
    size_t begin = 0;
    size_t end = 0;
    bool recomputed = false;
  };
  struct Stage {
    int32_t index = 0;
    model::LayerList layers;
    std::vector<LayerRun> runs;
    engine::Boundary input;
    engine::Boundary output;
  };
  // In order of the model.
  const std::vector<Stage>& stages() const { return stages_; }

  // Drops the losses of the last step.
  void Begin() { losses_.clear(), correct_.clear(); }
  // By micro-batch, scalars on the device: the loss, and for kCluster the share of right answers. Empty on ranks
  // without the last stage.
  const std::vector<at::Tensor>& losses() const { return losses_; }
  const std::vector<at::Tensor>& correct() const { return correct_; }

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
  void ReleaseOutputs(int32_t stage, int32_t micro_batch) override;
  void ReleaseInputGradients(int32_t stage, int32_t micro_batch) override;
  absl::StatusOr<engine::ReduceBuffers> BeginReduce(int32_t stage, int32_t replica, int32_t replicas) override;
  absl::Status SumOwnPart(int32_t stage) override;
  absl::Status EndReduce(int32_t stage) override;
  void Release(int32_t stage, int32_t micro_batch) override;

  const engine::Boundary& EstimateInputOf(int32_t stage) const override {
    return stage == 0 ? feedback_ : InputOf(stage);
  }
  absl::StatusOr<std::vector<std::span<std::byte>>> EstimateInputs(int32_t stage, int32_t micro_batch) override;
  absl::Status EstimateForward(int32_t stage, int32_t micro_batch) override;
  absl::StatusOr<std::vector<std::span<const std::byte>>> EstimateOutputs(int32_t stage, int32_t micro_batch) override;
  absl::Status HandOverEstimate(int32_t stage, int32_t micro_batch) override;
  void ReleaseEstimate(int32_t stage, int32_t micro_batch) override;

 private:
  // A graph from its leaves to its roots. Without roots, it still has to be computed from the leaves.
  struct Part {
    model::Flow leaves;
    std::vector<torch::autograd::Edge> roots;
  };
  // One micro-batch in one stage.
  struct Run {
    std::vector<at::Tensor> inputs;  // until F
    std::vector<Part> parts;         // from F to I, as the stage's runs; in the last stage the loss behind them
    std::vector<at::Tensor> outputs;
    std::vector<at::Tensor> output_gradients;  // until I
    std::vector<at::Tensor> input_gradients;
    model::WeightGradientQueue weight_gradients;
  };
  // A stage's gradients while they are reduced: one run of memory, and the other replicas' values of this replica's
  // part.
  struct Reducing {
    int32_t replica = 0;
    std::vector<at::Tensor> parts;
    std::vector<at::Tensor> gathered;
  };

  const Stage& StageAt(int32_t stage) const;
  Run& RunOf(int32_t stage, int32_t micro_batch) { return runs_[{stage, micro_batch}]; }
  std::vector<at::Tensor> Allocate(const engine::Boundary& boundary) const;
  // Returns the first stage's inputs for a micro-batch, except an estimate.
  absl::StatusOr<model::Flow> BatchFlow(int32_t micro_batch);
  absl::StatusOr<model::Flow> InputFlow(const Stage& stage, int32_t micro_batch);
  absl::Status ComputeLoss(int32_t micro_batch, const at::Tensor& out, Run& run);
  void RunBackward(const Stage& stage, Run& run, model::WeightGradientQueue* queue);

  const TrainerOptions options_;
  const at::ScalarType compute_;
  const int32_t micro_batches_;  // of all replicas
  const int32_t last_stage_;
  BatchFeed* const feed_;
  const engine::Boundary feedback_;
  std::vector<Stage> stages_;
  std::map<std::pair<int32_t, int32_t>, Run> runs_;
  // Tensors of the extra forward by (stage, micro-batch): the inputs (at stage 0 the feedback) and the outputs.
  std::map<std::pair<int32_t, int32_t>, std::vector<at::Tensor>> estimate_inputs_;
  std::map<std::pair<int32_t, int32_t>, std::vector<at::Tensor>> estimate_outputs_;
  std::map<int32_t, Reducing> reducing_;
  std::vector<at::Tensor> losses_;
  std::vector<at::Tensor> correct_;
};

}  // namespace atl::trainer
