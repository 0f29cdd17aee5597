#include "worker/engine/activity.h"

#include <algorithm>

#include <fmt/format.h>

namespace atl::engine {
namespace {

constexpr char kWaitingKind[] = "waiting";
constexpr double kFactor = 4;      // of the longest before
constexpr int32_t kFirstUses = 3;  // of a kind
// One read of the blob store: over a network it may take long at any time, and the store has a patience of its own.
constexpr absl::Duration kLongestReading = absl::Minutes(1);

// An action's time goes with its stage; a piece of frozen work is of its own kind.
std::string KindOf(const schedule::Action& action) {
  if (action.kind == schedule::ActionKind::kFrozen) return ToString(action);
  return fmt::format("{}{}", action.stage, schedule::KindLetter(action.kind));
}

}  // namespace

void Activity::BeginStep() {
  Enter(State::kWaiting, kWaitingKind, kWaitingKind);
}

void Activity::EndStep() {
  Enter(State::kOutside, "", "");
}

void Activity::BeginWork(const schedule::Action& action) {
  Enter(State::kWorking, KindOf(action), ToString(action));
}

void Activity::BeginWork(std::string_view name) {
  Enter(State::kWorking, std::string(name), std::string(name));
}

void Activity::EndWork() {
  Enter(State::kWaiting, kWaitingKind, kWaitingKind);
}

void Activity::BeginWaiting(std::string_view name) {
  Enter(State::kWaiting, std::string(name), std::string(name));
}

void Activity::EndWaiting() {
  Enter(State::kWaiting, kWaitingKind, kWaitingKind);
}

void Activity::BeginReading() {
  absl::MutexLock lock(&mutex_);
  reading_since_ = clock_->Monotonic();
}

void Activity::EndReading() {
  absl::MutexLock lock(&mutex_);
  if (reading_since_.has_value()) since_ += clock_->Monotonic() - *reading_since_;
  reading_since_.reset();
}

void Activity::Enter(State state, std::string kind, std::string name) {
  absl::MutexLock lock(&mutex_);
  const absl::Duration now = clock_->Monotonic();
  if (state_ != State::kOutside) {
    Usual& usual = usual_[kind_];
    ++usual.uses;
    usual.longest = std::max(usual.longest, now - since_);
  }
  state_ = state;
  kind_ = std::move(kind);
  name_ = std::move(name);
  since_ = now;
}

std::optional<Overdue> Activity::FindOverdue() const {
  absl::MutexLock lock(&mutex_);
  if (state_ == State::kOutside) return std::nullopt;
  const absl::Duration now = clock_->Monotonic();
  if (reading_since_.has_value()) {
    const absl::Duration read = now - *reading_since_;
    if (read <= kLongestReading) return std::nullopt;
    return Overdue{
        .what = fmt::format("{}: reading from the blob store has taken {:.1f} s", name_, absl::ToDoubleSeconds(read))};
  }
  const auto found = usual_.find(kind_);
  const Usual usual = found == usual_.end() ? Usual{} : found->second;
  const absl::Duration limit =
      usual.uses < kFirstUses ? options_.first : std::max(options_.least, kFactor * usual.longest);
  const absl::Duration taken = now - since_;
  if (taken <= limit) return std::nullopt;
  return Overdue{.waiting = state_ == State::kWaiting,
                 .what = fmt::format("{} has taken {:.1f} s, and {:.3f} s at most before", name_,
                                     absl::ToDoubleSeconds(taken), absl::ToDoubleSeconds(usual.longest))};
}

}  // namespace atl::engine
