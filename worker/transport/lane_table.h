// The lanes of one attempt, numbered: position in the sorted list, so that every rank gives a lane the same number
// without exchanging any. Besides the caller's lanes it holds the collective lanes, which carry AllReduceSum.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/transport/transport.h"

namespace atl::transport {

// The lane that carries collectives between rank 0 and another rank. No caller can name it: its chunk is negative.
Lane CollectiveLane(int32_t from, int32_t to);

// Immutable; thread-safe.
class LaneTable {
 public:
  LaneTable() = default;

  // INVALID_ARGUMENT for a rank outside [0, rank_count), a negative chunk, an unknown kind or a lane named twice.
  static absl::StatusOr<LaneTable> Create(const std::vector<Lane>& lanes, int32_t rank_count);

  // INVALID_ARGUMENT when the lane was not among those of Create.
  absl::StatusOr<uint32_t> IndexOf(const Lane& lane) const;

  const std::vector<Lane>& lanes() const { return lanes_; }

  // Equal on two ranks exactly when they know the same lanes.
  std::string Text() const;

 private:
  std::vector<Lane> lanes_;  // sorted
};

}  // namespace atl::transport
