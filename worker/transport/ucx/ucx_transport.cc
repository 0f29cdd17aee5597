#include "worker/transport/ucx/ucx_transport.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"
#include "worker/transport/failures.h"
#include "worker/transport/handshake.h"
#include "worker/transport/lane_table.h"
#include "worker/transport/operation.h"
#include "worker/transport/rank_order_sum.h"
#include "worker/transport/ucx/ucx_worker.h"

namespace atl::transport {
namespace {

// Tags: bit 63 set for the handshake, with hello or proof in bit 32 and the sender in the low half; otherwise the mark
// of the attempt in the high half and the lane's number in the low one.
constexpr uint64_t kHandshakeBit = uint64_t{1} << 63;

uint64_t HandshakeTag(bool proof, int32_t from) {
  return kHandshakeBit | static_cast<uint64_t>(proof) << 32 | static_cast<uint32_t>(from);
}

uint64_t LaneTag(uint32_t mark, uint32_t lane) {
  return static_cast<uint64_t>(mark) << 32 | lane;
}

// The messages that one peer and this rank exchange when they connect.
struct Introduction {
  Hello hello;
  Proof proof;
  Proof our_proof;
  std::shared_ptr<Operation> hello_received;
  std::shared_ptr<Operation> proof_received;
};

class UcxTransport final : public Transport {
 public:
  UcxTransport(std::unique_ptr<UcxWorker> worker, int32_t rank, int32_t rank_count, AttemptIdentity identity)
      : rank_(rank), rank_count_(rank_count), identity_(std::move(identity)), worker_(std::move(worker)) {}

  int32_t rank() const override { return rank_; }
  int32_t rank_count() const override { return rank_count_; }
  std::string Address() const override { return SealAddress(identity_, rank_, worker_->address()); }

  absl::Status Connect(const std::vector<std::string>& addresses, const std::vector<Lane>& lanes,
                       absl::Duration timeout) override;
  absl::StatusOr<std::unique_ptr<Work>> Send(const Lane& lane, std::span<const std::byte> bytes) override;
  absl::StatusOr<std::unique_ptr<Work>> Receive(const Lane& lane, std::span<std::byte> bytes) override;
  absl::Status AllReduceSum(std::span<double> values, absl::Duration timeout) override {
    return RankOrderSum(this, values, timeout);
  }
  void Abort(absl::Status reason) override { worker_->Abort(reason); }

 private:
  absl::StatusOr<std::vector<std::string>> OpenAddresses(const std::vector<std::string>& sealed) const;
  absl::Status TryConnect(const std::vector<std::string>& sealed, const std::vector<Lane>& lanes,
                          absl::Duration timeout);
  absl::Status Introduce(absl::Duration timeout);
  absl::Status AwaitFrom(int32_t peer, const Operation& operation, absl::Duration deadline);
  absl::StatusOr<uint32_t> LaneNumber(const Lane& lane) const;

  const int32_t rank_;
  const int32_t rank_count_;
  const AttemptIdentity identity_;
  bool connect_called_ = false;
  bool connected_ = false;
  uint32_t mark_ = 0;
  LaneTable lanes_;
  Hello hello_;                              // ours, to every peer
  std::vector<Introduction> introductions_;  // by rank; UCX writes to them until the handshake is over
  const std::unique_ptr<UcxWorker> worker_;  // last: gone before the buffers that it uses
};

absl::StatusOr<std::vector<std::string>> UcxTransport::OpenAddresses(const std::vector<std::string>& sealed) const {
  ATOLL_RETURN_IF_ERROR(CheckAddressCount(sealed.size(), rank_count_));
  std::vector<std::string> addresses(rank_count_);
  for (int32_t peer = 0; peer < rank_count_; ++peer) {
    ATOLL_ASSIGN_OR_RETURN(addresses[peer], OpenAddress(identity_, rank_, peer, sealed[peer]));
  }
  return addresses;
}

absl::Status UcxTransport::Connect(const std::vector<std::string>& addresses, const std::vector<Lane>& lanes,
                                   absl::Duration timeout) {
  if (connect_called_) return ConnectedTwice(rank_);
  connect_called_ = true;
  absl::Status status = TryConnect(addresses, lanes, timeout);
  if (!status.ok()) {
    // The peers learn why from our hello and proof: let them leave first.
    worker_->Flush(std::min(timeout, absl::Seconds(1)));
    worker_->Abort(status);
  }
  connected_ = status.ok();
  return status;
}

absl::Status UcxTransport::TryConnect(const std::vector<std::string>& sealed, const std::vector<Lane>& lanes,
                                      absl::Duration timeout) {
  ATOLL_ASSIGN_OR_RETURN(const std::vector<std::string> addresses, OpenAddresses(sealed));
  ATOLL_ASSIGN_OR_RETURN(lanes_, LaneTable::Create(lanes, rank_count_));
  mark_ = AttemptMark(identity_);
  ATOLL_RETURN_IF_ERROR(worker_->OpenEndpoints(addresses));
  return Introduce(timeout);
}

absl::Status UcxTransport::Introduce(absl::Duration timeout) {
  const absl::Duration deadline = Clock::Real()->Monotonic() + timeout;
  hello_ = MakeHello(rank_, rank_count_, identity_, lanes_);
  introductions_.resize(rank_count_);
  for (int32_t peer = 0; peer < rank_count_; ++peer) {
    if (peer == rank_) continue;
    Introduction& with = introductions_[peer];
    const Lane in = CollectiveLane(peer, rank_);
    ATOLL_ASSIGN_OR_RETURN(with.hello_received, worker_->Receive(in, HandshakeTag(false, peer), with.hello));
    ATOLL_ASSIGN_OR_RETURN(with.proof_received, worker_->Receive(in, HandshakeTag(true, peer), with.proof));
    ATOLL_RETURN_IF_ERROR(worker_->Send(CollectiveLane(rank_, peer), HandshakeTag(false, rank_), hello_).status());
  }
  for (int32_t peer = 0; peer < rank_count_; ++peer) {
    if (peer == rank_) continue;
    Introduction& with = introductions_[peer];
    ATOLL_RETURN_IF_ERROR(AwaitFrom(peer, *with.hello_received, deadline));
    with.our_proof = MakeProof(identity_.secret, hello_, with.hello);
    ATOLL_RETURN_IF_ERROR(
        worker_->Send(CollectiveLane(rank_, peer), HandshakeTag(true, rank_), with.our_proof).status());
  }
  // Judges the peers only after all proofs have arrived, so that a rejected rank receives enough to find the reason.
  for (int32_t peer = 0; peer < rank_count_; ++peer) {
    if (peer != rank_) ATOLL_RETURN_IF_ERROR(AwaitFrom(peer, *introductions_[peer].proof_received, deadline));
  }
  for (int32_t peer = 0; peer < rank_count_; ++peer) {
    if (peer == rank_) continue;
    ATOLL_RETURN_IF_ERROR(Judge(hello_, identity_, peer, introductions_[peer].hello, introductions_[peer].proof));
  }
  return absl::OkStatus();
}

absl::Status UcxTransport::AwaitFrom(int32_t peer, const Operation& operation, absl::Duration deadline) {
  const absl::Duration left = std::max(deadline - Clock::Real()->Monotonic(), absl::ZeroDuration());
  if (auto status = operation.WaitFor(left)) return *std::move(status);
  return MakeError(absl::StatusCode::kDeadlineExceeded, "TRANSPORT_TIMEOUT",
                   fmt::format("rank {}: rank {} did not answer in time to connect", rank_, peer));
}

absl::StatusOr<uint32_t> UcxTransport::LaneNumber(const Lane& lane) const {
  if (!connected_) {
    const absl::Status failure = worker_->failure();
    return failure.ok() ? NotConnected(rank_) : failure;
  }
  return lanes_.IndexOf(lane);
}

absl::StatusOr<std::unique_ptr<Work>> UcxTransport::Send(const Lane& lane, std::span<const std::byte> bytes) {
  ATOLL_RETURN_IF_ERROR(CheckEnd("send", lane, lane.from, rank_));
  ATOLL_ASSIGN_OR_RETURN(const uint32_t number, LaneNumber(lane));
  ATOLL_ASSIGN_OR_RETURN(auto operation, worker_->Send(lane, LaneTag(mark_, number), bytes));
  return MakeWork(std::move(operation), this, Describe("send", lane, bytes.size()));
}

absl::StatusOr<std::unique_ptr<Work>> UcxTransport::Receive(const Lane& lane, std::span<std::byte> bytes) {
  ATOLL_RETURN_IF_ERROR(CheckEnd("receive", lane, lane.to, rank_));
  ATOLL_ASSIGN_OR_RETURN(const uint32_t number, LaneNumber(lane));
  ATOLL_ASSIGN_OR_RETURN(auto operation, worker_->Receive(lane, LaneTag(mark_, number), bytes));
  return MakeWork(std::move(operation), this, Describe("receive", lane, bytes.size()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> MakeUcxTransport(const UcxOptions& options, int32_t rank, int32_t rank_count,
                                                            const AttemptIdentity& identity) {
  if (rank < 0 || rank >= rank_count) {
    return MakeError(absl::StatusCode::kInvalidArgument, "TRANSPORT_RANK_INVALID",
                     fmt::format("rank: expected one in [0, {}), found {}", rank_count, rank));
  }
  ATOLL_ASSIGN_OR_RETURN(auto worker, UcxWorker::Create(options, rank));
  return std::make_unique<UcxTransport>(std::move(worker), rank, rank_count, identity);
}

}  // namespace atl::transport
