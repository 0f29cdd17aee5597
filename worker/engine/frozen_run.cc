#include "worker/engine/frozen_run.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"

namespace atl::engine {
namespace {

using transport::Lane;
using transport::LaneKind;

// One lane per directed pair of ranks: pieces run in order, so one order is all that a pair needs.
constexpr int32_t kFrozenChunk = 0;

// A plan with invalid pieces has no flow. The functions that accept plans (Trainer::Create, common/wire) report why.
planner::FrozenFlow FlowOf(const planner::Plan& plan) {
  absl::StatusOr<planner::FrozenFlow> flow = planner::FrozenFlowOf(plan);
  return flow.ok() ? *std::move(flow) : planner::FrozenFlow{};
}

}  // namespace

std::vector<Lane> FrozenLanesOf(const planner::Plan& plan) {
  const planner::FrozenFlow flow = FlowOf(plan);
  std::set<std::pair<int32_t, int32_t>> pairs;
  for (size_t piece = 0; piece < flow.needed_by.size(); ++piece) {
    for (const int32_t to : flow.needed_by[piece]) {
      if (to != plan.frozen[piece].rank) pairs.insert({plan.frozen[piece].rank, to});
    }
  }
  std::vector<Lane> lanes;
  for (int32_t replica = 0; replica < plan.replicas; ++replica) {
    const int32_t first = replica * plan.schedule.rank_count();
    for (const auto& [from, to] : pairs) lanes.push_back({first + from, first + to, kFrozenChunk, LaneKind::kFrozen});
  }
  return lanes;
}

FrozenRun::FrozenRun(const planner::Plan& plan, int32_t rank, FrozenCompute* compute, transport::Transport* transport,
                     Clock* clock, absl::Duration timeout)
    : plan_(plan),
      flow_(FlowOf(plan)),
      pipeline_rank_(rank % std::max(plan.schedule.rank_count(), 1)),
      first_rank_(rank - pipeline_rank_),
      compute_(compute),
      transport_(transport),
      clock_(clock),
      timeout_(timeout),
      durations_(plan.frozen.size(), absl::InfiniteDuration()),
      receives_(plan.frozen.size()) {
  if (pipeline_rank_ < 0 || pipeline_rank_ >= plan.schedule.rank_count()) return;
  for (const schedule::Action& action : plan.schedule.ranks[static_cast<size_t>(pipeline_rank_)]) {
    if (action.kind == schedule::ActionKind::kFrozen) pieces_.push_back(action.micro_batch);
  }
}

bool FrozenRun::Needs(int32_t piece) const {
  const std::vector<int32_t>& ranks = flow_.needed_by[static_cast<size_t>(piece)];
  return std::binary_search(ranks.begin(), ranks.end(), pipeline_rank_);
}

absl::Status FrozenRun::Begin(bool run) {
  next_ = 0;
  running_ = run && !plan_.frozen.empty();
  if (!running_) return absl::OkStatus();
  if (compute_ == nullptr || flow_.needed_by.size() != plan_.frozen.size()) {
    return MakeError(absl::StatusCode::kInvalidArgument, "FROZEN_PIECES",
                     fmt::format("engine: expected a plan whose {} pieces fit together, and what computes them",
                                 plan_.frozen.size()));
  }
  readers_.assign(plan_.frozen.size(), 0);
  for (const int32_t piece : pieces_) {
    for (const int32_t read : flow_.reads[static_cast<size_t>(piece)]) ++readers_[static_cast<size_t>(read)];
    ++readers_[static_cast<size_t>(piece)];  // until it has run and its sends are posted
  }
  return PostReceives();
}

absl::Status FrozenRun::PostReceives() {
  for (int32_t from = 0; from < plan_.schedule.rank_count(); ++from) {
    if (from == pipeline_rank_) continue;
    const Lane lane{first_rank_ + from, first_rank_ + pipeline_rank_, kFrozenChunk, LaneKind::kFrozen};
    for (const schedule::Action& action : plan_.schedule.ranks[static_cast<size_t>(from)]) {
      const int32_t piece = action.micro_batch;
      if (action.kind != schedule::ActionKind::kFrozen || !Needs(piece)) continue;
      ATOLL_ASSIGN_OR_RETURN(const std::span<std::byte> buffer, compute_->InputBuffer(piece));
      ATOLL_ASSIGN_OR_RETURN(receives_[static_cast<size_t>(piece)], transport_->Receive(lane, buffer));
    }
  }
  return absl::OkStatus();
}

std::optional<int32_t> FrozenRun::next() const {
  if (!running_ || next_ == pieces_.size()) return std::nullopt;
  return pieces_[next_];
}

absl::StatusOr<bool> FrozenRun::NextReady() {
  for (const int32_t read : flow_.reads[static_cast<size_t>(pieces_[next_])]) {
    const auto& receive = receives_[static_cast<size_t>(read)];
    if (receive != nullptr && !receive->Done()) return false;
  }
  ATOLL_RETURN_IF_ERROR(AwaitNext());  // takes their errors
  return true;
}

absl::Status FrozenRun::AwaitNext() {
  for (const int32_t read : flow_.reads[static_cast<size_t>(pieces_[next_])]) {
    auto& receive = receives_[static_cast<size_t>(read)];
    if (receive == nullptr) continue;
    ATOLL_RETURN_IF_ERROR(WithContext(receive->Wait(timeout_), fmt::format("output of piece {}", read)));
    receive.reset();
  }
  return absl::OkStatus();
}

absl::Duration FrozenRun::NextDuration() const {
  return durations_[static_cast<size_t>(pieces_[next_])];
}

absl::Status FrozenRun::RunNext() {
  const int32_t piece = pieces_[next_];
  const absl::Duration start = clock_->Monotonic();
  ATOLL_RETURN_IF_ERROR(compute_->Run(piece));
  durations_[static_cast<size_t>(piece)] = clock_->Monotonic() - start;
  ++next_;
  for (const int32_t read : flow_.reads[static_cast<size_t>(piece)]) Drop(read);
  ATOLL_RETURN_IF_ERROR(Send(piece));
  Drop(piece);
  return absl::OkStatus();
}

absl::Status FrozenRun::Send(int32_t piece) {
  for (const int32_t to : flow_.needed_by[static_cast<size_t>(piece)]) {
    if (to == pipeline_rank_) continue;
    ATOLL_ASSIGN_OR_RETURN(const std::span<const std::byte> output, compute_->Output(piece));
    const Lane lane{first_rank_ + pipeline_rank_, first_rank_ + to, kFrozenChunk, LaneKind::kFrozen};
    ATOLL_ASSIGN_OR_RETURN(auto work, transport_->Send(lane, output));
    ++readers_[static_cast<size_t>(piece)];
    sends_.push_back({piece, std::move(work)});
  }
  return absl::OkStatus();
}

void FrozenRun::Drop(int32_t piece) {
  if (--readers_[static_cast<size_t>(piece)] == 0) compute_->Release(piece);
}

absl::Status FrozenRun::CollectSends(bool wait) {
  for (auto send = sends_.begin(); send != sends_.end();) {
    if (!wait && !send->work->Done()) {
      ++send;
      continue;
    }
    ATOLL_RETURN_IF_ERROR(WithContext(send->work->Wait(timeout_), fmt::format("send of E{}", send->piece)));
    Drop(send->piece);
    send = sends_.erase(send);
  }
  return absl::OkStatus();
}

absl::Status FrozenRun::End() {
  for (size_t piece = 0; piece < receives_.size(); ++piece) {
    if (receives_[piece] == nullptr) continue;
    ATOLL_RETURN_IF_ERROR(WithContext(receives_[piece]->Wait(timeout_), fmt::format("output of piece {}", piece)));
    receives_[piece].reset();
  }
  return CollectSends(/*wait=*/true);
}

void FrozenRun::Clear() {
  for (auto& receive : receives_) receive.reset();
  sends_.clear();
}

}  // namespace atl::engine
