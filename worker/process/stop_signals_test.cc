#include "worker/process/stop_signals.h"

#include <signal.h>
#include <unistd.h>

#include <deque>
#include <string>

#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"

namespace atl::worker {
namespace {

const StopOptions kOptions{.grace = absl::Seconds(20), .last_grace = absl::Seconds(10)};

StopEvent Ends(double seconds) {
  return {.machine_ends = absl::Seconds(seconds)};
}

TEST(NextStopTest, OnlyTimeAndCtrlCHurry) {
  struct Case {
    const char* name;
    StopState before;
    StopEvent event;
    double now;
    StopStage after;
    double next;  // < 0: never
  };
  const StopState running;
  const StopState stopping{StopStage::kStopping, absl::Seconds(20)};
  const StopState now{StopStage::kStoppingNow, absl::Seconds(30)};
  const Case cases[] = {
      {"nothing", running, {}, 5, StopStage::kRunning, -1},
      {"a scheduler's end", running, {SIGTERM}, 0, StopStage::kStopping, 20},
      {"a scheduler's notice", running, {SIGUSR1}, 0, StopStage::kStopping, 20},
      {"Ctrl-C", running, {SIGINT}, 0, StopStage::kStopping, 20},
      {"the end after the notice", stopping, {SIGTERM}, 1, StopStage::kStopping, 20},
      {"the notice again", stopping, {SIGUSR1}, 1, StopStage::kStopping, 20},
      {"Ctrl-C again", stopping, {SIGINT}, 1, StopStage::kStoppingNow, 11},
      {"still in the grace", stopping, {}, 19.9, StopStage::kStopping, 20},
      {"after the grace", stopping, {}, 20, StopStage::kStoppingNow, 30},
      {"a signal after the grace", stopping, {SIGTERM}, 25, StopStage::kStoppingNow, 35},
      {"still in the last grace", now, {SIGTERM}, 29, StopStage::kStoppingNow, 30},
      {"after the last grace", now, {}, 30, StopStage::kEnded, -1},
      {"Ctrl-C a third time", now, {SIGINT}, 21, StopStage::kEnded, -1},
      {"a notice of two minutes", running, Ends(120), 0, StopStage::kStopping, 119},
      {"a notice of two seconds", running, Ends(2), 0, StopStage::kStopping, 1},
      {"a notice that comes too late", running, Ends(3), 5, StopStage::kStopping, 5},
      {"the scheduler's end after a long notice",
       {StopStage::kStopping, absl::Seconds(119)},
       {SIGTERM},
       30,
       StopStage::kStopping,
       50},
      {"a notice that leaves less than the grace", stopping, Ends(10), 1, StopStage::kStopping, 9},
      {"a notice that leaves more", stopping, Ends(100), 1, StopStage::kStopping, 20},
      {"a notice after the grace", now, Ends(100), 21, StopStage::kStoppingNow, 30},
      {"nothing is after the end", {StopStage::kEnded}, {SIGINT}, 40, StopStage::kEnded, -1},
  };
  for (const Case& test : cases) {
    SCOPED_TRACE(test.name);
    const StopState found = NextStop(test.before, test.event, absl::Seconds(test.now), kOptions);
    EXPECT_EQ(found.stage, test.after);
    EXPECT_EQ(found.next, test.next < 0 ? absl::InfiniteDuration() : absl::Seconds(test.next));
  }
}

// Records the calls in order.
class Recorder {
 public:
  StopSignals::Calls Calls() {
    return {[this](const std::string& why, absl::Duration deadline) {
              {
                absl::MutexLock lock(&mutex_);
                deadline_ = deadline;
              }
              Add("stop " + why);
            },
            [this] { Add("now"); }, [this] { Add("end"); }};
  }
  // The next call that has not been taken, or "nothing" after a generous wait.
  std::string Take() {
    absl::MutexLock lock(&mutex_);
    const auto any = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !calls_.empty(); };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&any), absl::Seconds(30))) return "nothing";
    std::string call = calls_.front();
    calls_.pop_front();
    return call;
  }
  absl::Duration deadline() {
    absl::MutexLock lock(&mutex_);
    return deadline_;
  }

 private:
  void Add(std::string call) {
    absl::MutexLock lock(&mutex_);
    calls_.push_back(std::move(call));
  }

  absl::Mutex mutex_;
  std::deque<std::string> calls_ ABSL_GUARDED_BY(mutex_);
  absl::Duration deadline_ ABSL_GUARDED_BY(mutex_);
};

TEST(StopSignalsTest, SignalsOfTheProcessArriveAsCalls) {
  StopSignals::Block();
  Recorder recorder;
  const StopSignals signals(recorder.Calls(), {.grace = absl::Hours(1), .last_grace = absl::Hours(1)}, Clock::Real());
  kill(getpid(), SIGUSR1);
  EXPECT_EQ(recorder.Take(), "stop SIGUSR1");
  kill(getpid(), SIGTERM);
  kill(getpid(), SIGINT);
  EXPECT_EQ(recorder.Take(), "now") << "SIGTERM said nothing new";
  kill(getpid(), SIGINT);
  EXPECT_EQ(recorder.Take(), "end");
}

TEST(StopSignalsTest, WhatHangsIsEnded) {
  StopSignals::Block();
  Recorder recorder;
  const StopSignals signals(recorder.Calls(), {.grace = absl::Milliseconds(1), .last_grace = absl::Milliseconds(1)},
                            Clock::Real());
  kill(getpid(), SIGTERM);
  EXPECT_EQ(recorder.Take(), "stop SIGTERM");
  EXPECT_EQ(recorder.Take(), "now");
  EXPECT_EQ(recorder.Take(), "end");
}

TEST(StopSignalsTest, ANoticeIsACallWithItsDeadline) {
  StopSignals::Block();
  Recorder recorder;
  StopSignals signals(recorder.Calls(), {.last_grace = absl::Hours(1)}, Clock::Real());
  const absl::Duration ends = Clock::Real()->Monotonic() + absl::Hours(1);
  signals.Notice("the cloud says so", ends);
  EXPECT_EQ(recorder.Take(), "stop the cloud says so");
  EXPECT_EQ(recorder.deadline(), ends - StopOptions().reserve);
  signals.Notice("later", ends + absl::Hours(1));
  const absl::Duration sooner = ends - absl::Minutes(30);
  signals.Notice("sooner", sooner);
  EXPECT_EQ(recorder.Take(), "stop sooner") << "what comes later says nothing new";
  EXPECT_EQ(recorder.deadline(), sooner - StopOptions().reserve);
  signals.Notice("at once", Clock::Real()->Monotonic());
  EXPECT_EQ(recorder.Take(), "stop at once");
  EXPECT_EQ(recorder.Take(), "now");
}

TEST(StopSignalsTest, EndsWithoutASignal) {
  StopSignals::Block();
  Recorder recorder;
  { const StopSignals signals(recorder.Calls(), kOptions, Clock::Real()); }
}

}  // namespace
}  // namespace atl::worker
