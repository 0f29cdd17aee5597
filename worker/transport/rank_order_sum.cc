#include "worker/transport/rank_order_sum.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "worker/transport/lane_table.h"

namespace atl::transport {
namespace {

// One call's buffers and posted operations. The operations point into the buffers, so both go together.
struct Exchange {
  Transport* const transport;
  const absl::Duration deadline;
  std::vector<std::vector<double>> parts;  // received, by rank
  std::vector<std::unique_ptr<Work>> works;

  absl::Duration Left() const { return std::max(deadline - Clock::Real()->Monotonic(), absl::ZeroDuration()); }

  absl::Status Receive(int32_t from) {
    ATOLL_ASSIGN_OR_RETURN(auto work, transport->Receive(CollectiveLane(from, transport->rank()),
                                                         std::as_writable_bytes(std::span<double>(parts[from]))));
    works.push_back(std::move(work));
    return absl::OkStatus();
  }

  absl::Status Send(int32_t to, std::span<const double> values) {
    ATOLL_ASSIGN_OR_RETURN(auto work, transport->Send(CollectiveLane(transport->rank(), to), std::as_bytes(values)));
    works.push_back(std::move(work));
    return absl::OkStatus();
  }

  absl::Status WaitForAll() {
    for (const auto& work : works) ATOLL_RETURN_IF_ERROR(work->Wait(Left()));
    works.clear();
    return absl::OkStatus();
  }
};

absl::Status SumOnRankZero(Exchange& exchange, std::span<double> values) {
  const int32_t ranks = exchange.transport->rank_count();
  for (int32_t rank = 1; rank < ranks; ++rank) ATOLL_RETURN_IF_ERROR(exchange.Receive(rank));
  ATOLL_RETURN_IF_ERROR(exchange.WaitForAll());
  for (int32_t rank = 1; rank < ranks; ++rank) {
    for (size_t i = 0; i < values.size(); ++i) values[i] += exchange.parts[rank][i];
  }
  for (int32_t rank = 1; rank < ranks; ++rank) ATOLL_RETURN_IF_ERROR(exchange.Send(rank, values));
  return exchange.WaitForAll();
}

absl::Status SumElsewhere(Exchange& exchange, std::span<double> values) {
  ATOLL_RETURN_IF_ERROR(exchange.Receive(0));
  ATOLL_RETURN_IF_ERROR(exchange.Send(0, values));
  ATOLL_RETURN_IF_ERROR(exchange.WaitForAll());
  std::copy(exchange.parts[0].begin(), exchange.parts[0].end(), values.begin());
  return absl::OkStatus();
}

}  // namespace

absl::Status RankOrderSum(Transport* transport, std::span<double> values, absl::Duration timeout) {
  Exchange exchange{.transport = transport, .deadline = Clock::Real()->Monotonic() + timeout};
  exchange.parts.assign(transport->rank_count(), std::vector<double>(values.size()));
  const absl::Status status = transport->rank() == 0 ? SumOnRankZero(exchange, values) : SumElsewhere(exchange, values);
  if (!status.ok()) {
    transport->Abort(status);
    for (const auto& work : exchange.works) (void)work->Wait(absl::InfiniteDuration());
  }
  return status;
}

}  // namespace atl::transport
