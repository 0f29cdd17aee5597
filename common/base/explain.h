// Error messages as programs print them.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace atl {

// Returns "message [REASON]" on one line, without brackets if there is no reason. docs/errors.md and
// docs/operations.md list the reasons.
std::string Explain(const absl::Status& status);

}  // namespace atl
