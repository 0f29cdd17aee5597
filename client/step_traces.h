// Finds, selects and reads the traces of training steps that a job's tasks left in the blob store.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "atoll/job/v1/job.pb.h"
#include "common/formats/step_trace.h"
#include "common/schedule/drawing.h"
#include "common/storage/blob_store.h"

namespace atl::client {

// The traces of one step of one attempt, by rank; starts[r] is the start of rank r's iteration, since the earliest.
struct TracedStep {
  std::vector<storage::StepTrace> ranks;
  std::vector<absl::Duration> starts;

  // From the first rank's start to the last one's end.
  absl::Duration Span() const;
};

// `task` is a task's id, its part after the job's ("train_expert-0") or its name in `jobs get` ("expert 0"); empty: the
// first training task with traces. Without `step`, selects the latest step with traces of every rank, of the latest
// attempt. For a job with frozen components it avoids the task's last step, which prepares no next step.
//
// NOT_FOUND: TASK_UNKNOWN lists the tasks that train; TRACE_UNKNOWN lists the existing steps. DATA_LOSS: a file is torn
// (FILE_MALFORMED), or the step lacks the trace of a rank (TRACE_INCOMPLETE).
absl::StatusOr<TracedStep> ReadTracedStep(storage::BlobStore* store, const atlpb::job::v1::Job& job,
                                          const std::string& task, std::optional<int64_t> step);

// Draws the step. A transfer is drawn where a rank waited for it, because the arrival of other transfers is unknown.
schedule::Drawing DrawTrace(const TracedStep& step);
// Returns a table of the ranks and one timeline per rank, `width` columns wide (0: 100).
std::string DescribeTrace(const TracedStep& step, int width);
// Returns the unchanged traces and the common clock.
std::string TraceJson(const TracedStep& step);

}  // namespace atl::client
