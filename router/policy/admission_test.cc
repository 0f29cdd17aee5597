#include "router/policy/admission.h"

#include <vector>

#include "common/base/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::router {
namespace {

using ::testing::ElementsAre;

const AdmissionOptions kOptions{.max_images_in_flight = 100, .max_queued_images = 50, .max_queued_requests = 3};

TEST(AdmitTest, TellsHowManyImagesAreAhead) {
  const AdmissionDecision decision =
      Admit(5, {.images_in_flight = 40, .queued_images = 2, .queued_requests = 1}, kOptions);
  EXPECT_TRUE(decision.admitted);
  EXPECT_EQ(decision.position, 42);
}

TEST(AdmitTest, RefusesWhatDoesNotFitTheQueue) {
  EXPECT_FALSE(Admit(1, {.queued_images = 3, .queued_requests = 3}, kOptions).admitted);
  EXPECT_FALSE(Admit(11, {.queued_images = 40, .queued_requests = 1}, kOptions).admitted);
  EXPECT_TRUE(Admit(10, {.queued_images = 40, .queued_requests = 1}, kOptions).admitted);
}

TEST(AdmitTest, ARequestLargerThanTheQueueIsTakenWhenNobodyWaits) {
  EXPECT_TRUE(Admit(80, {}, kOptions).admitted);
}

TEST(AdmitTest, RetryDelayIsHalfOfTheBacklogWithinItsBounds) {
  AdmissionState state{.queued_images = 50, .queued_requests = 3, .image_steps_left = 1000};
  EXPECT_EQ(Admit(1, state, kOptions).retry_delay, kOptions.min_retry_delay);
  state.time_per_image_step = absl::Milliseconds(10);
  EXPECT_EQ(Admit(1, state, kOptions).retry_delay, absl::Seconds(5));
  state.image_steps_left = 1'000'000;
  EXPECT_EQ(Admit(1, state, kOptions).retry_delay, kOptions.max_retry_delay);
}

TEST(AdmitTest, RejectionNamesTheDelay) {
  const absl::Status status = RejectionStatus(Admit(1, {.queued_images = 50, .queued_requests = 3}, kOptions));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReason(status), "QUEUE_FULL");
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("try again in 200ms"));
  EXPECT_EQ(RetryDelayOf(status), absl::Milliseconds(200));
  EXPECT_EQ(RetryDelayOf(absl::OkStatus()), absl::ZeroDuration());
}

TEST(ChooseJoiningTest, WholeRequestsJoinInOrderWhileThereIsRoom) {
  const std::vector<QueuedRequest> queued = {{.images = 60}, {.images = 30}, {.images = 20}, {.images = 5}};
  EXPECT_THAT(ChooseJoining(queued, 0, kOptions), ElementsAre(0, 1, 3)) << "the last one overtakes";
  EXPECT_THAT(ChooseJoining(std::span(queued).first(1), 50, kOptions), ElementsAre());
  EXPECT_THAT(ChooseJoining({}, 0, kOptions), ElementsAre());
}

TEST(ChooseJoiningTest, AnOversizedRequestRunsAlone) {
  EXPECT_THAT(ChooseJoining(std::vector<QueuedRequest>{{.images = 500}, {.images = 1}}, 0, kOptions), ElementsAre(0));
  EXPECT_THAT(ChooseJoining(std::vector<QueuedRequest>{{.images = 500}}, 1, kOptions), ElementsAre());
}

TEST(ChooseJoiningTest, NobodyIsOvertakenForLong) {
  std::vector<QueuedRequest> queued = {{.images = 90}, {.images = 10}};
  queued[0].waited = kOptions.longest_overtaking - absl::Milliseconds(1);
  EXPECT_THAT(ChooseJoining(queued, 50, kOptions), ElementsAre(1));
  queued[0].waited = kOptions.longest_overtaking;
  EXPECT_THAT(ChooseJoining(queued, 50, kOptions), ElementsAre());
}

TEST(ChooseJoiningTest, HigherPrioritiesJoinFirstAndWaitingRaisesThem) {
  std::vector<QueuedRequest> queued = {{.images = 80, .priority = 4}, {.images = 80, .priority = 6}};
  EXPECT_THAT(ChooseJoining(queued, 0, kOptions), ElementsAre(1));
  queued[0].waited = kOptions.ageing * 2;
  EXPECT_THAT(ChooseJoining(queued, 0, kOptions), ElementsAre(0));
}

}  // namespace
}  // namespace atl::router
