#include "router/policy/admission.h"

#include <string>
#include <vector>

#include "common/base/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::router {
namespace {

const AdmissionOptions kOptions{
    .max_images_in_flight = 100, .max_queued_images = 50, .max_queued_requests = 3, .max_images_beside = 8};

TEST(AdmitTest, TellsHowManyImagesAreAhead) {
  const auto ahead = Admit(5, 0, {.images_in_flight = 40, .queued_images = 2, .queued_requests = 1}, kOptions);
  ASSERT_TRUE(ahead.ok()) << ahead.status();
  EXPECT_EQ(*ahead, 42);
}

TEST(AdmitTest, RefusesWhatDoesNotFitTheQueue) {
  EXPECT_FALSE(Admit(1, 0, {.queued_images = 3, .queued_requests = 3}, kOptions).ok());
  EXPECT_FALSE(Admit(11, 0, {.queued_images = 40, .queued_requests = 1}, kOptions).ok());
  EXPECT_TRUE(Admit(10, 0, {.queued_images = 40, .queued_requests = 1}, kOptions).ok());
}

TEST(AdmitTest, ImagesToStartFromAreBoundedByTheirValues) {
  const AdmissionOptions options{.max_queued_init_values = 100};
  const AdmissionState waiting{.queued_images = 1, .queued_requests = 1, .queued_init_values = 60};
  EXPECT_TRUE(Admit(1, 40, waiting, options).ok());
  EXPECT_FALSE(Admit(1, 41, waiting, options).ok());
  EXPECT_TRUE(Admit(1, 0, waiting, options).ok());
  EXPECT_TRUE(Admit(1, 101, {.queued_images = 1, .queued_requests = 1}, options).ok()) << "one alone";
}

TEST(AdmitTest, ARequestLargerThanTheQueueIsTakenWhenNobodyWaits) {
  EXPECT_TRUE(Admit(80, 0, {}, kOptions).ok());
}

TEST(AdmitTest, RetryDelayIsHalfOfTheBacklogWithinItsBounds) {
  AdmissionState state{.queued_images = 50, .queued_requests = 3, .image_steps_left = 1000};
  EXPECT_EQ(RetryDelayOf(Admit(1, 0, state, kOptions).status()), kMinRetryDelay);
  state.time_per_image_step = absl::Milliseconds(10);
  EXPECT_EQ(RetryDelayOf(Admit(1, 0, state, kOptions).status()), absl::Seconds(5));
  state.image_steps_left = 1'000'000;
  EXPECT_EQ(RetryDelayOf(Admit(1, 0, state, kOptions).status()), kMaxRetryDelay);
}

TEST(AdmitTest, RejectionNamesTheDelay) {
  const absl::Status status = Admit(1, 0, {.queued_images = 50, .queued_requests = 3}, kOptions).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReason(status), "QUEUE_FULL");
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("try again in 200ms"));
  EXPECT_EQ(RetryDelayOf(status), absl::Milliseconds(200));
  EXPECT_EQ(RetryDelayOf(absl::OkStatus()), absl::ZeroDuration());
}

// "0 1+": the indices in their order, those with room beside the others marked.
std::string Join(const std::vector<QueuedRequest>& queued, int64_t in_flight, int64_t beside = 0) {
  std::string text;
  for (const Joining& joining : ChooseJoining(queued, in_flight, beside, kOptions)) {
    text += (text.empty() ? "" : " ") + std::to_string(joining.queued) + (joining.beside ? "+" : "");
  }
  return text;
}

TEST(ChooseJoiningTest, WholeRequestsJoinInOrderWhileThereIsRoom) {
  EXPECT_EQ(Join({{.images = 60}, {.images = 30}, {.images = 20}, {.images = 5}}, 0), "0 1 3") << "the last overtakes";
  EXPECT_EQ(Join({{.images = 60}}, 50), "");
  EXPECT_EQ(Join({}, 0), "");
}

TEST(ChooseJoiningTest, AnOversizedRequestRunsAlone) {
  EXPECT_EQ(Join({{.images = 500}, {.images = 1}}, 0), "0");
  EXPECT_EQ(Join({{.images = 500}}, 1), "");
}

TEST(ChooseJoiningTest, OnlySmallRequestsOvertakeForLong) {
  const absl::Duration shortly = kLongestOvertaking - absl::Milliseconds(1);
  const absl::Duration long_enough = kLongestOvertaking;
  EXPECT_EQ(Join({{.images = 90, .waited = shortly}, {.images = 10}}, 50), "1");
  EXPECT_EQ(Join({{.images = 90, .waited = long_enough}, {.images = 10}}, 50), "") << "room is kept";
  EXPECT_EQ(Join({{.images = 90, .waited = long_enough}, {.images = 3}, {.images = 5}, {.images = 1}}, 50), "1+ 2+");
  EXPECT_EQ(Join({{.images = 90, .waited = long_enough}, {.images = 3}}, 50, 6), "");
  EXPECT_EQ(Join({{.images = 90, .priority = 5, .waited = long_enough}, {.images = 1, .priority = 0}}, 50), "1+")
      << "whatever its priority";
  EXPECT_EQ(Join({{.images = 90, .waited = long_enough}}, 10, 8), "0") << "they take no room from it";
}

TEST(ChooseJoiningTest, ASmallRequestWaitsNoLongerForRoomThanItLetsOthersOvertake) {
  EXPECT_EQ(Join({{.images = 1, .waited = absl::Seconds(1)}}, 500), "");
  EXPECT_EQ(Join({{.images = 1, .waited = kLongestOvertaking}}, 500), "0+");
}

TEST(ChooseJoiningTest, HigherPrioritiesJoinFirstAndWaitingRaisesThem) {
  std::vector<QueuedRequest> queued = {{.images = 80, .priority = 4}, {.images = 80, .priority = 6}};
  EXPECT_EQ(Join(queued, 0), "1");
  queued[0].waited = kQueueAgeing * 2;
  EXPECT_EQ(Join(queued, 0), "0");
}

}  // namespace
}  // namespace atl::router
