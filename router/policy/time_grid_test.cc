#include "router/policy/time_grid.h"

#include "gtest/gtest.h"

namespace atl::router {
namespace {

TEST(TimeGridTest, RunsFromNoiseToDataWithoutGaps) {
  for (const int32_t steps : {1, 2, 7, 30, 250}) {
    const std::vector<SolverStep> grid = TimeGrid(Solver::kEuler, steps);
    ASSERT_EQ(grid.size(), static_cast<size_t>(steps));
    EXPECT_EQ(grid.front().from, 1.0);
    EXPECT_EQ(grid.back().to, 0.0);
    for (size_t i = 0; i < grid.size(); ++i) {
      EXPECT_NEAR(grid[i].from - grid[i].to, 1.0 / steps, 1e-12);
      EXPECT_FALSE(grid[i].second_evaluation);
      if (i > 0) {
        EXPECT_EQ(grid[i].from, grid[i - 1].to);
      }
    }
  }
}

TEST(TimeGridTest, HeunEvaluatesTwiceExceptOnItsLastStep) {
  const std::vector<SolverStep> grid = TimeGrid(Solver::kHeun, 3);
  EXPECT_TRUE(grid[0].second_evaluation);
  EXPECT_TRUE(grid[1].second_evaluation);
  EXPECT_FALSE(grid[2].second_evaluation);
  EXPECT_FALSE(TimeGrid(Solver::kHeun, 1)[0].second_evaluation);
}

TEST(TimeGridTest, ANoisedImageTakesAllItsStepsBelowItsStart) {
  const std::vector<SolverStep> grid = TimeGrid(Solver::kMultistep, 4, 0.6);
  ASSERT_EQ(grid.size(), 4u);
  for (size_t i = 0; i < grid.size(); ++i) {
    EXPECT_NEAR(grid[i].from, 0.6 - 0.15 * static_cast<double>(i), 1e-12);
    EXPECT_NEAR(grid[i].to, 0.45 - 0.15 * static_cast<double>(i), 1e-12);
    EXPECT_FALSE(grid[i].second_evaluation);
  }
  EXPECT_EQ(grid.back().to, 0.0);
}

TEST(TimeGridTest, GivenTimesAreTheStepsEnds) {
  using Step = SolverStep;
  EXPECT_EQ(TimeGrid(Solver::kHeun, std::vector<double>{1, 0.7, 0.1, 0}),
            (std::vector<Step>{{1, 0.7, true}, {0.7, 0.1, true}, {0.1, 0, false}}));
  EXPECT_EQ(TimeGrid(Solver::kEuler, std::vector<double>{0.5, 0}), (std::vector<Step>{{0.5, 0, false}}));
}

}  // namespace
}  // namespace atl::router
