// A TorchScript file as a feature encoder.
#pragma once

#include <functional>
#include <string>

#include <ATen/ATen.h>

#include "absl/status/statusor.h"

namespace atl::tasks {

// images [n, c, h, w] in [-1, 1] -> features [n, d], floating. INVALID_ARGUMENT when the module fails on them or
// returns anything else. Not thread-safe.
using ScriptEncoder = std::function<absl::StatusOr<at::Tensor>(const at::Tensor& images)>;

// From the bytes of the file at `uri`. Errors: model::LoadTorchScript, of the field features.encoder_uri.
absl::StatusOr<ScriptEncoder> LoadScriptEncoder(const std::string& archive, const std::string& uri);

}  // namespace atl::tasks
