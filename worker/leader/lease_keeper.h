// Keeps the leader's lease alive and reports its progress, on a thread of its own, whatever the compute does.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/spec/task.h"
#include "worker/leader/coordinator_client.h"

namespace atl::worker {

// Thread-safe. Owns the thread, joined by the destructor.
class LeaseKeeper {
 public:
  // `revoked` is called on the keeper's thread when the coordinator says that the lease that is held is not valid any
  // more, once per lease, with the reason; it must not block. `drain`, likewise, when the coordinator wants the lease
  // back, with a checkpoint. `superseded` when this incarnation is not the island's any more, or the island is let in
  // no more; it was the client's when the heartbeat was sent.
  struct Events {
    std::function<void(const spec::LeaseToken&, const std::string& reason)> revoked;
    std::function<void(const spec::LeaseToken&, const std::string& reason)> drain;
    std::function<void(const absl::Status&, int64_t incarnation)> superseded;
  };

  LeaseKeeper(CoordinatorClient* coordinator, Clock* clock, Events events);
  ~LeaseKeeper();

  // Starts heartbeats, or changes their interval.
  void SetInterval(absl::Duration interval);
  void Hold(const spec::LeaseToken& token);
  // The task is being completed, failed or released: the lease goes on being renewed, but a verdict on it says no more
  // than the answer to that call will.
  void Settling();
  void LetGo();
  // Replaces what was reported and not sent yet. Never blocks; may be called often.
  void Report(const spec::Progress& progress);
  // What a step takes, for the next heartbeats; until Hold or LetGo.
  void ReportStepTime(absl::Duration step_time);

 private:
  void Loop();
  void Beat();
  void SendProgress();
  void OnDrain(const spec::LeaseToken& token, const std::string& reason);
  void OnVerdict(const spec::LeaseToken& token, const std::string& reason);

  CoordinatorClient* const coordinator_;
  Clock* const clock_;
  const Events events_;

  absl::Mutex mutex_;
  absl::Duration interval_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteDuration();
  absl::Duration next_beat_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteDuration();
  absl::Duration next_progress_ ABSL_GUARDED_BY(mutex_);
  std::optional<spec::LeaseToken> lease_ ABSL_GUARDED_BY(mutex_);
  bool settling_ ABSL_GUARDED_BY(mutex_) = false;
  bool drain_told_ ABSL_GUARDED_BY(mutex_) = false;  // of the lease that is held
  std::optional<spec::Progress> progress_ ABSL_GUARDED_BY(mutex_);
  absl::Duration step_time_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t sequence_ = 0;  // the keeper's thread only
  std::thread thread_;
};

}  // namespace atl::worker
