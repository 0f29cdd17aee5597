// Where a plan's costs come from: measured by the island's ranks and kept in the blob store, or counted.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/planner/profile.h"
#include "common/spec/spec.h"
#include "common/storage/blob_store.h"
#include "worker/attempt/training_inputs.h"

namespace atl::worker {

// Whether a plan for this pipeline needs measured costs: where the planner has a choice, and where frozen work is to
// fill the bubbles of several ranks.
bool NeedsMeasuredProfile(const spec::PipelineSpec& pipeline, bool has_frozen, int32_t ranks);

// What makes two measurements alike.
struct ProfiledThing {
  trainer::TrainerOptions options;  // threads among them; `device` is its kind
  std::vector<int32_t> micro_batch_sizes;
  int32_t ranks = 1;
  std::string device_name;
  std::string build;
};

// Of two things that cost the same, the same; hexadecimal.
std::string ProfileKey(const ProfiledThing& thing);

// What ranks are to measure, each size for no longer than a few seconds.
struct Measurement {
  std::vector<int32_t> micro_batch_sizes;
  bool calibration = false;  // trainer::Calibration
};
using MeasureProfile = std::function<absl::StatusOr<planner::Profile>(const Measurement&)>;

// The profile under `key` in the store, scaled by a calibration with its smallest size to the machine as it is now;
// where there is none, or one that cannot be read, a new measurement, which is kept. An error is that of `measure`.
absl::StatusOr<planner::Profile> ObtainProfile(storage::BlobStore* store, std::string_view key,
                                               const std::vector<int32_t>& sizes, const MeasureProfile& measure);

}  // namespace atl::worker
