// TorchScript files: programs that job submitters bring.
//
// They run with the rights of the process that loads them. Operators that touch files, or reach anything but tensors,
// are refused before any code runs (loading already runs __setstate__). This is a fence, not a sandbox: see
// docs/security.md.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <torch/csrc/jit/api/module.h>

#include "absl/status/statusor.h"

namespace atl::model {

// Returns at most 300 characters of an error's first line: LibTorch's errors carry stack traces of many lines.
std::string FirstLine(const char* what);

// Returns the first name in `code`, TorchScript source as archives hold it, that no file of a job may use. This
// includes names that would hide another, as an alias of a namespace or a getattr that spells a name.
std::optional<std::string> RefusedOperator(std::string_view code);

// Loads the module in `archive`, in evaluation mode on `device`. INVALID_ARGUMENT of `field`, whose message begins with
// `uri`: TORCHSCRIPT_REFUSED for a forbidden name, TORCHSCRIPT_FILE if it does not load.
absl::StatusOr<torch::jit::Module> LoadTorchScript(const std::string& archive, const std::string& device,
                                                   const std::string& field, const std::string& uri);

}  // namespace atl::model
