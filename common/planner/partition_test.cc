#include <algorithm>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "common/base/errors.h"
#include "common/planner/plan.h"

namespace atl::planner {
namespace {

std::vector<LayerProfile> Costs(const std::vector<double>& forward) {
  std::vector<LayerProfile> costs;
  for (const double seconds : forward) {
    costs.push_back(
        {.forward_seconds = seconds, .input_gradient_seconds = seconds, .weight_gradient_seconds = seconds});
  }
  return costs;
}

std::vector<int32_t> Ends(const std::vector<StagePlacement>& placements) {
  std::vector<int32_t> ends;
  for (const StagePlacement& placement : placements) ends.push_back(placement.end_layer);
  return ends;
}

double LargestStage(const std::vector<double>& forward, const std::vector<int32_t>& ends) {
  double largest = 0;
  int32_t first = 0;
  for (const int32_t end : ends) {
    double sum = 0;
    for (; first < end; ++first) sum += forward[first];
    largest = std::max(largest, sum);
  }
  return largest;
}

// Every split, in lexicographic order of the stages' ends; keeps the first of the best.
void BruteForce(const std::vector<double>& forward, int32_t stages, std::vector<int32_t>* ends,
                std::vector<int32_t>* best, double* least) {
  const auto layers = static_cast<int32_t>(forward.size());
  const auto left = stages - static_cast<int32_t>(ends->size());
  if (left == 1) {
    ends->push_back(layers);
    if (const double largest = LargestStage(forward, *ends); largest < *least) {
      *least = largest;
      *best = *ends;
    }
    ends->pop_back();
    return;
  }
  for (int32_t end = (ends->empty() ? 0 : ends->back()) + 1; end <= layers - (left - 1); ++end) {
    ends->push_back(end);
    BruteForce(forward, stages, ends, best, least);
    ends->pop_back();
  }
}

TEST(PartitionLayers, EqualsBruteForceOnRandomCosts) {
  constexpr uint32_t kSeed = 7;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  for (int round = 0; round < 500; ++round) {
    std::vector<double> forward(1 + random() % 9);
    // Few distinct whole costs, so that ties are common.
    for (double& cost : forward) cost = static_cast<double>(random() % 5);
    const int32_t stages = 1 + static_cast<int32_t>(random() % forward.size());
    std::vector<int32_t> ends;
    std::vector<int32_t> best;
    double least = std::numeric_limits<double>::infinity();
    BruteForce(forward, stages, &ends, &best, &least);
    const auto placements = PartitionLayers(Costs(forward), stages);
    ASSERT_TRUE(placements.ok()) << placements.status();
    EXPECT_EQ(Ends(*placements), best) << testing::PrintToString(forward) << " in " << stages;
  }
}

TEST(PartitionLayers, StagesAreContiguousNotEmptyAndCoverAllLayers) {
  const auto placements = *PartitionLayers(Costs({0, 1, 1, 1, 1, 1, 1, 0}), 4);
  ASSERT_EQ(placements.size(), 4u);
  int32_t next = 0;
  for (int32_t stage = 0; stage < 4; ++stage) {
    EXPECT_EQ(placements[stage].rank, stage);
    EXPECT_EQ(placements[stage].first_layer, next);
    EXPECT_GT(placements[stage].end_layer, next);
    next = placements[stage].end_layer;
  }
  EXPECT_EQ(next, 8);
}

TEST(PartitionLayers, TiesByRoundingChooseTheEarliest) {
  EXPECT_EQ(Ends(*PartitionLayers(Costs(std::vector<double>(30, 0.1)), 3)), (std::vector<int32_t>{10, 20, 30}));
}

TEST(PartitionLayers, RefusesMoreStagesThanLayersAndBadCosts) {
  const auto many = PartitionLayers(Costs({1, 1}), 3);
  EXPECT_EQ(many.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorField(many.status()), "pipeline.stages");
  EXPECT_FALSE(PartitionLayers(Costs({1, 1}), 0).ok());
  EXPECT_FALSE(PartitionLayers({}, 1).ok());
  EXPECT_EQ(ErrorReason(PartitionLayers(Costs({1, -1}), 1).status()), "LAYER_COST");
}

}  // namespace
}  // namespace atl::planner
