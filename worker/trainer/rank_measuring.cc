#include "worker/trainer/rank_measuring.h"

#include <algorithm>

#include <c10/core/impl/VirtualGuardImpl.h>

#include "common/base/status_macros.h"

namespace atl::trainer {
namespace {

using transport::Lane;
using transport::LaneKind;

constexpr int32_t kPings = 20;

// A device computes after the call has returned.
void AwaitDevice(const std::string& name) {
  const at::Device device(name);
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeDevice((device.has_index() ? device : guard.getDevice()).index());
}

absl::Status Send(transport::Transport* transport, const Lane& lane, std::span<const std::byte> bytes,
                  absl::Duration timeout) {
  ATOLL_ASSIGN_OR_RETURN(const auto work, transport->Send(lane, bytes));
  return work->Wait(timeout);
}

absl::Status Receive(transport::Transport* transport, const Lane& lane, std::span<std::byte> bytes,
                     absl::Duration timeout) {
  ATOLL_ASSIGN_OR_RETURN(const auto work, transport->Receive(lane, bytes));
  return work->Wait(timeout);
}

}  // namespace

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

absl::StatusOr<double> TimeAction(const std::string& device, Clock* clock,
                                  const std::function<absl::Status()>& action) {
  const absl::Duration start = clock->Monotonic();
  ATOLL_RETURN_IF_ERROR(action());
  AwaitDevice(device);
  return absl::ToDoubleSeconds(clock->Monotonic() - start);
}

absl::StatusOr<double> MeasuringRanks::Mean(double value) const {
  if (count() == 1) return value;
  ATOLL_RETURN_IF_ERROR(transport_->AllReduceSum(std::span<double>(&value, 1), timeout_));
  return value / count();
}

absl::StatusOr<double> MeasuringRanks::PingPong(int32_t first, std::span<std::byte> bytes, Clock* clock) const {
  const Lane there{first, first + 1, 0, LaneKind::kControl};
  const Lane back{first + 1, first, 0, LaneKind::kControl};
  std::vector<double> seconds;
  for (int32_t ping = 0; ping < kPings; ++ping) {
    const absl::Duration start = clock->Monotonic();
    if (rank() == first) ATOLL_RETURN_IF_ERROR(Send(transport_, there, bytes, timeout_));
    if (rank() == first + 1) {
      ATOLL_RETURN_IF_ERROR(Receive(transport_, there, bytes, timeout_));
      ATOLL_RETURN_IF_ERROR(Send(transport_, back, bytes, timeout_));
    }
    if (rank() == first) ATOLL_RETURN_IF_ERROR(Receive(transport_, back, bytes, timeout_));
    seconds.push_back(absl::ToDoubleSeconds(clock->Monotonic() - start) / 2);
  }
  return Median(seconds);
}

}  // namespace atl::trainer
