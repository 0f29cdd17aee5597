// For tests and benchmarks: a model's weights as a file.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/weights.h"
#include "common/storage/safetensors.h"

namespace atl::model {

// Returns the parameters as a safetensors file under their canonical names; LoadModel reads it.
inline absl::StatusOr<std::string> SerializeParameters(const LayerList& layers) {
  std::vector<at::Tensor> kept;
  std::vector<storage::TensorView> views;
  for (const NamedTensor& parameter : NamedParameters(layers)) {
    kept.push_back(parameter.tensor.detach().cpu().contiguous());
    views.push_back(ToView(parameter.name, kept.back()));
  }
  return storage::SerializeSafetensors(std::move(views), {{"format", "pt"}});
}

}  // namespace atl::model
