#include "worker/transport/operation.h"

#include <chrono>
#include <utility>

#include "common/base/clock.h"
#include "common/base/errors.h"
#include "fmt/format.h"

namespace atl::transport {
namespace {

class OperationWork final : public Work {
 public:
  OperationWork(std::shared_ptr<Operation> operation, Transport* owner, std::string description)
      : operation_(std::move(operation)), owner_(owner), description_(std::move(description)) {}

  bool Done() override { return operation_->Done(); }

  std::optional<absl::Duration> EndedAt() override { return operation_->EndedAt(); }
  bool DoneWithin(absl::Duration timeout) override { return operation_->WaitFor(timeout).has_value(); }

  absl::Status Wait(absl::Duration timeout) override {
    if (auto status = operation_->WaitFor(timeout)) return *std::move(status);
    const absl::Status late = MakeError(
        absl::StatusCode::kDeadlineExceeded, "TRANSPORT_TIMEOUT",
        fmt::format("rank {}: {} did not end within {}", owner_->rank(), description_, absl::FormatDuration(timeout)));
    owner_->Abort(late);
    const absl::Status status = *operation_->WaitFor(absl::InfiniteDuration());
    return status.ok() ? late : status;
  }

 private:
  const std::shared_ptr<Operation> operation_;
  Transport* const owner_;
  const std::string description_;
};

}  // namespace

void Operation::Finish(absl::Status status) {
  const std::lock_guard lock(mutex_);
  if (status_) return;
  status_ = std::move(status);
  ended_at_ = Clock::Real()->Monotonic();
  ended_.notify_all();
}

bool Operation::Done() const {
  const std::lock_guard lock(mutex_);
  return status_.has_value();
}

std::optional<absl::Duration> Operation::EndedAt() const {
  const std::lock_guard lock(mutex_);
  return status_.has_value() ? std::optional<absl::Duration>(ended_at_) : std::nullopt;
}

std::optional<absl::Status> Operation::WaitFor(absl::Duration timeout) const {
  std::unique_lock lock(mutex_);
  const auto ended = [this] { return status_.has_value(); };
  // A century stands for ever: adding more than that to the clock overflows.
  if (timeout > absl::Hours(24 * 36500)) {
    ended_.wait(lock, ended);
  } else {
    ended_.wait_for(lock, absl::ToChronoNanoseconds(timeout), ended);
  }
  return status_;
}

std::unique_ptr<Work> MakeWork(std::shared_ptr<Operation> operation, Transport* owner, std::string description) {
  return std::make_unique<OperationWork>(std::move(operation), owner, std::move(description));
}

std::string Describe(const char* verb, const Lane& lane, size_t bytes) {
  return fmt::format("{} of {} bytes along {}", verb, bytes, ToString(lane));
}

}  // namespace atl::transport
