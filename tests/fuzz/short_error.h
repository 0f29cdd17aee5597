// The requirements for every error that answers untrusted bytes.
#pragma once

#include <cstdlib>

#include "absl/status/status.h"
#include "common/base/errors.h"

namespace atl {

// Stops the fuzzer unless the error has a reason and a one-line message whose length does not grow with the input.
inline void RequireShortError(const absl::Status& status) {
  const absl::string_view message = status.message();
  if (status.ok() || ErrorReason(status).empty() || message.empty() || message.size() > 2000 ||
      message.find('\n') != absl::string_view::npos) {
    std::abort();
  }
}

}  // namespace atl
