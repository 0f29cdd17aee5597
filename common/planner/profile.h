// What the parts of a model cost on a device, measured or counted: what plans are made from. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace atl::planner {

// One trainable layer under one micro-batch. Seconds with all ranks of the machine at work.
struct LayerProfile {
  double forward_seconds = 0;
  double input_gradient_seconds = 0;
  double weight_gradient_seconds = 0;
  double backward_seconds = 0;         // input and weight gradient in one pass
  double kept_bytes = 0;               // from F to I or B …
  double weight_gradient_bytes = 0;    // … of which this much stays from I to W
  double forward_transient_bytes = 0;  // on top, at the peak of the action
  double backward_transient_bytes = 0;
  double output_bytes = 0;  // of the boundary after it
  bool operator==(const LayerProfile&) const = default;
};

// One frozen layer: seconds and bytes by number of samples, at the sizes that were measured.
struct FrozenLayerProfile {
  std::map<int32_t, double> seconds;
  double input_bytes = 0;   // per sample
  double output_bytes = 0;  // per sample
  double parameter_bytes = 0;
  bool operator==(const FrozenLayerProfile&) const = default;
};

struct FrozenComponentProfile {
  std::string name;
  std::vector<int32_t> reads;  // components whose last output is its input; none: the batch itself
  std::vector<FrozenLayerProfile> layers;
  bool operator==(const FrozenComponentProfile&) const = default;
};

struct Profile {
  std::string key;                                      // of what was measured: model, device, build
  std::vector<double> parameter_bytes;                  // by layer, in the dtype of the parameters
  std::map<int32_t, std::vector<LayerProfile>> layers;  // by micro-batch size, then by layer
  std::vector<FrozenComponentProfile> frozen;
  double optimizer_seconds_per_byte = 0;  // clipping, step and EMA, per byte of parameters
  double transfer_latency_seconds = 0;    // one message between two ranks
  double transfer_bytes_per_second = 0;   // 0: free
  std::vector<double> rank_slowdown;      // by rank of the island, 1 as measured; empty: all 1
  bool operator==(const Profile&) const = default;
};

}  // namespace atl::planner
