#include "router/policy/step_scheduler.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kModel = 1;
constexpr absl::Duration kNow = absl::Seconds(100);

GroupKey Key(int32_t network, bool guided = false) {
  return {.model = kModel, .network = network, .channels = 1, .height = 8, .width = 8, .guided = guided};
}

LaneState Lane(int32_t lane, int32_t free_slots, const std::vector<int32_t>& networks, bool resident = true) {
  LaneState state{.lane = lane, .free_slots = free_slots};
  for (const int32_t network : networks) {
    state.networks.push_back({.model = kModel, .network = network, .resident = resident});
  }
  return state;
}

// "0: 1 2 @3" is network 0 with evaluations 1 and 2 on lane 3.
std::vector<std::string> Text(const SchedulerDecision& decision) {
  std::vector<std::string> lines;
  for (const Dispatch& dispatch : decision.dispatches) {
    std::string line = fmt::format("{}:", dispatch.key.network);
    for (const int64_t id : dispatch.evaluations) line += fmt::format(" {}", id);
    lines.push_back(line + fmt::format(" @{}", dispatch.lane));
  }
  return lines;
}

class DecideDispatchesTest : public ::testing::Test {
 protected:
  // The next id; ready now unless said otherwise.
  void Ready(int64_t request, const GroupKey& key, absl::Duration ready_since = kNow) {
    ready_.push_back({.id = ++last_id_, .request = request, .key = key, .ready_since = ready_since});
    if (std::none_of(requests_.begin(), requests_.end(), [&](const auto& entry) { return entry.request == request; })) {
      requests_.push_back({.request = request, .last_service = kNow});
    }
  }
  RequestService& Request(int64_t request) {
    return *std::find_if(requests_.begin(), requests_.end(),
                         [&](const auto& entry) { return entry.request == request; });
  }
  SchedulerDecision Decide(const std::vector<LaneState>& lanes, absl::Duration now = kNow) {
    return DecideDispatches(now, ready_, lanes, requests_, costs_, options_);
  }

  int64_t last_id_ = 0;
  std::vector<ReadyEvaluation> ready_;
  std::vector<RequestService> requests_;
  CostEstimates costs_;
  SchedulerOptions options_;
};

TEST_F(DecideDispatchesTest, NothingIsReadyOrNoLaneIsFree) {
  EXPECT_THAT(Text(Decide({Lane(0, 1, {0})})), IsEmpty());
  Ready(1, Key(0));
  EXPECT_THAT(Text(Decide({})), IsEmpty());
  EXPECT_THAT(Text(Decide({Lane(0, 0, {0})})), IsEmpty());
  EXPECT_THAT(Text(Decide({Lane(0, 1, {1, 2})})), IsEmpty());
}

TEST_F(DecideDispatchesTest, EvaluationsOfAllRequestsShareBatchesByModelNetworkShapeAndGuidance) {
  GroupKey wide = Key(0);
  wide.width = 16;
  GroupKey other_model = Key(0);
  other_model.model = 2;
  GroupKey reproducible = Key(0);
  reproducible.reproducible = true;
  Ready(1, Key(0));
  Ready(1, Key(1));
  Ready(2, Key(0));
  Ready(2, wide);
  Ready(3, Key(0, true));
  Ready(3, other_model);
  Ready(4, reproducible);
  Ready(4, Key(0));
  LaneState lane = Lane(0, 10, {0, 1});
  lane.networks.push_back({.model = 2, .network = 0});
  options_.max_rows_per_batch = 64;
  EXPECT_THAT(Text(Decide({Lane(0, 1, {0, 1})})), ElementsAre("0: 1 3 8 @0"));
  const SchedulerDecision decision = Decide({lane});
  EXPECT_EQ(decision.dispatches.size(), 8u) << "with a slot for each, shares are of one row, and nothing is mixed";
}

TEST_F(DecideDispatchesTest, ALaneIsGivenOnlyWhatItHosts) {
  Ready(1, Key(0));
  Ready(1, Key(1));
  Ready(1, Key(2));
  EXPECT_THAT(Text(Decide({Lane(0, 1, {1}), Lane(1, 1, {2, 3})})), ElementsAre("1: 2 @0", "2: 3 @1"));
}

TEST_F(DecideDispatchesTest, AHotNetworkIsSpreadEvenlyOverTheLanesThatCouldRunIt) {
  for (int i = 0; i < 10; ++i) Ready(1, Key(0));
  Ready(1, Key(1));
  Ready(1, Key(1));
  EXPECT_THAT(Text(Decide({Lane(0, 1, {0, 1}), Lane(1, 1, {0, 1})})),
              ElementsAre("0: 1 2 3 4 5 @0", "0: 6 7 8 9 10 @1"))
      << "six rows are each lane's share; ten of one kind fall into even parts";
  EXPECT_THAT(Text(Decide({Lane(0, 1, {0}), Lane(1, 1, {1})})),
              ElementsAre("0: 1 2 3 4 5 6 7 8 9 10 @0", "1: 11 12 @1"))
      << "a lane that cannot help takes no share";
}

TEST_F(DecideDispatchesTest, BatchesStayWithinTheValuesWhateverTheShape) {
  GroupKey large = Key(0);
  large.channels = 4;  // 512 values of two branches
  for (int i = 0; i < 6; ++i) Ready(1, large);
  options_.max_values_per_batch = 3 * 512 + 511;
  EXPECT_THAT(Text(Decide({Lane(0, 1, {0})})), ElementsAre("0: 1 2 3 @0"));
  options_.max_values_per_batch = 100;
  EXPECT_THAT(Text(Decide({Lane(0, 1, {0})})), ElementsAre("0: 1 @0")) << "always one: the lane has the last word";

  ready_.clear();
  GroupKey guided = large;
  guided.guided = true;
  for (int i = 0; i < 6; ++i) Ready(1, guided);
  options_.max_values_per_batch = 3 * 512;
  EXPECT_THAT(Text(Decide({Lane(0, 1, {0})})), ElementsAre("0: 7 8 9 @0")) << "both branches are counted already";
}

TEST_F(DecideDispatchesTest, BatchesStayWithinTheRowsAndTheTimeAndFallIntoEvenParts) {
  for (int i = 0; i < 33; ++i) Ready(1, Key(0, true));
  options_.max_rows_per_batch = 32;
  EXPECT_EQ(Decide({Lane(0, 1, {0})}).dispatches[0].evaluations.size(), 11u) << "33 pairs in three batches";
  EXPECT_EQ(Decide({Lane(0, 1, {0})}).dispatches[0].reason, "the limit of a batch");
  options_.max_rows_per_batch = 1;
  EXPECT_EQ(Decide({Lane(0, 1, {0})}).dispatches[0].evaluations.size(), 1u) << "a pair is never split";
  options_.max_rows_per_batch = 1000;
  options_.longest_batch = absl::Milliseconds(250);
  costs_.Record(kModel, 0, 1, absl::Milliseconds(25));
  EXPECT_EQ(Decide({Lane(0, 1, {0})}).dispatches[0].evaluations.size(), 5u) << "250 ms are ten rows";
  costs_.Record(kModel, 0, 1000, absl::Seconds(10'000));
  EXPECT_EQ(Decide({Lane(0, 1, {0})}).dispatches[0].evaluations.size(), 1u) << "one runs, whatever it costs";
}

TEST_F(DecideDispatchesTest, WhileOthersAreInFlightARequestHasAQuantumOfEachBatch) {
  for (int i = 0; i < 20; ++i) Ready(1, Key(0));
  costs_.Record(kModel, 0, 1, absl::Milliseconds(5));
  EXPECT_EQ(Decide({Lane(0, 1, {0})}).dispatches[0].evaluations.size(), 20u) << "alone";
  requests_.push_back({.request = 2});
  const SchedulerDecision decision = Decide({Lane(0, 1, {0})});
  EXPECT_THAT(Text(decision), ElementsAre("0: 1 2 3 4 @0")) << "20 ms; the other one waits for nothing yet";
  EXPECT_EQ(decision.dispatches[0].reason, "others wait: the quantum of each request");
  for (int i = 0; i < 3; ++i) Ready(2, Key(0));
  EXPECT_THAT(Text(Decide({Lane(0, 1, {0})})), ElementsAre("0: 1 2 3 4 21 22 23 @0"));
  Request(1).used = absl::Seconds(1);
  EXPECT_THAT(Text(Decide({Lane(0, 1, {0})})), ElementsAre("0: 1 2 3 21 22 23 @0")) << "as many as the leader";
}

TEST_F(DecideDispatchesTest, RowsThatHardlyProlongABatchAreNoQuestionOfTurns) {
  for (int i = 0; i < 20; ++i) Ready(1, Key(0));
  Ready(2, Key(0));
  Request(1).used = absl::Seconds(1);
  costs_.Record(kModel, 0, 1, absl::Microseconds(1100));
  costs_.Record(kModel, 0, 10, absl::Microseconds(2000));
  EXPECT_EQ(Decide({Lane(0, 1, {0})}).dispatches[0].evaluations.size(), 11u)
      << "1 ms at least, and ten rows take another one";
}

TEST_F(DecideDispatchesTest, TheRequestThatWasServedLeastGoesFirst) {
  Ready(1, Key(0));
  Ready(2, Key(1));
  Ready(3, Key(2));
  Request(1).used = absl::Seconds(3);
  Request(2).used = absl::Seconds(1);
  Request(3).used = absl::Seconds(2);
  EXPECT_THAT(Text(Decide({Lane(0, 1, {0, 1, 2})})), ElementsAre("1: 2 @0"));
  Request(1).priority = 1;
  EXPECT_THAT(Text(Decide({Lane(0, 1, {0, 1, 2})})), ElementsAre("0: 1 @0")) << "priority goes before service";
}

TEST_F(DecideDispatchesTest, RequestsTakeTurnsInABatchThatIsTooSmallForAll) {
  for (int i = 0; i < 5; ++i) Ready(1, Key(0));
  Ready(2, Key(0));
  for (int i = 0; i < 3; ++i) Ready(3, Key(0));
  options_.max_rows_per_batch = 5;
  // First turns of 1, 2 and 3, then second turns of 1 and 3.
  EXPECT_THAT(Text(Decide({Lane(0, 1, {0})})), ElementsAre("0: 1 2 6 7 8 @0"));
}

TEST_F(DecideDispatchesTest, ServiceIsChargedByMeasuredCostOverWeight) {
  Ready(1, Key(0, true));
  Ready(1, Key(0, true));
  Ready(2, Key(0, true));
  Request(1).weight = 2;
  costs_.Record(kModel, 0, 10, absl::Milliseconds(20));
  const SchedulerDecision decision = Decide({Lane(0, 1, {0})});
  ASSERT_EQ(decision.charges.size(), 2u);
  EXPECT_EQ(decision.charges[0].used, absl::Milliseconds(4)) << "four rows of 2 ms, of twice the share";
  EXPECT_EQ(decision.charges[1].used, absl::Milliseconds(4));
}

TEST_F(DecideDispatchesTest, ARequestThatIsNotServedRisesByOnePriorityEverySoOften) {
  Ready(1, Key(0), kNow - absl::Seconds(10));
  Ready(2, Key(1));
  Request(2).priority = 2;
  Request(1).last_service = kNow - absl::Milliseconds(1900);
  EXPECT_THAT(Text(Decide({Lane(0, 1, {0, 1})})), ElementsAre("1: 2 @0"));
  Request(1).last_service = kNow - absl::Milliseconds(2000);
  EXPECT_THAT(Text(Decide({Lane(0, 1, {0, 1})})), ElementsAre("0: 1 @0")) << "as high, and ready for longer";
}

TEST_F(DecideDispatchesTest, NetworksThatAreThereGoBeforeThoseThatMustBeLoadedForAWhile) {
  Ready(1, Key(0), kNow - absl::Milliseconds(50));
  Ready(1, Key(1));
  LaneState lane = Lane(0, 1, {0, 1});
  lane.networks[0].resident = false;
  EXPECT_THAT(Text(Decide({lane})), ElementsAre("1: 2 @0"));
  EXPECT_THAT(Text(Decide({lane}, kNow + absl::Milliseconds(150))), ElementsAre("0: 1 @0"));
}

TEST_F(DecideDispatchesTest, NoLaneLoadsWhatAnotherHas) {
  Ready(1, Key(0));
  const std::vector<LaneState> lanes = {Lane(0, 0, {0}), Lane(1, 1, {0}, /*resident=*/false)};
  EXPECT_THAT(Text(Decide(lanes)), IsEmpty());
  EXPECT_THAT(Text(Decide(lanes, kNow + absl::Seconds(10))), IsEmpty()) << "however long the lane that has it is busy";
  EXPECT_THAT(Text(Decide({lanes[1]})), ElementsAre("0: 1 @1")) << "at once where no lane has it";
}

TEST_F(DecideDispatchesTest, WhatNoLaneHasIsLoadedByOne) {
  for (int i = 0; i < 4; ++i) Ready(1, Key(0));
  Ready(1, Key(1));
  const std::vector<LaneState> lanes = {Lane(0, 1, {0, 1}, /*resident=*/false), Lane(1, 1, {0, 1}, /*resident=*/false)};
  EXPECT_THAT(Text(Decide(lanes)), ElementsAre("0: 1 2 3 4 @0", "1: 5 @1"));
}

TEST_F(DecideDispatchesTest, AHotNetworksRowsAreSpreadOverTheLanesThatHaveIt) {
  for (int i = 0; i < 4; ++i) Ready(1, Key(0));
  LaneState cold = Lane(2, 1, {0, 1});
  cold.networks[0].resident = false;
  EXPECT_THAT(Text(Decide({Lane(0, 1, {0}), Lane(1, 1, {0}), cold})), ElementsAre("0: 1 2 @0", "0: 3 4 @1"));
  EXPECT_THAT(Text(Decide({Lane(0, 1, {0}), cold})), ElementsAre("0: 1 2 3 4 @0"));
}

TEST_F(DecideDispatchesTest, APinnedEvaluationRunsOnLanesOfItsArithmeticAlone) {
  GroupKey pinned = Key(0);
  pinned.reproducible = true;
  pinned.numerics = 2;
  Ready(1, pinned);
  LaneState other = Lane(0, 1, {0});
  other.numerics = 1;
  LaneState same = Lane(1, 1, {0});
  same.numerics = 2;
  EXPECT_THAT(Text(Decide({other})), IsEmpty());
  EXPECT_THAT(Text(Decide({other, same})), ElementsAre("0: 1 @1"));
}

// ---- Many decisions in a row, on a clock of the test.

// Images that are evaluated on one expert again and again, on lanes that take what the costs say.
class Simulation {
 public:
  struct Image {
    int64_t request = 0;
    int32_t network = 0;
    int64_t steps = 0;
  };

  Simulation(int lanes, absl::Duration row_cost) : lanes_(lanes), row_cost_(row_cost) {
    for (int32_t network = 0; network < 8; ++network) costs_.Record(kModel, network, 1, row_cost);
  }
  void Join(RequestService request, int64_t images) {
    request.used = ServiceOfJoining(requests_);
    request.last_service = now_;
    requests_.push_back(request);
    for (int64_t i = 0; i < images; ++i) {
      images_.push_back({.request = request.request, .network = static_cast<int32_t>(i % 8)});
      MakeReady(images_.size() - 1);
    }
  }
  void RunUntil(absl::Duration end) {
    while (now_ < end) {
      Decide();
      now_ = running_.begin()->first;
      const auto [lane, images] = running_.begin()->second;
      running_.erase(running_.begin());
      busy_.erase(lane);
      for (const size_t image : images) {
        ++images_[image].steps;
        MakeReady(image);
      }
    }
  }
  int64_t Steps(int64_t request) const {
    int64_t steps = 0;
    for (const Image& image : images_) steps += image.request == request ? image.steps : 0;
    return steps;
  }
  absl::Duration longest_wait(int64_t request) { return longest_wait_[request]; }
  int64_t FewestSteps() const {
    return std::min_element(images_.begin(), images_.end(),
                            [](const Image& a, const Image& b) { return a.steps < b.steps; })
        ->steps;
  }

 private:
  void MakeReady(size_t image) {
    ready_.push_back(
        {.id = ++last_id_, .request = images_[image].request, .key = Key(images_[image].network), .ready_since = now_});
    image_of_[last_id_] = image;
  }
  void Decide() {
    std::vector<LaneState> lanes;
    for (int32_t i = 0; i < lanes_; ++i) lanes.push_back(Lane(i, busy_.contains(i) ? 0 : 1, {0, 1, 2, 3, 4, 5, 6, 7}));
    const SchedulerDecision decision = DecideDispatches(now_, ready_, lanes, requests_, costs_, options_);
    for (const Charge& charge : decision.charges) {
      for (RequestService& request : requests_) {
        if (request.request != charge.request) continue;
        longest_wait_[request.request] = std::max(longest_wait_[request.request], now_ - request.last_service);
        request.used += charge.used;
        request.last_service = now_;
      }
    }
    for (const Dispatch& dispatch : decision.dispatches) {
      std::vector<size_t> images;
      for (const int64_t id : dispatch.evaluations) {
        images.push_back(image_of_[id]);
        std::erase_if(ready_, [&](const ReadyEvaluation& evaluation) { return evaluation.id == id; });
      }
      busy_.insert(dispatch.lane);
      running_.emplace(now_ + row_cost_ * static_cast<int64_t>(images.size()), std::pair(dispatch.lane, images));
    }
    ASSERT_FALSE(running_.empty());
  }

  const int lanes_;
  const absl::Duration row_cost_;
  const SchedulerOptions options_;
  CostEstimates costs_;
  absl::Duration now_ = kNow;
  int64_t last_id_ = 0;
  std::vector<Image> images_;
  std::vector<ReadyEvaluation> ready_;
  std::vector<RequestService> requests_;
  std::map<int64_t, size_t> image_of_;
  std::map<int64_t, absl::Duration> longest_wait_;
  std::multimap<absl::Duration, std::pair<int32_t, std::vector<size_t>>> running_;
  std::set<int32_t> busy_;
};

TEST(SchedulingTest, ASingleImageBesideALargeRequestIsHardlySlowerThanAlone) {
  constexpr absl::Duration kRow = absl::Milliseconds(4);
  Simulation simulation(2, kRow);
  simulation.Join({.request = 1, .weight = ShareOf(200)}, 200);
  simulation.RunUntil(kNow + absl::Seconds(2));
  simulation.Join({.request = 2, .weight = ShareOf(1)}, 1);
  const int64_t before = simulation.Steps(1);
  simulation.RunUntil(kNow + absl::Seconds(12));
  const auto alone = static_cast<double>(absl::Seconds(10) / kRow);
  EXPECT_GT(static_cast<double>(simulation.Steps(2)), alone / 3);
  EXPECT_GT(static_cast<double>(simulation.Steps(1) - before), alone) << "half of what two lanes do for it alone";
}

TEST(SchedulingTest, NobodyStarves) {
  Simulation simulation(1, absl::Milliseconds(10));
  int64_t request = 0;
  for (const int32_t images : {50, 1, 7, 1, 30, 1, 1}) {
    ++request;
    simulation.Join({.request = request, .priority = static_cast<int32_t>(request % 3), .weight = ShareOf(images)},
                    images);
  }
  simulation.RunUntil(kNow + absl::Seconds(60));
  EXPECT_GT(simulation.FewestSteps(), 0);
  for (int64_t i = 1; i <= request; ++i) {
    // Three priorities are two risings apart, and a batch may be under way.
    EXPECT_LE(simulation.longest_wait(i), absl::Seconds(3)) << "request " << i;
  }
}

TEST(SchedulingTest, ANewcomerNeitherWaitsForNorOvertakesWhatOthersWereGiven) {
  Simulation simulation(1, absl::Milliseconds(4));
  simulation.Join({.request = 1}, 1);
  simulation.RunUntil(kNow + absl::Seconds(10));
  const int64_t before = simulation.Steps(1);
  simulation.Join({.request = 2}, 1);
  simulation.RunUntil(kNow + absl::Seconds(20));
  EXPECT_NEAR(static_cast<double>(simulation.Steps(1) - before), static_cast<double>(simulation.Steps(2)), 2);
}

TEST(CostEstimatesTest, FollowsWhatIsMeasuredAndGuessesFromTheModelsOtherNetworks) {
  CostEstimates costs;
  EXPECT_FALSE(costs.Cost(kModel, 0).known());
  costs.Record(kModel, 0, 4, absl::Milliseconds(8));
  costs.Record(kModel, 1, 1, absl::Milliseconds(4));
  EXPECT_EQ(costs.Cost(kModel, 0).Of(4), absl::Milliseconds(8));
  EXPECT_EQ(costs.Cost(kModel, 7).per_row, absl::Milliseconds(3));
  EXPECT_FALSE(costs.Cost(2, 0).known());
  for (int i = 0; i < 200; ++i) costs.Record(kModel, 0, 20, absl::Milliseconds(20));
  EXPECT_NEAR(absl::ToDoubleMilliseconds(costs.Cost(kModel, 0).per_row), 1, 1e-2);
  costs.Forget(kModel);
  EXPECT_FALSE(costs.Cost(kModel, 0).known());
}

TEST(CostEstimatesTest, BatchesOfSeveralSizesTellWhatABatchCostsAnyway) {
  CostEstimates costs;
  for (const int64_t rows : {1, 8, 3, 32, 5}) {
    costs.Record(kModel, 0, rows, absl::Milliseconds(5) + absl::Milliseconds(2) * rows);
  }
  const BatchCost cost = costs.Cost(kModel, 0);
  EXPECT_NEAR(absl::ToDoubleMilliseconds(cost.fixed), 5, 1e-3);
  EXPECT_NEAR(absl::ToDoubleMilliseconds(cost.per_row), 2, 1e-3);
  EXPECT_EQ(cost.RowsWithin(absl::Milliseconds(26), 100), 10);
  EXPECT_EQ(cost.RowsWithin(absl::Milliseconds(26), 4), 4);
  EXPECT_EQ(cost.RowsWithin(absl::Milliseconds(1), 100), 1);
  // Shorter when larger, which is noise: a row costs a little all the same.
  CostEstimates noisy;
  noisy.Record(kModel, 0, 1, absl::Milliseconds(10));
  noisy.Record(kModel, 0, 9, absl::Milliseconds(9));
  EXPECT_GT(noisy.Cost(kModel, 0).per_row, absl::ZeroDuration());
}

}  // namespace
}  // namespace atl::router
