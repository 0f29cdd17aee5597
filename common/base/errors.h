// Errors with a reason: an absl::Status that carries an UPPER_SNAKE reason and, where input is to blame, a field path.
// common/rpc turns them into google.rpc.ErrorInfo and back, so that a reason survives every hop.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace atl {

// A status of `code` whose reason is `reason` (UPPER_SNAKE, at most 63 characters; docs/errors.md lists them all).
absl::Status MakeError(absl::StatusCode code, std::string_view reason, std::string_view message);

// INVALID_ARGUMENT for the field at `path` ("training.batch_size"); the message becomes "path: message".
absl::Status FieldError(std::string_view path, std::string_view reason, std::string_view message);

// Sets reason and field on a status that came from elsewhere. An empty `path` sets no field; the message stays as it
// is.
absl::Status MakeErrorWithField(absl::StatusCode code, std::string_view reason, std::string_view path,
                                std::string_view message);

// The reason, or "" when the status has none.
std::string ErrorReason(const absl::Status& status);
// The field path, or "".
std::string ErrorField(const absl::Status& status);

// The same status, reason and field, with "context: " before the message. OK stays OK.
absl::Status WithContext(const absl::Status& status, std::string_view context);

}  // namespace atl
