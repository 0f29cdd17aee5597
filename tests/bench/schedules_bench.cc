// Measures what the adaptive schedule search finds: the published rows, unequal costs, hop latency, a slow rank, random
// costs, the optimum of small problems with and without branch and bound, and its own processor time. Simulated time
// only, but for the last.
//
// One JSON object per line on standard output; what people read goes to standard error. Exits with 1 when a schedule is
// invalid, holds more than its limit or is worse than the published one.
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

#include "common/schedule/adaptive/adaptive.h"
#include "common/schedule/adaptive/optimum.h"
#include "common/schedule/adaptive/testing.h"

namespace atl::bench {
namespace {

using schedule::AdaptiveGoal;
using schedule::AdaptiveOptions;
using schedule::EqualStages;
using schedule::OneFOneBSeconds;
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

[[noreturn]] void Fail(const std::string& what) {
  fmt::print(stderr, "{}\n", what);
  std::exit(1);
}

struct Found {
  schedule::Schedule schedule;
  double makespan_seconds = 0;
};

Found Find(int32_t micro_batches, const SimulationCosts& costs, const std::vector<double>& limits,
           const AdaptiveOptions& options = {}) {
  auto found = FindAdaptive(micro_batches, costs, limits, options);
  if (!found.ok()) Fail(std::string(found.status().message()));
  const auto simulation = Simulate(*found, costs);  // validates
  if (!simulation.ok()) Fail(std::string(simulation.status().message()));
  for (size_t r = 0; r < limits.size(); ++r) {
    if (simulation->peak_activation_bytes[r] > limits[r] * (1 + kTolerance))
      Fail(fmt::format("rank {}: too much held", r));
  }
  return {*std::move(found), simulation->makespan_seconds};
}

std::vector<double> Halves(int32_t ranks, double halves) {
  return std::vector<double>(ranks, halves);
}

// The rows of the public search: idle passes of the worst rank in its own span, and of the whole step.
bool Published() {
  const std::vector<schedule::PublishedRow> rows = schedule::PublishedRows(".");
  if (rows.empty()) Fail("tests/golden/published_schedules.csv: expected rows, found none");
  int worse = 0;
  double slowest = 0;
  for (const auto& row : rows) {
    const int32_t micro_batches = 2 * row.ranks;
    const SimulationCosts costs = EqualStages(row.ranks, 1, 1, 1);
    const std::string name = fmt::format("published-p{}-m{}", row.ranks, row.limit);
    const double start = ProcessorSeconds();
    const Found whole = Find(micro_batches, costs, Halves(row.ranks, row.limit));
    slowest = std::max(slowest, ProcessorSeconds() - start);
    const Found by_rank = Find(micro_batches, costs, Halves(row.ranks, row.limit), {.goal = AdaptiveGoal::kRankIdle});
    const double own_span = schedule::OwnSpanIdleSeconds(*Simulate(by_rank.schedule, costs));
    const double step = whole.makespan_seconds - 6 * micro_batches;
    Print(name, "own_span_passes", own_span, "passes", row.own_span);
    Print(name, "step_passes", step, "passes", row.step);
    if (own_span > row.own_span + kTolerance || step > row.step + kTolerance) ++worse;
  }
  Print("published", "worse_rows", worse, "rows", 0);
  Print(fmt::format("published-p{}", rows.back().ranks), "seconds", slowest, "s", 1);
  return worse == 0;
}

constexpr std::array<std::array<double, 3>, 3> kRatios{{{1, 1, 1}, {1, 1.2, 0.8}, {1, 0.9, 1.3}}};

void UnequalPasses() {
  constexpr std::array<std::array<double, 3>, 2> kFloors{{{.040, .040, .038}, {.046, .046, .044}}};
  for (int size = 0; size < 2; ++size) {
    const int32_t ranks = size == 0 ? 4 : 8;
    const int32_t micro_batches = 3 * ranks;
    for (int i = 0; i < 3; ++i) {
      const auto [forward, input, weight] = kRatios[i];
      const SimulationCosts costs = EqualStages(ranks, forward, input, weight);
      const Found found = Find(micro_batches, costs, Halves(ranks, 2 * ranks));
      const double work = 2 * micro_batches * (forward + input + weight);
      Print(fmt::format("unequal-p{}-{}-{}-{}", ranks, forward, input, weight), "makespan_rate",
            1 - work / found.makespan_seconds, "1", kFloors[size][i] + 0.01);
      Print(fmt::format("unequal-p{}-{}-{}-{}", ranks, forward, input, weight), "of_1f1b",
            found.makespan_seconds / OneFOneBSeconds(micro_batches, costs), "1", 1);
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
      const Found found = Find(2 * ranks, costs, Halves(ranks, 2 * ranks));
      worst = std::max(worst, found.makespan_seconds / OneFOneBSeconds(2 * ranks, costs));
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
    const Found found = Find(micro_batches, costs, Halves(ranks, 2 * ranks));
    worst = std::max(worst, found.makespan_seconds / OneFOneBSeconds(micro_batches, costs));
  }
  Print("unequal-random", "of_1f1b", worst, "1", 1);
}

// Every limit, three ratios and two hops: what is found, with branch and bound and by the heuristic alone, over the
// optimum. An optimum that is not proven within the nodes counts in `unproven` and is compared with a lower bound.
void Optima() {
  constexpr int64_t kNodes = 1'000'000;
  for (const auto& [ranks, most_micro_batches] : {std::pair{1, 4}, {2, 4}, {3, 4}, {4, 5}, {5, 4}, {6, 3}}) {
    double worst = 0;
    double worst_heuristic = 0;
    double worst_over_floor = 1;
    int cases = 0;
    int reached = 0;
    int unproven = 0;
    for (int32_t micro_batches = 1; micro_batches <= most_micro_batches; ++micro_batches) {
      for (int32_t halves = 2; halves <= 2 * ranks; ++halves) {
        for (const double hop : {0.0, 0.1}) {
          for (const auto& [forward, input, weight] : kRatios) {
            SimulationCosts costs = EqualStages(ranks, forward, input, weight);
            costs.transfer_seconds = hop;
            const std::vector<double> limits = Halves(ranks, halves);
            const double found = Find(micro_batches, costs, limits).makespan_seconds;
            const double heuristic = Find(micro_batches, costs, limits, {.nodes = 0}).makespan_seconds;
            const auto problem = schedule::adaptive::MakeProblem(micro_batches, costs, limits);
            const double floor = schedule::adaptive::Floor(problem, AdaptiveGoal::kMakespan);
            ++cases;
            // A schedule that equals the floor is optimal.
            double optimum = found;
            if (found > floor * (1 + kTolerance)) {
              // From above what was found, so that the two are compared and not taken from each other.
              const auto proof = schedule::adaptive::FindOptimum(problem, found * (1 + kTolerance), kNodes);
              if (!proof.proven) {
                ++unproven;
                worst_over_floor = std::max(worst_over_floor, heuristic / floor);
                continue;
              }
              optimum = proof.makespan;
            }
            worst = std::max(worst, found / optimum);
            worst_heuristic = std::max(worst_heuristic, heuristic / optimum);
            reached += heuristic <= optimum * (1 + kTolerance) ? 1 : 0;
          }
        }
      }
    }
    const std::string name = fmt::format("optimum-p{}", ranks);
    fmt::print(stderr, "{}: {} cases, the heuristic alone reaches {}\n", name, cases, reached);
    Print(name, "search_of_optimum", worst, "1", 1.02);
    Print(name, "heuristic_of_optimum", worst_heuristic, "1", 1.03);
    Print(name, "heuristic_reached", static_cast<double>(reached) / (cases - unproven), "1", 1);
    Print(name, "unproven", unproven, "cases", 10);
    Print(name, "unproven_heuristic_of_bound", worst_over_floor, "1", 1.2);
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
  const bool none_worse = atl::bench::Published();
  atl::bench::UnequalPasses();
  atl::bench::Hops();
  atl::bench::SlowRank();
  atl::bench::RandomStages();
  atl::bench::Optima();
  atl::bench::SearchSpeed();
  return none_worse ? 0 : 1;
}
