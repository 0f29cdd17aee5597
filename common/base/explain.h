// What programs print of an error.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace atl {

// The message on one line, then in brackets the reason by which docs/errors.md and docs/operations.md know it.
std::string Explain(const absl::Status& status);

}  // namespace atl
