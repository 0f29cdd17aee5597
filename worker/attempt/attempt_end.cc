#include "worker/attempt/attempt_end.h"

#include <utility>

#include <fmt/format.h>

#include "common/base/errors.h"

namespace atl::worker {
namespace {

// The island or what is around it, not the task.
bool FromOutside(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnavailable:
      return true;
    default:
      return ErrorReason(status) == "LOST_RANK";
  }
}

// Returns whether training from an earlier checkpoint may cure the error.
bool AsksForRollback(const absl::Status& status) {
  const std::string reason = ErrorReason(status);
  return reason == "TRAINING_DIVERGED" || reason == "CHECKPOINT_UNREADABLE" || reason == "CHECKPOINT_DAMAGED";
}

bool IsPermanent(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsDataLoss(status);
}

}  // namespace

AttemptEnd DecideTrainingEnd(const absl::Status& status, int64_t step, int64_t total_steps, bool revoked) {
  if (revoked) return {.disposition = Disposition::kNothing, .reason = status};
  if (status.ok() && step >= total_steps) return {.disposition = Disposition::kComplete};
  if (status.ok()) {
    return {.disposition = Disposition::kRelease,
            .reason = MakeError(absl::StatusCode::kCancelled, "DRAINED",
                                fmt::format("stopped after step {} of {}", step, total_steps))};
  }
  if (FromOutside(status)) return {.disposition = Disposition::kRelease, .reason = status};
  if (AsksForRollback(status)) return {.disposition = Disposition::kRollBack, .reason = status};
  return {.disposition = Disposition::kFail, .permanent = IsPermanent(status), .reason = status};
}

AttemptEnd DecideTaskEnd(const absl::Status& status, bool revoked, bool stopping) {
  if (revoked) return {.disposition = Disposition::kNothing, .reason = status};
  if (status.ok()) return {.disposition = Disposition::kComplete};
  if (stopping && absl::IsAborted(status)) return {.disposition = Disposition::kRelease, .reason = status};
  return {.disposition = Disposition::kFail, .permanent = IsPermanent(status), .reason = status};
}

AttemptEnd BlameTheStore(AttemptEnd end, const absl::Status& same_store) {
  if (same_store.ok()) return end;
  if (end.disposition != Disposition::kFail && end.disposition != Disposition::kRollBack) return end;
  return {.disposition = Disposition::kRelease, .store_failed = true, .reason = same_store};
}

bool IsTheIslandsFault(const AttemptEnd& end) {
  if (end.disposition != Disposition::kFail) return false;
  const std::string reason = ErrorReason(end.reason);
  // Where the leader's own store is another one the task is not failed but given back (BlameTheStore).
  return reason == "GRANTS_UNSUPPORTED" || reason == "STORAGE_NOT_GRANTED" || reason == "BLOB_STORE_OTHER";
}

bool MayBeTakenLater(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsResourceExhausted(status);
}

bool IsTheStoresFault(const AttemptEnd& end) {
  if (end.disposition != Disposition::kFail && end.disposition != Disposition::kRelease) return false;
  const std::string reason = ErrorReason(end.reason);
  return reason == "DISK_FULL" || reason == "STORE_UNAVAILABLE" || reason == "BLOB_STORE_OTHER" ||
         reason == "STORAGE_GRANT_EXPIRED";
}

AttemptEnd DecideStoreEnd(AttemptEnd end, bool too_long) {
  if (too_long && ErrorReason(end.reason) != "BLOB_STORE_OTHER") {
    return {.disposition = Disposition::kFail, .reason = std::move(end.reason)};
  }
  return {.disposition = Disposition::kRelease, .store_failed = true, .reason = std::move(end.reason)};
}

}  // namespace atl::worker
