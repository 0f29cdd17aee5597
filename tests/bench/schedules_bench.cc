// What the adaptive schedule search finds: the memory-bubble line, unequal costs, hop latency, a slow rank, random
// costs, the optimum of small problems, and its own processor time. Simulated time only, but for the last.
//
// One JSON object per line on standard output; what people read goes to standard error. Exits with 1 when a schedule is
// invalid, holds more than its limit or takes other time than it says.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/schedule/adaptive.h"
#include "common/schedule/adaptive_optimum.h"

namespace atl::bench {
namespace {

using schedule::AdaptiveGoal;
using schedule::AdaptiveSchedule;
using schedule::SimulationCosts;
using schedule::StageCost;

constexpr double kTolerance = 1e-6;

// `target`: what the metric should not be above.
void Print(const std::string& name, const std::string& metric, double value, const std::string& unit, double target) {
  const nlohmann::ordered_json line{
      {"case", name}, {"metric", metric}, {"value", value}, {"unit", unit}, {"target", target}};
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
  if (value > target + kTolerance) fmt::print(stderr, "{} {}: {:.5g} is above {:.5g}\n", name, metric, value, target);
}

double ProcessorSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

SimulationCosts EqualStages(int32_t ranks, double forward, double input, double weight) {
  SimulationCosts costs;
  // All of an activation is kept until W, as the published tables count.
  costs.stages.assign(2 * static_cast<size_t>(ranks), StageCost{.forward_seconds = forward,
                                                                .input_gradient_seconds = input,
                                                                .weight_gradient_seconds = weight,
                                                                .activation_bytes = 1,
                                                                .weight_gradient_bytes = 1});
  return costs;
}

[[noreturn]] void Fail(const std::string& what) {
  fmt::print(stderr, "{}\n", what);
  std::exit(1);
}

AdaptiveSchedule Find(int32_t micro_batches, const SimulationCosts& costs, const std::vector<double>& limits,
                      AdaptiveGoal goal = AdaptiveGoal::kMakespan) {
  auto found = FindAdaptive(micro_batches, costs, limits, {.goal = goal});
  if (!found.ok()) Fail(std::string(found.status().message()));
  const auto simulation = Simulate(found->schedule, costs);  // validates
  if (!simulation.ok()) Fail(std::string(simulation.status().message()));
  if (std::abs(simulation->makespan_seconds - found->makespan_seconds) > kTolerance) Fail("wrong makespan");
  for (size_t r = 0; r < limits.size(); ++r) {
    if (simulation->peak_activation_bytes[r] > limits[r] * (1 + kTolerance))
      Fail(fmt::format("rank {}: too much held", r));
  }
  return *std::move(found);
}

std::vector<double> Halves(int32_t ranks, double halves) {
  return std::vector<double>(ranks, halves);
}

void MemoryLine() {
  // Passes of one chunk: idle of the worst rank in its own span, and of the whole step.
  for (const auto& [ranks, halves, idle, makespan] : std::vector<std::tuple<int32_t, int32_t, int, int>>{
           {4, 4, 11, 11}, {4, 5, 8, 8},   {4, 6, 5, 5},    {4, 7, 3, 4},    {4, 8, 0, 3},    {6, 6, 17, 17},
           {6, 7, 14, 14}, {6, 8, 11, 11}, {6, 9, 8, 8},    {6, 10, 5, 7},   {6, 11, 3, 6},   {6, 12, 0, 5},
           {8, 8, 23, 23}, {8, 9, 20, 20}, {8, 10, 17, 17}, {8, 11, 14, 14}, {8, 12, 11, 11}, {8, 13, 8, 10},
           {8, 14, 5, 9},  {8, 15, 3, 8},  {8, 16, 0, 7}}) {
    const int32_t micro_batches = 2 * ranks;
    const SimulationCosts costs = EqualStages(ranks, 1, 1, 1);
    const std::string name = fmt::format("line-p{}-m{}", ranks, halves);
    const AdaptiveSchedule by_rank = Find(micro_batches, costs, Halves(ranks, halves), AdaptiveGoal::kRankIdle);
    Print(name, "bubble_passes", by_rank.rank_idle_seconds, "passes", idle);
    const AdaptiveSchedule whole = Find(micro_batches, costs, Halves(ranks, halves));
    Print(name, "makespan_passes", whole.makespan_seconds - 6 * micro_batches, "passes", makespan);
    fmt::print(stderr, "{}: {}\n", name, whole.reason);
  }
}

constexpr std::array<std::array<double, 3>, 3> kRatios{{{1, 1, 1}, {1, 1.2, 0.8}, {1, 0.9, 1.3}}};

void UnequalPasses() {
  constexpr std::array<std::array<double, 3>, 2> kFloors{{{.040, .040, .038}, {.046, .046, .044}}};
  for (int size = 0; size < 2; ++size) {
    const int32_t ranks = size == 0 ? 4 : 8;
    const int32_t micro_batches = 3 * ranks;
    for (int i = 0; i < 3; ++i) {
      const auto [forward, input, weight] = kRatios[i];
      const AdaptiveSchedule found =
          Find(micro_batches, EqualStages(ranks, forward, input, weight), Halves(ranks, 2 * ranks));
      const double work = 2 * micro_batches * (forward + input + weight);
      Print(fmt::format("unequal-p{}-{}-{}-{}", ranks, forward, input, weight), "makespan_rate",
            1 - work / found.makespan_seconds, "1", kFloors[size][i] + 0.01);
      Print(fmt::format("unequal-p{}-{}-{}-{}", ranks, forward, input, weight), "of_1f1b",
            found.makespan_seconds / found.one_f_one_b_seconds.value(), "1", 1);
    }
  }
}

void Hops() {
  for (const auto& [ranks, micro_batches, target] : {std::tuple{4, 8, 0.028}, std::tuple{8, 16, 0.040}}) {
    SimulationCosts costs = EqualStages(ranks, 1, 1, 1);
    const double without = Find(micro_batches, costs, Halves(ranks, 2 * ranks)).makespan_seconds;
    costs.transfer_seconds = 0.1;
    const double with = Find(micro_batches, costs, Halves(ranks, 2 * ranks)).makespan_seconds;
    Print(fmt::format("unequal-hop-p{}", ranks), "hop_loss", with / without - 1, "1", target);
  }
}

void SlowRank() {
  for (const int32_t ranks : {4, 8}) {
    double worst = 0;
    for (int32_t slow = 0; slow < ranks; ++slow) {
      SimulationCosts costs = EqualStages(ranks, 1, 1, 1);
      costs.stages[slow] = costs.stages[2 * ranks - 1 - slow] = {1.3, 1.3, 1.3, 1, 1};
      const AdaptiveSchedule found = Find(2 * ranks, costs, Halves(ranks, 2 * ranks));
      worst = std::max(worst, found.makespan_seconds / found.one_f_one_b_seconds.value());
    }
    Print(fmt::format("unequal-slow-p{}", ranks), "of_1f1b", worst, "1", 1);
  }
}

void RandomStages() {
  constexpr int kCases = 200;
  std::mt19937_64 random(1);  // the standard fixes its numbers
  const auto uniform = [&](double low, double high) {
    return low + (high - low) * static_cast<double>(random() >> 11) * 0x1p-53;
  };
  double worst = 0;
  for (int i = 0; i < kCases; ++i) {
    const auto ranks = static_cast<int32_t>(uniform(2, 8.99));
    const auto micro_batches = static_cast<int32_t>(uniform(1, 3.0 * ranks));
    SimulationCosts costs;
    for (int32_t stage = 0; stage < 2 * ranks; ++stage) {
      costs.stages.push_back({uniform(.5, 1.5), uniform(.5, 1.5), uniform(.3, 1.5), 1, uniform(.5, 1)});
    }
    costs.transfer_seconds = uniform(0, .2);
    const AdaptiveSchedule found = Find(micro_batches, costs, Halves(ranks, 2 * ranks));
    worst = std::max(worst, found.makespan_seconds / found.one_f_one_b_seconds.value());
  }
  Print("unequal-random", "of_1f1b", worst, "1", 1);
}

void SmallOptima() {
  for (int32_t ranks = 1; ranks <= 3; ++ranks) {
    double worst = 0;
    int cases = 0;
    for (int32_t micro_batches = 1; micro_batches <= 4; ++micro_batches) {
      for (int32_t halves = 2; halves <= 2 * ranks; ++halves) {
        for (const double hop : {0.0, 0.1}) {
          for (const auto& [forward, input, weight] : kRatios) {
            SimulationCosts costs = EqualStages(ranks, forward, input, weight);
            costs.transfer_seconds = hop;
            const double found = Find(micro_batches, costs, Halves(ranks, halves)).makespan_seconds;
            const auto problem = schedule::adaptive::MakeProblem(micro_batches, costs, Halves(ranks, halves));
            const auto optimum = schedule::adaptive::FindOptimum(problem, schedule::adaptive::kNever, 100'000'000);
            if (!optimum.proven) Fail("the optimum is not settled");
            worst = std::max(worst, found / optimum.makespan);
            ++cases;
          }
        }
      }
    }
    fmt::print(stderr, "unequal-optimum-p{}: {} cases\n", ranks, cases);
    Print(fmt::format("unequal-optimum-p{}", ranks), "of_optimum", worst, "1", 1);
  }
}

// The slowest search of every limit from p to 2p halves and all cost ratios; median of five each.
void SearchSpeed() {
  constexpr int32_t kRanks = 8;
  double slowest = 0;
  for (int32_t halves = kRanks; halves <= 2 * kRanks; ++halves) {
    for (const auto& [forward, input, weight] : kRatios) {
      std::array<double, 5> seconds{};
      for (double& each : seconds) {
        const double start = ProcessorSeconds();
        const auto found =
            FindAdaptive(2 * kRanks, EqualStages(kRanks, forward, input, weight), Halves(kRanks, halves));
        each = ProcessorSeconds() - start;
        if (!found.ok()) Fail(std::string(found.status().message()));
      }
      std::sort(seconds.begin(), seconds.end());
      slowest = std::max(slowest, seconds[2]);
      fmt::print(stderr, "search p8 m16, {} halves, {}:{}:{}: {:.3f} s\n", halves, forward, input, weight, seconds[2]);
    }
  }
  Print("search-p8-m16", "seconds", slowest, "s", 0.2);
}

}  // namespace
}  // namespace atl::bench

int main() {
  atl::bench::MemoryLine();
  atl::bench::UnequalPasses();
  atl::bench::Hops();
  atl::bench::SlowRank();
  atl::bench::RandomStages();
  atl::bench::SmallOptima();
  atl::bench::SearchSpeed();
  return 0;
}
