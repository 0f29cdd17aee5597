#include "worker/process/stop_signals.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <utility>

namespace atl::worker {
namespace {

// Returns the signal that Notice and the destructor send to the object's own thread. No other code uses it.
int WakeSignal() {
  return SIGRTMIN + 1;
}

sigset_t Signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, WakeSignal()}) sigaddset(&signals, signal);
  return signals;
}

std::string NameOf(int signal) {
  return signal == SIGTERM ? "SIGTERM" : signal == SIGINT ? "SIGINT" : "SIGUSR1";
}

}  // namespace

StopState NextStop(const StopState& state, const StopEvent& event, absl::Duration now, const StopOptions& options) {
  const bool due = now >= state.next || event.signal == SIGINT;
  absl::Duration end_of_grace = absl::InfiniteDuration();
  if (event.signal != 0) end_of_grace = now + options.grace;
  if (event.machine_ends) end_of_grace = std::max(now, *event.machine_ends - options.reserve);
  switch (state.stage) {
    case StopStage::kRunning:
      if (end_of_grace == absl::InfiniteDuration()) return state;
      return {StopStage::kStopping, end_of_grace};
    case StopStage::kStopping:
      if (!due) return {StopStage::kStopping, std::min(state.next, end_of_grace)};
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
  pthread_kill(thread_.native_handle(), WakeSignal());
  thread_.join();
}

void StopSignals::Notice(std::string what, absl::Duration machine_ends) {
  absl::MutexLock lock(&mutex_);
  notices_.emplace_back(std::move(what), machine_ends);
  pthread_kill(thread_.native_handle(), WakeSignal());
}

std::optional<std::pair<StopEvent, std::string>> StopSignals::EventOf(int signal) {
  if (signal == 0) return std::make_pair(StopEvent{}, std::string());
  if (signal != WakeSignal()) return std::make_pair(StopEvent{.signal = signal}, NameOf(signal));
  absl::MutexLock lock(&mutex_);
  if (notices_.empty()) return std::nullopt;
  auto [what, machine_ends] = std::move(notices_.front());
  notices_.pop_front();
  return std::make_pair(StopEvent{.machine_ends = machine_ends}, std::move(what));
}

void StopSignals::Wait() {
  const sigset_t signals = Signals();
  StopState state;
  while (state.stage != StopStage::kEnded) {
    // A day is as good as for ever, and fits a timespec.
    const absl::Duration left = std::min(state.next - clock_->Monotonic(), absl::Hours(24));
    const timespec wait = absl::ToTimespec(std::max(left, absl::ZeroDuration()));
    const auto event = EventOf(std::max(sigtimedwait(&signals, nullptr, &wait), 0));
    if (!event) return;
    const StopState next = NextStop(state, event->first, clock_->Monotonic(), options_);
    const bool nearer = next.stage == StopStage::kStopping && next.next < state.next;
    const bool moved = next.stage != state.stage || nearer;
    state = next;
    if (!moved) continue;
    if (state.stage == StopStage::kStopping) calls_.stop(event->second, state.next);
    if (state.stage == StopStage::kStoppingNow) calls_.stop_now();
    if (state.stage == StopStage::kEnded) calls_.end();
  }
}

}  // namespace atl::worker
