#include "client/sampling/draw_progress.h"

#include "client/table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(DrawProgressTest, ShareCountsStepsOfImagesInTheMaking) {
  DrawProgress progress(8);
  EXPECT_EQ(progress.share(), 0);
  progress.OnRequest(4);
  progress.OnStep(absl::Seconds(1), 5, 10);
  EXPECT_DOUBLE_EQ(progress.share(), 0.25);
  progress.OnImage(absl::Seconds(2));
  EXPECT_DOUBLE_EQ(progress.share(), (1 + 3 * 0.5) / 8);
  progress.OnRequestLost();
  progress.OnRequest(4);
  EXPECT_EQ(progress.share(), 0) << "its images do not count";
  for (int i = 0; i < 4; ++i) progress.OnImage(absl::Seconds(2));
  EXPECT_DOUBLE_EQ(progress.share(), 0.5);
  progress.OnRequest(4);
  EXPECT_DOUBLE_EQ(progress.share(), 0.5) << "the next request has done no step";
  progress.OnStep(absl::Seconds(3), 10, 10);
  EXPECT_DOUBLE_EQ(progress.share(), 1);
}

TEST(DrawProgressTest, TimeLeftFollowsThePaceSinceTheFirstStep) {
  DrawProgress progress(2);
  progress.OnRequest(2);
  progress.OnQueued(30);
  EXPECT_THAT(progress.Line(absl::Seconds(100), 80, false), HasSubstr("0/2 images  queued behind 30 images"));
  EXPECT_EQ(progress.TimeLeft(absl::Seconds(100)), std::nullopt);
  progress.OnStep(absl::Seconds(100), 1, 10);
  EXPECT_EQ(progress.TimeLeft(absl::Seconds(100)), std::nullopt) << "one sign of progress tells no pace";
  progress.OnStep(absl::Seconds(102), 2, 10);
  const auto left = progress.TimeLeft(absl::Seconds(102));
  ASSERT_TRUE(left.has_value());
  EXPECT_NEAR(absl::ToDoubleSeconds(*left), 16, 1e-6);
  const std::string line = progress.Line(absl::Seconds(102), 80, false);
  EXPECT_THAT(line, HasSubstr("░  0/2 images  step 2/10  0:16 left"));
  EXPECT_THAT(line, HasSubstr("██████░"));
  EXPECT_THAT(line, Not(HasSubstr("\x1b")));
}

TEST(DrawProgressTest, TheLineFitsAnyWidth) {
  DrawProgress progress(2000);
  progress.OnRequest(1000);
  progress.OnStep(absl::Seconds(0), 10, 250);
  progress.OnStep(absl::Seconds(9), 20, 250);
  for (const int width : {0, 1, 10, 30, 60, 200}) {
    EXPECT_LE(DisplayWidth(progress.Line(absl::Seconds(9), width, false)), width) << width;
  }
}

}  // namespace
}  // namespace atl::client
