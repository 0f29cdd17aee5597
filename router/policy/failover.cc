#include "router/policy/failover.h"

#include <algorithm>

#include "common/base/backoff.h"
#include "common/base/errors.h"
#include "fmt/format.h"

namespace atl::router {
namespace {

constexpr absl::Duration kLeastLimit = absl::Milliseconds(200);
constexpr double kLimitFactor = 8;  // of the mean
constexpr BackoffLimits kOpen{.first = absl::Milliseconds(500), .longest = absl::Seconds(30)};

}  // namespace

absl::Duration FirstAttemptLimit(const BatchCost& took, int64_t rows) {
  if (!took.known()) return kLongestCall;
  return std::clamp(kLimitFactor * took.Of(rows), kLeastLimit, kLongestCall);
}

void CircuitBreaker::Trip(absl::Duration now) {
  if (open(now)) return;
  open_until_ = now + BackoffDelay(kOpen, ++failures_, 0);
}

bool IsFailoverError(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kResourceExhausted:
      return true;
    default:
      return ErrorReason(status) == "NETWORK_NOT_HOSTED";
  }
}

absl::Status ExpertLost(const NetworkId& network, std::string_view why) {
  return MakeError(absl::StatusCode::kUnavailable, "EXPERT_LOST",
                   fmt::format("{}: no replica answers: {}", Describe(network), why));
}

}  // namespace atl::router
