// `atoll-worker --drain`: asks a worker of this machine to end well and waits for it, for those who run commands rather
// than send signals (Kubernetes' preStop).
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace atl::worker {

// Sends SIGTERM to `process`, an id or the path of a file that holds one, and waits until it has ended. OK also when
// there is no such process any more; INVALID_ARGUMENT (INVALID_PROCESS_ID); FAILED_PRECONDITION (NOT_A_WORKER) for one
// that runs another program than this one, DEADLINE_EXCEEDED (STILL_RUNNING) when it has not ended within `timeout`.
absl::Status DrainProcess(const std::string& process, absl::Duration timeout);

}  // namespace atl::worker
