// What became of the leases of a filled store.
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

// Of the first `jobs` jobs, as the coordinator at `address` tells; null credentials: in the clear. Waits for it up to
// half a minute.
absl::StatusOr<AttemptCounts> AttemptsOf(const std::string& address,
                                         const std::shared_ptr<grpc::ChannelCredentials>& credentials, int jobs);

}  // namespace atl::scale
