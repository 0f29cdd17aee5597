#include "common/planner/measured_profile.h"

#include <algorithm>
#include <cstddef>
#include <set>

#include <fmt/format.h>

#include "common/base/errors.h"

namespace atl::planner {
namespace {

// Most halvings of the batch: smaller sizes cost more time to measure than they save.
constexpr size_t kMostHalvings = 5;

// The numbers of a profile in a fixed order, so that profiles of the same shape can be taken together.
struct Numbers {
  std::vector<double*> seconds;
  std::vector<double*> bytes;
};

Numbers NumbersOf(Profile& profile) {
  Numbers numbers;
  const auto add_seconds = [&](double& value) { numbers.seconds.push_back(&value); };
  const auto add_bytes = [&](double& value) { numbers.bytes.push_back(&value); };
  for (auto& [size, layers] : profile.layers) {
    for (LayerProfile& layer : layers) {
      for (const LayerField& field : kLayerFields) {
        (field.seconds ? numbers.seconds : numbers.bytes).push_back(&(layer.*field.value));
      }
    }
  }
  for (FrozenComponentProfile& component : profile.frozen) {
    for (FrozenLayerProfile& layer : component.layers) {
      for (auto& [size, seconds] : layer.seconds) add_seconds(seconds);
      add_bytes(layer.input_bytes);
      add_bytes(layer.output_bytes);
      add_bytes(layer.parameter_bytes);
    }
  }
  add_seconds(profile.optimizer_seconds_per_byte);
  for (double& bytes : profile.parameter_bytes) add_bytes(bytes);
  return numbers;
}

// A profile's shape: everything but its numbers.
Profile ShapeOf(Profile profile) {
  const Numbers numbers = NumbersOf(profile);
  for (double* value : numbers.seconds) *value = 0;
  for (double* value : numbers.bytes) *value = 0;
  profile.transfer_latency_seconds = 0;
  profile.transfer_bytes_per_second = 0;
  profile.rank_slowdown.clear();
  return profile;
}

double ComputeSeconds(const Profile& profile) {
  double sum = 0;
  for (const auto& [size, layers] : profile.layers) sum += MicroBatchSeconds(profile, size);
  for (const FrozenComponentProfile& component : profile.frozen) {
    for (const FrozenLayerProfile& layer : component.layers) {
      for (const auto& [size, seconds] : layer.seconds) sum += seconds;
    }
  }
  return sum;
}

// The slower of two speeds, where 0 means free.
double Slower(double a, double b) {
  if (a == 0 || b == 0) return std::max(a, b);
  return std::min(a, b);
}

}  // namespace

double MicroBatchSeconds(const Profile& profile, int32_t micro_batch_size) {
  const auto layers = profile.layers.find(micro_batch_size);
  if (layers == profile.layers.end()) return 0;
  double sum = 0;
  for (const LayerProfile& layer : layers->second) sum += layer.forward_seconds + layer.backward_seconds;
  return sum;
}

std::vector<int32_t> SizesToProfile(int32_t batch_size, int32_t micro_batches, int32_t ranks) {
  std::set<int32_t> sizes;
  if (micro_batches > 0) {
    for (int32_t replicas = 1; replicas <= ranks; ++replicas) {
      const int64_t parts = int64_t{replicas} * micro_batches;
      if (ranks % replicas == 0 && batch_size % parts == 0) sizes.insert(static_cast<int32_t>(batch_size / parts));
    }
  } else {
    int32_t size = batch_size;
    while (sizes.size() < kMostHalvings && size % 2 == 0) sizes.insert(size /= 2);
  }
  if (sizes.empty()) sizes.insert(batch_size);
  return {sizes.begin(), sizes.end()};
}

double AdjustSpeed(const Profile& now, Profile* profile) {
  const int32_t size = profile->layers.begin()->first;
  const double then_seconds = MicroBatchSeconds(*profile, size);
  const double factor = then_seconds > 0 ? MicroBatchSeconds(now, size) / then_seconds : 1;
  for (double* seconds : NumbersOf(*profile).seconds) *seconds *= factor;
  profile->rank_slowdown = now.rank_slowdown;
  return factor;
}

absl::StatusOr<Profile> MergeProfiles(const std::vector<Profile>& ranks) {
  if (ranks.empty()) {
    return MakeError(absl::StatusCode::kInvalidArgument, "PROFILES_DIFFER",
                     "profiles: expected one of each rank, found none");
  }
  Profile merged = ranks.front();
  const Numbers sums = NumbersOf(merged);
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    Profile other = ranks[rank];
    if (!(ShapeOf(other) == ShapeOf(ranks.front()))) {
      return MakeError(
          absl::StatusCode::kInvalidArgument, "PROFILES_DIFFER",
          fmt::format("profile of rank {}: expected the model, layers and sizes of rank 0's, found others", rank));
    }
    const Numbers numbers = NumbersOf(other);
    for (size_t i = 0; i < sums.seconds.size(); ++i) *sums.seconds[i] += *numbers.seconds[i];
    for (size_t i = 0; i < sums.bytes.size(); ++i) *sums.bytes[i] = std::max(*sums.bytes[i], *numbers.bytes[i]);
    merged.transfer_latency_seconds = std::max(merged.transfer_latency_seconds, other.transfer_latency_seconds);
    merged.transfer_bytes_per_second = Slower(merged.transfer_bytes_per_second, other.transfer_bytes_per_second);
  }
  for (double* seconds : sums.seconds) *seconds /= static_cast<double>(ranks.size());

  const double mean = ComputeSeconds(merged);
  merged.rank_slowdown.clear();
  for (const Profile& rank : ranks) merged.rank_slowdown.push_back(mean > 0 ? ComputeSeconds(rank) / mean : 1);
  return merged;
}

}  // namespace atl::planner
