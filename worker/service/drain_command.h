// `atoll-worker --drain`: asks a worker of this machine to end well and waits for it, for those who run commands rather
// than send signals (Kubernetes' preStop).
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace atl::worker {

// `text`: a process id, or the path of a file that holds one. Errors of ReadFile;
// INVALID_ARGUMENT (INVALID_PROCESS_ID).
absl::StatusOr<pid_t> ReadProcessId(const std::string& text);

// Sends SIGTERM and waits until the process has ended. OK also when there is no such process any more;
// FAILED_PRECONDITION (NOT_A_WORKER) for one that runs another program than this one, DEADLINE_EXCEEDED (STILL_RUNNING)
// when it has not ended within `timeout`.
absl::Status DrainProcess(pid_t process, absl::Duration timeout);

}  // namespace atl::worker
