#include "worker/transport/lane_table.h"

#include <algorithm>

#include "common/base/errors.h"
#include "fmt/format.h"

namespace atl::transport {
namespace {

constexpr int32_t kCollectiveChunk = -1;

const char* KindName(LaneKind kind) {
  switch (kind) {
    case LaneKind::kForward:
      return "forward";
    case LaneKind::kGradient:
      return "gradient";
    case LaneKind::kFrozen:
      return "frozen";
    case LaneKind::kControl:
      return "control";
    case LaneKind::kReduce:
      return "reduce";
    case LaneKind::kSelfConditioning:
      return "self-conditioning";
  }
  return "unknown";
}

absl::Status CheckLane(const Lane& lane, int32_t rank_count) {
  const auto is_rank = [rank_count](int32_t rank) { return rank >= 0 && rank < rank_count; };
  if (!is_rank(lane.from) || !is_rank(lane.to)) {
    return MakeError(absl::StatusCode::kInvalidArgument, "TRANSPORT_LANE_INVALID",
                     fmt::format("lane {}: expected ranks in [0, {})", ToString(lane), rank_count));
  }
  if (lane.chunk < 0 || lane.kind > LaneKind::kSelfConditioning) {
    return MakeError(absl::StatusCode::kInvalidArgument, "TRANSPORT_LANE_INVALID",
                     fmt::format("lane {}: expected a chunk of at least 0 and a known kind, found chunk {}, kind {}",
                                 ToString(lane), lane.chunk, static_cast<int>(lane.kind)));
  }
  return absl::OkStatus();
}

}  // namespace

std::string ToString(const Lane& lane) {
  return fmt::format("{}->{} chunk {} {}", lane.from, lane.to, lane.chunk, KindName(lane.kind));
}

Lane CollectiveLane(int32_t from, int32_t to) {
  return {from, to, kCollectiveChunk, LaneKind::kControl};
}

absl::StatusOr<LaneTable> LaneTable::Create(const std::vector<Lane>& lanes, int32_t rank_count) {
  LaneTable table;
  for (const Lane& lane : lanes) {
    if (absl::Status status = CheckLane(lane, rank_count); !status.ok()) return status;
    table.lanes_.push_back(lane);
  }
  for (int32_t rank = 1; rank < rank_count; ++rank) {
    table.lanes_.push_back(CollectiveLane(rank, 0));
    table.lanes_.push_back(CollectiveLane(0, rank));
  }
  std::sort(table.lanes_.begin(), table.lanes_.end());
  const auto twice = std::adjacent_find(table.lanes_.begin(), table.lanes_.end());
  if (twice != table.lanes_.end()) {
    return MakeError(absl::StatusCode::kInvalidArgument, "TRANSPORT_LANE_INVALID",
                     fmt::format("lane {} is named twice, expected once", ToString(*twice)));
  }
  return table;
}

absl::StatusOr<uint32_t> LaneTable::IndexOf(const Lane& lane) const {
  const auto found = std::lower_bound(lanes_.begin(), lanes_.end(), lane);
  if (found == lanes_.end() || *found != lane) {
    return MakeError(absl::StatusCode::kInvalidArgument, "TRANSPORT_LANE_UNKNOWN",
                     fmt::format("lane {} is not among the {} lanes given to Connect", ToString(lane), lanes_.size()));
  }
  return static_cast<uint32_t>(found - lanes_.begin());
}

std::string LaneTable::Text() const {
  std::string text;
  for (const Lane& lane : lanes_) {
    fmt::format_to(std::back_inserter(text), "{} {} {} {}\n", lane.from, lane.to, lane.chunk,
                   static_cast<int>(lane.kind));
  }
  return text;
}

}  // namespace atl::transport
