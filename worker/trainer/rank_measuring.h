// Shared code of measurements that all ranks make at once: their common start, and their times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "worker/transport/transport.h"

namespace atl::trainer {

// Returns 0 for no values.
double Median(std::vector<double> values);

// Returns the seconds of `action`, until the device has finished its work.
absl::StatusOr<double> TimeAction(const std::string& device, Clock* clock, const std::function<absl::Status()>& action);

// Synchronises and exchanges values between ranks; does nothing for a single rank.
class MeasuringRanks {
 public:
  // A null `transport` means one rank; a transport must outlive this.
  MeasuringRanks(transport::Transport* transport, absl::Duration timeout) : transport_(transport), timeout_(timeout) {}

  int32_t count() const { return transport_ == nullptr ? 1 : transport_->rank_count(); }
  int32_t rank() const { return transport_ == nullptr ? 0 : transport_->rank(); }

  // Returns the mean of the ranks' values; all ranks return at the same time.
  absl::StatusOr<double> Mean(double value) const;

  // Rank `first` sends `bytes` to the next one and receives them back; returns the median time of one way. Other ranks
  // only keep pace.
  absl::StatusOr<double> PingPong(int32_t first, std::span<std::byte> bytes, Clock* clock) const;

 private:
  transport::Transport* const transport_;
  const absl::Duration timeout_;
};

}  // namespace atl::trainer
