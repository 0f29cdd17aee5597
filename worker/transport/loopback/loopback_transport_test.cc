#include "worker/transport/loopback/loopback_transport.h"

#include <array>
#include <thread>

#include "common/base/errors.h"
#include "gtest/gtest.h"

namespace atl::transport {
namespace {

const Lane kLane{0, 1, 1, LaneKind::kForward};

TEST(LoopbackTransportTest, SendEndsWhenItsReceiveIsPosted) {
  auto ranks = MakeLoopbackTransports(2);
  const std::vector<std::string> addresses = {ranks[0]->Address(), ranks[1]->Address()};
  std::thread other([&] { EXPECT_TRUE(ranks[1]->Connect(addresses, {kLane}, absl::Seconds(10)).ok()); });
  ASSERT_TRUE(ranks[0]->Connect(addresses, {kLane}, absl::Seconds(10)).ok());
  other.join();

  const std::array<std::byte, 3> sent = {std::byte{1}, std::byte{2}, std::byte{3}};
  std::array<std::byte, 3> received = {};
  auto send = ranks[0]->Send(kLane, sent);
  ASSERT_TRUE(send.ok()) << send.status();
  EXPECT_FALSE((*send)->Done());
  auto receive = ranks[1]->Receive(kLane, received);
  ASSERT_TRUE(receive.ok()) << receive.status();
  EXPECT_TRUE((*send)->Done());
  EXPECT_TRUE((*receive)->Wait(absl::ZeroDuration()).ok());
  EXPECT_EQ(received, sent);
}

TEST(LoopbackTransportTest, AddressOfAnotherIslandIsRefused) {
  auto ranks = MakeLoopbackTransports(1);
  auto others = MakeLoopbackTransports(1);
  const absl::Status status = ranks[0]->Connect({others[0]->Address()}, {}, absl::Seconds(1));
  EXPECT_EQ(ErrorReason(status), "TRANSPORT_ADDRESS_INVALID") << status;
}

}  // namespace
}  // namespace atl::transport
