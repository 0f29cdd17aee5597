#include "common/rpc/watch_loop.h"

#include <utility>

#include "common/rpc/channel.h"
#include "common/wire/status.h"
#include "spdlog/spdlog.h"

namespace atl::rpc {
namespace {

// A stream is opened anew after this: every call has a deadline.
constexpr absl::Duration kStreamDeadline = absl::Minutes(10);

}  // namespace

WatchLoop::WatchLoop(Options options, ReadStream read, Clock* clock)
    : options_(std::move(options)), read_(std::move(read)), clock_(clock) {
  thread_ = std::thread([this] { Run(); });
}

WatchLoop::~WatchLoop() {
  Stop();
  thread_.join();
}

void WatchLoop::Stop() {
  absl::MutexLock lock(&mutex_);
  stopping_ = true;
  if (call_ != nullptr) call_->TryCancel();
}

void WatchLoop::Run() {
  Backoff backoff(options_.backoff);
  std::string last_reason;
  while (ReadOnce(&backoff, &last_reason)) {
    absl::MutexLock lock(&mutex_);
    clock_->AwaitUntil(&mutex_, absl::Condition(&stopping_), clock_->Monotonic() + backoff.Next());
  }
}

bool WatchLoop::ReadOnce(Backoff* backoff, std::string* last_reason) {
  grpc::ClientContext context;
  SetTimeout(&context, kStreamDeadline);
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) return false;
    call_ = &context;
  }
  bool connected = false;
  const absl::Status status = FromGrpc(read_(&context, [&] {
    if (!connected && options_.on_connection) options_.on_connection(true);
    connected = true;
  }));
  {
    absl::MutexLock lock(&mutex_);
    call_ = nullptr;
    if (stopping_) return false;
  }
  if (connected) backoff->Reset();
  if (absl::IsDeadlineExceeded(status)) return true;
  // Each reason is logged once: the server may be gone for days.
  const std::string reason(status.ok() ? "the server ended the stream" : status.message());
  if (connected || reason != *last_reason) {
    spdlog::warn("watching {}: {}; {}", options_.what, reason, options_.meanwhile);
  }
  *last_reason = reason;
  if (options_.on_connection) options_.on_connection(false);
  return true;
}

}  // namespace atl::rpc
