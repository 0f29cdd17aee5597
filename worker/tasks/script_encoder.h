// A TorchScript file as a feature encoder.
#pragma once

#include <functional>
#include <string>

#include <ATen/ATen.h>

#include "absl/status/statusor.h"

namespace atl::tasks {

// Maps images [n, c, h, w] in [-1, 1] to features [n, d], floating. INVALID_ARGUMENT if the module fails on them or
// returns another type or shape. Not thread-safe.
using ScriptEncoder = std::function<absl::StatusOr<at::Tensor>(const at::Tensor& images)>;

// Loads an encoder from the bytes of the file at `uri`. Errors: model::LoadTorchScript, for the field
// features.encoder_uri.
absl::StatusOr<ScriptEncoder> LoadScriptEncoder(const std::string& archive, const std::string& uri);

}  // namespace atl::tasks
