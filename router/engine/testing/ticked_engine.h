// For tests: an engine that samples on the test's thread, when the test calls it.
#pragma once

#include "router/engine/engine.h"

namespace atl::router {

class TickedEngine : public Engine {
 public:
  using Engine::Engine;

  // Runs one tick: cancelled requests leave, queued requests join, and every image makes one step, as far as lanes
  // answer inside their Start. Returns whether work is left. Not for a started engine.
  bool RunTick() {
    ApplyLaneCalls();
    RemoveLeavers();
    GiveUpDeliveries();
    LetJoin();
    BeginSteps();
    while (dispatcher_->StartBatches() | TakeIn()) {
    }
    DeliverProgress();
    EndRequests();
    CountSteps();
    ReportQueue();
    absl::MutexLock lock(&mutex_);
    return active_requests_ > 0 || !cancelled_.empty() || !drained_.empty() || !Joinable().empty();
  }

  // Whether a cancelled request has not left yet.
  bool has_leavers() {
    absl::MutexLock lock(&mutex_);
    return !cancelled_.empty();
  }
  // Returns how many requests wait to join. It does not count a request that is still being submitted, but RequestsOn
  // does.
  size_t waiting_requests() {
    absl::MutexLock lock(&mutex_);
    return queue_.size();
  }
};

}  // namespace atl::router
