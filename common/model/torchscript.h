// TorchScript files: programs that whoever submits a job brings along.
//
// They run with the rights of the process that loads them, so operators that touch files, or reach what is no tensor,
// are refused before any of it runs (loading already runs __setstate__). That is a fence, not a sandbox: see
// docs/security.md.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <torch/csrc/jit/api/module.h>

#include "absl/status/statusor.h"

namespace atl::model {

// LibTorch's errors carry stack traces of many lines; at most 300 characters of the first.
std::string FirstLine(const char* what);

// The first name in `code`, TorchScript source as archives hold it, that no file of a job may use: also one that would
// hide another, as an alias of a namespace or a getattr that spells a name.
std::optional<std::string> RefusedOperator(std::string_view code);

// The module in `archive`, in evaluation mode on `device`. INVALID_ARGUMENT of `field`, whose message begins with
// `uri`: TORCHSCRIPT_REFUSED for what is refused above, TORCHSCRIPT_FILE when it does not load.
absl::StatusOr<torch::jit::Module> LoadTorchScript(const std::string& archive, const std::string& device,
                                                   const std::string& field, const std::string& uri);

}  // namespace atl::model
