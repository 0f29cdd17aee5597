// What measurements that all ranks make at once share: the moment at which they begin, and how long they took.
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

// 0 of none.
double Median(std::vector<double> values);

// Seconds of `action`, until the device has done what it was asked to.
absl::StatusOr<double> TimeAction(const std::string& device, Clock* clock, const std::function<absl::Status()>& action);

// Agreement and messages between ranks; does nothing where there is one.
class MeasuringRanks {
 public:
  // A null `transport` is one rank; it must outlive this.
  MeasuringRanks(transport::Transport* transport, absl::Duration timeout) : transport_(transport), timeout_(timeout) {}

  int32_t count() const { return transport_ == nullptr ? 1 : transport_->rank_count(); }
  int32_t rank() const { return transport_ == nullptr ? 0 : transport_->rank(); }

  // The mean of what the ranks say; all of them get past it at the same time.
  absl::StatusOr<double> Mean(double value) const;

  // Rank `first` sends `bytes` to the next one and gets them back; the median of one way. Other ranks only keep pace.
  absl::StatusOr<double> PingPong(int32_t first, std::span<std::byte> bytes, Clock* clock) const;

 private:
  transport::Transport* const transport_;
  const absl::Duration timeout_;
};

}  // namespace atl::trainer
