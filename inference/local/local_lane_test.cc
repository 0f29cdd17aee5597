#include "inference/local/local_lane.h"

#include "absl/synchronization/notification.h"
#include "common/base/errors.h"
#include "common/base/fake_clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Answers with the evaluation's number; the first evaluation waits until it may go on.
class LocalLaneTest : public ::testing::Test {
 protected:
  std::unique_ptr<LocalLane> Make() {
    return std::make_unique<LocalLane>(
        LaneInfo{.name = "lane", .fingerprint = "f"}, std::make_shared<NetworkMemory>(0, &clock_),
        [this](const Evaluation& evaluation) -> absl::StatusOr<LocalLane::Computed> {
          if (evaluation.id == 0) {
            running_.Notify();
            go_on_.WaitForNotification();
          }
          if (evaluation.id < 0) return MakeError(absl::StatusCode::kInternal, "NETWORK_FAILED", "as asked");
          return LocalLane::Computed{.values = {static_cast<float>(evaluation.id)}, .compute_time = absl::Seconds(1)};
        },
        &clock_);
  }
  void Start(LocalLane* lane, int64_t id, absl::Duration deadline = absl::InfiniteDuration()) {
    auto evaluation = std::make_shared<Evaluation>();
    evaluation->id = id;
    evaluation->deadline = deadline;
    lane->Start(std::move(evaluation), [this, id](const absl::StatusOr<EvaluationAnswer>& answer) {
      absl::MutexLock lock(&mutex_);
      if (answer.ok()) {
        EXPECT_THAT(answer->values, ElementsAre(static_cast<float>(id)));
        EXPECT_EQ(answer->fingerprint, "f");
        EXPECT_EQ(answer->compute_time, absl::Seconds(1));
      }
      ended_.push_back(answer.ok() ? std::to_string(id) : std::to_string(id) + " " + ErrorReason(answer.status()));
    });
  }
  // Waits until `count` evaluations have ended, and returns all that have, in order.
  std::vector<std::string> Ended(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ended_.size() >= count; };
    mutex_.Await(absl::Condition(&enough));
    return ended_;
  }

  FakeClock clock_;
  absl::Notification running_;
  absl::Notification go_on_;
  absl::Mutex mutex_;
  std::vector<std::string> ended_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(LocalLaneTest, BatchesRunInTheOrderOfTheirStartAndErrorsAreTheirOwn) {
  const auto lane = Make();
  Start(lane.get(), 0);
  Start(lane.get(), 1);
  Start(lane.get(), -2);
  Start(lane.get(), 3);
  EXPECT_THAT(Ended(0), IsEmpty());
  go_on_.Notify();
  EXPECT_THAT(Ended(4), ElementsAre("0", "1", "-2 NETWORK_FAILED", "3"));
}

TEST_F(LocalLaneTest, WhatWaitsCanBeCancelledAndWhatRunsRunsOn) {
  const auto lane = Make();
  Start(lane.get(), 0);
  Start(lane.get(), 1);
  running_.WaitForNotification();
  lane->Cancel(1);
  EXPECT_THAT(Ended(1), ElementsAre("1 EVALUATION_CANCELLED"));
  lane->Cancel(0);
  lane->Cancel(7);
  go_on_.Notify();
  EXPECT_THAT(Ended(2), ElementsAre("1 EVALUATION_CANCELLED", "0"));
}

TEST_F(LocalLaneTest, ABatchWhoseDeadlinePassedIsDropped) {
  const auto lane = Make();
  Start(lane.get(), 0);
  Start(lane.get(), 1, clock_.Monotonic() + absl::Seconds(1));
  Start(lane.get(), 2, clock_.Monotonic() + absl::Seconds(3));
  running_.WaitForNotification();
  clock_.Advance(absl::Seconds(2));
  go_on_.Notify();
  EXPECT_THAT(Ended(3), ElementsAre("0", "1 EVALUATION_EXPIRED", "2"));
}

TEST_F(LocalLaneTest, TheDestructorAnswersEverything) {
  auto lane = Make();
  Start(lane.get(), 0);
  Start(lane.get(), 1);
  Start(lane.get(), 2);
  running_.WaitForNotification();
  std::thread end([&] { lane.reset(); });
  EXPECT_THAT(Ended(2), ElementsAre("1 EVALUATION_CANCELLED", "2 EVALUATION_CANCELLED"));
  go_on_.Notify();
  end.join();
  EXPECT_THAT(Ended(3), ElementsAre("1 EVALUATION_CANCELLED", "2 EVALUATION_CANCELLED", "0"));
}

TEST_F(LocalLaneTest, TellsThatWhatItHostsChanged) {
  const auto memory = std::make_shared<NetworkMemory>(0, &clock_);
  LocalLane lane({}, memory, nullptr, &clock_);
  int changes = 0;
  lane.Watch([&] { ++changes; });
  const auto before = lane.hosted();
  EXPECT_EQ(lane.hosted(), before);
  const NetworkId id{.model = "m"};
  ASSERT_TRUE(memory->Host(id, 1, nullptr).ok());
  EXPECT_EQ(changes, 1);
  EXPECT_THAT(*before, IsEmpty());
  EXPECT_THAT(*lane.hosted(), ElementsAre(HostedNetwork{.id = id, .resident = false}));
  lane.Watch(nullptr);
  memory->Forget(id);
  EXPECT_EQ(changes, 1);
  EXPECT_THAT(*lane.hosted(), IsEmpty());
}

}  // namespace
}  // namespace atl::router
