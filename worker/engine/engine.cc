#include "worker/engine/engine.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "common/base/errors.h"
#include "common/base/status_macros.h"

namespace atl::engine {
namespace {

using schedule::Action;
using schedule::ActionKind;
using transport::Lane;
using transport::LaneKind;

bool ComputesInputGradient(ActionKind kind) {
  return kind == ActionKind::kInputGradient || kind == ActionKind::kBackward;
}

bool EndsGradients(ActionKind kind) {
  return kind == ActionKind::kWeightGradient || kind == ActionKind::kBackward;
}

std::vector<int64_t> Sizes(const Boundary& boundary, bool only_gradients) {
  std::vector<int64_t> sizes;
  for (const BoundaryTensor& tensor : boundary.tensors) {
    if (!only_gradients || tensor.needs_gradient) sizes.push_back(tensor.bytes);
  }
  return sizes;
}

// A stage that gives other buffers than its boundary says would send or overwrite the wrong memory.
template <typename Byte>
absl::Status CheckBuffers(const Action& action, const Lane& lane, const std::vector<int64_t>& sizes,
                          const std::vector<std::span<Byte>>& buffers) {
  if (buffers.size() != sizes.size()) {
    return MakeError(absl::StatusCode::kInternal, "BOUNDARY_MISMATCH",
                     fmt::format("{}, lane {}: expected {} buffers as in the boundary, found {}", ToString(action),
                                 ToString(lane), sizes.size(), buffers.size()));
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (static_cast<int64_t>(buffers[i].size()) != sizes[i]) {
      return MakeError(absl::StatusCode::kInternal, "BOUNDARY_MISMATCH",
                       fmt::format("{}, lane {}: expected {} bytes for tensor {}, found {}", ToString(action),
                                   ToString(lane), sizes[i], i, buffers[i].size()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

int64_t Boundary::bytes() const {
  int64_t sum = 0;
  for (const BoundaryTensor& tensor : tensors) sum += tensor.bytes;
  return sum;
}

std::vector<Action> ActionsOf(const schedule::Schedule& schedule, int32_t pipeline_rank) {
  std::vector<Action> merged;
  if (pipeline_rank < 0 || pipeline_rank >= schedule.rank_count()) return merged;
  for (const Action& action : schedule.ranks[static_cast<size_t>(pipeline_rank)]) {
    const bool awaited = action.stage > 0 && schedule.rank_of_stage[action.stage - 1] != pipeline_rank;
    if (action.kind == ActionKind::kWeightGradient && !awaited && !merged.empty() &&
        merged.back() == Action{ActionKind::kInputGradient, action.stage, action.micro_batch}) {
      merged.back().kind = ActionKind::kBackward;
    } else {
      merged.push_back(action);
    }
  }
  return merged;
}

Engine::Engine(const planner::Plan& plan, int32_t rank, StageCompute* compute, transport::Transport* transport,
               Clock* clock, EngineOptions options)
    : plan_(plan),
      schedule_(plan.schedule),
      rank_(rank),
      replica_(rank / std::max(plan.schedule.rank_count(), 1)),
      actions_(ActionsOf(plan.schedule, rank % std::max(plan.schedule.rank_count(), 1))),
      compute_(compute),
      transport_(transport),
      clock_(clock),
      options_(options) {}

Engine::~Engine() = default;

absl::Duration Engine::Now() const {
  return clock_->Monotonic() - started_;
}

absl::Status Engine::RunIteration() {
  absl::Status status = RunActions();
  if (status.ok()) return status;
  status = WithContext(status, fmt::format("rank {}", rank_));
  // Only after the abort may the handles of operations under way be dropped.
  if (transport_ != nullptr) transport_->Abort(status);
  receives_.clear();
  sends_.clear();
  reductions_.clear();
  return status;
}

absl::Status Engine::RunActions() {
  started_ = clock_->Monotonic();
  timings_.clear();
  if (rank_ < 0 || rank_ >= plan_.rank_count()) {
    return MakeError(absl::StatusCode::kInvalidArgument, "RANK_OUT_OF_RANGE",
                     fmt::format("engine: expected a rank below {}, found {}", plan_.rank_count(), rank_));
  }
  if (transport_ == nullptr && plan_.rank_count() > 1) {
    return MakeError(absl::StatusCode::kInvalidArgument, "TRANSPORT_MISSING",
                     fmt::format("engine: a plan of {} ranks needs a transport", plan_.rank_count()));
  }
  timings_.reserve(actions_.size());
  next_to_post_ = 0;
  holds_.assign(static_cast<size_t>(schedule_.stages) * schedule_.micro_batches, 1);
  ATOLL_RETURN_IF_ERROR(PostReceives(0));
  for (size_t position = 0; position < actions_.size(); ++position) {
    ATOLL_RETURN_IF_ERROR(RunAction(position));
  }
  const absl::Duration ended = Now();
  ATOLL_RETURN_IF_ERROR(AdvanceReductions(/*wait=*/true));
  ATOLL_RETURN_IF_ERROR(CollectSends(/*wait=*/true));
  drain_ = Now() - ended;
  return absl::OkStatus();
}

absl::Status Engine::RunAction(size_t position) {
  const Action& action = actions_[position];
  ATOLL_RETURN_IF_ERROR(WithContext(AwaitReceives(), ToString(action)));
  ActionTiming timing{.action = action, .ready = Now()};
  // What the next action reads may depend on this one having run (the gradient of this very micro-batch): it cannot
  // arrive before, and its buffers may not exist yet.
  const bool ahead = position + 1 < actions_.size() && (actions_[position + 1].stage != action.stage ||
                                                        actions_[position + 1].micro_batch != action.micro_batch);
  if (ahead) ATOLL_RETURN_IF_ERROR(PostReceives(position + 1));
  timing.start = Now();
  ATOLL_RETURN_IF_ERROR(WithContext(Compute(action), ToString(action)));
  timing.end = Now();
  ATOLL_RETURN_IF_ERROR(WithContext(PassOn(action), ToString(action)));
  if (EndsGradients(action.kind)) ReleaseIfDone(action.stage, action.micro_batch);
  ATOLL_RETURN_IF_ERROR(CollectSends(/*wait=*/false));
  ATOLL_RETURN_IF_ERROR(AdvanceReductions(/*wait=*/false));
  ATOLL_RETURN_IF_ERROR(PostReceives(position + 1));
  timing.passed_on = Now();
  timings_.push_back(timing);
  return absl::OkStatus();
}

absl::Status Engine::Compute(const Action& action) {
  switch (action.kind) {
    case ActionKind::kForward:
      return compute_->Forward(action.stage, action.micro_batch);
    case ActionKind::kInputGradient:
      return compute_->InputGradient(action.stage, action.micro_batch);
    case ActionKind::kWeightGradient:
      return compute_->WeightGradient(action.stage, action.micro_batch);
    case ActionKind::kBackward:
      return compute_->Backward(action.stage, action.micro_batch);
    case ActionKind::kReduce:
      return BeginReduction(action.stage);
    case ActionKind::kFrozen:
      return MakeError(absl::StatusCode::kUnimplemented, "ACTION_UNKNOWN",
                       fmt::format("engine: {} cannot run", ToString(action)));
  }
  return absl::OkStatus();
}

absl::Status Engine::PostReceives(size_t position) {
  if (position != next_to_post_ || position >= actions_.size()) return absl::OkStatus();
  ++next_to_post_;
  const Action& action = actions_[position];
  if (action.kind == ActionKind::kForward) {
    const auto lane = LaneBefore(plan_, replica_, action.stage, LaneKind::kForward);
    if (!lane.has_value()) return absl::OkStatus();
    ATOLL_ASSIGN_OR_RETURN(auto buffers, compute_->InputBuffers(action.stage, action.micro_batch));
    return ReceiveAll(*lane, action, Sizes(compute_->InputOf(action.stage), false), buffers);
  }
  if (ComputesInputGradient(action.kind)) {
    const auto lane = LaneBefore(plan_, replica_, action.stage + 1, LaneKind::kGradient);
    if (!lane.has_value()) return absl::OkStatus();
    ATOLL_ASSIGN_OR_RETURN(auto buffers, compute_->OutputGradientBuffers(action.stage, action.micro_batch));
    return ReceiveAll(*lane, action, Sizes(compute_->OutputOf(action.stage), true), buffers);
  }
  return absl::OkStatus();
}

absl::Status Engine::ReceiveAll(const Lane& lane, const Action& action, const std::vector<int64_t>& sizes,
                                const std::vector<std::span<std::byte>>& buffers) {
  ATOLL_RETURN_IF_ERROR(CheckBuffers(action, lane, sizes, buffers));
  for (const std::span<std::byte> buffer : buffers) {
    ATOLL_ASSIGN_OR_RETURN(auto work, transport_->Receive(lane, buffer));
    receives_.push_back(std::move(work));
  }
  return absl::OkStatus();
}

absl::Status Engine::AwaitReceives() {
  for (const auto& work : receives_) ATOLL_RETURN_IF_ERROR(work->Wait(options_.timeout));
  receives_.clear();
  return absl::OkStatus();
}

absl::Status Engine::PassOn(const Action& action) {
  const int32_t stage = action.stage;
  if (action.kind == ActionKind::kForward && stage + 1 < schedule_.stages) {
    const auto lane = LaneBefore(plan_, replica_, stage + 1, LaneKind::kForward);
    if (!lane.has_value()) return compute_->HandOver(stage, action.micro_batch);
    ATOLL_ASSIGN_OR_RETURN(auto buffers, compute_->Outputs(stage, action.micro_batch));
    return SendAll(*lane, action, Sizes(compute_->OutputOf(stage), false), buffers);
  }
  if (ComputesInputGradient(action.kind) && stage > 0) {
    const auto lane = LaneBefore(plan_, replica_, stage, LaneKind::kGradient);
    if (!lane.has_value()) return compute_->HandOverGradient(stage, action.micro_batch);
    ATOLL_ASSIGN_OR_RETURN(auto buffers, compute_->InputGradients(stage, action.micro_batch));
    return SendAll(*lane, action, Sizes(compute_->InputOf(stage), true), buffers);
  }
  return absl::OkStatus();
}

absl::Status Engine::SendAll(const Lane& lane, const Action& action, const std::vector<int64_t>& sizes,
                             const std::vector<std::span<const std::byte>>& buffers) {
  ATOLL_RETURN_IF_ERROR(CheckBuffers(action, lane, sizes, buffers));
  if (buffers.empty()) return absl::OkStatus();
  ++holds_[static_cast<size_t>(action.stage) * schedule_.micro_batches + action.micro_batch];
  SendInFlight& send = sends_.emplace_back(SendInFlight{action, {}});
  for (const std::span<const std::byte> buffer : buffers) {
    ATOLL_ASSIGN_OR_RETURN(auto work, transport_->Send(lane, buffer));
    send.works.push_back(std::move(work));
  }
  return absl::OkStatus();
}

absl::Status Engine::CollectSends(bool wait) {
  for (auto send = sends_.begin(); send != sends_.end();) {
    const bool done =
        wait || std::all_of(send->works.begin(), send->works.end(), [](const auto& work) { return work->Done(); });
    if (!done) {
      ++send;
      continue;
    }
    for (const auto& work : send->works) {
      const absl::Status status = work->Wait(options_.timeout);
      if (!status.ok()) return WithContext(status, fmt::format("sends of {}", ToString(send->action)));
    }
    const Action& action = send->action;
    if (action.kind == ActionKind::kForward) {
      compute_->ReleaseOutputs(action.stage, action.micro_batch);
    } else {
      compute_->ReleaseInputGradients(action.stage, action.micro_batch);
    }
    ReleaseIfDone(action.stage, action.micro_batch);
    send = sends_.erase(send);
  }
  return absl::OkStatus();
}

absl::Status Engine::BeginReduction(int32_t stage) {
  if (plan_.replicas == 1) return absl::OkStatus();
  return reductions_.emplace_back(plan_, replica_, stage, compute_, transport_).Begin();
}

absl::Status Engine::AdvanceReductions(bool wait) {
  for (auto reduction = reductions_.begin(); reduction != reductions_.end();) {
    if (wait) ATOLL_RETURN_IF_ERROR(reduction->Finish(options_.timeout));
    ATOLL_ASSIGN_OR_RETURN(const bool done, reduction->Advance());
    if (!done) {
      ++reduction;
      continue;
    }
    reduction = reductions_.erase(reduction);
  }
  return absl::OkStatus();
}

void Engine::ReleaseIfDone(int32_t stage, int32_t micro_batch) {
  if (--holds_[static_cast<size_t>(stage) * schedule_.micro_batches + micro_batch] == 0) {
    compute_->Release(stage, micro_batch);
  }
}

}  // namespace atl::engine
