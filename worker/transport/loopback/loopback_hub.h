// The shared state of the loopback ranks: the joined ranks, the queues of posted operations per lane, the aborted
// ranks.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/transport/lane_table.h"
#include "worker/transport/operation.h"
#include "worker/transport/transport.h"

namespace atl::transport {

// Thread-safe: one mutex guards all state, and copies are made under it.
class LoopbackHub {
 public:
  explicit LoopbackHub(const std::vector<AttemptIdentity>& identities);

  int32_t rank_count() const { return static_cast<int32_t>(members_.size()); }
  std::string AddressOf(int32_t rank) const;

  // Waits until every rank has joined, then checks that all have the same identity and lanes.
  absl::Status Join(int32_t rank, const LaneTable& lanes, absl::Duration timeout);

  // Post to lane number `lane`; return the status of an aborted or unconnected rank. `operation` ends when the message
  // has been copied or the rank is aborted.
  absl::Status PostSend(int32_t rank, uint32_t lane, std::span<const std::byte> bytes,
                        std::shared_ptr<Operation> operation);
  absl::Status PostReceive(int32_t rank, uint32_t lane, std::span<std::byte> bytes,
                           std::shared_ptr<Operation> operation);

  void Abort(int32_t rank, const absl::Status& reason);

 private:
  struct Member {
    AttemptIdentity identity;
    bool joined = false;
    bool connected = false;
    std::string lanes;
    absl::Status failure;  // OK until aborted
  };
  struct Posted {
    std::byte* bytes = nullptr;  // read-only for a send
    size_t size = 0;
    std::shared_ptr<Operation> operation;
  };
  // At most one of the two queues is non-empty.
  struct Queues {
    Lane lane;
    std::deque<Posted> sends;
    std::deque<Posted> receives;
  };

  // These need mutex_.
  absl::Status CheckUsable(int32_t rank) const;
  absl::Status JudgePeers(int32_t rank) const;
  void Match(Queues& queues);
  void AbortLocked(int32_t rank, const absl::Status& reason);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Member> members_;  // size fixed at construction; contents guarded by mutex_
  std::vector<Queues> queues_;   // by lane number, set by the first Join; guarded by mutex_
};

}  // namespace atl::transport
