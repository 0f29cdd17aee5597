#include "worker/transport/loopback/loopback_transport.h"

#include <utility>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"
#include "worker/transport/failures.h"
#include "worker/transport/lane_table.h"
#include "worker/transport/loopback/loopback_hub.h"
#include "worker/transport/operation.h"
#include "worker/transport/rank_order_sum.h"

namespace atl::transport {
namespace {

class LoopbackTransport final : public Transport {
 public:
  LoopbackTransport(std::shared_ptr<LoopbackHub> hub, int32_t rank) : hub_(std::move(hub)), rank_(rank) {}
  ~LoopbackTransport() override { hub_->Abort(rank_, Closed(rank_)); }

  int32_t rank() const override { return rank_; }
  int32_t rank_count() const override { return hub_->rank_count(); }
  std::string Address() const override { return hub_->AddressOf(rank_); }

  absl::Status Connect(const std::vector<std::string>& addresses, const std::vector<Lane>& lanes,
                       absl::Duration timeout) override {
    ATOLL_RETURN_IF_ERROR(CheckAddressCount(addresses.size(), rank_count()));
    for (int32_t peer = 0; peer < rank_count(); ++peer) {
      if (addresses[peer] == hub_->AddressOf(peer)) continue;
      return MakeError(
          absl::StatusCode::kInvalidArgument, "TRANSPORT_ADDRESS_INVALID",
          fmt::format("address of rank {}: expected '{}', found '{}'", peer, hub_->AddressOf(peer), addresses[peer]));
    }
    ATOLL_ASSIGN_OR_RETURN(lanes_, LaneTable::Create(lanes, rank_count()));
    return hub_->Join(rank_, lanes_, timeout);
  }

  absl::StatusOr<std::unique_ptr<Work>> Send(const Lane& lane, std::span<const std::byte> bytes) override {
    ATOLL_RETURN_IF_ERROR(CheckEnd("send", lane, lane.from, rank_));
    ATOLL_ASSIGN_OR_RETURN(const uint32_t index, lanes_.IndexOf(lane));
    auto operation = std::make_shared<Operation>();
    ATOLL_RETURN_IF_ERROR(hub_->PostSend(rank_, index, bytes, operation));
    return MakeWork(std::move(operation), this, Describe("send", lane, bytes.size()));
  }

  absl::StatusOr<std::unique_ptr<Work>> Receive(const Lane& lane, std::span<std::byte> bytes) override {
    ATOLL_RETURN_IF_ERROR(CheckEnd("receive", lane, lane.to, rank_));
    ATOLL_ASSIGN_OR_RETURN(const uint32_t index, lanes_.IndexOf(lane));
    auto operation = std::make_shared<Operation>();
    ATOLL_RETURN_IF_ERROR(hub_->PostReceive(rank_, index, bytes, operation));
    return MakeWork(std::move(operation), this, Describe("receive", lane, bytes.size()));
  }

  absl::Status AllReduceSum(std::span<double> values, absl::Duration timeout) override {
    return RankOrderSum(this, values, timeout);
  }

  void Abort(absl::Status reason) override { hub_->Abort(rank_, reason); }

 private:
  const std::shared_ptr<LoopbackHub> hub_;
  const int32_t rank_;
  LaneTable lanes_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> MakeLoopbackTransports(int32_t rank_count, const AttemptIdentity& identity) {
  return MakeLoopbackTransports(std::vector<AttemptIdentity>(rank_count, identity));
}

std::vector<std::unique_ptr<Transport>> MakeLoopbackTransports(const std::vector<AttemptIdentity>& identities) {
  const auto hub = std::make_shared<LoopbackHub>(identities);
  std::vector<std::unique_ptr<Transport>> transports;
  for (int32_t rank = 0; rank < hub->rank_count(); ++rank) {
    transports.push_back(std::make_unique<LoopbackTransport>(hub, rank));
  }
  return transports;
}

}  // namespace atl::transport
