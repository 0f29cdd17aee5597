#include "worker/trainer/rank_frozen.h"

#include <algorithm>
#include <utility>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/model/flow_matching.h"
#include "common/spec/frozen.h"
#include "fmt/format.h"
#include "worker/trainer/tensor_errors.h"

namespace atl::trainer {
namespace {

absl::Status CheckComponents(const planner::Plan& plan, const std::vector<model::FrozenComponent>& components) {
  std::vector<int32_t> expected;
  std::vector<int32_t> found;
  for (const model::FrozenComponent& component : components) expected.push_back(component.layer_count());
  for (const planner::FrozenComponent& component : plan.components) found.push_back(component.layers);
  if (expected == found) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, "PLAN_INVALID",
                   fmt::format("plan: expected pieces of {} frozen components, with the layers of the job; found {}",
                               expected.size(), found.size()));
}

// By component: the layers [first, end) that the pieces of a rank run.
std::vector<std::pair<int32_t, int32_t>> LayersOf(const planner::Plan& plan, int32_t pipeline_rank) {
  std::vector<std::pair<int32_t, int32_t>> layers(plan.components.size(), {0, 0});
  for (const planner::FrozenPiece& piece : plan.frozen) {
    if (piece.rank != pipeline_rank) continue;
    auto& [first, end] = layers[static_cast<size_t>(piece.component)];
    first = end == 0 ? piece.first_layer : std::min(first, piece.first_layer);
    end = std::max(end, piece.end_layer);
  }
  return layers;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankFrozen>> RankFrozen::Create(const TrainerOptions& options, const planner::Plan& plan,
                                                               int32_t rank, TrainingData* data) {
  return CatchTensorErrors("frozen components", [&]() -> absl::StatusOr<std::unique_ptr<RankFrozen>> {
    ATOLL_ASSIGN_OR_RETURN(std::vector<model::FrozenComponent> components,
                           model::LoadFrozen({.components = options.frozen,
                                              .image = {options.channels, options.height, options.width},
                                              .classes = options.classes,
                                              .seed = options.frozen_seed,
                                              .files = options.frozen_files,
                                              .device = options.device,
                                              .kept = LayersOf(plan, rank % plan.schedule.rank_count())}));
    ATOLL_RETURN_IF_ERROR(CheckComponents(plan, components));
    TrainerOptions loaded = options;
    loaded.frozen_files.reset();  // nobody reads them again
    return std::unique_ptr<RankFrozen>(new RankFrozen(loaded, plan, rank, std::move(components), data));
  });
}

RankFrozen::RankFrozen(const TrainerOptions& options, const planner::Plan& plan, int32_t rank,
                       std::vector<model::FrozenComponent> components, TrainingData* data)
    : options_(options),
      plan_(plan),
      first_sample_(int64_t{rank / plan.schedule.rank_count()} * plan.micro_batches * plan.micro_batch_size),
      source_(options_, data),
      components_(std::move(components)),
      kept_(plan.frozen.size(), false),
      prepared_(plan.frozen.size()),
      current_(plan.frozen.size()) {
  latent_ = spec::FrozenWithOutput(options.frozen, "latent").value_or(-1);
  const int32_t pipeline_rank = rank % plan.schedule.rank_count();
  const bool first_stage = plan.schedule.rank_of_stage.front() == pipeline_rank;
  // The condition is not sent to the last stage, because only the first one reads it.
  if (first_stage) condition_ = spec::FrozenWithOutput(options.frozen, "condition").value_or(-1);
  const bool last_stage = plan.schedule.rank_of_stage.back() == pipeline_rank;
  for (size_t p = 0; p < plan.frozen.size(); ++p) {
    const planner::FrozenPiece& piece = plan.frozen[p];
    const planner::FrozenComponent& component = plan.components[static_cast<size_t>(piece.component)];
    kept_[p] = piece.end_layer == component.layers &&
               ((component.to_first_stage && first_stage) || (component.to_last_stage && last_stage));
  }
}

void RankFrozen::Prepare(int64_t cursor) {
  prepared_cursor_ = cursor;
  for (at::Tensor& output : prepared_) output.reset();
}

void RankFrozen::Advance() {
  std::swap(current_, prepared_);
  current_cursor_ = std::exchange(prepared_cursor_, -1);
  for (at::Tensor& output : prepared_) output.reset();
}

at::Tensor RankFrozen::Rows(const std::vector<at::Tensor>& outputs, int32_t component, int32_t end_layer, int64_t first,
                            int64_t n) const {
  std::vector<std::pair<int64_t, at::Tensor>> parts;
  for (size_t p = 0; p < plan_.frozen.size(); ++p) {
    const planner::FrozenPiece& piece = plan_.frozen[p];
    if (piece.component != component || piece.end_layer != end_layer || !outputs[p].defined()) continue;
    const int64_t begin = std::max<int64_t>(first, piece.first_sample);
    const int64_t end = std::min<int64_t>(first + n, piece.first_sample + piece.samples);
    if (begin < end) parts.emplace_back(begin, outputs[p].narrow(0, begin - piece.first_sample, end - begin));
  }
  std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<at::Tensor> rows;
  for (auto& [begin, part] : parts) rows.push_back(std::move(part));
  return rows.size() == 1 ? rows.front() : at::cat(rows);
}

at::Tensor RankFrozen::Output(int32_t component, int64_t first, int64_t n) const {
  if (component < 0) return {};
  return Rows(current_, component, plan_.components[static_cast<size_t>(component)].layers, first, n).to(at::kFloat);
}

absl::StatusOr<at::Tensor> RankFrozen::ReadBatch(const planner::FrozenPiece& piece, const std::string& input) const {
  ATOLL_ASSIGN_OR_RETURN(const Samples samples,
                         source_.Read(prepared_cursor_ + first_sample_ + piece.first_sample, piece.samples));
  const at::Device device(options_.device);
  if (input == "image") return samples.images.to(device);
  return model::DropClasses(samples.classes, samples.sequence, options_.seed, options_.classes,
                            options_.training.class_dropout)
      .to(device);
}

absl::Status RankFrozen::Run(int32_t number) {
  return CatchTensorErrors("frozen piece", [&]() -> absl::Status {
    const planner::FrozenPiece& piece = plan_.frozen[static_cast<size_t>(number)];
    const model::FrozenComponent& component = components_[static_cast<size_t>(piece.component)];
    const int32_t reads = plan_.components[static_cast<size_t>(piece.component)].reads;
    at::Tensor input;
    if (piece.first_layer > 0) {
      input = Rows(prepared_, piece.component, piece.first_layer, piece.first_sample, piece.samples);
    } else if (reads >= 0) {
      const int32_t layers = plan_.components[static_cast<size_t>(reads)].layers;
      input = Rows(prepared_, reads, layers, piece.first_sample, piece.samples);
    } else {
      ATOLL_ASSIGN_OR_RETURN(input, ReadBatch(piece, component.spec().input));
    }
    ATOLL_ASSIGN_OR_RETURN(prepared_[static_cast<size_t>(number)],
                           component.Run(input, piece.first_layer, piece.end_layer));
    return absl::OkStatus();
  });
}

absl::StatusOr<std::span<std::byte>> RankFrozen::InputBuffer(int32_t number) {
  return CatchTensorErrors("frozen buffer", [&]() -> absl::StatusOr<std::span<std::byte>> {
    const planner::FrozenPiece& piece = plan_.frozen[static_cast<size_t>(number)];
    const model::FrozenComponent::Output& output =
        components_[static_cast<size_t>(piece.component)].OutputOf(piece.end_layer - 1);
    std::vector<int64_t> shape{piece.samples};
    shape.insert(shape.end(), output.shape.begin(), output.shape.end());
    at::Tensor& tensor = prepared_[static_cast<size_t>(number)];
    tensor = at::empty(shape, at::TensorOptions().dtype(output.dtype).device(options_.device));
    return std::span<std::byte>(static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes());
  });
}

absl::StatusOr<std::span<const std::byte>> RankFrozen::Output(int32_t piece) {
  const at::Tensor& output = prepared_[static_cast<size_t>(piece)];
  return std::span<const std::byte>(static_cast<const std::byte*>(output.const_data_ptr()), output.nbytes());
}

void RankFrozen::Release(int32_t piece) {
  if (!kept_[static_cast<size_t>(piece)]) prepared_[static_cast<size_t>(piece)].reset();
}

}  // namespace atl::trainer
