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

}  // namespace
}  // namespace atl::router
