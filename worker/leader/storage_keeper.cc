#include "worker/leader/storage_keeper.h"

#include <algorithm>
#include <utility>

#include <spdlog/spdlog.h>

#include "common/base/errors.h"

namespace atl::worker {
namespace {

constexpr absl::Duration kLeastPause = absl::Seconds(1);

}  // namespace

absl::Time RenewalTime(absl::Time now, absl::Time came, absl::Time expires, int64_t failures) {
  if (expires == absl::InfiniteFuture()) return absl::InfiniteFuture();
  // Keys that come with no life left, by this machine's clock, must not be asked for without a pause.
  if (failures == 0) return came + std::max((expires - came) * 2 / 3, kLeastPause);
  return now + std::max((expires - now) / 10, kLeastPause);
}

StorageKeeper::StorageKeeper(CoordinatorClient* coordinator, Clock* clock, Renewed renewed)
    : coordinator_(coordinator), clock_(clock), renewed_(std::move(renewed)), thread_([this] { Loop(); }) {}

StorageKeeper::~StorageKeeper() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
  }
  thread_.join();
}

void StorageKeeper::Hold(const spec::LeaseToken& token, const spec::StorageGrant& grant) {
  const absl::Time now = clock_->Now();
  absl::MutexLock lock(&mutex_);
  ++changes_;
  held_.reset();
  if (grant.access_key.empty()) return;
  held_ = Held{.token = token,
               .came = now,
               .expires = grant.expires,
               .due = RenewalTime(now, now, grant.expires, /*failures=*/0)};
}

void StorageKeeper::LetGo() {
  absl::MutexLock lock(&mutex_);
  ++changes_;
  held_.reset();
}

void StorageKeeper::Loop() {
  while (true) {
    Held due;
    {
      absl::MutexLock lock(&mutex_);
      const int64_t changes = changes_;
      const auto changed = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closing_ || changes_ != changes; };
      // By wall time, as keys expire: of a clock that is set, the next turn knows.
      const absl::Duration wait = held_.has_value() ? held_->due - clock_->Now() : absl::InfiniteDuration();
      clock_->AwaitUntil(&mutex_, absl::Condition(&changed), clock_->Monotonic() + wait);
      if (closing_) return;
      if (!held_.has_value() || clock_->Now() < held_->due) continue;
      due = *held_;
    }
    Renew(due);
  }
}

void StorageKeeper::Renew(const Held& held) {
  const absl::StatusOr<spec::StorageGrant> grant = coordinator_->RenewStorage(held.token);
  const absl::Time now = clock_->Now();
  {
    absl::MutexLock lock(&mutex_);
    // Meanwhile the task may have ended, and another begun.
    if (!held_.has_value() || !(held_->token == held.token)) return;
    // The lease is lost: the heartbeat reports this too, and ends the task.
    if (absl::IsAborted(grant.status())) {
      held_.reset();
      return;
    }
    if (!grant.ok()) {
      ++held_->failures;
    } else {
      *held_ = {.token = held.token, .came = now, .expires = grant->expires};
    }
    held_->due = RenewalTime(now, held_->came, held_->expires, held_->failures);
  }
  if (!grant.ok()) {
    spdlog::warn("task {}: its keys of the blob store, which expire at {}, are not renewed: {}", held.token.task_id,
                 absl::FormatTime(absl::RFC3339_sec, held.expires, absl::UTCTimeZone()), grant.status().ToString());
    return;
  }
  spdlog::info("task {}: its keys of the blob store are renewed, until {}", held.token.task_id,
               absl::FormatTime(absl::RFC3339_sec, grant->expires, absl::UTCTimeZone()));
  renewed_(held.token, *grant);
}

}  // namespace atl::worker
