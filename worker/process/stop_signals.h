// Converts SIGTERM, SIGINT and SIGUSR1 into calls: stop; if that takes too long, stop now; if even that does not end
// the process, end it.
//
// Schedulers send signals repeatedly: Slurm sends SIGTERM to a step and again to its batch script, torchrun to all
// processes that still run. Therefore only a repeated SIGINT, a user's Ctrl-C, hurries the stop. `sbatch
// --signal=USR1@120` sends SIGUSR1 ahead of the end. A cloud's notice that it takes the machine away is one more stop
// request, with its own deadline.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"

namespace atl::worker {

struct StopOptions {
  absl::Duration grace = absl::Seconds(20);       // from the first signal to "now"
  absl::Duration last_grace = absl::Seconds(10);  // from "now" to the end: something hangs
  absl::Duration reserve = absl::Seconds(1);      // how long before the end of a notice "now" begins
};

enum class StopStage { kRunning, kStopping, kStoppingNow, kEnded };

struct StopState {
  StopStage stage = StopStage::kRunning;
  absl::Duration next = absl::InfiniteDuration();  // when the next stage begins by itself
};

// With neither field set, only time has passed.
struct StopEvent {
  int signal = 0;
  std::optional<absl::Duration> machine_ends;  // a notice; monotonic
};

// Pure: returns the stage after `event`, at most one stage further. `now` is monotonic. While the process stops, a
// later event can only shorten the grace.
StopState NextStop(const StopState& state, const StopEvent& event, absl::Duration now, const StopOptions& options);

// Owns one thread, joined by the destructor. All three functions are called on it; `end` does not return.
class StopSignals {
 public:
  struct Calls {
    // `deadline`: when stop_now follows, on the clock's monotonic time. Called again if the deadline moves closer.
    std::function<void(const std::string& why, absl::Duration deadline)> stop;
    std::function<void()> stop_now;
    std::function<void()> end;
  };

  // Blocks the signals in this thread and all threads that it starts: call it first in main.
  static void Block();

  // `clock` must outlive it.
  StopSignals(Calls calls, StopOptions options, Clock* clock);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The machine ends at `machine_ends`, monotonic; `what` is for people. Callable from any thread; never blocks.
  void Notice(std::string what, absl::Duration machine_ends);

 private:
  void Wait();
  // Returns the event that woke the thread and the reason to stop; nullopt if the destructor woke it.
  std::optional<std::pair<StopEvent, std::string>> EventOf(int signal);

  const Calls calls_;
  const StopOptions options_;
  Clock* const clock_;

  absl::Mutex mutex_;
  std::deque<std::pair<std::string, absl::Duration>> notices_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace atl::worker
