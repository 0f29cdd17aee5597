// The audit log: one line of JSON for every call that changed something, with the caller, its address, the resource and
// the outcome. Calls that were rejected, or would have changed something, get a line at a bounded rate.
#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/token_bucket.h"
#include "common/metrics/metrics.h"

namespace atl::coordinator {

// Rate of the lines for calls that changed nothing: one bucket for authenticated callers, one for all others.
inline constexpr BucketRate kRefusedLines{.per_second = 10, .burst = 100};
// Limit for a text that a caller chose, in bytes. No job, task, model or island has a longer name.
inline constexpr size_t kMostText = 200;

struct AuditEntry {
  absl::Time time;
  std::string subject;   // the caller's name; empty: not authenticated
  std::string peer;      // its address, as gRPC writes it
  std::string method;    // "CancelJob"
  std::string resource;  // the job, task, model or island; empty without one
  absl::Status status;
};

// Returns {"time": RFC 3339 in UTC, "subject", "peer", "method", "resource", "code", "reason"} and a line end. Omits
// free texts, such as an error message or a user's reason, because they may hold anything. `left_out` comes last if it
// is not 0.
std::string AuditLine(const AuditEntry& entry, int64_t left_out = 0);

// Whether a call ended because its caller may not make it, or not that often.
bool IsRefusal(const absl::Status& status);

// A file that only grows. A line is written to the system before its call is answered. It is not synced, so a crash of
// the machine, but not of the process, may lose the last lines. A line that cannot be written (the disk is full) does
// not stop its call: it is counted (atoll_coordinator_audit_failures_total), and the first of a series is logged. No
// call waits for a full pipe: its line counts as one that cannot be written. Thread-safe.
class AuditLog {
 public:
  // FAILED_PRECONDITION (AUDIT_LOG_UNWRITABLE) when the file cannot be opened for writing.
  static absl::StatusOr<std::unique_ptr<AuditLog>> Open(const std::string& path, metrics::Registry* registry);
  ~AuditLog();

  // Writes a call that changed something, or may have. Cuts long texts, because a call may name anything.
  void Write(AuditEntry entry);

  // Writes a call that changed nothing, at `now` of a monotonic clock, while kRefusedLines allows a line. Other such
  // calls are counted (atoll_coordinator_audit_left_out_total), and the next line of any call has the number of omitted
  // lines.
  void WriteRefused(AuditEntry entry, absl::Duration now);

  // Opens the path again after the file was moved (log rotation). On an error, as of Open, the old file stays.
  absl::Status Reopen();

 private:
  AuditLog(std::string path, metrics::Counter* failures, metrics::Counter* all_left_out)
      : path_(std::move(path)), failures_(*failures), all_left_out_(*all_left_out) {}
  void Append(AuditEntry entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  metrics::Counter& failures_;
  metrics::Counter& all_left_out_;
  absl::Mutex mutex_;
  int file_ ABSL_GUARDED_BY(mutex_) = -1;
  bool failing_ ABSL_GUARDED_BY(mutex_) = false;  // the last line could not be written, or not as a whole
  TokenBucket let_in_ ABSL_GUARDED_BY(mutex_);    // refused calls of callers with a good credential
  TokenBucket unknown_ ABSL_GUARDED_BY(mutex_);   // of all others
  int64_t left_out_ ABSL_GUARDED_BY(mutex_) = 0;  // since the last line
};

}  // namespace atl::coordinator
