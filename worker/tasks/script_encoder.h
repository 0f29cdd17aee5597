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
  // `name` is what messages call the file. INVALID_ARGUMENT (field features.encoder_uri) for a file that is no
  // TorchScript module.
  static absl::StatusOr<std::shared_ptr<ScriptEncoder>> Load(const std::string& path, const std::string& name);
  virtual ~ScriptEncoder() = default;

  // images [n, c, h, w] in [-1, 1] -> features [n, d], floating. INVALID_ARGUMENT when the module fails on them or
  // returns anything else.
  virtual absl::StatusOr<at::Tensor> Encode(const at::Tensor& images) = 0;
};

}  // namespace atl::tasks
