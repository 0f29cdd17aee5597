#include "worker/trainer/stage.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

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

// The velocity of a micro-batch, as the head makes it.
engine::Boundary FeedbackOf(const model::DitConfig& config, int64_t n) {
  return {{{.name = "velocity",
            .shape = {n, config.channels, config.height, config.width_pixels},
            .dtype = std::string(model::DtypeName(at::kFloat)),
            .needs_gradient = false,
            .bytes = n * config.channels * config.height * config.width_pixels * static_cast<int64_t>(sizeof(float))}}};
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

// The runs of layers [first, first + count) of the model, each recomputed layer a run of its own.
std::vector<RankStages::LayerRun> RunsOf(const planner::Plan& plan, int32_t first, size_t count) {
  std::vector<RankStages::LayerRun> runs;
  for (size_t i = 0; i < count; ++i) {
    const bool recomputed = std::binary_search(plan.recomputed_layers.begin(), plan.recomputed_layers.end(),
                                               first + static_cast<int32_t>(i));
    if (runs.empty() || recomputed || runs.back().recomputed) {
      runs.push_back({.begin = i, .end = i + 1, .recomputed = recomputed});
    } else {
      runs.back().end = i + 1;
    }
  }
  return runs;
}

model::Flow RunLayers(const RankStages::Stage& stage, const RankStages::LayerRun& run, model::Flow flow) {
  for (size_t i = run.begin; i < run.end; ++i) flow = stage.layers[i]->Forward(flow);
  return flow;
}

// Where the gradients of `outputs` enter the graph; not valid for one that needs none.
std::vector<torch::autograd::Edge> RootsOf(const model::Flow& outputs) {
  std::vector<torch::autograd::Edge> roots;
  for (const model::NamedTensor& output : outputs) {
    roots.push_back(output.tensor.requires_grad() ? torch::autograd::impl::gradient_edge(output.tensor)
                                                  : torch::autograd::Edge());
  }
  return roots;
}

// Plain memory where one graph ends and the next begins.
model::Flow Detached(const model::Flow& flow) {
  model::Flow leaves;
  for (const model::NamedTensor& entry : flow) {
    leaves.push_back({entry.name, entry.tensor.detach().requires_grad_(entry.tensor.is_floating_point())});
  }
  return leaves;
}

// Runs the graph behind `roots` once and drops it. As torch::autograd::backward, which wants the outputs themselves.
void RunGraph(const std::vector<torch::autograd::Edge>& roots, const std::vector<at::Tensor>& gradients) {
  torch::autograd::edge_list edges;
  torch::autograd::variable_list values;
  for (size_t i = 0; i < roots.size(); ++i) {
    if (!roots[i].is_valid() || !gradients[i].defined()) continue;
    edges.push_back(roots[i]);
    values.push_back(gradients[i]);
  }
  torch::autograd::Engine::get_default_engine().execute(edges, values, /*keep_graph=*/false, /*create_graph=*/false,
                                                        /*accumulate_grad=*/true);
}

// Takes the gradients out of leaves; an undefined tensor for a leaf that needs none.
std::vector<at::Tensor> TakeGradients(model::Flow& leaves) {
  std::vector<at::Tensor> gradients;
  for (model::NamedTensor& leaf : leaves) {
    at::Tensor& gradient = leaf.tensor.mutable_grad();
    if (leaf.tensor.requires_grad() && !gradient.defined()) gradient = at::zeros_like(leaf.tensor);
    gradients.push_back(std::exchange(gradient, at::Tensor()));
  }
  return gradients;
}

}  // namespace

RankStages::RankStages(const TrainerOptions& options, const model::DitConfig& config, const planner::Plan& plan,
                       int32_t rank, BatchFeed* feed)
    : options_(options),
      compute_(model::ComputeType(config)),
      micro_batches_(plan.micro_batches * plan.replicas),
      last_stage_(static_cast<int32_t>(plan.stages.size()) - 1),
      feed_(feed),
      feedback_(FeedbackOf(config, plan.micro_batch_size)) {
  for (int32_t s = 0; s <= last_stage_; ++s) {
    const planner::StagePlacement& placement = plan.stages[static_cast<size_t>(s)];
    if (placement.rank != rank % plan.schedule.rank_count()) continue;
    Stage stage{.index = s,
                .layers = model::BuildLayers(config, options.seed, placement.first_layer, placement.end_layer)};
    for (const auto& layer : stage.layers) layer->MoveTo(at::Device(options.device));
    stage.runs = RunsOf(plan, placement.first_layer, stage.layers.size());
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

std::vector<at::Tensor> RankStages::Allocate(const engine::Boundary& boundary) const {
  std::vector<at::Tensor> tensors;
  for (const engine::BoundaryTensor& tensor : boundary.tensors) {
    const at::ScalarType dtype = tensor.dtype == model::DtypeName(at::kFloat) ? at::kFloat : compute_;
    tensors.push_back(at::empty(tensor.shape, at::TensorOptions().dtype(dtype).device(options_.device)));
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

absl::StatusOr<model::Flow> RankStages::BatchFlow(int32_t micro_batch) {
  ATOLL_ASSIGN_OR_RETURN(const MicroBatch* batch, feed_->Get(micro_batch));
  model::Flow flow{{"x", batch->noised.x_t}, {"t", batch->noised.t}, {"class", batch->noised.classes}};
  if (batch->condition.defined()) flow.push_back({"condition", batch->condition});
  return flow;
}

absl::StatusOr<model::Flow> RankStages::InputFlow(const Stage& stage, int32_t micro_batch) {
  if (stage.index == 0) {
    ATOLL_ASSIGN_OR_RETURN(model::Flow flow, BatchFlow(micro_batch));
    const auto feedback = estimate_inputs_.extract({0, micro_batch});
    if (!feedback.empty()) {
      const at::Tensor& velocity = feedback.mapped().front();
      flow.push_back({"estimate", model::EstimateOf(model::Get(flow, "x"), model::Get(flow, "t"), velocity)});
    }
    return flow;
  }
  std::vector<at::Tensor> inputs = std::exchange(RunOf(stage.index, micro_batch).inputs, {});
  model::Flow flow;
  for (size_t i = 0; i < inputs.size(); ++i) {
    flow.push_back({stage.input.tensors[i].name, std::move(inputs[i]).requires_grad_(true)});
  }
  return flow;
}

absl::Status RankStages::Forward(int32_t index, int32_t micro_batch) {
  return CatchTensorErrors("forward", [&]() -> absl::Status {
    const Stage& stage = StageAt(index);
    ATOLL_ASSIGN_OR_RETURN(model::Flow flow, InputFlow(stage, micro_batch));
    Run& run = RunOf(index, micro_batch);
    for (const LayerRun& layers : stage.runs) {
      Part& part = run.parts.emplace_back();
      part.leaves = run.parts.size() == 1 ? std::move(flow) : Detached(flow);
      if (layers.recomputed) {
        const at::NoGradGuard no_graph;
        flow = RunLayers(stage, layers, part.leaves);
      } else {
        flow = RunLayers(stage, layers, part.leaves);
        part.roots = RootsOf(flow);
      }
    }
    if (index == last_stage_) return ComputeLoss(micro_batch, model::Get(flow, "out"), run);
    for (const engine::BoundaryTensor& tensor : stage.output.tensors) {
      run.outputs.push_back(model::Get(flow, tensor.name).detach().contiguous());
    }
    if (index == 0 && stages_.back().index != last_stage_) feed_->Release(micro_batch);
    return absl::OkStatus();
  });
}

absl::Status RankStages::ComputeLoss(int32_t micro_batch, const at::Tensor& out, Run& run) {
  ATOLL_ASSIGN_OR_RETURN(const MicroBatch* batch, feed_->Get(micro_batch));
  Part& part = run.parts.emplace_back(Part{.leaves = Detached({{"out", out}})});
  const at::Tensor& leaf = part.leaves[0].tensor;
  at::Tensor loss;
  if (options_.objective == Objective::kVelocity) {
    loss = model::FlowMatchingLoss(leaf, batch->noised.target);
  } else {
    loss = at::cross_entropy_loss(leaf, batch->clusters);
    correct_.push_back(at::eq(out.detach().argmax(1), batch->clusters).to(at::kFloat).mean());
  }
  losses_.push_back(loss.detach());
  part.roots = RootsOf({{"loss", loss / micro_batches_}});
  run.output_gradients = {at::ones_like(loss)};
  feed_->Release(micro_batch);
  return absl::OkStatus();
}

void RankStages::RunBackward(const Stage& stage, Run& run, model::WeightGradientQueue* queue) {
  const model::ScopedWeightGradientQueue scoped(queue);
  std::vector<at::Tensor> gradients = std::exchange(run.output_gradients, {});
  while (!run.parts.empty()) {
    Part part = std::move(run.parts.back());
    run.parts.pop_back();
    if (part.roots.empty()) part.roots = RootsOf(RunLayers(stage, stage.runs[run.parts.size()], part.leaves));
    RunGraph(part.roots, gradients);
    gradients = TakeGradients(part.leaves);
  }
  if (stage.index == 0) return;
  for (at::Tensor& gradient : gradients) run.input_gradients.push_back(gradient.contiguous());
}

absl::Status RankStages::InputGradient(int32_t stage, int32_t micro_batch) {
  return CatchTensorErrors("input gradient", [&] {
    Run& run = RunOf(stage, micro_batch);
    RunBackward(StageAt(stage), run, &run.weight_gradients);
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
    RunBackward(StageAt(stage), RunOf(stage, micro_batch), nullptr);
    return absl::OkStatus();
  });
}

absl::StatusOr<std::vector<std::span<const std::byte>>> RankStages::Outputs(int32_t stage, int32_t micro_batch) {
  return Bytes<const std::byte>(RunOf(stage, micro_batch).outputs);
}

absl::StatusOr<std::vector<std::span<const std::byte>>> RankStages::InputGradients(int32_t stage, int32_t micro_batch) {
  return Bytes<const std::byte>(RunOf(stage, micro_batch).input_gradients);
}

absl::Status RankStages::HandOver(int32_t stage, int32_t micro_batch) {
  RunOf(stage + 1, micro_batch).inputs = std::exchange(RunOf(stage, micro_batch).outputs, {});
  return absl::OkStatus();
}

absl::Status RankStages::HandOverGradient(int32_t stage, int32_t micro_batch) {
  RunOf(stage - 1, micro_batch).output_gradients = std::exchange(RunOf(stage, micro_batch).input_gradients, {});
  return absl::OkStatus();
}

void RankStages::ReleaseOutputs(int32_t stage, int32_t micro_batch) {
  RunOf(stage, micro_batch).outputs.clear();
}

void RankStages::ReleaseInputGradients(int32_t stage, int32_t micro_batch) {
  RunOf(stage, micro_batch).input_gradients.clear();
}

void RankStages::Release(int32_t stage, int32_t micro_batch) {
  runs_.erase({stage, micro_batch});
}

absl::StatusOr<std::vector<std::span<std::byte>>> RankStages::EstimateInputs(int32_t stage, int32_t micro_batch) {
  return CatchTensorErrors("estimate buffers", [&]() -> absl::StatusOr<std::vector<std::span<std::byte>>> {
    return Bytes<std::byte>(estimate_inputs_[{stage, micro_batch}] = Allocate(EstimateInputOf(stage)));
  });
}

absl::Status RankStages::EstimateForward(int32_t index, int32_t micro_batch) {
  return CatchTensorErrors("self-conditioning", [&]() -> absl::Status {
    const at::NoGradGuard no_graph;
    const Stage& stage = StageAt(index);
    model::Flow flow;
    if (index == 0) {
      ATOLL_ASSIGN_OR_RETURN(flow, BatchFlow(micro_batch));
    } else {
      auto inputs = estimate_inputs_.extract({index, micro_batch});
      for (size_t i = 0; i < stage.input.tensors.size(); ++i) {
        flow.push_back({stage.input.tensors[i].name, std::move(inputs.mapped()[i])});
      }
    }
    // As in F, layer by layer, so that what a layer read goes when it has run.
    for (const LayerRun& layers : stage.runs) flow = RunLayers(stage, layers, std::move(flow));
    std::vector<at::Tensor>& outputs = estimate_outputs_[{index, micro_batch}];
    if (index == last_stage_) {
      outputs.push_back(model::Get(flow, "out").contiguous());
      return absl::OkStatus();
    }
    for (const engine::BoundaryTensor& tensor : stage.output.tensors) {
      outputs.push_back(model::Get(flow, tensor.name).contiguous());
    }
    return absl::OkStatus();
  });
}

absl::StatusOr<std::vector<std::span<const std::byte>>> RankStages::EstimateOutputs(int32_t stage,
                                                                                    int32_t micro_batch) {
  return Bytes<const std::byte>(estimate_outputs_[{stage, micro_batch}]);
}

absl::Status RankStages::HandOverEstimate(int32_t stage, int32_t micro_batch) {
  const int32_t next = stage == last_stage_ ? 0 : stage + 1;
  estimate_inputs_[{next, micro_batch}] = std::move(estimate_outputs_.extract({stage, micro_batch}).mapped());
  return absl::OkStatus();
}

void RankStages::ReleaseEstimate(int32_t stage, int32_t micro_batch) {
  estimate_outputs_.erase({stage, micro_batch});
}

absl::StatusOr<engine::ReduceBuffers> RankStages::BeginReduce(int32_t index, int32_t replica, int32_t replicas) {
  return CatchTensorErrors("begin reduction", [&]() -> absl::StatusOr<engine::ReduceBuffers> {
    const at::NoGradGuard no_grad;
    const std::vector<model::NamedTensor> parameters = model::NamedParameters(StageAt(index).layers);
    int64_t elements = 0;
    for (const model::NamedTensor& parameter : parameters) elements += parameter.tensor.numel();
    const at::Tensor all = at::empty({elements}, at::TensorOptions().dtype(at::kFloat).device(options_.device));
    int64_t next = 0;
    for (const model::NamedTensor& parameter : parameters) {
      const at::Tensor place = all.narrow(0, next, parameter.tensor.numel()).view(parameter.tensor.sizes());
      next += parameter.tensor.numel();
      at::Tensor& gradient = parameter.tensor.mutable_grad();
      if (gradient.defined()) {
        place.copy_(gradient);
      } else {
        place.zero_();
      }
      gradient = place;
    }
    Reducing& reducing = reducing_[index];
    reducing.replica = replica;
    for (int32_t part = 0; part < replicas; ++part) {
      const int64_t begin = elements * part / replicas;
      reducing.parts.push_back(all.narrow(0, begin, elements * (part + 1) / replicas - begin));
    }
    const at::Tensor& own = reducing.parts[static_cast<size_t>(replica)];
    for (int32_t other = 0; other < replicas; ++other) {
      reducing.gathered.push_back(at::empty({other == replica ? 0 : own.numel()}, own.options()));
    }
    return engine::ReduceBuffers{.parts = Bytes<std::byte>(reducing.parts),
                                 .gathered = Bytes<std::byte>(reducing.gathered)};
  });
}

absl::Status RankStages::SumOwnPart(int32_t stage) {
  return CatchTensorErrors("reduction", [&] {
    const at::NoGradGuard no_grad;
    Reducing& reducing = reducing_[stage];
    std::vector<at::Tensor> terms = std::exchange(reducing.gathered, {});
    const at::Tensor& own = reducing.parts[static_cast<size_t>(reducing.replica)];
    terms[static_cast<size_t>(reducing.replica)] = own;
    for (size_t replica = 1; replica < terms.size(); ++replica) terms[0].add_(terms[replica]);
    if (reducing.replica != 0) own.copy_(terms[0]);
    return absl::OkStatus();
  });
}

absl::Status RankStages::EndReduce(int32_t stage) {
  reducing_.erase(stage);
  return absl::OkStatus();
}

}  // namespace atl::trainer
