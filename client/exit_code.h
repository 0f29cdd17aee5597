// Exit codes of `atoll`, by class of error, so that scripts can tell a wrong file from an unreachable coordinator.
#pragma once

#include "absl/status/status.h"

namespace atl::client {

enum ExitCode : int {
  kExitOk = 0,
  kExitOther = 1,
  kExitUsage = 2,
  kExitInvalidArgument = 3,
  kExitNotFound = 4,
  kExitPrecondition = 5,
  kExitUnavailable = 6,
  kExitResourceExhausted = 7,
  kExitDataLoss = 8,
  kExitPermission = 9,
  kExitJobFailed = 10,
  kExitInterrupted = 130,
};

// A status whose reason is USAGE, JOB_FAILED, INTERRUPTED or STORE_FULL has a code of its own; otherwise its canonical
// code decides.
ExitCode ExitCodeOf(const absl::Status& status);

// The table of codes, for --help.
const char* ExitCodeHelp();

}  // namespace atl::client
