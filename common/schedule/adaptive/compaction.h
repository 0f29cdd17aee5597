// Compaction: runs an order as a list schedule under the measured costs. A rank that would wait takes work from further
// back in its order, if that holds no more than the limit at any later point. Pure; for the files of this folder.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/schedule/adaptive/problem.h"

namespace atl::schedule::adaptive {

struct CompactionRule {
  // Point from which a weight gradient whose turn it is lets other ready work go first.
  enum class WeightsYield : uint8_t { kAlways, kAfterLastF0, kAfterLastF1 };

  WeightsYield weights_yield = WeightsYield::kAfterLastF0;
  // Takes forwards early only before the rank's first I0.
  bool early_in_warm_up_only = false;
  // Work taken early may end this much after the awaited work could have started, as a share of its own length.
  double tolerance = 0;
};

// Allocates only in its constructor.
class Compaction {
 public:
  explicit Compaction(const Problem& problem);

  // `in` must fit the limits; so does `out`. Returns false if the order deadlocks.
  bool Run(const Order& in, const CompactionRule& rule, Order& out);

 private:
  struct RankState {
    double free_at = 0;
    double wake_at = 0;
    double held = 0;
    int32_t head = 0;  // first position of `in` that has not run
    std::array<int32_t, kKinds> done{};
  };

  void Index(const Order& in);
  bool WeightsYield(const RankState& state, const CompactionRule& rule) const;
  int32_t PositionOf(int32_t rank, int kind) const;
  double Ready(int32_t rank, int kind) const;
  bool MayRunEarly(int32_t rank, int kind, int32_t position) const;
  int Choose(int32_t rank, double now, const CompactionRule& rule, double& wake_at) const;
  void Execute(int32_t rank, int kind, double now, Order& out);

  const Problem& problem_;
  int32_t micro_batches_;
  int32_t length_;
  const Order* in_ = nullptr;
  std::vector<int32_t> positions_;  // [rank][kind][micro-batch]
  std::vector<int32_t> indices_;    // [rank][position]: micro-batch
  std::vector<double> ready_;       // [rank][lane kind][micro-batch], kNever while the producer has not started
  std::vector<RankState> state_;
};

}  // namespace atl::schedule::adaptive
