// Measures what the layers of a model cost on this device: each one run as a stage of its own by the code that trains
// (RankStages), the optimizer over all of them, and the layers of frozen components (frozen_profiler.h); all ranks at
// the same time, for ranks of one machine slow each other.
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
  std::string key;                         // the profile's
  // Rounds whose medians count, after one that does not; less where they would take longer than `longest` per size,
  // but at least one.
  int32_t rounds = 5;
  absl::Duration longest = absl::Seconds(3);
  bool frozen = true;  // measure frozen components too: planner::FrozenSizes of the batch, each as long as a size
  // Asked between two rounds; an error ends the measurement with it.
  std::function<absl::Status()> interrupted = [] { return absl::OkStatus(); };
};

// The same, cut down to what says how fast the machine is now, in about two seconds: planner::AdjustSpeed.
inline ProfilerOptions Calibration(ProfilerOptions options) {
  options.micro_batch_sizes.resize(std::min<size_t>(options.micro_batch_sizes.size(), 1));
  options.frozen = false;
  options.longest = absl::Seconds(1);
  return options;
}

// The lanes that ProfileRank needs, for Transport::Connect. Here, for callers that do not link LibTorch.
inline std::vector<transport::Lane> ProfilerLanes(int32_t ranks) {
  std::vector<transport::Lane> lanes;
  for (int32_t rank = 0; rank + 1 < ranks; ++rank) {
    lanes.push_back({rank, rank + 1, 0, transport::LaneKind::kControl});
    lanes.push_back({rank + 1, rank, 0, transport::LaneKind::kControl});
  }
  return lanes;
}

// What rank `transport->rank()` measured; the ranks' profiles are to be merged (planner::MergeProfiles). Every rank
// calls it with the same options; a null transport means that there is one rank. Blocks. Like Trainer::Create, sets the
// number of LibTorch's threads and tunes its allocator. INVALID_ARGUMENT for options that cannot be.
//
// Of a deep model no more than 8 blocks are run, and the others taken as their mean. Samples are noise. Weight
// gradients are measured as they accumulate: the first of a step costs a little less.
absl::StatusOr<planner::Profile> ProfileRank(const ProfilerOptions& options, transport::Transport* transport,
                                             Clock* clock);

}  // namespace atl::trainer
