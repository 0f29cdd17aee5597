// The audit log: one line of JSON for every call that changed something, with who made it, from where, on what, and how
// it ended; and one for every call that was refused or would have changed something, at a bounded rate.
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

// Rate of the lines for calls that changed nothing: one bucket for callers who were let in, one for all others.
inline constexpr BucketRate kRefusedLines{.per_second = 10, .burst = 100};
// Bytes of a text that a caller chose. No job, task, model or island has a name of so many.
inline constexpr size_t kMostText = 200;

struct AuditEntry {
  absl::Time time;
  std::string subject;   // as whom the caller was let in; empty: as nobody
  std::string peer;      // its address, as gRPC writes it
  std::string method;    // "CancelJob"
  std::string resource;  // the job, task, model or island; empty where there is none
  absl::Status status;
};

// {"time": RFC 3339 in UTC, "subject", "peer", "method", "resource", "code", "reason"} and a line end. Free texts, as
// the message of an error or a reason that a user gave, are left out: they may hold anything. Where `left_out` is not
// 0, it comes last.
std::string AuditLine(const AuditEntry& entry, int64_t left_out = 0);

// Whether a call ended because its caller may not make it, or not that often.
bool IsRefusal(const absl::Status& status);

// A file that only grows. A line is handed to the system before its call is answered; it is not synced, so that a crash
// of the machine, but not of the process, may lose the last ones. A line that cannot be written (the disk is full) does
// not stop its call: it is counted (atoll_coordinator_audit_failures_total), and the first of a row is logged.
// No call waits for a pipe that is full: its line is one that cannot be written. Thread-safe.
class AuditLog {
 public:
  // FAILED_PRECONDITION, reason AUDIT_LOG_UNWRITABLE, when it cannot be opened for writing.
  static absl::StatusOr<std::unique_ptr<AuditLog>> Open(const std::string& path, metrics::Registry* registry);
  ~AuditLog();

  // A call that changed something, or may have. Long texts are cut: a call may name anything.
  void Write(AuditEntry entry);

  // A call that changed nothing, at `now` of a monotonic clock: a line while kRefusedLines allows one. Others are
  // counted (atoll_coordinator_audit_left_out_total), and the next line of any call says how many there were before it.
  void WriteRefused(AuditEntry entry, absl::Duration now);

  // Opens the path again after the file was moved away (log rotation). On an error, as of Open, the old file stays.
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
