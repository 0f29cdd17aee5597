#include "router/policy/solver.h"

#include <array>
#include <cmath>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::router {
namespace {

// Half the ratio of the steps' lengths over log((1 - t) / t), written down a second time.
double HalfRatio(double before, double from, double to) {
  const auto lambda = [](double t) { return std::log(1 - t) - std::log(t); };
  return 0.5 * (lambda(to) - lambda(from)) / (lambda(from) - lambda(before));
}

TEST(ExtrapolationTest, IsHalfTheRatioOfTheStepsAndNothingWhereOneIsInfinite) {
  struct Case {
    double before, from, to, expected;
  };
  for (const Case& c : {Case{1.0, 0.8, 0.6, 0},    // the step before began in noise
                        Case{0.4, 0.2, 0.0, 0},    // this one ends in data
                        Case{0.8, 0.5, 0.2, 0.5},  // of equal length, for log((1 - t) / t) is odd around 1/2
                        Case{0.7, 0.6, 0.5, HalfRatio(0.7, 0.6, 0.5)},
                        Case{0.5, 0.499, 1e-4, 2.0}}) {  // a leap after a crawl is held back
    EXPECT_NEAR(Extrapolation(c.before, {.from = c.from, .to = c.to}), c.expected, 1e-9)
        << c.before << " " << c.from << " " << c.to;
  }
}

TEST(MultistepAdvanceTest, TheFirstStepAndTheLastAreEulerSteps) {
  SolverHistory history;
  std::vector<float> x = {0.3f, -1.2f};
  MultistepAdvance({.from = 1.0, .to = 0.75}, std::vector<float>{2, 4}, &history, x);
  EXPECT_THAT(x, ::testing::ElementsAre(0.3f - 0.5f, -1.2f - 1.0f));
  EXPECT_THAT(history.clean, ::testing::ElementsAre(0.3f - 2, -1.2f - 4));
  EXPECT_EQ(history.from, 1.0);
  history.from = 0.5;
  x = {1, 1};
  MultistepAdvance({.from = 0.25, .to = 0}, std::vector<float>{2, 4}, &history, x);
  EXPECT_THAT(x, ::testing::ElementsAre(0.5f, 0.0f));
}

// A clean sample that moves on a line over log((1 - t) / t) is followed exactly, whatever the lengths of the steps are.
TEST(MultistepAdvanceTest, IsExactWhereTheCleanSampleMovesOnItsLine) {
  const auto lambda = [](double t) { return std::log((1 - t) / t); };
  const auto clean = [&](double t) { return 0.4 + 0.3 * lambda(t); };
  const double before = 0.7;
  const SolverStep step{.from = 0.55, .to = 0.35};
  SolverHistory history{.clean = {static_cast<float>(clean(before))}, .from = before};
  std::vector<float> x = {0.9f};
  const std::vector<float> velocity = {static_cast<float>((x[0] - clean(step.from)) / step.from)};
  // d(x / t) = D d(1 / t - 1): D's mean over signal-to-noise, where the solver uses the middle of its line.
  const double share = 1 - step.to / step.from;
  const double middle = 0.5 * (clean(step.from) + clean(step.to));
  const double expected = step.to / step.from * x[0] + share * middle;
  MultistepAdvance(step, velocity, &history, x);
  EXPECT_NEAR(x[0], expected, 1e-6);
}

// ---- Two clusters of data on a line, whose flow, experts and posterior are known.

struct Cluster {
  double share, mean, spread;
};
constexpr std::array<Cluster, 2> kClusters = {{{0.4, -0.7, 0.15}, {0.6, 0.6, 0.25}}};

// The expert of a cluster, and how likely x is its.
struct Answer {
  double clean, likelihood;
};
Answer Ask(const Cluster& cluster, double x, double t) {
  const double signal = 1 - t;
  const double variance = signal * signal * cluster.spread * cluster.spread + t * t;
  const double off = x - signal * cluster.mean;
  return {.clean = cluster.mean + signal * cluster.spread * cluster.spread / variance * off,
          .likelihood = cluster.share / std::sqrt(variance) * std::exp(-0.5 * off * off / variance)};
}

enum class Blend { kFull, kTop1 };
enum class History { kKept, kDroppedOnFlip };

class Flow {
 public:
  explicit Flow(Blend blend) : blend_(blend) {}

  // The expert that counts most, and the velocity.
  std::pair<size_t, double> At(double x, double t) const {
    const Answer a = Ask(kClusters[0], x, t);
    const Answer b = Ask(kClusters[1], x, t);
    const size_t best = a.likelihood >= b.likelihood ? 0 : 1;
    const double clean = blend_ == Blend::kTop1
                             ? (best == 0 ? a.clean : b.clean)
                             : (a.likelihood * a.clean + b.likelihood * b.clean) / (a.likelihood + b.likelihood);
    return {best, (x - clean) / t};
  }

  double Sample(Solver solver, int32_t steps, double start, History history = History::kKept) const {
    std::vector<float> x = {static_cast<float>(start)};
    SolverHistory remembered;
    size_t last_expert = 0;
    for (const SolverStep& step : TimeGrid(solver, steps)) {
      const auto [expert, velocity] = At(x[0], step.from);
      if (history == History::kDroppedOnFlip && expert != last_expert) remembered = {};
      last_expert = expert;
      const auto v = static_cast<float>(velocity);
      const auto span = static_cast<float>(step.to - step.from);
      if (solver == Solver::kMultistep) {
        MultistepAdvance(step, std::span(&v, 1), &remembered, x);
      } else if (step.second_evaluation) {
        x[0] += span * 0.5f * (v + static_cast<float>(At(x[0] + span * v, step.to).second));
      } else {
        x[0] += span * v;
      }
    }
    return x[0];
  }

  // Root mean square, over noises spread evenly through the normal distribution's middle, against 4,000 Heun steps.
  double Error(Solver solver, int32_t steps, History history = History::kKept) const {
    double sum = 0;
    constexpr int kNoises = 161;
    for (int i = 0; i < kNoises; ++i) {
      const double noise = -2.4 + 4.8 * i / (kNoises - 1);
      sum += std::pow(Sample(solver, steps, noise, history) - Sample(Solver::kHeun, 4000, noise), 2);
    }
    return std::sqrt(sum / kNoises);
  }

 private:
  const Blend blend_;
};

TEST(SolverOrderTest, OneEvaluationPerStepConvergesWithOrderTwo) {
  const Flow flow(Blend::kFull);
  for (const int32_t steps : {20, 40, 80}) {
    const double euler = flow.Error(Solver::kEuler, steps);
    const double heun = flow.Error(Solver::kHeun, steps / 2);  // the same number of evaluations
    const double multistep = flow.Error(Solver::kMultistep, steps);
    RecordProperty(fmt::format("euler_{}", steps), fmt::format("{:.2e}", euler));
    RecordProperty(fmt::format("heun_{}", steps / 2), fmt::format("{:.2e}", heun));
    RecordProperty(fmt::format("multistep_{}", steps), fmt::format("{:.2e}", multistep));
    EXPECT_LT(multistep, 0.4 * euler) << steps;
    EXPECT_LT(multistep, heun) << steps;
  }
  EXPECT_NEAR(flow.Error(Solver::kEuler, 80) / flow.Error(Solver::kEuler, 160), 2.0, 0.3);
  EXPECT_GT(flow.Error(Solver::kMultistep, 160) / flow.Error(Solver::kMultistep, 320), 3.0);
}

// Top-1 asks one expert after the other while x crosses from cluster to cluster. History that was found with another
// expert is worth more than none.
TEST(SolverOrderTest, HistoryThatOutlivesAChangeOfExpertsIsBetterThanNone) {
  const Flow flow(Blend::kTop1);
  for (const int32_t steps : {10, 20, 40}) {
    const double kept = flow.Error(Solver::kMultistep, steps);
    const double dropped = flow.Error(Solver::kMultistep, steps, History::kDroppedOnFlip);
    RecordProperty(fmt::format("kept_{}", steps), fmt::format("{:.2e}", kept));
    RecordProperty(fmt::format("dropped_{}", steps), fmt::format("{:.2e}", dropped));
    const double euler = flow.Error(Solver::kEuler, steps);
    RecordProperty(fmt::format("euler_{}", steps), fmt::format("{:.2e}", euler));
    EXPECT_LT(kept, dropped) << steps;
    EXPECT_LT(dropped, euler) << steps;
  }
}

}  // namespace
}  // namespace atl::router
