// Error messages as programs print them.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace atl {

// Returns the message on one line, then in brackets the reason that docs/errors.md and docs/operations.md list.
std::string Explain(const absl::Status& status);

}  // namespace atl
