#include "coordinator/core/executor.h"

#include <atomic>

#include "absl/synchronization/notification.h"
#include "common/base/fake_clock.h"
#include "coordinator/core/watch_list.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::coordinator {
namespace {

using ::testing::ElementsAre;

TEST(ExecutorTest, RunsInOrderAndStopRunsWhatWasPosted) {
  std::vector<int> ran;
  {
    Executor executor(Clock::Real(), {});
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(executor.Post([&ran, i] { ran.push_back(i); }));
    executor.Stop();
    EXPECT_FALSE(executor.Post([] {})) << "closed";
  }
  EXPECT_THAT(ran, ElementsAre(0, 1, 2));
}

TEST(ExecutorTest, AFullQueueRefuses) {
  Executor executor(Clock::Real(), {.capacity = 1});
  absl::Notification started;
  absl::Notification go_on;
  ASSERT_TRUE(executor.Post([&] {
    started.Notify();
    go_on.WaitForNotification();
  }));
  started.WaitForNotification();
  EXPECT_TRUE(executor.Post([] {}));
  EXPECT_FALSE(executor.Post([] {}));
  go_on.Notify();
}

TEST(ExecutorTest, WhatEndsSomethingIsTakenByAFullQueue) {
  std::vector<int> ran;
  Executor executor(Clock::Real(), {.capacity = 1});
  absl::Notification started;
  absl::Notification go_on;
  ASSERT_TRUE(executor.Post([&] {
    started.Notify();
    go_on.WaitForNotification();
  }));
  started.WaitForNotification();
  EXPECT_TRUE(executor.Post([&ran] { ran.push_back(1); }));
  EXPECT_TRUE(executor.PostEnd([&ran] { ran.push_back(2); }));
  EXPECT_FALSE(executor.Post([&ran] { ran.push_back(3); }));
  go_on.Notify();
  executor.Stop();
  EXPECT_THAT(ran, ElementsAre(1, 2));
  EXPECT_FALSE(executor.PostEnd([] {})) << "closed";
}

TEST(ExecutorTest, TellsHowLongFunctionsWaited) {
  FakeClock clock;
  std::vector<absl::Duration> waited;
  Executor executor(&clock, {.waited = [&waited](absl::Duration time) { waited.push_back(time); }});
  absl::Notification started;
  absl::Notification go_on;
  ASSERT_TRUE(executor.Post([&] {
    started.Notify();
    go_on.WaitForNotification();
  }));
  started.WaitForNotification();
  ASSERT_TRUE(executor.Post([] {}));
  clock.Advance(absl::Seconds(3));
  go_on.Notify();
  executor.Stop();
  EXPECT_THAT(waited, ElementsAre(absl::ZeroDuration(), absl::Seconds(3)));
}

TEST(ExecutorTest, WakesByItselfWhenTheTimeComes) {
  FakeClock clock;
  absl::Notification woken;
  std::atomic<bool> due{true};
  Executor executor(&clock, {.capacity = 4,
                             .after_each =
                                 [&] {
                                   if (clock.Monotonic() >= absl::Seconds(5) && due.exchange(false)) woken.Notify();
                                 },
                             .next_wake = [&] { return due ? absl::Seconds(5) : absl::InfiniteDuration(); }});
  clock.Advance(absl::Seconds(5));
  EXPECT_TRUE(woken.WaitForNotificationWithTimeout(absl::Seconds(20)));
}

std::vector<int64_t> Due(WatchList& list, int64_t at_milliseconds) {
  std::vector<int64_t> tickets;
  for (const WatchList::Watch* watch : list.TakeDue(absl::Milliseconds(at_milliseconds)))
    tickets.push_back(watch->ticket);
  return tickets;
}

TEST(WatchListTest, ChangesAreCoalescedPerWatch) {
  WatchList list(absl::Milliseconds(100));
  list.Add(1, "j", 0);
  EXPECT_THAT(Due(list, 0), ElementsAre(1)) << "at once";
  EXPECT_THAT(Due(list, 1), ElementsAre());
  EXPECT_EQ(list.NextWake(), absl::InfiniteDuration());
  list.MarkDirty("j");
  list.MarkDirty("j");
  list.MarkDirty("other");
  EXPECT_THAT(Due(list, 50), ElementsAre()) << "too soon";
  EXPECT_EQ(list.NextWake(), absl::Milliseconds(100));
  EXPECT_THAT(Due(list, 100), ElementsAre(1));
  EXPECT_THAT(Due(list, 500), ElementsAre()) << "two changes, one message";
}

TEST(WatchListTest, APostponedWatchIsDueAgainWithoutAChange) {
  WatchList list(absl::Milliseconds(100));
  list.Add(1, "j", 0);
  for (WatchList::Watch* watch : list.TakeDue(absl::ZeroDuration())) {
    WatchList::Postpone(*watch, absl::Milliseconds(1000));
  }
  EXPECT_EQ(list.NextWake(), absl::Milliseconds(1000));
  EXPECT_THAT(Due(list, 999), ElementsAre());
  EXPECT_THAT(Due(list, 1000), ElementsAre(1));
  EXPECT_EQ(list.NextWake(), absl::InfiniteDuration());
}

TEST(WatchListTest, AnEmptyKeyWatchesEverything) {
  WatchList list(absl::ZeroDuration());
  list.Add(1, "", 0);
  list.Add(2, "a", 0);
  EXPECT_THAT(Due(list, 0), ElementsAre(1, 2));
  list.MarkDirty("b");
  EXPECT_THAT(Due(list, 1), ElementsAre(1));
  list.MarkDirty("a");
  EXPECT_THAT(Due(list, 2), ElementsAre(1, 2));
  list.Remove(1);
  list.MarkDirty("b");
  EXPECT_THAT(Due(list, 3), ElementsAre());
}

}  // namespace
}  // namespace atl::coordinator
