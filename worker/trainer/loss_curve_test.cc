// The loss curve of a tiny run: the same on 1, 2 and 4 stages bit for bit, and as stored within the tolerance of
// another CPU's kernels. ATOLL_UPDATE_GOLDEN=1 writes it anew.
#include <cstdlib>
#include <fstream>

#include "worker/trainer/trainer_testing.h"

namespace atl::trainer {
namespace {

constexpr int64_t kSteps = 30;
constexpr double kTolerance = 2e-3;

std::string GoldenPath() {
  const char* source = std::getenv("ATOLL_SOURCE_DIR");
  return fmt::format("{}/worker/trainer/testdata/loss_curve.txt", source == nullptr ? "." : source);
}

std::vector<double> LossCurve(int32_t stages) {
  storage::TemporaryStore store;
  const TrainerOptions options = SmallOptions();
  std::vector<double> losses;
  for (const StepResult& result : Train(options, PlanFor(options, stages), kSteps, &store).results) {
    losses.push_back(result.loss);
  }
  return losses;
}

TEST(LossCurveTest, OneTwoAndFourStagesDrawTheStoredCurve) {
  const std::vector<double> one = LossCurve(1);
  ASSERT_EQ(one.size(), static_cast<size_t>(kSteps));
  EXPECT_EQ(one, LossCurve(2));
  EXPECT_EQ(one, LossCurve(4));
  if (std::getenv("ATOLL_UPDATE_GOLDEN") != nullptr) {
    std::ofstream out(GoldenPath());
    for (const double loss : one) out << fmt::format("{:.9g}\n", loss);
  }
  std::ifstream golden(GoldenPath());
  for (size_t i = 0; i < one.size(); ++i) {
    double expected = 0;
    ASSERT_TRUE(golden >> expected) << GoldenPath() << " ends before step " << i + 1;
    EXPECT_NEAR(one[i], expected, kTolerance * expected) << "step " << i + 1;
  }
}

}  // namespace
}  // namespace atl::trainer
