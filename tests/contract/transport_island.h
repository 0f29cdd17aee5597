// Runs the ranks of one island for the transport contract: as threads of this process or as forked processes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/transport/transport.h"

namespace atl::transport {

// The tools of one rank's body. Belongs to the rank's thread.
class RankSeat {
 public:
  virtual ~RankSeat() = default;

  virtual int32_t rank() const = 0;
  virtual int32_t rank_count() const = 0;

  // Returns every rank's text, by rank. Every rank must call it equally often: it is also a barrier.
  virtual std::vector<std::string> AllGather(const std::string& text) = 0;

  // This rank's transport, not connected.
  Transport& transport() { return *transport_; }
  // Exchanges the addresses and connects.
  absl::Status Connect(const std::vector<Lane>& lanes, absl::Duration timeout = absl::Seconds(20));
  void Barrier() { AllGather(""); }
  void DestroyTransport() { transport_.reset(); }

 protected:
  std::unique_ptr<Transport> transport_;
};

using RankBody = std::function<void(RankSeat&)>;

// One implementation under test.
class Island {
 public:
  virtual ~Island() = default;

  // Runs `body` once per identity, all at the same time, and returns when all have ended. A failed expectation in any
  // of them fails the test. Ranks in `killed` are processes that end by SIGKILL.
  virtual void Run(const std::vector<AttemptIdentity>& identities, const RankBody& body,
                   const std::vector<int32_t>& killed = {}) = 0;
  void Run(int32_t rank_count, const RankBody& body) {
    Run(std::vector<AttemptIdentity>(rank_count, Identity()), body);
  }

  static AttemptIdentity Identity() { return {.incarnation = 2, .attempt = 5, .secret = "the attempt's secret"}; }
};

// Makes rank `rank`'s transport, inside the process that will use it.
using TransportFactory =
    std::function<std::unique_ptr<Transport>(int32_t rank, int32_t rank_count, const AttemptIdentity&)>;

std::unique_ptr<Island> MakeLoopbackIsland();
std::unique_ptr<Island> MakeThreadIsland(TransportFactory factory);
// Forks one process per rank. The calling process must not have used the transport's library before.
std::unique_ptr<Island> MakeProcessIsland(TransportFactory factory);

}  // namespace atl::transport
