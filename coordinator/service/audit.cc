#include "coordinator/service/audit.h"

#include <fcntl.h>
#include <sys/stat.h>
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
namespace {

absl::StatusOr<int> OpenFile(const std::string& path) {
  // Others than its owner and group learn nothing of who does what.
  // A pipe is waited for neither here, until somebody reads it, nor by a call, when it is full.
  const int file = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0640);
  if (file >= 0) return file;
  const int error = errno;
  return MakeError(absl::StatusCode::kFailedPrecondition, "AUDIT_LOG_UNWRITABLE",
                   fmt::format("--audit-log {}: cannot open it for writing: {}", path,
                               error == ENXIO ? "expected a file, found a pipe that nobody reads, or a socket"
                                              : std::strerror(error)));
}

bool IsSameFile(int one, int other) {
  struct stat a {};
  struct stat b {};
  return fstat(one, &a) == 0 && fstat(other, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

void Shorten(std::string* text) {
  text->resize(CutText(*text, kMostText).size());
}

}  // namespace

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
  // No line comes after these, to count them.
  if (left_out_-- > 0) Append(last_left_out_);
  if (file_ >= 0) close(file_);
}

void AuditLog::Write(AuditEntry entry) {
  Shorten(&entry.resource);
  absl::MutexLock lock(&mutex_);
  Append(entry);
}

void AuditLog::WriteRefused(AuditEntry entry, absl::Duration now) {
  for (std::string* const text : {&entry.subject, &entry.method, &entry.resource}) Shorten(text);
  absl::MutexLock lock(&mutex_);
  if (RefusedOf(entry, now).Take(kRefusedLines, now, 1) == absl::ZeroDuration()) return Append(entry);
  all_left_out_.Increment();
  ++left_out_;
  last_left_out_ = std::move(entry);
}

TokenBucket& AuditLog::RefusedOf(const AuditEntry& entry, absl::Duration now) {
  // A subject whose credential is no good may be any name that is written in a certificate.
  const std::string subject = absl::IsUnauthenticated(entry.status) ? "" : entry.subject;
  if (const auto known = refused_.find(subject); known != refused_.end()) return known->second;
  if (refused_.size() >= kMostSubjects) {
    std::erase_if(refused_, [now](const auto& known) { return known.second.IsFull(now); });
  }
  return refused_[refused_.size() < kMostSubjects ? subject : ""];
}

void AuditLog::Append(const AuditEntry& entry) {
  const std::string line = AuditLine(entry, left_out_);
  // In one piece: other processes may append to the same file.
  const std::string bytes = torn_ ? "\n" + line : line;
  const ssize_t written = write(file_, bytes.data(), bytes.size());
  const int error = errno;
  if (written == static_cast<ssize_t>(bytes.size())) {
    torn_ = failing_ = false;
    left_out_ = 0;
    return;
  }
  torn_ |= written > 0;
  failures_.Increment();
  if (std::exchange(failing_, true)) return;
  spdlog::error("the audit log {} lacks lines from now on: {}", path_,
                written < 0 ? std::strerror(error) : "only a part of a line could be written");
}

absl::Status AuditLog::Reopen() {
  ATOLL_ASSIGN_OR_RETURN(const int file, OpenFile(path_));
  absl::MutexLock lock(&mutex_);
  // Not moved away: what it lacks an end of is still its last line.
  torn_ = torn_ && IsSameFile(file_, file);
  if (file_ >= 0) close(file_);
  file_ = file;
  return absl::OkStatus();
}

}  // namespace atl::coordinator
