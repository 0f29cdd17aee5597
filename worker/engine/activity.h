// Tracks the activity of a rank's compute thread, so that other threads notice when it hangs. A rank whose process
// lives can still be stuck: in a kernel, in a page that a failing disk does not deliver, in a transfer that never ends.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/schedule/action.h"

namespace atl::engine {

struct ActivityOptions {
  // Work is overdue after several times the longest duration of its kind, and not before `least`.
  absl::Duration least = absl::Seconds(3);
  // The least time while work of a kind was done only a few times, because memory, caches and kernels are still set up.
  absl::Duration first = absl::Minutes(1);
};

// An activity that takes much longer than it ever did.
struct Overdue {
  bool waiting = false;  // for other ranks; if false, the rank itself works
  std::string what;      // "F3 has taken 3.2 s, and 0.04 s at most before"
};

// Thread-safe: the compute thread reports its activity, any other thread queries it. Within a step, all time that is
// not work is waiting; outside of steps nothing is judged. `clock` must outlive it.
class Activity {
 public:
  explicit Activity(Clock* clock, ActivityOptions options = {}) : clock_(clock), options_(options) {}

  void BeginStep();
  void EndStep();
  void BeginWork(const schedule::Action& action);
  void BeginWork(std::string_view name);  // work that is not an action
  void EndWork();
  // Begins waiting that is compared only with waiting of the same name.
  void BeginWaiting(std::string_view name);
  void EndWaiting();
  // Suspends the current activity: the time until EndReading does not count.
  void BeginReading();
  void EndReading();

  std::optional<Overdue> FindOverdue() const;

 private:
  enum class State : uint8_t { kOutside, kWaiting, kWorking };
  struct Usual {
    int64_t uses = 0;
    absl::Duration longest;
  };

  // Ends the current activity and enters `state`. `kind` selects the durations to compare with; `name` is for messages.
  void Enter(State state, std::string kind, std::string name);

  Clock* const clock_;
  const ActivityOptions options_;
  mutable absl::Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kOutside;
  std::string kind_ ABSL_GUARDED_BY(mutex_);
  std::string name_ ABSL_GUARDED_BY(mutex_);
  absl::Duration since_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Duration> reading_since_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Usual, std::less<>> usual_ ABSL_GUARDED_BY(mutex_);  // by kind
};

// Reports work while it lives. `activity` may be null.
class WorkScope {
 public:
  template <typename Work>
  WorkScope(Activity* activity, const Work& work) : activity_(activity) {
    if (activity_ != nullptr) activity_->BeginWork(work);
  }
  ~WorkScope() {
    if (activity_ != nullptr) activity_->EndWork();
  }
  WorkScope(const WorkScope&) = delete;
  WorkScope& operator=(const WorkScope&) = delete;

 private:
  Activity* const activity_;
};

// Reports waiting of a name while it lives. `activity` may be null.
class WaitingScope {
 public:
  WaitingScope(Activity* activity, std::string_view name) : activity_(activity) {
    if (activity_ != nullptr) activity_->BeginWaiting(name);
  }
  ~WaitingScope() {
    if (activity_ != nullptr) activity_->EndWaiting();
  }
  WaitingScope(const WaitingScope&) = delete;
  WaitingScope& operator=(const WaitingScope&) = delete;

 private:
  Activity* const activity_;
};

// Reports reading while it lives, at work or not. `activity` may be null.
class ReadingScope {
 public:
  explicit ReadingScope(Activity* activity) : activity_(activity) {
    if (activity_ != nullptr) activity_->BeginReading();
  }
  ~ReadingScope() {
    if (activity_ != nullptr) activity_->EndReading();
  }
  ReadingScope(const ReadingScope&) = delete;
  ReadingScope& operator=(const ReadingScope&) = delete;

 private:
  Activity* const activity_;
};

}  // namespace atl::engine
