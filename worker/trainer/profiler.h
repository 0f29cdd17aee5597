// Measures the costs of a model's layers on this device: each one run as its own stage by the code that trains
// (RankStages), the optimizer over all of them, and the layers of frozen components (frozen_profiler.h). All ranks
// measure at the same time, because ranks of one machine slow each other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/planner/profile.h"
#include "worker/trainer/trainer.h"
#include "worker/transport/transport.h"

namespace atl::trainer {

struct ProfilerOptions {
  TrainerOptions trainer;
  spec::PrecisionSpec precision;
  std::vector<int32_t> micro_batch_sizes;  // ascending
  std::string key;                         // of the profile
  // Rounds whose medians count, after a first one that does not. Fewer, but at least one, if they would take longer
  // than `longest` per size.
  int32_t rounds = 5;
  absl::Duration longest = absl::Seconds(3);
  bool frozen = true;  // measure frozen components too: planner::FrozenSizes of the batch, each as long as a size
  // Called between two rounds; an error ends the measurement and is returned.
  std::function<absl::Status()> interrupted = [] { return absl::OkStatus(); };
};

// Returns the options reduced to a measurement of the machine's current speed, which takes about two seconds:
// planner::AdjustSpeed.
inline ProfilerOptions Calibration(ProfilerOptions options) {
  options.micro_batch_sizes.resize(std::min<size_t>(options.micro_batch_sizes.size(), 1));
  options.frozen = false;
  options.longest = absl::Seconds(1);
  return options;
}

// Returns the lanes that ProfileRank needs, for Transport::Connect. Defined here for callers that do not link LibTorch.
inline std::vector<transport::Lane> ProfilerLanes(int32_t ranks) {
  std::vector<transport::Lane> lanes;
  for (int32_t rank = 0; rank + 1 < ranks; ++rank) {
    lanes.push_back({rank, rank + 1, 0, transport::LaneKind::kControl});
    lanes.push_back({rank + 1, rank, 0, transport::LaneKind::kControl});
  }
  return lanes;
}

// Returns the measurements of rank `transport->rank()`; merge the ranks' profiles with planner::MergeProfiles. Every
// rank calls it with the same options; a null transport means one rank. Blocks. Like Trainer::Create, sets the number
// of LibTorch's threads and tunes its allocator. INVALID_ARGUMENT for invalid options.
//
// At most 8 blocks of a deep model are run, and the others get their mean. Samples are noise. Weight gradients are
// measured as they accumulate: the first of a step costs a little less.
absl::StatusOr<planner::Profile> ProfileRank(const ProfilerOptions& options, transport::Transport* transport,
                                             Clock* clock);

}  // namespace atl::trainer
