#include "worker/engine/reduction.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "worker/engine/lanes.h"

namespace atl::engine {

absl::Status Reduction::Begin() {
  ATOLL_ASSIGN_OR_RETURN(buffers_, compute_->BeginReduce(stage_, replica_, plan_.replicas));
  for (int32_t other = 0; other < plan_.replicas; ++other) {
    if (other == replica_) continue;
    ATOLL_RETURN_IF_ERROR(Receive(other, buffers_.gathered[static_cast<size_t>(other)]));
    ATOLL_RETURN_IF_ERROR(Send(other, buffers_.parts[static_cast<size_t>(other)]));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Reduction::Advance() {
  while (phase_ != Phase::kDone && Arrived()) {
    ATOLL_RETURN_IF_ERROR(Await(absl::InfiniteDuration()));  // has ended: does not block
    ATOLL_RETURN_IF_ERROR(NextPhase());
  }
  return phase_ == Phase::kDone;
}

absl::Status Reduction::Finish(absl::Duration timeout) {
  while (phase_ != Phase::kDone) {
    ATOLL_RETURN_IF_ERROR(Await(timeout));
    ATOLL_RETURN_IF_ERROR(NextPhase());
  }
  return absl::OkStatus();
}

bool Reduction::Arrived() const {
  return std::all_of(works_.begin(), works_.end(), [](const auto& work) { return work->Done(); });
}

absl::Status Reduction::Await(absl::Duration timeout) {
  for (const auto& work : works_) {
    ATOLL_RETURN_IF_ERROR(WithContext(work->Wait(timeout), fmt::format("reduction of stage {}", stage_)));
  }
  works_.clear();
  return absl::OkStatus();
}

absl::Status Reduction::NextPhase() {
  if (phase_ == Phase::kSpreading) {
    phase_ = Phase::kDone;
    return compute_->EndReduce(stage_);
  }
  phase_ = Phase::kSpreading;
  ATOLL_RETURN_IF_ERROR(compute_->SumOwnPart(stage_));
  // A sum overwrites what this replica gave to it: that has been sent.
  for (int32_t other = 0; other < plan_.replicas; ++other) {
    if (other == replica_) continue;
    ATOLL_RETURN_IF_ERROR(Receive(other, buffers_.parts[static_cast<size_t>(other)]));
    ATOLL_RETURN_IF_ERROR(Send(other, buffers_.parts[static_cast<size_t>(replica_)]));
  }
  return absl::OkStatus();
}

absl::Status Reduction::Send(int32_t replica, std::span<const std::byte> bytes) {
  if (bytes.empty()) return absl::OkStatus();  // fewer elements than replicas
  ATOLL_ASSIGN_OR_RETURN(auto work, transport_->Send(ReduceLane(plan_, stage_, replica_, replica), bytes));
  works_.push_back(std::move(work));
  return absl::OkStatus();
}

absl::Status Reduction::Receive(int32_t replica, std::span<std::byte> bytes) {
  if (bytes.empty()) return absl::OkStatus();
  ATOLL_ASSIGN_OR_RETURN(auto work, transport_->Receive(ReduceLane(plan_, stage_, replica, replica_), bytes));
  works_.push_back(std::move(work));
  return absl::OkStatus();
}

}  // namespace atl::engine
