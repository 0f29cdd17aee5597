#include "common/planner/profile.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <iterator>

#include <fmt/format.h>

#include "common/base/errors.h"
#include "common/base/status_macros.h"

namespace atl::planner {
namespace {

bool Usable(double value) {
  return std::isfinite(value) && value >= 0;
}

absl::Status Invalid(const std::string& message) {
  return MakeError(absl::StatusCode::kInvalidArgument, "PROFILE_INVALID", "profile: " + message);
}

absl::Status CheckNumbers(const std::string& where, std::initializer_list<double> values) {
  const auto* bad = std::find_if_not(values.begin(), values.end(), Usable);
  if (bad == values.end()) return absl::OkStatus();
  return Invalid(fmt::format("{}: expected finite numbers of at least 0, found {}", where, *bad));
}

absl::Status CheckLayers(const Profile& profile) {
  if (profile.layer_count() == 0) return Invalid("expected the costs of at least one layer, found none");
  const auto count = static_cast<size_t>(profile.layer_count());
  if (profile.parameter_bytes.size() != count) {
    return Invalid(
        fmt::format("expected parameter_bytes of {} layers, found {}", count, profile.parameter_bytes.size()));
  }
  for (const auto& [size, layers] : profile.layers) {
    if (size < 1 || layers.size() != count) {
      return Invalid(fmt::format("micro-batches of {}: expected a size of at least 1 and {} layers, found {} layers",
                                 size, count, layers.size()));
    }
    for (size_t i = 0; i < count; ++i) {
      const LayerProfile& layer = layers[i];
      const std::string where = fmt::format("layer {}, micro-batches of {}", i, size);
      ATOLL_RETURN_IF_ERROR(CheckNumbers(where, {profile.parameter_bytes[i]}));
      for (const LayerField& field : kLayerFields) ATOLL_RETURN_IF_ERROR(CheckNumbers(where, {layer.*field.value}));
      if (layer.weight_gradient_bytes > layer.kept_bytes) {
        return Invalid(fmt::format("{}: expected weight_gradient_bytes of at most kept_bytes ({}), found {}", where,
                                   layer.kept_bytes, layer.weight_gradient_bytes));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckFrozen(const Profile& profile) {
  for (size_t c = 0; c < profile.frozen.size(); ++c) {
    const FrozenComponentProfile& component = profile.frozen[c];
    const std::string where = fmt::format("frozen component {} ({})", c, component.name);
    for (const int32_t read : component.reads) {
      if (read < 0 || static_cast<size_t>(read) >= c) {
        return Invalid(fmt::format("{}: expected to read components before it, found {}", where, read));
      }
    }
    if (component.layers.empty()) return Invalid(where + ": expected at least one layer, found none");
    for (size_t i = 0; i < component.layers.size(); ++i) {
      const FrozenLayerProfile& layer = component.layers[i];
      const std::string at = fmt::format("{}, layer {}", where, i);
      if (layer.seconds.empty()) return Invalid(at + ": expected seconds of at least one size, found none");
      ATOLL_RETURN_IF_ERROR(CheckNumbers(at, {layer.input_bytes, layer.output_bytes, layer.parameter_bytes}));
      for (const auto& [size, seconds] : layer.seconds) {
        if (size < 1) return Invalid(fmt::format("{}: expected sizes of at least 1, found {}", at, size));
        ATOLL_RETURN_IF_ERROR(CheckNumbers(at, {seconds}));
      }
    }
  }
  return absl::OkStatus();
}

// The position of `size` between two measured sizes: (1 - share) of `low` and `share` of `high`. With one size, high is
// null and `share` scales `low`.
template <typename T>
struct Between {
  const T* low = nullptr;
  const T* high = nullptr;
  double share = 0;

  double operator()(double of_low, double of_high) const {
    return high == nullptr ? of_low * share : std::max(0.0, of_low + (of_high - of_low) * share);
  }
};

template <typename T>
Between<T> Find(const std::map<int32_t, T>& sizes, int32_t size) {
  if (sizes.size() == 1) {
    return {&sizes.begin()->second, nullptr, static_cast<double>(size) / sizes.begin()->first};
  }
  auto high = sizes.lower_bound(size);
  if (high == sizes.begin()) ++high;
  if (high == sizes.end()) --high;
  const auto low = std::prev(high);
  return {&low->second, &high->second, static_cast<double>(size - low->first) / (high->first - low->first)};
}

}  // namespace

absl::Status CheckProfile(const Profile& profile) {
  ATOLL_RETURN_IF_ERROR(CheckLayers(profile));
  ATOLL_RETURN_IF_ERROR(CheckFrozen(profile));
  ATOLL_RETURN_IF_ERROR(CheckNumbers(
      "transfers and optimizer",
      {profile.optimizer_seconds_per_byte, profile.transfer_latency_seconds, profile.transfer_bytes_per_second}));
  for (size_t rank = 0; rank < profile.rank_slowdown.size(); ++rank) {
    if (Usable(profile.rank_slowdown[rank]) && profile.rank_slowdown[rank] > 0) continue;
    return Invalid(fmt::format("rank {}: expected a slowdown above 0, found {}", rank, profile.rank_slowdown[rank]));
  }
  return absl::OkStatus();
}

std::vector<LayerProfile> LayersAt(const Profile& profile, int32_t samples) {
  const auto between = Find(profile.layers, samples);
  std::vector<LayerProfile> layers = *between.low;
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerProfile& low = (*between.low)[i];
    const LayerProfile& high = between.high == nullptr ? low : (*between.high)[i];
    for (const LayerField& field : kLayerFields) {
      layers[i].*field.value = between(low.*field.value, high.*field.value);
    }
    layers[i].weight_gradient_bytes = std::min(layers[i].weight_gradient_bytes, layers[i].kept_bytes);
  }
  return layers;
}

double FrozenSeconds(const FrozenLayerProfile& layer, int32_t samples) {
  const auto between = Find(layer.seconds, samples);
  return between(*between.low, between.high == nullptr ? 0 : *between.high);
}

double TransferSeconds(const Profile& profile, double bytes) {
  const double moving = profile.transfer_bytes_per_second > 0 ? bytes / profile.transfer_bytes_per_second : 0;
  return profile.transfer_latency_seconds + moving;
}

}  // namespace atl::planner
