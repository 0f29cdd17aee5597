#include "worker/transport/failures.h"

#include "common/base/errors.h"
#include "fmt/format.h"

namespace atl::transport {

absl::Status SizeMismatch(const Lane& lane, size_t expected_bytes, size_t found_bytes) {
  return MakeError(
      absl::StatusCode::kInternal, "TRANSPORT_MESSAGE_SIZE",
      fmt::format("lane {}: expected a message of {} bytes, found {}", ToString(lane), expected_bytes, found_bytes));
}

absl::Status NotConnected(int32_t rank) {
  return MakeError(absl::StatusCode::kFailedPrecondition, "TRANSPORT_NOT_CONNECTED",
                   fmt::format("rank {}: expected a successful Connect before this call, found none", rank));
}

absl::Status ConnectedTwice(int32_t rank) {
  return MakeError(absl::StatusCode::kFailedPrecondition, "TRANSPORT_CONNECTED_TWICE",
                   fmt::format("rank {}: expected one call of Connect, found a second", rank));
}

absl::Status CheckEnd(const char* verb, const Lane& lane, int32_t end, int32_t rank) {
  if (end == rank) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, "TRANSPORT_LANE_INVALID",
                   fmt::format("{} along lane {}: expected to be called by rank {}, found rank {}", verb,
                               ToString(lane), end, rank));
}

absl::Status CheckAddressCount(size_t count, int32_t rank_count) {
  if (count == static_cast<size_t>(rank_count)) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, "TRANSPORT_ADDRESS_INVALID",
                   fmt::format("expected {} addresses, one per rank, found {}", rank_count, count));
}

absl::Status CheckAttempt(int32_t rank, int32_t peer, const AttemptIdentity& expected, const AttemptIdentity& found) {
  if (expected.incarnation == found.incarnation && expected.attempt == found.attempt) return absl::OkStatus();
  return MakeError(absl::StatusCode::kAborted, "STALE_ATTEMPT",
                   fmt::format("rank {} refuses rank {}: expected incarnation {}, attempt {}; found incarnation {}, "
                               "attempt {}",
                               rank, peer, expected.incarnation, expected.attempt, found.incarnation, found.attempt));
}

absl::Status SecretMismatch(int32_t rank, int32_t peer) {
  return MakeError(absl::StatusCode::kPermissionDenied, "ATTEMPT_SECRET_MISMATCH",
                   fmt::format("rank {} refuses rank {}: expected a proof of this attempt's secret, found a proof of "
                               "another",
                               rank, peer));
}

absl::Status LanesDiffer(int32_t rank, int32_t peer) {
  return MakeError(absl::StatusCode::kFailedPrecondition, "TRANSPORT_LANES_DIFFER",
                   fmt::format("ranks {} and {} were given different lanes, expected the same", rank, peer));
}

absl::Status Closed(int32_t rank) {
  return MakeError(absl::StatusCode::kCancelled, "TRANSPORT_CLOSED",
                   fmt::format("rank {}: the transport was destroyed", rank));
}

absl::Status AbortedWithoutReason(int32_t rank) {
  return MakeError(absl::StatusCode::kCancelled, "TRANSPORT_ABORTED",
                   fmt::format("rank {}: the transport was aborted", rank));
}

}  // namespace atl::transport
