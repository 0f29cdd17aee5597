// The traces of training steps that a job's tasks left in the blob store: found, chosen, read whole.
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

// One step of one attempt, all ranks, by rank; starts[r] is when rank r's iteration began, since the earliest.
struct TracedStep {
  std::vector<storage::StepTrace> ranks;
  std::vector<absl::Duration> starts;

  // From the first rank's start to the last one's end.
  absl::Duration Span() const;
};

// `task` is a task's id, its part after the job's ("train_expert-0") or its name in `jobs get` ("expert 0"); empty: the
// first training task that left traces. Without `step`, the latest that every rank left its trace of; of several
// attempts, the latest. Of a job with frozen components rather not the task's last step, which prepares no other.
//
// NOT_FOUND: TASK_UNKNOWN lists the tasks that train; TRACE_UNKNOWN says which steps there are. DATA_LOSS: a file that
// is torn (FILE_MALFORMED), or a step that not every rank left its trace of (TRACE_INCOMPLETE).
absl::StatusOr<TracedStep> ReadTracedStep(storage::BlobStore* store, const atlpb::job::v1::Job& job,
                                          const std::string& task, std::optional<int64_t> step);

// The picture of it. Transfers are drawn where a rank waited for them: when others arrived is not known.
schedule::Drawing DrawTrace(const TracedStep& step);
// A table of the ranks, and one line per rank of what it did when, `width` columns wide (0: 100).
std::string DescribeTrace(const TracedStep& step, int width);
// The traces as they are, and the common clock.
std::string TraceJson(const TracedStep& step);

}  // namespace atl::client
