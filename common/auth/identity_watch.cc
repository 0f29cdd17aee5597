#include "common/auth/identity_watch.h"

#include <string>
#include <utility>

#include "common/auth/authenticator.h"
#include "spdlog/spdlog.h"

namespace atl::rpc {

IdentityWatch::IdentityWatch(Check check, absl::Time end)
    : check_(std::move(check)), end_(end), thread_([this] { Run(); }) {}

IdentityWatch::~IdentityWatch() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

absl::Time IdentityWatch::end() const {
  absl::MutexLock lock(&mutex_);
  return end_;
}

void IdentityWatch::Run() {
  std::string seen;    // what was wrong at the last look; empty: nothing
  std::string logged;  // and what the log has
  absl::Time ends = end();
  while (true) {
    std::string complaint(check_(&ends).message());
    // Logs only what the second check repeats: while files are being swapped, half of each pair may be read.
    if (complaint == seen && complaint != logged) {
      if (complaint.empty()) {
        spdlog::info("the certificate files are good again: new connections use them");
      } else {
        spdlog::error("new connections fail, or use what was read before, until this is mended: {}", complaint);
      }
      logged = complaint;
    }
    seen = std::move(complaint);
    absl::MutexLock lock(&mutex_);
    end_ = ends;
    if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kReloadInterval)) return;
  }
}

}  // namespace atl::rpc
