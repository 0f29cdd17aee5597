#include "worker/transport/nccl/nccl_transport.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"
#include "worker/transport/failures.h"
#include "worker/transport/handshake.h"
#include "worker/transport/lane_table.h"
#include "worker/transport/nccl/nccl_lanes.h"

namespace atl::transport {
namespace {

class NcclWork final : public Work {
 public:
  NcclWork(std::shared_ptr<NcclLanes::Posted> posted, NcclLanes* lanes) : posted_(std::move(posted)), lanes_(lanes) {}
  bool Done() override { return lanes_->Done(*posted_); }
  bool DoneWithin(absl::Duration) override { return Done(); }
  std::optional<absl::Duration> EndedAt() override { return std::nullopt; }
  absl::Status Wait(absl::Duration timeout) override { return lanes_->Order(*posted_, timeout); }

 private:
  const std::shared_ptr<NcclLanes::Posted> posted_;
  NcclLanes* const lanes_;
};

class NcclTransport final : public Transport {
 public:
  NcclTransport(NcclOptions options, int32_t rank, int32_t rank_count, AttemptIdentity identity, std::string payload)
      : options_(std::move(options)),
        rank_(rank),
        rank_count_(rank_count),
        identity_(std::move(identity)),
        payload_(std::move(payload)),
        channels_(options_.api, options_.device, rank, rank_count) {}

  int32_t rank() const override { return rank_; }
  int32_t rank_count() const override { return rank_count_; }
  std::string Address() const override { return SealAddress(identity_, rank_, payload_); }

  absl::Status Connect(const std::vector<std::string>& addresses, const std::vector<Lane>& lanes,
                       absl::Duration timeout) override {
    if (connect_called_) return ConnectedTwice(rank_);
    connect_called_ = true;
    const absl::Status status = TryConnect(addresses, lanes, timeout);
    if (!status.ok()) channels_.Abort(status);
    connected_ = status.ok();
    return status;
  }

  absl::StatusOr<std::unique_ptr<Work>> Send(const Lane& lane, std::span<const std::byte> bytes) override {
    ATOLL_RETURN_IF_ERROR(CheckEnd("send", lane, lane.from, rank_));
    ATOLL_ASSIGN_OR_RETURN(const uint32_t number, LaneNumber(lane));
    ATOLL_ASSIGN_OR_RETURN(auto posted, channels_.Send(lane, number, bytes.data(), bytes.size()));
    return std::make_unique<NcclWork>(std::move(posted), &channels_);
  }

  absl::StatusOr<std::unique_ptr<Work>> Receive(const Lane& lane, std::span<std::byte> bytes) override {
    ATOLL_RETURN_IF_ERROR(CheckEnd("receive", lane, lane.to, rank_));
    ATOLL_ASSIGN_OR_RETURN(const uint32_t number, LaneNumber(lane));
    ATOLL_ASSIGN_OR_RETURN(auto posted, channels_.Receive(lane, number, bytes.data(), bytes.size()));
    return std::make_unique<NcclWork>(std::move(posted), &channels_);
  }

  // Gathered as bytes and added on the host: NCCL's own sum adds in an order that depends on its topology.
  absl::Status AllReduceSum(std::span<double> values, absl::Duration timeout) override {
    if (!connected_) return FailureOr(NotConnected(rank_));
    ATOLL_ASSIGN_OR_RETURN(const std::vector<std::byte> all, channels_.AllGather(std::as_bytes(values), timeout));
    std::vector<double> part(values.size());
    for (int32_t rank = 0; rank < rank_count_; ++rank) {
      std::memcpy(part.data(), all.data() + rank * values.size_bytes(), values.size_bytes());
      for (size_t i = 0; i < values.size(); ++i) values[i] = rank == 0 ? part[i] : values[i] + part[i];
    }
    return absl::OkStatus();
  }

  void Abort(absl::Status reason) override { channels_.Abort(reason); }

 private:
  absl::Status TryConnect(const std::vector<std::string>& addresses, const std::vector<Lane>& lanes,
                          absl::Duration timeout) {
    ATOLL_RETURN_IF_ERROR(CheckAddressCount(addresses.size(), rank_count_));
    std::string unique_id;
    for (int32_t peer = rank_count_; peer-- > 0;) {
      ATOLL_ASSIGN_OR_RETURN(unique_id, OpenAddress(identity_, rank_, peer, addresses[peer]));
    }
    for (const Lane& lane : lanes) {
      if (lane.from != lane.to) continue;
      return MakeError(absl::StatusCode::kInvalidArgument, "TRANSPORT_LANE_INVALID",
                       fmt::format("lane {}: expected two different ranks on a device transport", ToString(lane)));
    }
    ATOLL_ASSIGN_OR_RETURN(lanes_, LaneTable::Create(lanes, rank_count_));
    return channels_.Open(unique_id, lanes_, timeout);
  }

  absl::Status FailureOr(absl::Status otherwise) {
    absl::Status failure = channels_.failure();
    return failure.ok() ? otherwise : failure;
  }

  absl::StatusOr<uint32_t> LaneNumber(const Lane& lane) {
    if (!connected_) return FailureOr(NotConnected(rank_));
    return lanes_.IndexOf(lane);
  }

  const NcclOptions options_;
  const int32_t rank_;
  const int32_t rank_count_;
  const AttemptIdentity identity_;
  const std::string payload_;  // rank 0: NCCL's unique id
  bool connect_called_ = false;
  bool connected_ = false;
  LaneTable lanes_;
  NcclLanes channels_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> MakeNcclTransport(const NcclOptions& options, int32_t rank,
                                                             int32_t rank_count, const AttemptIdentity& identity) {
  if (rank < 0 || rank >= rank_count) {
    return MakeError(absl::StatusCode::kInvalidArgument, "TRANSPORT_RANK_INVALID",
                     fmt::format("rank: expected one in [0, {}), found {}", rank_count, rank));
  }
  ATOLL_ASSIGN_OR_RETURN(const int devices, options.api->DeviceCount());
  if (options.device < 0 || options.device >= devices) {
    return MakeError(absl::StatusCode::kInvalidArgument, "DEVICE_UNAVAILABLE",
                     fmt::format("device: expected one in [0, {}), found {}", devices, options.device));
  }
  ATOLL_RETURN_IF_ERROR(options.api->UseDevice(options.device));
  std::string payload;
  if (rank == 0) {
    ATOLL_ASSIGN_OR_RETURN(payload, options.api->UniqueId());
  }
  return std::make_unique<NcclTransport>(options, rank, rank_count, identity, std::move(payload));
}

}  // namespace atl::transport
