// Renews the leader's lease and reports its progress on its own thread, independent of the compute.
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
  // All are called on the keeper's thread and must not block. `revoked` is called with the reason, once per lease, if
  // the coordinator reports that the held lease is no longer valid. `drain` is called likewise if the coordinator wants
  // the lease back, with a checkpoint. `superseded` is called if another incarnation has replaced this one, or if the
  // coordinator rejects the island; `incarnation` is the client's at the time of the heartbeat.
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
  // The task is being completed, failed or released. The keeper renews the lease but ignores verdicts on it, because
  // the answer to that call decides.
  void Settling();
  void LetGo();
  // Replaces progress that was not sent yet. Never blocks; may be called often.
  void Report(const spec::Progress& progress);
  // Sets the step time for the next heartbeats, until Hold or LetGo.
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
  bool drain_told_ ABSL_GUARDED_BY(mutex_) = false;  // for the held lease
  std::optional<spec::Progress> progress_ ABSL_GUARDED_BY(mutex_);
  absl::Duration step_time_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t sequence_ = 0;  // used by the keeper's thread only
  std::thread thread_;
};

}  // namespace atl::worker
