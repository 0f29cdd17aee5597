// Obtains the costs that a plan uses: measured by the island's ranks and cached in the blob store, or counted.
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

// Returns whether a plan for this pipeline needs measured costs: if the planner has a choice, or if frozen work is to
// fill the bubbles of several ranks.
bool NeedsMeasuredProfile(const spec::PipelineSpec& pipeline, bool has_frozen, int32_t ranks);

// The properties by which two measurements are comparable.
struct ProfiledThing {
  trainer::TrainerOptions options;  // threads among them; `device` is its kind
  std::vector<int32_t> micro_batch_sizes;
  int32_t ranks = 1;
  std::string device_name;
  std::string build;
};

// Returns a hexadecimal key, equal for two subjects with equal costs.
std::string ProfileKey(const ProfiledThing& thing);

// The measurement that ranks perform, at most a few seconds per size.
struct Measurement {
  std::vector<int32_t> micro_batch_sizes;
  bool calibration = false;  // trainer::Calibration
};
using MeasureProfile = std::function<absl::StatusOr<planner::Profile>(const Measurement&)>;

// Returns the profile stored under `key`, scaled to the current speed of the machine by a calibration with its smallest
// size. If there is none or it is unreadable, measures anew and stores the result. Returns the errors of `measure`.
absl::StatusOr<planner::Profile> ObtainProfile(storage::BlobStore* store, std::string_view key,
                                               const std::vector<int32_t>& sizes, const MeasureProfile& measure);

}  // namespace atl::worker
