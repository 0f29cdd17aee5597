// Reads a job once, or follows it until it ends, across restarts of the coordinator.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "atoll/job/v1/job.pb.h"
#include "client/session.h"

namespace atl::client {

// Returns the current state of the job.
absl::StatusOr<atlpb::job::v1::Job> GetJob(const Session& session, const std::string& job_id);

// Shows the job until it ends and returns its last version. While the coordinator is unreachable, reconnects with at
// most 5 s between tries; gives up with UNAVAILABLE after ten minutes without any answer.
absl::StatusOr<atlpb::job::v1::Job> WatchJob(const Session& session, const std::string& job_id);

// Returns OK when the job succeeded, otherwise its message with reason JOB_FAILED.
absl::Status JobOutcome(const atlpb::job::v1::Job& job);

}  // namespace atl::client
