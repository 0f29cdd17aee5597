// DiT with adaLN-Zero (Peebles and Xie 2023, arXiv 2212.09748): the expert (velocity head) and the router network
// (classification head) are the same trunk under two heads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/ATen.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/layer.h"

namespace atl::model {

struct DitConfig {
  int64_t channels = 1;
  int64_t height = 8;  // must be divisible by patch
  int64_t width_pixels = 8;
  int64_t classes = 0;  // 0: unconditional (ids are ignored); the null class is index `classes`
  int64_t patch = 2;
  int64_t width = 96;
  int64_t depth = 6;
  int64_t heads = 4;
  double mlp_ratio = 4.0;
  // 0: the head predicts the velocity [n, c, h, w]. Otherwise [n, outputs] logits (mean-pooled tokens).
  int64_t outputs = 0;
  std::string compute = "float32";  // or "bfloat16"
  // The embedding reads, besides x, the model's own earlier estimate of the clean sample (Chen, Zhang and Hinton 2022,
  // arXiv 2208.04202): 2 * channels per pixel. Not with `outputs`.
  bool self_conditioning = false;

  int64_t tokens() const { return (height / patch) * (width_pixels / patch); }
  bool operator==(const DitConfig&) const = default;
};

// Writes and parses config.json of a model folder (DATA_LOSS names file, expected and found).
std::string ToJson(const DitConfig& config);
absl::StatusOr<DitConfig> ParseDitConfig(std::string_view json, std::string_view file_name);

// Builds "embed", "blocks.0" … "blocks.<depth - 1>", "head": depth + 2 layers, in order. A stage that holds layers
// [first, end) builds only these. Weights are a function of (config, seed, layer name) only: adaLN and head start at
// zero, Linear weights Xavier-uniform, class embeddings standard normal. Without a seed the weights are undefined: for
// callers that load them, because sampling takes longer than reading.
LayerList BuildLayers(const DitConfig& config, std::optional<uint64_t> seed, int64_t first_layer, int64_t end_layer);

// Number of layers of the whole model.
inline int64_t LayerCount(const DitConfig& config) {
  return config.depth + 2;
}

// The inputs of layer `layer` (1 .. depth + 1) for n samples, by name: "tokens" [n, tokens, width] and the activated
// conditioning "c" [n, width], both in the compute dtype. A block returns "c" unchanged, so that across stages its
// gradient accumulates in the order of one process: from the head down.
struct FlowShape {
  std::string name;
  std::vector<int64_t> shape;
};
std::vector<FlowShape> HiddenFlow(const DitConfig& config, int64_t n);

// Returns kFloat or kBFloat16, by config.compute (a parsed or validated config has no other).
at::ScalarType ComputeType(const DitConfig& config);

// OK, or INVALID_ARGUMENT naming the first invalid field: sizes below one, an image that the patch does not divide, a
// width that heads or the position embedding (a multiple of 4) do not divide, an unknown compute type.
absl::Status Validate(const DitConfig& config);

// Runs layers one after the other.
Flow RunLayers(const LayerList& layers, Flow flow);

// Maps x [n, c, h, w] in [-1, 1], t [n] float in [0, 1] (0 data, 1 noise) and classes [n] int64 to the head's output.
// Only a self-conditioned model reads `estimate`, shaped as x; undefined means zeros: no estimate yet.
at::Tensor RunModel(const LayerList& layers, const at::Tensor& x, const at::Tensor& t, const at::Tensor& classes,
                    const at::Tensor& estimate = {});

}  // namespace atl::model
