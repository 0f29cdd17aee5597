// SIGTERM, SIGINT and SIGUSR1 as calls: stop well; when that takes too long, stop now; when even that does not end the
// process, end it.
//
// Schedulers repeat themselves: Slurm sends SIGTERM to a step and again to its batch script, torchrun to whoever still
// runs. So only SIGINT, a user's Ctrl-C, hurries when it comes again. SIGUSR1 is what `sbatch --signal=USR1@120` sends
// ahead of the end.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "common/base/clock.h"

namespace atl::worker {

struct StopOptions {
  absl::Duration grace = absl::Seconds(20);       // from the first signal to "now"
  absl::Duration last_grace = absl::Seconds(10);  // from "now" to the end: something hangs
};

enum class StopStage { kRunning, kStopping, kStoppingNow, kEnded };

struct StopState {
  StopStage stage = StopStage::kRunning;
  absl::Duration next = absl::InfiniteDuration();  // when the next stage begins by itself
};

// Pure: the stage after `signal` (0: only time passed), one further at most. `now` is monotonic.
StopState NextStop(const StopState& state, int signal, absl::Duration now, const StopOptions& options);

// Owns one thread, joined by the destructor. All three functions are called on it; `end` does not return.
class StopSignals {
 public:
  struct Calls {
    std::function<void(const std::string& signal)> stop;
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

 private:
  void Wait();

  const Calls calls_;
  const StopOptions options_;
  Clock* const clock_;
  std::thread thread_;
};

}  // namespace atl::worker
