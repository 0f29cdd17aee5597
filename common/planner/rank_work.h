// The work and memory of the stages that one rank holds, for the partition of layers. Pure; for partition.cc.
//
// Times are whole ticks of a power of two, so that equal splits compare as equal whatever the order of their sums.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "common/planner/partition.h"

namespace atl::planner {

struct LayerRange {
  int32_t first = 0;
  int32_t end = 0;
};

// One or two stages of a rank.
struct RankStages {
  int32_t first_stage = 0;
  LayerRange first;
  int32_t second_stage = -1;
  LayerRange second;
};

struct StageTicks {
  int64_t first = -1;
  int64_t second = 0;
  bool fits() const { return first >= 0; }
};

class RankWork {
 public:
  // `request` outlives it.
  explicit RankWork(const PartitionRequest& request);

  // Returns the forward and backward of one micro-batch, including recomputation that the memory limit requires. May
  // stop early once the sum is above `limit`. Does not fit if even full recomputation exceeds the memory limit.
  StageTicks Ticks(const RankStages& stages, int64_t limit);

  int64_t BoundaryTicks(int32_t layer) const { return boundary_.empty() ? 0 : boundary_[layer]; }
  double Seconds(int64_t ticks) const { return static_cast<double>(ticks) / scale_; }

  // Returns the layers that the ranks of a split recompute.
  std::vector<int32_t> Recomputed(const std::vector<StagePlacement>& stages);

 private:
  // A layer of the rank that may be recomputed.
  struct Choice {
    int32_t layer = 0;
    bool second = false;
    int64_t ticks = 0;
    double saved_bytes = 0;  // per held micro-batch
    double most_saved = 0;   // at the rank's peak
  };
  struct Load;
  struct Search;

  int32_t RankOf(const RankStages& stages) const { return request_.rank_of_stage[stages.first_stage]; }
  int64_t Sum(const std::vector<std::vector<int64_t>>& prefix, int32_t rank, LayerRange range) const {
    return prefix[rank][range.end] - prefix[rank][range.first];
  }
  double InputBytes(int32_t layer) const;
  double SecondsOf(const LayerProfile& layer) const;  // of forward and backward, including C
  static double Excess(const Search& search, const Load& load);
  Load WithAgain(Load load, const Choice& choice) const;
  // `load`: with no layer recomputed.
  Search Begin(const RankStages& stages, Load* load) const;
  std::vector<Choice> Choices(const RankStages& stages) const;
  void Try(Search* search, size_t at, const StageTicks& ticks, const Load& load) const;
  // Without a memory limit …
  StageTicks Whole(const RankStages& stages) const;
  // … and with one; `again`: the layers recomputed for it, by place in Choices.
  StageTicks Limited(const RankStages& stages, std::vector<uint8_t>* again) const;

  const PartitionRequest& request_;
  double scale_ = 1;
  std::vector<std::vector<int64_t>> base_;     // [rank][layer]: sums of forward and backward of the layers before
  std::vector<std::vector<int64_t>> forward_;  // [rank][layer]: the same of the forward alone
  std::vector<int64_t> boundary_;
  std::vector<int32_t> stages_of_rank_;
  std::unordered_map<uint64_t, StageTicks> limited_;  // by stage and ranges: the splitter asks for each many times
};

}  // namespace atl::planner
