#include "worker/transport/loopback/loopback_hub.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"
#include "worker/transport/failures.h"

namespace atl::transport {

LoopbackHub::LoopbackHub(const std::vector<AttemptIdentity>& identities) {
  for (const AttemptIdentity& identity : identities) members_.push_back({.identity = identity});
}

std::string LoopbackHub::AddressOf(int32_t rank) const {
  return fmt::format("loopback:{}:{}", static_cast<const void*>(this), rank);
}

absl::Status LoopbackHub::Join(int32_t rank, const LaneTable& lanes, absl::Duration timeout) {
  std::unique_lock lock(mutex_);
  Member& self = members_[rank];
  if (!self.failure.ok()) return self.failure;
  if (self.joined) return ConnectedTwice(rank);
  self.joined = true;
  self.lanes = lanes.Text();
  if (queues_.empty()) {
    for (const Lane& lane : lanes.lanes()) queues_.push_back({.lane = lane});
  }
  changed_.notify_all();
  const auto over = [this, &self] {
    return !self.failure.ok() ||
           std::all_of(members_.begin(), members_.end(), [](const Member& m) { return m.joined; });
  };
  absl::Status status;
  const auto patience = absl::ToChronoNanoseconds(std::min(timeout, absl::Hours(24 * 365)));
  if (!changed_.wait_for(lock, patience, over)) {
    const auto absent = std::find_if(members_.begin(), members_.end(), [](const Member& m) { return !m.joined; });
    status = MakeError(absl::StatusCode::kDeadlineExceeded, "TRANSPORT_TIMEOUT",
                       fmt::format("rank {}: rank {} did not connect within {}", rank, absent - members_.begin(),
                                   absl::FormatDuration(timeout)));
  } else {
    status = self.failure.ok() ? JudgePeers(rank) : self.failure;
  }
  if (!status.ok()) AbortLocked(rank, status);
  self.connected = status.ok();
  return status;
}

absl::Status LoopbackHub::JudgePeers(int32_t rank) const {
  const Member& self = members_[rank];
  for (size_t peer = 0; peer < members_.size(); ++peer) {
    const AttemptIdentity& found = members_[peer].identity;
    ATOLL_RETURN_IF_ERROR(CheckAttempt(rank, static_cast<int32_t>(peer), self.identity, found));
    if (found.secret != self.identity.secret) return SecretMismatch(rank, static_cast<int32_t>(peer));
    if (members_[peer].lanes != self.lanes) return LanesDiffer(rank, static_cast<int32_t>(peer));
  }
  return absl::OkStatus();
}

absl::Status LoopbackHub::CheckUsable(int32_t rank) const {
  const Member& self = members_[rank];
  if (!self.failure.ok()) return self.failure;
  return self.connected ? absl::OkStatus() : NotConnected(rank);
}

absl::Status LoopbackHub::PostSend(int32_t rank, uint32_t lane, std::span<const std::byte> bytes,
                                   std::shared_ptr<Operation> operation) {
  const std::lock_guard lock(mutex_);
  ATOLL_RETURN_IF_ERROR(CheckUsable(rank));
  queues_[lane].sends.push_back({const_cast<std::byte*>(bytes.data()), bytes.size(), std::move(operation)});
  Match(queues_[lane]);
  return absl::OkStatus();
}

absl::Status LoopbackHub::PostReceive(int32_t rank, uint32_t lane, std::span<std::byte> bytes,
                                      std::shared_ptr<Operation> operation) {
  const std::lock_guard lock(mutex_);
  ATOLL_RETURN_IF_ERROR(CheckUsable(rank));
  queues_[lane].receives.push_back({bytes.data(), bytes.size(), std::move(operation)});
  Match(queues_[lane]);
  return absl::OkStatus();
}

void LoopbackHub::Match(Queues& queues) {
  if (queues.sends.empty() || queues.receives.empty()) return;
  const Posted send = std::move(queues.sends.front());
  const Posted receive = queues.receives.front();
  queues.sends.pop_front();
  // Copied before either ends: a finished operation's buffer is its owner's again.
  if (send.size == receive.size) {
    if (send.size > 0) std::memcpy(receive.bytes, send.bytes, send.size);
    queues.receives.pop_front();
    receive.operation->Finish(absl::OkStatus());
  } else {
    AbortLocked(queues.lane.to, SizeMismatch(queues.lane, receive.size, send.size));
  }
  send.operation->Finish(absl::OkStatus());
}

void LoopbackHub::Abort(int32_t rank, const absl::Status& reason) {
  const std::lock_guard lock(mutex_);
  AbortLocked(rank, reason);
}

void LoopbackHub::AbortLocked(int32_t rank, const absl::Status& reason) {
  Member& self = members_[rank];
  if (!self.failure.ok()) return;
  self.failure = reason.ok() ? AbortedWithoutReason(rank) : reason;
  changed_.notify_all();
  if (!self.connected) return;
  for (Queues& queues : queues_) {
    if (queues.lane.from == rank) {
      for (const Posted& send : queues.sends) send.operation->Finish(self.failure);
      queues.sends.clear();
    }
    if (queues.lane.to == rank) {
      for (const Posted& receive : queues.receives) receive.operation->Finish(self.failure);
      queues.receives.clear();
    }
  }
}

}  // namespace atl::transport
