#include "common/schedule/adaptive/adaptive.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/errors.h"
#include "common/schedule/accumulation.h"
#include "common/schedule/adaptive/blocks.h"
#include "common/schedule/adaptive/compaction.h"
#include "common/schedule/adaptive/optimum.h"
#include "common/schedule/adaptive/search.h"
#include "common/schedule/adaptive/testing.h"
#include "common/schedule/generators.h"

namespace atl::schedule {
namespace {

using ::testing::HasSubstr;

constexpr double kTolerance = 1e-6;

struct Found {
  Schedule schedule;
  double makespan_seconds = 0;
};

// Checks every result: valid, and within the limits in the public simulator.
Found Find(int32_t micro_batches, const SimulationCosts& costs, const std::vector<double>& limits,
           const AdaptiveOptions& options = {}) {
  auto found = FindAdaptive(micro_batches, costs, limits, options);
  EXPECT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(Validate(*found).ok()) << Validate(*found);
  EXPECT_TRUE(AccumulatesInOrder(*found).ok()) << AccumulatesInOrder(*found);
  const auto simulation = Simulate(*found, costs);
  EXPECT_TRUE(simulation.ok()) << simulation.status();
  for (size_t r = 0; r < limits.size(); ++r) {
    EXPECT_LE(simulation->peak_activation_bytes[r], limits[r] * (1 + kTolerance)) << "rank " << r;
    EXPECT_EQ(found->rank_of_stage[r], static_cast<int32_t>(r));
    EXPECT_EQ(found->rank_of_stage[2 * limits.size() - 1 - r], static_cast<int32_t>(r));
  }
  return {*std::move(found), simulation->makespan_seconds};
}

// `split`: a B becomes I and W.
adaptive::Order ToOrder(const Schedule& schedule, bool split) {
  adaptive::Order order(schedule.ranks.size());
  for (size_t r = 0; r < order.size(); ++r) {
    for (const Action& action : schedule.ranks[r]) {
      const bool chunk0 = action.stage == static_cast<int32_t>(r);
      switch (action.kind) {
        case ActionKind::kForward:
          order[r].push_back(chunk0 ? adaptive::kF0 : adaptive::kF1);
          break;
        case ActionKind::kInputGradient:
          order[r].push_back(chunk0 ? adaptive::kI0 : adaptive::kI1);
          break;
        case ActionKind::kWeightGradient:
          order[r].push_back(chunk0 ? adaptive::kW0 : adaptive::kW1);
          break;
        default:
          order[r].push_back(split ? (chunk0 ? adaptive::kI0 : adaptive::kI1)
                                   : (chunk0 ? adaptive::kB0 : adaptive::kB1));
          if (split) order[r].push_back(chunk0 ? adaptive::kW0 : adaptive::kW1);
      }
    }
  }
  return order;
}

struct CostRow {
  double forward, input, weight;
  int32_t ranks, micro_batches;
  double bubble;  // of the makespan
};

TEST(Adaptive, UnequalPassesCostLittleMoreThanTheFloor) {
  for (const CostRow& row : std::vector<CostRow>{{1, 1, 1, 4, 12, .040},
                                                 {1, 1.2, .8, 4, 12, .040},
                                                 {1, .9, 1.3, 4, 12, .038},
                                                 {1, 1, 1, 8, 24, .046},
                                                 {1, 1.2, .8, 8, 24, .046},
                                                 {1, .9, 1.3, 8, 24, .044}}) {
    SCOPED_TRACE(fmt::format("{} ranks, {}:{}:{}", row.ranks, row.forward, row.input, row.weight));
    const SimulationCosts costs = EqualStages(row.ranks, row.forward, row.input, row.weight);
    const Found found = Find(row.micro_batches, costs, std::vector<double>(row.ranks, 2.0 * row.ranks));
    const double work = 2 * row.micro_batches * (row.forward + row.input + row.weight);
    EXPECT_LE(1 - work / found.makespan_seconds, row.bubble + 0.01);
    EXPECT_LE(found.makespan_seconds, OneFOneBSeconds(row.micro_batches, costs) * (1 + 1e-9));
  }
}

TEST(Adaptive, HopsCostLessThanTheyCostTheHandMadeSchedule) {
  for (const auto& [ranks, micro_batches, loss] : {std::tuple{4, 8, 0.028}, std::tuple{8, 16, 0.040}}) {
    SimulationCosts costs = EqualStages(ranks, 1, 1, 1);
    const std::vector<double> limits(ranks, 2.0 * ranks);
    const double without = Find(micro_batches, costs, limits).makespan_seconds;
    costs.transfer_seconds = 0.1;
    EXPECT_LE(Find(micro_batches, costs, limits).makespan_seconds, without * (1 + loss));
  }
}

TEST(Adaptive, OneSlowHopIsHiddenWhereTheOthersAreFast) {
  SimulationCosts costs = EqualStages(4, 1, 1, 1);
  costs.boundary_transfer_seconds.assign(7, 0);
  costs.boundary_transfer_seconds[1] = costs.boundary_transfer_seconds[5] = 0.5;  // between the ranks 1 and 2
  const Found found = Find(12, costs, std::vector<double>(4, 8));
  EXPECT_LE(found.makespan_seconds, 72 + 3 + 3 * 0.5 + kTolerance);
}

TEST(Adaptive, ASlowRankIsKeptBusy) {
  for (const auto& [ranks, micro_batches] : {std::pair{4, 8}, std::pair{8, 16}}) {
    SimulationCosts costs = EqualStages(ranks, 1, 1, 1);
    for (const int32_t stage : {ranks / 2, 2 * ranks - 1 - ranks / 2}) {
      costs.stages[stage] = {1.3, 1.3, 1.3, 1, 1};
    }
    const Found found = Find(micro_batches, costs, std::vector<double>(ranks, 2.0 * ranks));
    EXPECT_LE(found.makespan_seconds, OneFOneBSeconds(micro_batches, costs) * (1 + 1e-9));
    // Its own work, and the way of the first micro-batch to it.
    EXPECT_LE(found.makespan_seconds, 1.3 * 6 * micro_batches + ranks / 2 + kTolerance);
  }
}

// Stages of random costs and sizes, and random limits from the least upwards.
struct RandomCase {
  int32_t micro_batches;
  SimulationCosts costs;
  std::vector<double> limits;
};

RandomCase MakeRandomCase(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto uniform = [&](double low, double high) {
    return low + (high - low) * static_cast<double>(random() >> 11) * 0x1p-53;
  };
  const auto ranks = static_cast<int32_t>(uniform(1, 6.99));
  RandomCase random_case{.micro_batches = static_cast<int32_t>(uniform(1, 3.0 * ranks))};
  for (int32_t stage = 0; stage < 2 * ranks; ++stage) {
    const double size = uniform(1, 2);
    random_case.costs.stages.push_back(
        {uniform(.5, 1.5), uniform(.5, 1.5), uniform(.2, 1.5), size, size * uniform(0, 1)});
  }
  random_case.costs.transfer_seconds = uniform(0, .3);
  for (int32_t r = 0; r < ranks; ++r) {
    const double least =
        random_case.costs.stages[r].activation_bytes + random_case.costs.stages[2 * ranks - 1 - r].activation_bytes;
    random_case.limits.push_back(least * uniform(1, ranks));
  }
  return random_case;
}

TEST(Adaptive, RandomCostsAndLimitsGiveSoundSchedules) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const RandomCase random_case = MakeRandomCase(seed);
    Find(random_case.micro_batches, random_case.costs, random_case.limits, {.candidates = 200, .moves = 1000});
  }
}

TEST(Adaptive, RandomCostsAreNeverSlowerThanOneFOneBWhereItFits) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    RandomCase random_case = MakeRandomCase(seed);
    const size_t ranks = random_case.limits.size();
    for (size_t r = 0; r < ranks; ++r) {
      random_case.limits[r] =
          static_cast<double>(ranks) *
          (random_case.costs.stages[r].activation_bytes + random_case.costs.stages[2 * ranks - 1 - r].activation_bytes);
    }
    const Found found =
        Find(random_case.micro_batches, random_case.costs, random_case.limits, {.candidates = 400, .moves = 2000});
    EXPECT_LE(found.makespan_seconds, OneFOneBSeconds(random_case.micro_batches, random_case.costs) * (1 + 1e-9));
  }
}

TEST(Adaptive, NoFixedScheduleOfThePlacementThatFitsIsShorter) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const RandomCase random_case = MakeRandomCase(seed);
    const auto ranks = static_cast<int32_t>(random_case.limits.size());
    // So little effort that only what is known can be found.
    const Found found =
        Find(random_case.micro_batches, random_case.costs, random_case.limits, {.candidates = 1, .moves = 0});
    for (const std::string_view name : {"zbv", "v-half", "v-min"}) {
      const auto simulation = Simulate(*Generate(name, ranks, random_case.micro_batches), random_case.costs);
      ASSERT_TRUE(simulation.ok()) << simulation.status();
      bool fits = true;
      for (int32_t r = 0; r < ranks; ++r) {
        fits = fits && simulation->peak_activation_bytes[r] <= random_case.limits[r];
      }
      if (fits) {
        EXPECT_LE(found.makespan_seconds, simulation->makespan_seconds * (1 + kTolerance)) << name;
      }
    }
  }
}

TEST(Adaptive, ResultsRepeat) {
  const RandomCase random_case = MakeRandomCase(5);
  const Found first = Find(random_case.micro_batches, random_case.costs, random_case.limits);
  const Found second = Find(random_case.micro_batches, random_case.costs, random_case.limits);
  EXPECT_EQ(first.schedule, second.schedule);
}

TEST(Adaptive, LimitsBelowTheLeastAreRefusedWithTheLeast) {
  SimulationCosts costs = EqualStages(4, 1, 1, 1);
  costs.stages[1].activation_bytes = 30;
  costs.stages[6].activation_bytes = 12;
  costs.stages[6].forward_transient_bytes = 5;
  std::vector<double> limits{2, 47, 2, 2};
  EXPECT_TRUE(FindAdaptive(3, costs, limits).ok());
  for (const double limit : {46.9, 0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    limits[1] = limit;
    const auto found = FindAdaptive(3, costs, limits);
    ASSERT_FALSE(found.ok());
    EXPECT_EQ(found.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(ErrorReason(found.status()), "SCHEDULE_MEMORY_LIMIT");
    EXPECT_THAT(std::string(found.status().message()), HasSubstr("rank 1: expected a limit of at least 47 bytes"));
  }
}

TEST(Adaptive, EveryLimitFromTheLeastUpwardsHasASchedule) {
  double before = std::numeric_limits<double>::infinity();
  for (int32_t halves = 2; halves <= 12; ++halves) {
    SCOPED_TRACE(fmt::format("{} halves", halves));
    const double makespan =
        Find(8, EqualStages(5, 1, 1.2, .8), std::vector<double>(5, halves), {.moves = 1000}).makespan_seconds;
    EXPECT_LE(makespan, before * 1.02);
    before = makespan;
  }
}

// With many ranks there are thousands of blocks. Only the ones that are examined are made, and none if a fixed schedule
// cannot be beaten.
TEST(Adaptive, StartsAreAsFewAsAreLookedAt) {
  const SimulationCosts costs = EqualStages(8, 1, 1, 1);
  const adaptive::Problem tight = adaptive::MakeProblem(16, costs, std::vector<double>(8, 11));
  const adaptive::Order v_half = ToOrder(*GenerateVHalf(8, 16), /*split=*/true);
  for (const int32_t candidates : {5, 20}) {
    const adaptive::Found found = adaptive::Search(tight, {.candidates = candidates, .moves = 0}, {v_half});
    EXPECT_EQ(found.starts, static_cast<size_t>(candidates));
    EXPECT_EQ(found.candidates, candidates);
  }
  const adaptive::Problem roomy = adaptive::MakeProblem(16, costs, std::vector<double>(8, 16));
  const adaptive::Found found = adaptive::Search(roomy, {}, {ToOrder(*GenerateZbv(8, 16), /*split=*/true)});
  EXPECT_EQ(found.starts, 1U);
  EXPECT_EQ(found.candidates, 0);
}

TEST(Adaptive, BadCountsAndCostsAreRefused) {
  const SimulationCosts costs = EqualStages(2, 1, 1, 1);
  EXPECT_EQ(ErrorReason(FindAdaptive(4, costs, {}).status()), "SCHEDULE_COUNTS");
  EXPECT_EQ(ErrorReason(FindAdaptive(0, costs, {4, 4}).status()), "SCHEDULE_COUNTS");
  EXPECT_EQ(ErrorReason(FindAdaptive(4, costs, {4, 4, 4}).status()), "SIMULATION_COSTS");
  SimulationCosts negative = costs;
  negative.stages[3].forward_seconds = -1;
  EXPECT_EQ(ErrorReason(FindAdaptive(4, negative, {4, 4}).status()), "SIMULATION_COSTS");
}

TEST(Adaptive, AdjacentBackwardsAreMergedWhereThatCostsNothing) {
  const Found found = Find(8, EqualStages(4, 1, 1, 1), std::vector<double>(4, 8));
  int merged = 0;
  for (const auto& rank : found.schedule.ranks) {
    merged += static_cast<int>(std::count_if(
        rank.begin(), rank.end(), [](const Action& action) { return action.kind == ActionKind::kBackward; }));
  }
  EXPECT_GT(merged, 0);
  EXPECT_NEAR(found.makespan_seconds, 51, kTolerance);
}

TEST(Adaptive, BackwardsAreSplitOnlyWhereThatSavesMoreThanItCosts) {
  SimulationCosts costs = EqualStages(4, 1, 1, 1);
  for (StageCost& cost : costs.stages) cost.backward_seconds = 1.5;
  const Found found = Find(12, costs, std::vector<double>(4, 8));
  EXPECT_LE(found.makespan_seconds, OneFOneBSeconds(12, costs) * (1 + 1e-9));
  std::ptrdiff_t whole = 0;
  for (const auto& rank : found.schedule.ranks) {
    whole += std::count_if(rank.begin(), rank.end(),
                           [](const Action& action) { return action.kind == ActionKind::kBackward; });
  }
  EXPECT_GE(whole, 64) << "of 96";
  // 60 of work on each rank; split everywhere it would be 75.
  EXPECT_LE(found.makespan_seconds, 67);
}

// Every order of one rank's work that respects its own dependencies.
void Enumerate(int32_t micro_batches, std::vector<uint8_t>& kinds, std::array<int32_t, adaptive::kKinds>& done,
               std::vector<std::vector<uint8_t>>& all) {
  using namespace adaptive;  // NOLINT: the kinds
  if (kinds.size() == static_cast<size_t>(kKinds) * micro_batches) {
    all.push_back(kinds);
    return;
  }
  for (const uint8_t kind : {kF0, kF1, kI1, kI0, kW1, kW0}) {
    const int32_t most = kind == kF0 ? micro_batches : kind < kW1 ? done[kind - 1] : done[InputGradientOf(kind)];
    if (done[kind] >= most) continue;
    ++done[kind];
    kinds.push_back(kind);
    Enumerate(micro_batches, kinds, done, all);
    kinds.pop_back();
    --done[kind];
  }
}

TEST(AdaptiveOptimum, EqualsTheBestOfAllOrders) {
  std::vector<std::vector<uint8_t>> all;
  std::vector<uint8_t> kinds;
  std::array<int32_t, adaptive::kKinds> done{};
  Enumerate(2, kinds, done, all);
  ASSERT_GT(all.size(), 100u);
  for (const double halves : {2.0, 3.0, 4.0}) {
    SimulationCosts costs = EqualStages(2, 1, 1.2, .8);
    costs.stages[2].forward_seconds = 1.7;
    costs.transfer_seconds = 0.1;
    const adaptive::Problem problem = adaptive::MakeProblem(2, costs, {halves, halves});
    adaptive::Timer timer(problem);
    double best = adaptive::kNever;
    std::vector<std::vector<uint8_t>> fit;
    for (const auto& order : all) {
      if (adaptive::Fits(problem, {order, order})) fit.push_back(order);
    }
    adaptive::Order order(2);
    for (const auto& first : fit) {
      order[0] = first;
      for (const auto& second : fit) {
        order[1] = second;
        best = std::min(best, timer.Time(order, adaptive::Goal::kMakespan, best).objective);
      }
    }
    const adaptive::Optimum optimum = adaptive::FindOptimum(problem, adaptive::kNever, 1'000'000);
    EXPECT_TRUE(optimum.proven);
    EXPECT_NEAR(optimum.makespan, best, kTolerance) << halves << " halves";
    EXPECT_TRUE(adaptive::Fits(problem, optimum.order));
  }
}

TEST(AdaptiveOptimum, SearchReachesItUpToThreeRanksAndFourMicroBatches) {
  for (int32_t ranks = 1; ranks <= 3; ++ranks) {
    for (int32_t micro_batches = 1; micro_batches <= 4; ++micro_batches) {
      for (int32_t halves = 2; halves <= 2 * ranks; ++halves) {
        for (const auto& [forward, input, weight] :
             {std::array{1.0, 1.0, 1.0}, std::array{1.0, 1.2, 0.8}, std::array{1.0, 0.9, 1.3}}) {
          SCOPED_TRACE(fmt::format("{} ranks, {} micro-batches, {} halves, {}:{}:{}", ranks, micro_batches, halves,
                                   forward, input, weight));
          const SimulationCosts costs = EqualStages(ranks, forward, input, weight);
          const std::vector<double> limits(ranks, halves);
          const double found = Find(micro_batches, costs, limits).makespan_seconds;
          const adaptive::Optimum optimum =
              adaptive::FindOptimum(adaptive::MakeProblem(micro_batches, costs, limits), adaptive::kNever, 10'000'000);
          ASSERT_TRUE(optimum.proven);
          EXPECT_NEAR(found, optimum.makespan, kTolerance);
          // The heuristic alone, for that is what larger problems get.
          EXPECT_LE(Find(micro_batches, costs, limits, {.nodes = 0}).makespan_seconds, optimum.makespan * 1.03);
        }
      }
    }
  }
}

TEST(AdaptiveOptimum, SaysWhenItsNodesRunOut) {
  const adaptive::Problem problem = adaptive::MakeProblem(4, EqualStages(3, 1, 1, 1), {4, 4, 4});
  EXPECT_FALSE(adaptive::FindOptimum(problem, adaptive::kNever, 50).proven);
  const adaptive::Problem large = adaptive::MakeProblem(16, EqualStages(3, 1, 1, 1), {4, 4, 4});
  EXPECT_FALSE(adaptive::FindOptimum(large, adaptive::kNever, 1000).proven);
}

TEST(AdaptiveFloor, IsBelowEveryTimedOrder) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const RandomCase random_case = MakeRandomCase(seed);
    const adaptive::Problem problem =
        adaptive::MakeProblem(random_case.micro_batches, random_case.costs, random_case.limits);
    adaptive::Timer timer(problem);
    const double floor = adaptive::Floor(problem, adaptive::Goal::kMakespan);
    adaptive::Order order;
    for (const adaptive::Block& block : adaptive::AllBlocks(problem.rank_count())) {
      adaptive::Repeat(block, problem.micro_batches, order);
      if (!adaptive::Fits(problem, order)) continue;
      EXPECT_GE(timer.Time(order, adaptive::Goal::kMakespan).objective, floor * (1 - 1e-9)) << "seed " << seed;
    }
  }
}

TEST(AdaptiveTimer, AgreesWithTheSimulator) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    RandomCase random_case = MakeRandomCase(seed);
    for (StageCost& cost : random_case.costs.stages) cost.backward_seconds = cost.forward_seconds * 1.9;
    const Found found =
        Find(random_case.micro_batches, random_case.costs, random_case.limits, {.candidates = 20, .moves = 100});
    const adaptive::Problem problem =
        adaptive::MakeProblem(random_case.micro_batches, random_case.costs, random_case.limits);
    adaptive::Timer timer(problem);
    const adaptive::Score score = timer.Time(ToOrder(found.schedule, /*split=*/false), adaptive::Goal::kMakespan);
    EXPECT_NEAR(score.objective, found.makespan_seconds, kTolerance) << "seed " << seed;
  }
}

TEST(AdaptiveBlocks, AreThePublishedOnes) {
  // V-Min and V-Half at p = 4: starts on rank i of F0, F1, I1, I0.
  const auto has = [](const std::vector<std::array<int32_t, 4>>& starts) {
    const auto blocks = adaptive::AllBlocks(static_cast<int32_t>(starts.size()));
    return std::any_of(blocks.begin(), blocks.end(), [&](const adaptive::Block& block) {
      for (size_t r = 0; r < starts.size(); ++r) {
        if (!std::equal(starts[r].begin(), starts[r].end(), block.slots[r].begin())) return false;
      }
      return true;
    });
  };
  std::vector<std::array<int32_t, 4>> v_min;
  std::vector<std::array<int32_t, 4>> v_half;
  constexpr int32_t kRanks = 4;
  for (int32_t i = 0; i < kRanks; ++i) {
    v_min.push_back({i, 2 * kRanks - 1 - i, 2 * kRanks + i, 4 * kRanks - 1 - i});
    v_half.push_back({2 * i, 3 * kRanks - 2 - i, 3 * kRanks + 2 + 2 * i, 6 * kRanks + 1 - i});
  }
  EXPECT_TRUE(has(v_min));
  EXPECT_TRUE(has(v_half));
}

}  // namespace
}  // namespace atl::schedule
