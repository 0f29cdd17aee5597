// What every error that answers a stranger's bytes must be.
#pragma once

#include <cstdlib>

#include "absl/status/status.h"
#include "common/base/errors.h"

namespace atl {

// Stops the fuzzer unless the error has a reason and a message of one line that does not grow with what was sent.
inline void RequireShortError(const absl::Status& status) {
  const absl::string_view message = status.message();
  if (status.ok() || ErrorReason(status).empty() || message.empty() || message.size() > 2000 ||
      message.find('\n') != absl::string_view::npos) {
    std::abort();
  }
}

}  // namespace atl
