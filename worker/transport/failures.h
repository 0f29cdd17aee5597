// Errors that every transport reports in the same words. docs/errors.md lists the reasons.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "worker/transport/transport.h"

namespace atl::transport {

// Returns INTERNAL TRANSPORT_MESSAGE_SIZE: the received message has another size than its receiver expects.
absl::Status SizeMismatch(const Lane& lane, size_t expected_bytes, size_t found_bytes);

// Returns FAILED_PRECONDITION TRANSPORT_NOT_CONNECTED: a call that needs Connect came before it.
absl::Status NotConnected(int32_t rank);

// Returns FAILED_PRECONDITION TRANSPORT_CONNECTED_TWICE.
absl::Status ConnectedTwice(int32_t rank);

// Returns INVALID_ARGUMENT TRANSPORT_LANE_INVALID unless `rank` is `end`, the end of the lane that posts.
absl::Status CheckEnd(const char* verb, const Lane& lane, int32_t end, int32_t rank);

// Returns INVALID_ARGUMENT TRANSPORT_ADDRESS_INVALID unless there is one address per rank.
absl::Status CheckAddressCount(size_t count, int32_t rank_count);

// Returns ABORTED STALE_ATTEMPT unless both ranks have the same incarnation and attempt.
absl::Status CheckAttempt(int32_t rank, int32_t peer, const AttemptIdentity& expected, const AttemptIdentity& found);

// Returns PERMISSION_DENIED ATTEMPT_SECRET_MISMATCH, without the secrets.
absl::Status SecretMismatch(int32_t rank, int32_t peer);

// Returns FAILED_PRECONDITION TRANSPORT_LANES_DIFFER: the ranks were given different lanes.
absl::Status LanesDiffer(int32_t rank, int32_t peer);

// Returns CANCELLED TRANSPORT_CLOSED, with which pending operations of a destroyed instance end.
absl::Status Closed(int32_t rank);

// Returns CANCELLED TRANSPORT_ABORTED, which replaces an OK status given to Abort.
absl::Status AbortedWithoutReason(int32_t rank);

}  // namespace atl::transport
