// The lanes of one attempt. A lane's number is its position in the sorted list, so that every rank computes the same
// number without communication. The table includes the collective lanes, which carry AllReduceSum.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/transport/transport.h"

namespace atl::transport {

// Returns the lane that carries collectives between rank 0 and another rank. Its chunk is negative, so that callers
// cannot name it.
Lane CollectiveLane(int32_t from, int32_t to);

// Immutable; thread-safe.
class LaneTable {
 public:
  LaneTable() = default;

  // Returns INVALID_ARGUMENT for a rank outside [0, rank_count), a negative chunk, an unknown kind or a duplicate lane.
  static absl::StatusOr<LaneTable> Create(const std::vector<Lane>& lanes, int32_t rank_count);

  // Returns INVALID_ARGUMENT if the lane was not among those of Create.
  absl::StatusOr<uint32_t> IndexOf(const Lane& lane) const;

  const std::vector<Lane>& lanes() const { return lanes_; }

  // Equal on two ranks exactly if they have the same lanes.
  std::string Text() const;

 private:
  std::vector<Lane> lanes_;  // sorted
};

}  // namespace atl::transport
