#include "coordinator/service/audit.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/cut_text.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "spdlog/spdlog.h"

namespace atl::coordinator {

std::string AuditLine(const AuditEntry& entry, int64_t left_out) {
  nlohmann::ordered_json line = {{"time", absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", entry.time, absl::UTCTimeZone())},
                                 {"subject", entry.subject},
                                 {"peer", entry.peer},
                                 {"method", entry.method},
                                 {"resource", entry.resource},
                                 {"code", absl::StatusCodeToString(entry.status.code())},
                                 {"reason", ErrorReason(entry.status)}};
  if (left_out > 0) line["left_out"] = left_out;
  // Safe for any bytes: what is no UTF-8 is replaced, and nothing moves the cursor of who reads it.
  return line.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace) + "\n";
}

bool IsRefusal(const absl::Status& status) {
  return absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status) || absl::IsResourceExhausted(status);
}

absl::StatusOr<std::unique_ptr<AuditLog>> AuditLog::Open(const std::string& path, metrics::Registry* registry) {
  std::unique_ptr<AuditLog> log(new AuditLog(
      path,
      registry->AddCounter("atoll_coordinator_audit_failures_total",
                           "Lines of the audit log that could not be written; their calls went on."),
      registry->AddCounter("atoll_coordinator_audit_left_out_total",
                           "Calls without effect and without a line in the audit log, because there were too many.")));
  ATOLL_RETURN_IF_ERROR(log->Reopen());
  return log;
}

AuditLog::~AuditLog() {
  absl::MutexLock lock(&mutex_);
  if (file_ >= 0) close(file_);
}

void AuditLog::Write(AuditEntry entry) {
  absl::MutexLock lock(&mutex_);
  Append(std::move(entry));
}

void AuditLog::WriteRefused(AuditEntry entry, absl::Duration now) {
  absl::MutexLock lock(&mutex_);
  TokenBucket& bucket = absl::IsUnauthenticated(entry.status) ? unknown_ : let_in_;
  if (bucket.Take(kRefusedLines, now, 1) == absl::ZeroDuration()) return Append(std::move(entry));
  all_left_out_.Increment();
  ++left_out_;
}

void AuditLog::Append(AuditEntry entry) {
  for (std::string* const text : {&entry.subject, &entry.method, &entry.resource}) {
    text->resize(CutText(*text, kMostText).size());
  }
  const std::string line = AuditLine(entry, left_out_);
  // In one piece: other processes may append to the same file. A line that was torn gets its end first.
  const std::string bytes = failing_ ? "\n" + line : line;
  const ssize_t written = write(file_, bytes.data(), bytes.size());
  const int error = errno;
  if (written == static_cast<ssize_t>(bytes.size())) {
    failing_ = false;
    left_out_ = 0;
    return;
  }
  failures_.Increment();
  if (std::exchange(failing_, true)) return;
  spdlog::error("the audit log {} lacks lines from now on: {}", path_,
                written < 0 ? std::strerror(error) : "only a part of a line could be written");
}

absl::Status AuditLog::Reopen() {
  // Only the owner and group may read which caller did what. Opening a pipe without a reader does not block.
  const int file = open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0640);
  if (file < 0) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "AUDIT_LOG_UNWRITABLE",
                     fmt::format("--audit-log {}: cannot open it for writing: {}", path_, std::strerror(errno)));
  }
  absl::MutexLock lock(&mutex_);
  if (file_ >= 0) close(file_);
  file_ = file;
  return absl::OkStatus();
}

}  // namespace atl::coordinator
