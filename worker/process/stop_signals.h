// SIGTERM, SIGINT and SIGUSR1 as calls: stop well; when that takes too long, stop now; when even that does not end the
// process, end it.
//
// Schedulers repeat themselves: Slurm sends SIGTERM to a step and again to its batch script, torchrun to whoever still
// runs. So only SIGINT, a user's Ctrl-C, hurries when it comes again. SIGUSR1 is what `sbatch --signal=USR1@120` sends
// ahead of the end. A cloud's notice that it takes the machine away is one more way to be asked, with a deadline of its
// own.
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
  absl::Duration reserve = absl::Seconds(1);      // how long before the end of a notice "now" is
};

enum class StopStage { kRunning, kStopping, kStoppingNow, kEnded };

struct StopState {
  StopStage stage = StopStage::kRunning;
  absl::Duration next = absl::InfiniteDuration();  // when the next stage begins by itself
};

// Neither: only time passed.
struct StopEvent {
  int signal = 0;
  std::optional<absl::Duration> machine_ends;  // a notice; monotonic
};

// Pure: the stage after `event`, one further at most. `now` is monotonic. While it stops, a later event brings the end
// of the grace nearer, never further away.
StopState NextStop(const StopState& state, const StopEvent& event, absl::Duration now, const StopOptions& options);

// Owns one thread, joined by the destructor. All three functions are called on it; `end` does not return.
class StopSignals {
 public:
  struct Calls {
    // `deadline`: when stop_now follows, on the clock's monotonic time. Called again when it comes nearer.
    std::function<void(const std::string& why, absl::Duration deadline)> stop;
    std::function<void()> stop_now;
    std::function<void()> end;
  };

  // Blocks the signals in this thread and all that it starts: call it first in main.
  static void Block();

  // `clock` must outlive it.
  StopSignals(Calls calls, StopOptions options, Clock* clock);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The machine ends at `machine_ends`, monotonic; `what` for people. From any thread; never blocks.
  void Notice(std::string what, absl::Duration machine_ends);

 private:
  void Wait();
  // What woke the thread and why it is asked to stop; unset: the destructor.
  std::optional<std::pair<StopEvent, std::string>> EventOf(int signal);

  const Calls calls_;
  const StopOptions options_;
  Clock* const clock_;

  absl::Mutex mutex_;
  std::deque<std::pair<std::string, absl::Duration>> notices_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace atl::worker
