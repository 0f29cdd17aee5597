#include "worker/engine/engine.h"

#include <algorithm>
#include <iterator>
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

// How long a rank waits for the inputs of an action before it looks whether those of a piece have come.
constexpr absl::Duration kGlance = absl::Microseconds(500);

std::vector<Action> WithoutPieces(const std::vector<Action>& actions) {
  std::vector<Action> rest;
  std::copy_if(actions.begin(), actions.end(), std::back_inserter(rest),
               [](const Action& action) { return action.kind != ActionKind::kFrozen; });
  return rest;
}

std::vector<size_t> PiecesBefore(const std::vector<Action>& actions) {
  std::vector<size_t> before;
  size_t pieces = 0;
  for (const Action& action : actions) {
    if (action.kind == ActionKind::kFrozen) {
      ++pieces;
    } else {
      before.push_back(pieces);
    }
  }
  return before;
}

std::vector<int64_t> Sizes(const Boundary& boundary, bool only_gradients) {
  std::vector<int64_t> sizes;
  for (const BoundaryTensor& tensor : boundary.tensors) {
    if (!only_gradients || tensor.needs_gradient) sizes.push_back(tensor.bytes);
  }
  return sizes;
}

// Rejects buffers that differ from the stage's boundary, because they would send or overwrite the wrong memory.
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

Engine::Line::Line(const schedule::Schedule& schedule, int32_t pipeline_rank)
    : actions(WithoutPieces(ActionsOf(schedule, pipeline_rank))),
      pieces_before(PiecesBefore(ActionsOf(schedule, pipeline_rank))),
      gaps(actions.size()) {}

Engine::Engine(const planner::Plan& plan, int32_t rank, StageCompute* compute, transport::Transport* transport,
               Clock* clock, EngineOptions options)
    : plan_(plan),
      schedule_(plan.schedule),
      rank_(rank),
      replica_(rank / std::max(plan.schedule.rank_count(), 1)),
      compute_(compute),
      transport_(transport),
      clock_(clock),
      options_(options),
      frozen_(plan, rank, options.frozen, transport, clock, options.timeout),
      plain_(plan.schedule, rank % std::max(plan.schedule.rank_count(), 1)),
      self_conditioned_(plan.self_conditioned, rank % std::max(plan.schedule.rank_count(), 1)) {}

Engine::~Engine() = default;

absl::Duration Engine::Now() const {
  return clock_->Monotonic() - started_;
}

absl::Status Engine::End(absl::Status status) {
  if (status.ok()) return status;
  status = WithContext(status, fmt::format("rank {}", rank_));
  // Only after the abort may the handles of operations under way be dropped.
  if (transport_ != nullptr) transport_->Abort(status);
  receives_.clear();
  sends_.clear();
  reductions_.clear();
  frozen_.Clear();
  return status;
}

absl::Status Engine::RunIteration(Iteration iteration) {
  return End(RunActions(iteration));
}

absl::Status Engine::RunFrozen() {
  const auto run = [this]() -> absl::Status {
    ATOLL_RETURN_IF_ERROR(CheckRanks());
    started_ = clock_->Monotonic();
    timings_.clear();
    ATOLL_RETURN_IF_ERROR(frozen_.Begin(/*run=*/true));
    ATOLL_RETURN_IF_ERROR(RunRemainingPieces());
    return frozen_.End();
  };
  return End(run());
}

absl::Status Engine::CheckRanks() const {
  if (rank_ < 0 || rank_ >= plan_.rank_count()) {
    return MakeError(absl::StatusCode::kInvalidArgument, "RANK_OUT_OF_RANGE",
                     fmt::format("engine: expected a rank below {}, found {}", plan_.rank_count(), rank_));
  }
  if (transport_ == nullptr && plan_.rank_count() > 1) {
    return MakeError(absl::StatusCode::kInvalidArgument, "TRANSPORT_MISSING",
                     fmt::format("engine: a plan of {} ranks needs a transport", plan_.rank_count()));
  }
  return absl::OkStatus();
}

absl::Status Engine::RunActions(const Iteration& iteration) {
  started_ = clock_->Monotonic();
  timings_.clear();
  ATOLL_RETURN_IF_ERROR(CheckRanks());
  line_ = iteration.self_conditioned ? &self_conditioned_ : &plain_;
  if (iteration.self_conditioned && (line_->actions.empty() || options_.self_conditioning == nullptr)) {
    return MakeError(absl::StatusCode::kInvalidArgument, "SELF_CONDITIONING_MISSING",
                     "engine: expected a plan with a self-conditioned schedule, and what computes it; found none");
  }
  timings_.reserve(line_->actions.size());
  next_to_post_ = 0;
  idle_since_ = absl::ZeroDuration();
  holds_.assign(static_cast<size_t>(schedule_.stages) * schedule_.micro_batches, 1);
  ATOLL_RETURN_IF_ERROR(PostReceives(0));
  ATOLL_RETURN_IF_ERROR(frozen_.Begin(iteration.frozen));
  for (size_t position = 0; position < line_->actions.size(); ++position) {
    ATOLL_RETURN_IF_ERROR(RunPieces(position));
    ATOLL_RETURN_IF_ERROR(RunAction(position));
  }
  ATOLL_RETURN_IF_ERROR(RunRemainingPieces());
  ATOLL_RETURN_IF_ERROR(frozen_.End());
  ATOLL_RETURN_IF_ERROR(AdvanceReductions(/*wait=*/true));
  return CollectSends(/*wait=*/true);
}

absl::Status Engine::RunPieces(size_t position) {
  const bool receives = !receives_.empty();
  const bool place = line_->pieces_before[position] > (position == 0 ? 0 : line_->pieces_before[position - 1]);
  bool ran = false;
  while (frozen_.next().has_value()) {
    // A piece that missed its place takes the next one, or a gap that holds it: not the time of an action that is
    // ready.
    const bool due = place && frozen_.done() < line_->pieces_before[position];
    if (!options_.move_pieces) {
      if (!due) break;
      ATOLL_RETURN_IF_ERROR(frozen_.AwaitNext());
    }
    const bool arrived = ReceivesArrived();
    const bool held_up = options_.move_pieces && receives && ran;
    if (arrived && (!due || held_up)) break;
    ATOLL_ASSIGN_OR_RETURN(const bool ready, frozen_.NextReady());
    const bool fits = frozen_.NextDuration() <= idle_since_ + line_->gaps[position] - Now();
    if (ready && (due || fits)) {
      ATOLL_RETURN_IF_ERROR(RunPiece());
      ran = true;
      continue;
    }
    // The action need not wait, or the piece is too long for what is left of the gap, which only shrinks. Else both
    // wait.
    if (arrived || ready || (!due && !fits) || Now() - idle_since_ >= options_.timeout) break;
    AwaitReceivesBriefly();
  }
  return absl::OkStatus();
}

absl::Status Engine::RunPiece() {
  ActionTiming timing{.action = {ActionKind::kFrozen, 0, *frozen_.next()}, .ready = Now(), .start = Now()};
  {
    const WorkScope work(options_.activity, timing.action);
    ATOLL_RETURN_IF_ERROR(WithContext(frozen_.RunNext(), ToString(timing.action)));
  }
  timing.end = Now();
  ATOLL_RETURN_IF_ERROR(CollectSends(/*wait=*/false));
  ATOLL_RETURN_IF_ERROR(frozen_.CollectSends());
  ATOLL_RETURN_IF_ERROR(AdvanceReductions(/*wait=*/false));
  timing.passed_on = Now();
  timings_.push_back(timing);
  return absl::OkStatus();
}

absl::Status Engine::RunRemainingPieces() {
  while (frozen_.next().has_value()) {
    ATOLL_RETURN_IF_ERROR(frozen_.AwaitNext());
    ATOLL_RETURN_IF_ERROR(RunPiece());
  }
  return absl::OkStatus();
}

bool Engine::ReceivesArrived() const {
  return std::all_of(receives_.begin(), receives_.end(), [](const auto& work) { return work->Done(); });
}

void Engine::AwaitReceivesBriefly() {
  for (const auto& work : receives_) {
    if (!work->DoneWithin(kGlance)) return;
  }
}

absl::Status Engine::RunAction(size_t position) {
  const Action& action = line_->actions[position];
  ATOLL_RETURN_IF_ERROR(WithContext(AwaitReceives(position), ToString(action)));
  ActionTiming timing{.action = action, .ready = Now()};
  // If the next action is of the same stage and micro-batch, its inputs may depend on this action (the gradient of this
  // very micro-batch): they cannot arrive earlier, and their buffers may not exist yet.
  const Action* next = position + 1 < line_->actions.size() ? &line_->actions[position + 1] : nullptr;
  const bool ahead = next != nullptr && (next->stage != action.stage || next->micro_batch != action.micro_batch);
  if (ahead) ATOLL_RETURN_IF_ERROR(PostReceives(position + 1));
  timing.start = Now();
  {
    const WorkScope work(options_.activity, action);
    ATOLL_RETURN_IF_ERROR(WithContext(Compute(action), ToString(action)));
  }
  timing.end = Now();
  ATOLL_RETURN_IF_ERROR(WithContext(PassOn(action), ToString(action)));
  if (EndsGradients(action.kind)) ReleaseIfDone(action.stage, action.micro_batch);
  ATOLL_RETURN_IF_ERROR(CollectSends(/*wait=*/false));
  ATOLL_RETURN_IF_ERROR(frozen_.CollectSends());
  ATOLL_RETURN_IF_ERROR(AdvanceReductions(/*wait=*/false));
  ATOLL_RETURN_IF_ERROR(PostReceives(position + 1));
  timing.passed_on = idle_since_ = Now();
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
    case ActionKind::kSelfConditioning:
      return options_.self_conditioning->EstimateForward(action.stage, action.micro_batch);
    case ActionKind::kReduce:
      return BeginReduction(action.stage);
    case ActionKind::kFrozen:
      return MakeError(absl::StatusCode::kUnimplemented, "ACTION_UNKNOWN",
                       fmt::format("engine: {} cannot run", ToString(action)));
  }
  return absl::OkStatus();
}

bool Engine::ReadsEstimate(const Action& action) const {
  if (action.stage > 0) return action.kind == ActionKind::kSelfConditioning;
  return action.kind == ActionKind::kForward && line_ == &self_conditioned_;
}

absl::Status Engine::PostReceives(size_t position) {
  if (position != next_to_post_ || position >= line_->actions.size()) return absl::OkStatus();
  ++next_to_post_;
  const Action& action = line_->actions[position];
  if (ReadsEstimate(action)) {
    const auto lane = LaneBefore(plan_, replica_, action.stage, LaneKind::kSelfConditioning);
    if (!lane.has_value()) return absl::OkStatus();
    SelfConditioningCompute* const compute = options_.self_conditioning;
    ATOLL_ASSIGN_OR_RETURN(auto buffers, compute->EstimateInputs(action.stage, action.micro_batch));
    return ReceiveAll(*lane, action, Sizes(compute->EstimateInputOf(action.stage), false), buffers);
  }
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

absl::Status Engine::AwaitReceives(size_t position) {
  for (const auto& work : receives_) {
    ATOLL_RETURN_IF_ERROR(work->Wait(options_.timeout));
    if (const auto ended = work->EndedAt()) {
      line_->gaps[position] = std::max(absl::ZeroDuration(), *ended - started_ - idle_since_);
    }
  }
  receives_.clear();
  return absl::OkStatus();
}

absl::Status Engine::PassOn(const Action& action) {
  const int32_t stage = action.stage;
  if (action.kind == ActionKind::kSelfConditioning) {
    const int32_t next = (stage + 1) % schedule_.stages;
    const auto lane = LaneBefore(plan_, replica_, next, LaneKind::kSelfConditioning);
    SelfConditioningCompute* const compute = options_.self_conditioning;
    if (!lane.has_value()) return compute->HandOverEstimate(stage, action.micro_batch);
    ATOLL_ASSIGN_OR_RETURN(auto buffers, compute->EstimateOutputs(stage, action.micro_batch));
    const Boundary& boundary = next == 0 ? compute->EstimateInputOf(0) : compute_->OutputOf(stage);
    return SendAll(*lane, action, Sizes(boundary, false), buffers);
  }
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
  if (action.kind != ActionKind::kSelfConditioning) ++holds_[HoldOf(action.stage, action.micro_batch)];
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
    Release(send->action);
    send = sends_.erase(send);
  }
  return absl::OkStatus();
}

void Engine::Release(const Action& sent) {
  if (sent.kind == ActionKind::kSelfConditioning) {
    options_.self_conditioning->ReleaseEstimate(sent.stage, sent.micro_batch);
    return;
  }
  if (sent.kind == ActionKind::kForward) {
    compute_->ReleaseOutputs(sent.stage, sent.micro_batch);
  } else {
    compute_->ReleaseInputGradients(sent.stage, sent.micro_batch);
  }
  ReleaseIfDone(sent.stage, sent.micro_batch);
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
  if (--holds_[HoldOf(stage, micro_batch)] == 0) compute_->Release(stage, micro_batch);
}

}  // namespace atl::engine
