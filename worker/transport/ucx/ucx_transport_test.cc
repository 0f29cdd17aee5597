// Tests the properties specific to UCX; tests/contract tests the contract.
#include "worker/transport/ucx/ucx_transport.h"

#include <array>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/base/errors.h"
#include "gtest/gtest.h"

namespace atl::transport {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);
const Lane kLane{0, 1, 1, LaneKind::kForward};

// Two connected ranks over `transports`.
class Pair {
 public:
  explicit Pair(const std::string& transports) {
    std::vector<std::string> addresses;
    for (int32_t rank = 0; rank < 2; ++rank) {
      auto made = MakeUcxTransport({.transports = transports}, rank, 2, {.attempt = 1, .secret = "s"});
      EXPECT_TRUE(made.ok()) << made.status();
      ranks[rank] = *std::move(made);
      addresses.push_back(ranks[rank]->Address());
    }
    std::thread other([&] { EXPECT_TRUE(ranks[1]->Connect(addresses, {kLane}, kPatience).ok()); });
    EXPECT_TRUE(ranks[0]->Connect(addresses, {kLane}, kPatience).ok());
    other.join();
  }
  std::array<std::unique_ptr<Transport>, 2> ranks;
};

TEST(UcxTransportTest, FinishedSendArrivesThoughItsSenderIsGone) {
  for (const char* transports : {"tcp,posix,cma,self", "tcp,self"}) {
    SCOPED_TRACE(transports);
    Pair pair(transports);
    const std::array<std::byte, 5> sent = {std::byte{1}, std::byte{2}, std::byte{3}};
    // Small enough to leave without its receive.
    ASSERT_TRUE((*pair.ranks[0]->Send(kLane, sent))->Wait(kPatience).ok());
    pair.ranks[0].reset();
    std::array<std::byte, 5> received = {};
    auto work = pair.ranks[1]->Receive(kLane, received);
    ASSERT_TRUE(work.ok()) << work.status();
    const absl::Status status = (*work)->Wait(kPatience);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(received, sent);
  }
}

TEST(UcxTransportTest, ReceiveFromAGonePeerFailsOverTcp) {
  Pair pair("tcp,self");
  pair.ranks[0].reset();
  std::array<std::byte, 5> bytes = {};
  auto work = pair.ranks[1]->Receive(kLane, bytes);
  const absl::Status status = work.ok() ? (*work)->Wait(kPatience) : work.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(ErrorReason(status), "TRANSPORT_PEER_LOST") << status;
}

TEST(UcxTransportTest, AbortEndsConnect) {
  auto zero = *MakeUcxTransport({}, 0, 2, {.secret = "s"});
  auto one = *MakeUcxTransport({}, 1, 2, {.secret = "s"});
  const std::vector<std::string> addresses = {zero->Address(), one->Address()};
  std::thread connecting(
      [&] { EXPECT_EQ(zero->Connect(addresses, {kLane}, kPatience), absl::CancelledError("stop")); });
  zero->Abort(absl::CancelledError("stop"));
  connecting.join();
}

TEST(UcxTransportTest, TheEnvironmentsTransportsWin) {
  ASSERT_FALSE(MakeUcxTransport({.transports = "nosuch"}, 0, 2, {}).ok());
  setenv("UCX_TLS", "tcp,self", 1);
  const absl::Status status = MakeUcxTransport({.transports = "nosuch"}, 0, 2, {}).status();
  unsetenv("UCX_TLS");
  EXPECT_TRUE(status.ok()) << status;
}

TEST(UcxTransportTest, UnknownInterfaceIsNamed) {
  const absl::Status status = MakeUcxTransport({.interface = "nosuch0", .transports = "tcp"}, 0, 2, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(ErrorReason(status), "TRANSPORT_UCX");
  EXPECT_NE(status.message().find("nosuch0"), absl::string_view::npos) << status;
}

TEST(UcxTransportTest, BytesThatAreNoAddressAreRefused) {
  auto zero = *MakeUcxTransport({}, 0, 2, {});
  EXPECT_EQ(ErrorReason(zero->Connect({zero->Address(), "junk"}, {}, kPatience)), "TRANSPORT_ADDRESS_INVALID");
  auto alone = *MakeUcxTransport({}, 0, 2, {});
  EXPECT_EQ(ErrorReason(alone->Connect({alone->Address()}, {}, kPatience)), "TRANSPORT_ADDRESS_INVALID");
}

}  // namespace
}  // namespace atl::transport
