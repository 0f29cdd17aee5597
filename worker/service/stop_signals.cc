#include "worker/service/stop_signals.h"

#include <pthread.h>
#include <signal.h>

#include <utility>

namespace atl::worker {
namespace {

// Sent by the destructor to its own thread.
constexpr int kDone = SIGUSR1;

sigset_t Signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, kDone);
  return signals;
}

}  // namespace

void StopSignals::Block() {
  const sigset_t signals = Signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

StopSignals::StopSignals(std::function<void(const std::string&)> stop, std::function<void()> stop_now,
                         absl::Duration grace)
    : stop_(std::move(stop)), stop_now_(std::move(stop_now)), grace_(grace), thread_([this] { Wait(); }) {}

StopSignals::~StopSignals() {
  pthread_kill(thread_.native_handle(), kDone);
  thread_.join();
}

void StopSignals::Wait() {
  const sigset_t signals = Signals();
  int signal = 0;
  sigwait(&signals, &signal);
  if (signal == kDone) return;
  stop_(signal == SIGTERM ? "SIGTERM" : "SIGINT");
  const timespec grace = absl::ToTimespec(grace_);
  signal = sigtimedwait(&signals, nullptr, &grace);
  if (signal == kDone) return;
  stop_now_();
  while (signal != kDone) sigwait(&signals, &signal);
}

}  // namespace atl::worker
