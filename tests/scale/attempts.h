// Counts the attempts at the leased tasks of a filled store.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/security/credentials.h"

namespace atl::scale {

struct AttemptCounts {
  int first_attempts = 0;  // experts that are leased at their first attempt
  int other_attempts = 0;  // at a later one, or ended
};

// Counts the attempts in the first `jobs` jobs, as the coordinator at `address` reports them; null credentials: plain
// text. Waits for the coordinator up to half a minute.
absl::StatusOr<AttemptCounts> AttemptsOf(const std::string& address,
                                         const std::shared_ptr<grpc::ChannelCredentials>& credentials, int jobs);

}  // namespace atl::scale
