#include "worker/tasks/mode_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace atl::tasks {
namespace {

// Rows that differ much from each other, so that only a comparison row by row sees small differences.
ModeTrial Trial(double offset, double experts, double jitter = 0) {
  ModeTrial trial{.experts = experts};
  for (int row = 0; row < 100; ++row) trial.errors.push_back(row + offset + (row % 2 == 0 ? jitter : -jitter));
  return trial;
}

TEST(ChooseModeTest, TheCheapestOfThoseThatNoRowTellsFromTheBest) {
  struct Case {
    std::string name;
    std::vector<ModeTrial> trials;
    size_t expected;
  };
  for (const Case& c : std::vector<Case>{
           {"one mode", {Trial(0, 4)}, 0},
           {"clearly worse, though cheap", {Trial(0.5, 1), Trial(0, 4)}, 1},
           {"worse by less than its scatter", {Trial(0.05, 1, /*jitter=*/1), Trial(0, 4)}, 0},
           {"worse by more than its scatter", {Trial(0.2, 1, /*jitter=*/1), Trial(0, 4)}, 1},
           {"equal errors go to the cheaper", {Trial(0, 4), Trial(0, 1)}, 1},
           {"equal costs go to the better", {Trial(0.01, 2, 1), Trial(0, 2)}, 1},
           {"the best is the cheapest", {Trial(0, 1), Trial(0.1, 2), Trial(0.2, 4)}, 0},
           {"of two that are as good, the cheaper", {Trial(0.05, 3, 1), Trial(0.05, 2, 1), Trial(0, 4)}, 1}}) {
    EXPECT_EQ(ChooseMode(c.trials).mode, c.expected) << c.name << ": " << ChooseMode(c.trials).reason;
  }
}

TEST(CandidateModesTest, AreThoseThatCanDiffer) {
  const auto names = [](int32_t experts) {
    std::vector<std::string> found;
    for (const CandidateMode& mode : CandidateModes(experts)) found.push_back(mode.name);
    return found;
  };
  EXPECT_THAT(names(1), testing::ElementsAre("top-1"));
  EXPECT_THAT(names(2), testing::ElementsAre("top-1", "threshold 0.1", "nucleus 0.9", "full"));
  EXPECT_THAT(names(8), testing::ElementsAre("top-1", "top-2", "threshold 0.1", "nucleus 0.9", "full"));
}

TEST(BlendErrorTest, IsOfTheWeightedVelocity) {
  const std::vector<float> velocities = {1, 2, 3, 6, 100, 100};  // three experts of two pixels
  const router::ExpertChoice choice{.experts = {{0, 0.25}, {1, 0.75}}};
  // 2.5 and 5 against 2 and 7.
  EXPECT_NEAR(BlendError(choice, velocities, std::vector<float>{2, 7}), (0.25 + 4) / 2, 1e-6);
}

}  // namespace
}  // namespace atl::tasks
