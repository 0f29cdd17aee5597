// Costs of the parts of a model on a device, measured or counted, as input for plans. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/spec/frozen.h"
#include "common/spec/spec.h"

namespace atl::planner {

// One trainable layer under one micro-batch, inside a stage of several. Seconds are measured with all ranks of the
// machine at work. The forwards of the first and of the last layer include building the micro-batch. A stage next to
// another rank also holds its boundaries: the inputs from F, the gradients of inputs and outputs from I, and the
// outputs, all until W has run.
struct LayerProfile {
  double forward_seconds = 0;
  double input_gradient_seconds = 0;
  double weight_gradient_seconds = 0;
  double backward_seconds = 0;          // input and weight gradient in one pass
  double kept_bytes = 0;                // from F to I or B, including its outputs but not its inputs …
  double weight_gradient_bytes = 0;     // … of which this much stays from I to W
  double forward_transient_bytes = 0;   // at the peak of F, on top of what is kept after it
  double backward_transient_bytes = 0;  // at the peak of I, W or B, on top of what was kept before it
  double output_bytes = 0;              // of the boundary after it
  bool operator==(const LayerProfile&) const = default;
};

// One number of a layer, with its name in files.
struct LayerField {
  const char* name;
  double LayerProfile::*value;
  bool seconds;  // else bytes
};
inline constexpr LayerField kLayerFields[] = {
    {"forward_seconds", &LayerProfile::forward_seconds, true},
    {"input_gradient_seconds", &LayerProfile::input_gradient_seconds, true},
    {"weight_gradient_seconds", &LayerProfile::weight_gradient_seconds, true},
    {"backward_seconds", &LayerProfile::backward_seconds, true},
    {"kept_bytes", &LayerProfile::kept_bytes, false},
    {"weight_gradient_bytes", &LayerProfile::weight_gradient_bytes, false},
    {"forward_transient_bytes", &LayerProfile::forward_transient_bytes, false},
    {"backward_transient_bytes", &LayerProfile::backward_transient_bytes, false},
    {"output_bytes", &LayerProfile::output_bytes, false},
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
  std::string key;                                      // identifies model, device and build
  std::vector<double> parameter_bytes;                  // by layer, in the dtype of the parameters
  std::map<int32_t, std::vector<LayerProfile>> layers;  // by micro-batch size, then by layer
  std::vector<FrozenComponentProfile> frozen;
  double optimizer_seconds_per_byte = 0;  // clipping, step and EMA, per byte of parameters
  double transfer_latency_seconds = 0;    // one message between two ranks
  double transfer_bytes_per_second = 0;   // 0: free
  std::vector<double> rank_slowdown;      // by rank of the island, 1 as measured; empty: all 1
  // Share by which real times may be longer than these. Among plans that differ by less, the planner prefers the one
  // that depends least on the times of frozen pieces. 0: times are exact. Not stored.
  double time_error = 0.05;
  bool operator==(const Profile&) const = default;

  int32_t layer_count() const { return layers.empty() ? 0 : static_cast<int32_t>(layers.begin()->second.size()); }
};

// INVALID_ARGUMENT (PROFILE_INVALID), naming layer or component and value: no layer, sizes with different layers, a
// number that is not finite or below 0, a slowdown that is not above 0, a frozen component that reads itself or a later
// one.
absl::Status CheckProfile(const Profile& profile);

// Returns the layers under micro-batches of `samples`: as measured, else interpolated linearly between the two nearest
// sizes, or in proportion if only one was measured.
std::vector<LayerProfile> LayersAt(const Profile& profile, int32_t samples);

// Returns the seconds of one frozen layer over `samples`, in the same way.
double FrozenSeconds(const FrozenLayerProfile& layer, int32_t samples);

// Returns the seconds of one message of `bytes` between two ranks.
double TransferSeconds(const Profile& profile, double bytes);

// Counts the costs of a DiT's layers in multiply-adds, to plan before any measurement. `tokens` per image. Transfers
// are free, and there is no frozen component.
Profile CountedProfile(const spec::ModelSpec& model, int32_t tokens, int32_t channels);

// Returns the sample counts for measuring or counting frozen layers, ascending: the batch, its half, and so on down to
// a sixteenth. Several sizes show the fixed cost of a call; the smallest is the grain of partial batches.
std::vector<int32_t> FrozenSizes(int32_t batch_size);

// Counts frozen components in the same way, with a fixed cost per call; `image` is [channels, height, width]. Empty if
// one cannot be counted, because the operations of a TorchScript file are not known.
std::vector<FrozenComponentProfile> CountedFrozen(const std::vector<spec::FrozenSpec>& components,
                                                  const spec::SampleShape& image, int32_t classes, int32_t batch_size);

}  // namespace atl::planner
