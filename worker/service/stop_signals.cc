#include "worker/service/stop_signals.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <utility>

namespace atl::worker {
namespace {

// Sent by the destructor to its own thread. Nobody else uses it.
int DoneSignal() {
  return SIGRTMIN + 1;
}

sigset_t Signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, DoneSignal()}) sigaddset(&signals, signal);
  return signals;
}

std::string NameOf(int signal) {
  return signal == SIGTERM ? "SIGTERM" : signal == SIGINT ? "SIGINT" : "SIGUSR1";
}

}  // namespace

StopState NextStop(const StopState& state, int signal, absl::Duration now, const StopOptions& options) {
  const bool due = now >= state.next || signal == SIGINT;
  switch (state.stage) {
    case StopStage::kRunning:
      if (signal == 0) return state;
      return {StopStage::kStopping, now + options.grace};
    case StopStage::kStopping:
      if (!due) return state;
      return {StopStage::kStoppingNow, now + options.last_grace};
    case StopStage::kStoppingNow:
      if (!due) return state;
      return {StopStage::kEnded};
    case StopStage::kEnded:
      break;
  }
  return state;
}

void StopSignals::Block() {
  const sigset_t signals = Signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

StopSignals::StopSignals(Calls calls, StopOptions options, Clock* clock)
    : calls_(std::move(calls)), options_(options), clock_(clock), thread_([this] { Wait(); }) {}

StopSignals::~StopSignals() {
  pthread_kill(thread_.native_handle(), DoneSignal());
  thread_.join();
}

void StopSignals::Wait() {
  const sigset_t signals = Signals();
  StopState state;
  while (state.stage != StopStage::kEnded) {
    // A day is as good as for ever, and fits a timespec.
    const absl::Duration left = std::min(state.next - clock_->Monotonic(), absl::Hours(24));
    const timespec wait = absl::ToTimespec(std::max(left, absl::ZeroDuration()));
    const int signal = std::max(sigtimedwait(&signals, nullptr, &wait), 0);
    if (signal == DoneSignal()) return;
    const StopState next = NextStop(state, signal, clock_->Monotonic(), options_);
    const bool moved = next.stage != state.stage;
    state = next;
    if (!moved) continue;
    if (state.stage == StopStage::kStopping) calls_.stop(NameOf(signal));
    if (state.stage == StopStage::kStoppingNow) calls_.stop_now();
    if (state.stage == StopStage::kEnded) calls_.end();
  }
}

}  // namespace atl::worker
