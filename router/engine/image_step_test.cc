// One image's step without an engine: what is asked, and that the order and the loss of answers do what they must.
#include "router/engine/image_step.h"

#include "common/base/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kPixels = 4;

SamplerInfo Info(bool self_conditioning = false) {
  return {.model = "m",
          .version = "v",
          .experts = 3,
          .classes = 2,
          .channels = 1,
          .height = 2,
          .width = 2,
          .self_conditioning = self_conditioning};
}

// Values that do not add up alike in another order.
std::vector<float> Velocity(int32_t expert, std::span<const float> x, float t) {
  std::vector<float> velocity;
  for (const float value : x) velocity.push_back(value * (0.1f + 1.7f * static_cast<float>(expert)) + t / 3);
  return velocity;
}

class ImageStepTest : public ::testing::Test {
 protected:
  ImageStep Begin() { return ImageStep(info_, order_, image_, step_, &state_); }
  void Answer(ImageStep* step, int32_t expert) {
    const EvaluationPoint point = step->point();
    const std::vector<float> null_branch(kPixels, 0.25f);
    step->TakeVelocity(point.number, expert, Velocity(expert, point.x, point.t), null_branch);
  }
  // Runs a step to its end; experts answer in the order of `order` at each point.
  std::vector<float> Run(const std::vector<int32_t>& order) {
    state_.x = start_;
    state_.estimate.assign(info_.self_conditioning ? kPixels : 0, 0);
    ImageStep step = Begin();
    EXPECT_TRUE(step.TakePosterior(posterior_).ok());
    for (int point = 0; point < (step_.second_evaluation ? 2 : 1); ++point) {
      for (const int32_t expert : order) Answer(&step, expert);
    }
    EXPECT_EQ(step.need(), StepNeed::kFinish);
    step.Finish();
    return state_.x;
  }

  const std::vector<float> start_ = {0.3f, -1.1f, 0.7f, 2.3f};
  const std::vector<float> posterior_ = {0.2f, 0.3f, 0.5f};
  SamplerInfo info_ = Info();
  SampleOrder order_{.routing = {.mode = RoutingMode::kFull}, .guidance = 3.0};
  ImageOrder image_{.class_label = 1};
  SolverStep step_{.from = 0.9, .to = 0.6, .second_evaluation = true};
  SampleState state_{.x = start_};
};

TEST_F(ImageStepTest, AsksTheRouterThenTheExpertsThenNobody) {
  step_.second_evaluation = false;
  ImageStep step = Begin();
  EXPECT_EQ(step.need(), StepNeed::kPosterior);
  EXPECT_FALSE(step.point().guided);
  EXPECT_EQ(step.point().class_row, 1);
  EXPECT_THAT(step.awaited(), IsEmpty());
  ASSERT_TRUE(step.TakePosterior(posterior_).ok());
  EXPECT_EQ(step.need(), StepNeed::kVelocities);
  EXPECT_TRUE(step.point().guided);
  EXPECT_EQ(step.point().null_row, 2);
  EXPECT_FLOAT_EQ(step.point().t, 0.9f);
  EXPECT_THAT(step.awaited(), ElementsAre(0, 1, 2));
  Answer(&step, 1);
  Answer(&step, 1);
  EXPECT_THAT(step.awaited(), ElementsAre(0, 2));
  Answer(&step, 2);
  Answer(&step, 0);
  EXPECT_EQ(step.need(), StepNeed::kFinish);
  EXPECT_THAT(step.awaited(), IsEmpty());
  EXPECT_EQ(state_.x, start_);
  step.Finish();
  EXPECT_NE(state_.x, start_);
}

TEST_F(ImageStepTest, AnOracleNeedsNoPosterior) {
  order_.routing = {.mode = RoutingMode::kOracle, .oracle_expert = 2};
  EXPECT_THAT(Begin().awaited(), ElementsAre(2));
}

TEST_F(ImageStepTest, APosteriorThatIsNoneIsAnError) {
  ImageStep step = Begin();
  EXPECT_EQ(ErrorReason(step.TakePosterior(std::vector<float>(3, 0))), "NON_FINITE_OUTPUT");
  EXPECT_EQ(step.need(), StepNeed::kPosterior);
}

TEST_F(ImageStepTest, TheOrderOfTheAnswersDoesNotShowInTheBits) {
  for (const bool self_conditioning : {false, true}) {
    info_ = Info(self_conditioning);
    const std::vector<float> ascending = Run({0, 1, 2});
    const std::vector<float> estimate = state_.estimate;
    EXPECT_EQ(Run({2, 0, 1}), ascending);
    EXPECT_EQ(state_.estimate, estimate);
    EXPECT_EQ(Run({1, 2, 0}), ascending);
  }
}

TEST_F(ImageStepTest, TheEstimateIsThatOfTheLastPointWithoutGuidance) {
  info_ = Info(/*self_conditioning=*/true);
  order_.routing = {.mode = RoutingMode::kOracle, .oracle_expert = 1};
  state_ = {.x = start_, .estimate = std::vector<float>(kPixels, 0)};
  ImageStep step = Begin();
  Answer(&step, 1);
  const EvaluationPoint end = step.point();
  EXPECT_FLOAT_EQ(end.t, 0.6f);
  const std::vector<float> at(end.x.begin(), end.x.end());
  Answer(&step, 1);
  step.Finish();
  const std::vector<float> own = Velocity(1, at, 0.6f);
  for (int64_t p = 0; p < kPixels; ++p) EXPECT_FLOAT_EQ(state_.estimate[p], at[p] - 0.6f * own[p]);
}

TEST_F(ImageStepTest, ALateAnswerOfThePointBeforeIsNotTaken) {
  const std::vector<float> expected = Run({0, 1, 2});
  state_.x = start_;
  ImageStep step = Begin();
  ASSERT_TRUE(step.TakePosterior(posterior_).ok());
  const int64_t first = step.point().number;
  for (const int32_t expert : {0, 1, 2}) Answer(&step, expert);
  ASSERT_NE(step.point().number, first);
  step.TakeVelocity(first, 1, std::vector<float>(kPixels, 9), std::vector<float>(kPixels, 9));
  EXPECT_THAT(step.awaited(), ElementsAre(0, 1, 2));
  for (const int32_t expert : {0, 1, 2}) Answer(&step, expert);
  step.Finish();
  EXPECT_EQ(state_.x, expected);
}

// After a loss the result is the same as if the expert had never been chosen.
TEST_F(ImageStepTest, ALostExpertLeavesTheWholeStepWhereverItIsLost) {
  ImageStep never = Begin();
  ASSERT_TRUE(never.TakePosterior(std::vector<float>{0.2f, 0.0f, 0.5f}).ok());
  for (int point = 0; point < 2; ++point) {
    Answer(&never, 0);
    Answer(&never, 2);
  }
  never.Finish();
  const std::vector<float> expected = state_.x;

  for (const int answered_before : {0, 1, 3, 4}) {
    state_.x = start_;
    ImageStep step = Begin();
    ASSERT_TRUE(step.TakePosterior(posterior_).ok());
    int answered = 0;
    for (const int32_t expert : {0, 1, 2, 0, 2}) {
      if (answered++ < answered_before) Answer(&step, expert);
    }
    ASSERT_TRUE(step.LoseExpert(1, absl::UnavailableError("gone")).ok());
    EXPECT_NEAR(step.choice().experts[0].weight, 0.2 / 0.7, 1e-6);
    while (step.need() == StepNeed::kVelocities) Answer(&step, step.awaited().back());
    step.Finish();
    for (int64_t p = 0; p < kPixels; ++p) EXPECT_NEAR(state_.x[p], expected[p], 1e-5) << answered_before;
  }
}

TEST_F(ImageStepTest, WithoutAnyExpertLeftTheReasonIsReturned) {
  order_.routing = {.mode = RoutingMode::kTopK, .top_k = 1};
  ImageStep step = Begin();
  ASSERT_TRUE(step.TakePosterior(posterior_).ok());
  EXPECT_TRUE(step.LoseExpert(0, absl::UnavailableError("gone")).ok());
  EXPECT_THAT(step.awaited(), ElementsAre(2));
  EXPECT_EQ(step.LoseExpert(2, absl::UnavailableError("gone")), absl::UnavailableError("gone"));
}

}  // namespace
}  // namespace atl::router
