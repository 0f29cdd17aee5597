#include "worker/trainer/stage.h"

#include <cstdlib>

#include <torch/csrc/autograd/autograd.h>

#include "common/base/status_macros.h"
#include "common/model/weights.h"
#include "spdlog/spdlog.h"
#include "worker/trainer/tensor_errors.h"

namespace atl::trainer {
namespace {

engine::Boundary BoundaryOf(const model::DitConfig& config, int64_t n) {
  engine::Boundary boundary;
  const at::ScalarType dtype = model::ComputeType(config);
  for (model::FlowShape& tensor : model::HiddenFlow(config, n)) {
    int64_t bytes = static_cast<int64_t>(at::elementSize(dtype));
    for (const int64_t size : tensor.shape) bytes *= size;
    boundary.tensors.push_back({.name = std::move(tensor.name),
                                .shape = std::move(tensor.shape),
                                .dtype = std::string(model::DtypeName(dtype)),
                                .needs_gradient = true,
                                .bytes = bytes});
  }
  return boundary;
}

template <typename Byte>
std::vector<std::span<Byte>> Bytes(const std::vector<at::Tensor>& tensors) {
  std::vector<std::span<Byte>> spans;
  for (const at::Tensor& tensor : tensors) {
    // On a device these are device pointers: what its transport takes.
    spans.emplace_back(static_cast<Byte*>(tensor.mutable_data_ptr()), tensor.nbytes());
  }
  return spans;
}

}  // namespace

RankStages::RankStages(const TrainerOptions& options, const model::DitConfig& config, const planner::Plan& plan,
                       int32_t rank, BatchFeed* feed)
    : options_(options),
      compute_(model::ComputeType(config)),
      micro_batches_(plan.micro_batches),
      last_stage_(static_cast<int32_t>(plan.stages.size()) - 1),
      feed_(feed) {
  for (int32_t s = 0; s <= last_stage_; ++s) {
    const planner::StagePlacement& placement = plan.stages[static_cast<size_t>(s)];
    if (placement.rank != rank) continue;
    Stage stage{.index = s,
                .layers = model::BuildLayers(config, options.seed, placement.first_layer, placement.end_layer)};
    for (const auto& layer : stage.layers) layer->MoveTo(at::Device(options.device));
    if (s > 0) stage.input = BoundaryOf(config, plan.micro_batch_size);
    if (s < last_stage_) stage.output = BoundaryOf(config, plan.micro_batch_size);
    stages_.push_back(std::move(stage));
  }
}

const RankStages::Stage& RankStages::StageAt(int32_t stage) const {
  for (const Stage& candidate : stages_) {
    if (candidate.index == stage) return candidate;
  }
  spdlog::critical("Stage {} does not lie on this rank", stage);
  std::abort();
}

StepLoss RankStages::Loss() const {
  StepLoss step;
  for (const at::Tensor& loss : losses_) step.loss += loss.item<double>() / micro_batches_;
  for (const at::Tensor& correct : correct_) step.accuracy += correct.item<double>() / micro_batches_;
  return step;
}

std::vector<at::Tensor> RankStages::Allocate(const engine::Boundary& boundary) const {
  std::vector<at::Tensor> tensors;
  for (const engine::BoundaryTensor& tensor : boundary.tensors) {
    tensors.push_back(at::empty(tensor.shape, at::TensorOptions().dtype(compute_).device(options_.device)));
  }
  return tensors;
}

absl::StatusOr<std::vector<std::span<std::byte>>> RankStages::InputBuffers(int32_t stage, int32_t micro_batch) {
  return CatchTensorErrors("input buffers", [&]() -> absl::StatusOr<std::vector<std::span<std::byte>>> {
    Run& run = RunOf(stage, micro_batch);
    run.inputs = Allocate(InputOf(stage));
    return Bytes<std::byte>(run.inputs);
  });
}

absl::StatusOr<std::vector<std::span<std::byte>>> RankStages::OutputGradientBuffers(int32_t stage,
                                                                                    int32_t micro_batch) {
  return CatchTensorErrors("gradient buffers", [&]() -> absl::StatusOr<std::vector<std::span<std::byte>>> {
    Run& run = RunOf(stage, micro_batch);
    run.output_gradients = Allocate(OutputOf(stage));
    return Bytes<std::byte>(run.output_gradients);
  });
}

absl::StatusOr<model::Flow> RankStages::InputFlow(const Stage& stage, int32_t micro_batch) {
  if (stage.index == 0) {
    ATOLL_ASSIGN_OR_RETURN(const MicroBatch* batch, feed_->Get(micro_batch));
    return model::Flow{{"x", batch->noised.x_t}, {"t", batch->noised.t}, {"class", batch->noised.classes}};
  }
  const Run& run = RunOf(stage.index, micro_batch);
  model::Flow flow;
  for (size_t i = 0; i < run.inputs.size(); ++i) {
    flow.push_back({stage.input.tensors[i].name, run.inputs[i].requires_grad_(true)});
  }
  return flow;
}

absl::Status RankStages::Forward(int32_t index, int32_t micro_batch) {
  return CatchTensorErrors("forward", [&]() -> absl::Status {
    const Stage& stage = StageAt(index);
    ATOLL_ASSIGN_OR_RETURN(model::Flow flow, InputFlow(stage, micro_batch));
    flow = model::RunLayers(stage.layers, std::move(flow));
    Run& run = RunOf(index, micro_batch);
    if (index == last_stage_) return ComputeLoss(micro_batch, model::Get(flow, "out"), run);
    for (const engine::BoundaryTensor& tensor : stage.output.tensors) {
      run.outputs.push_back(model::Get(flow, tensor.name).contiguous());
    }
    return absl::OkStatus();
  });
}

absl::Status RankStages::ComputeLoss(int32_t micro_batch, const at::Tensor& out, Run& run) {
  ATOLL_ASSIGN_OR_RETURN(const MicroBatch* batch, feed_->Get(micro_batch));
  at::Tensor loss;
  if (options_.objective == Objective::kVelocity) {
    loss = model::FlowMatchingLoss(out, batch->noised.target);
  } else {
    loss = at::cross_entropy_loss(out, batch->clusters);
    correct_.push_back(at::eq(out.detach().argmax(1), batch->clusters).to(at::kFloat).mean());
  }
  losses_.push_back(loss.detach());
  run.outputs = {loss / micro_batches_};
  return absl::OkStatus();
}

void RankStages::RunBackward(Run& run, model::WeightGradientQueue* queue) {
  const model::ScopedWeightGradientQueue scoped(queue);
  torch::autograd::backward(run.outputs, run.output_gradients);
}

absl::Status RankStages::InputGradient(int32_t stage, int32_t micro_batch) {
  return CatchTensorErrors("input gradient", [&] {
    Run& run = RunOf(stage, micro_batch);
    RunBackward(run, &run.weight_gradients);
    return absl::OkStatus();
  });
}

absl::Status RankStages::WeightGradient(int32_t stage, int32_t micro_batch) {
  return CatchTensorErrors("weight gradient", [&] {
    RunOf(stage, micro_batch).weight_gradients.RunAll();
    return absl::OkStatus();
  });
}

absl::Status RankStages::Backward(int32_t stage, int32_t micro_batch) {
  return CatchTensorErrors("backward", [&] {
    RunBackward(RunOf(stage, micro_batch), nullptr);
    return absl::OkStatus();
  });
}

absl::StatusOr<std::vector<std::span<const std::byte>>> RankStages::Outputs(int32_t stage, int32_t micro_batch) {
  return Bytes<const std::byte>(RunOf(stage, micro_batch).outputs);
}

absl::StatusOr<std::vector<std::span<const std::byte>>> RankStages::InputGradients(int32_t stage, int32_t micro_batch) {
  return CatchTensorErrors("input gradients", [&]() -> absl::StatusOr<std::vector<std::span<const std::byte>>> {
    std::vector<at::Tensor> gradients;
    for (at::Tensor& input : RunOf(stage, micro_batch).inputs) {
      if (!input.grad().is_contiguous()) input.mutable_grad() = input.grad().contiguous();
      gradients.push_back(input.grad());
    }
    return Bytes<const std::byte>(gradients);
  });
}

absl::Status RankStages::HandOver(int32_t stage, int32_t micro_batch) {
  return CatchTensorErrors("hand over", [&] {
    Run& next = RunOf(stage + 1, micro_batch);
    for (const at::Tensor& output : RunOf(stage, micro_batch).outputs) next.inputs.push_back(output.detach());
    return absl::OkStatus();
  });
}

absl::Status RankStages::HandOverGradient(int32_t stage, int32_t micro_batch) {
  return CatchTensorErrors("hand over gradient", [&] {
    Run& before = RunOf(stage - 1, micro_batch);
    for (const at::Tensor& input : RunOf(stage, micro_batch).inputs) before.output_gradients.push_back(input.grad());
    return absl::OkStatus();
  });
}

void RankStages::Release(int32_t stage, int32_t micro_batch) {
  runs_.erase({stage, micro_batch});
}

}  // namespace atl::trainer
