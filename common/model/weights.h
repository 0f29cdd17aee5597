// Converts named tensors of a layer list to and from safetensors.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/ATen.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/dit.h"
#include "common/model/layer.h"
#include "common/storage/safetensors.h"

namespace atl::model {

// Returns "float32" for kFloat and so on: the names of specs and boundaries.
std::string_view DtypeName(at::ScalarType dtype);

// Returns a view of a contiguous host tensor's memory; the tensor must outlive it.
storage::TensorView ToView(std::string name, const at::Tensor& tensor);
// Copies the view's bytes into a host tensor. INVALID_ARGUMENT for a dtype that LibTorch does not know.
absl::StatusOr<at::Tensor> ToTensor(const storage::TensorView& view);

// Copies every parameter's value from the tensor named `prefix` + canonical name. NOT_FOUND or FAILED_PRECONDITION name
// the tensor, the expected and the found shape and dtype; then the parameters are partly overwritten.
absl::Status LoadParameters(const LayerList& layers, const std::map<std::string, storage::TensorView>& tensors,
                            std::string_view prefix = "");

// A model for inference: all layers with the file's weights, gradients off.
struct LoadedModel {
  DitConfig config;
  LayerList layers;
};
// `name` is the model's folder, for messages. DATA_LOSS if config and weights do not match or are damaged.
absl::StatusOr<LoadedModel> LoadModel(std::string_view config_json, std::string_view safetensors_bytes,
                                      std::string_view name);

}  // namespace atl::model
