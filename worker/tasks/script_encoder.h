// A TorchScript file as a feature encoder.
#pragma once

#include <memory>
#include <string>

#include <ATen/ATen.h>

#include "absl/status/statusor.h"

namespace atl::tasks {

// Not thread-safe.
class ScriptEncoder {
 public:
  // From the bytes of the file at `uri`. Errors: model::LoadTorchScript, of the field features.encoder_uri.
  static absl::StatusOr<std::shared_ptr<ScriptEncoder>> Load(const std::string& archive, const std::string& uri);
  virtual ~ScriptEncoder() = default;

  // images [n, c, h, w] in [-1, 1] -> features [n, d], floating. INVALID_ARGUMENT when the module fails on them or
  // returns anything else.
  virtual absl::StatusOr<at::Tensor> Encode(const at::Tensor& images) = 0;
};

}  // namespace atl::tasks
