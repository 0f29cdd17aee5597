// The NCCL transport over a fake NCCL: no device needed.
#include "worker/transport/nccl/nccl_transport.h"

#include <array>
#include <functional>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/base/errors.h"
#include "gtest/gtest.h"
#include "worker/transport/nccl/fake_nccl_api.h"

namespace atl::transport {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);
const AttemptIdentity kIdentity = {.incarnation = 1, .attempt = 2, .secret = "shared"};
const Lane kForward{0, 1, 1, LaneKind::kForward};
const Lane kGradient{1, 0, 1, LaneKind::kGradient};

class NcclTransportTest : public ::testing::Test {
 protected:
  std::unique_ptr<Transport> Make(int32_t rank, int32_t ranks, const AttemptIdentity& identity = kIdentity) {
    auto transport = MakeNcclTransport({.api = &api_}, rank, ranks, identity);
    EXPECT_TRUE(transport.ok()) << transport.status();
    return *std::move(transport);
  }

  std::vector<std::unique_ptr<Transport>> MakeAll(int32_t ranks) {
    std::vector<std::unique_ptr<Transport>> all;
    for (int32_t rank = 0; rank < ranks; ++rank) all.push_back(Make(rank, ranks));
    return all;
  }

  static std::vector<std::string> Addresses(const std::vector<std::unique_ptr<Transport>>& ranks) {
    std::vector<std::string> addresses;
    for (const auto& rank : ranks) addresses.push_back(rank->Address());
    return addresses;
  }

  static void OnEveryRank(std::vector<std::unique_ptr<Transport>>& ranks, const std::function<void(Transport&)>& body) {
    std::vector<std::thread> threads;
    for (auto& rank : ranks) threads.emplace_back([&] { body(*rank); });
    for (std::thread& thread : threads) thread.join();
  }

  static void AwaitDone(Work& work) {
    const absl::Duration deadline = Clock::Real()->Monotonic() + kPatience;
    while (!work.Done() && Clock::Real()->Monotonic() < deadline) std::this_thread::yield();
    EXPECT_TRUE(work.Done());
  }

  FakeNcclApi api_;
};

TEST_F(NcclTransportTest, LanesCarryMessagesInOrder) {
  auto ranks = MakeAll(3);
  const auto addresses = Addresses(ranks);
  const std::vector<Lane> lanes = {kForward, kGradient, {1, 2, 2, LaneKind::kForward}};
  OnEveryRank(ranks, [&](Transport& rank) {
    const absl::Status connected = rank.Connect(addresses, lanes, kPatience);
    ASSERT_TRUE(connected.ok()) << connected;
    std::array<std::byte, 4> first = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};
    std::array<std::byte, 4> second = {std::byte{5}};
    if (rank.rank() == 0) {
      EXPECT_TRUE((*rank.Send(kForward, first))->Wait(kPatience).ok());
      EXPECT_TRUE((*rank.Send(kForward, second))->Wait(kPatience).ok());
    } else if (rank.rank() == 1) {
      std::array<std::byte, 4> one = {};
      std::array<std::byte, 4> two = {};
      auto works = std::array{*rank.Receive(kForward, one), *rank.Receive(kForward, two)};
      for (auto& work : works) {
        EXPECT_TRUE(work->Wait(kPatience).ok());
        AwaitDone(*work);
      }
      EXPECT_EQ(one, first);
      EXPECT_EQ(two, second);
    }
  });
}

TEST_F(NcclTransportTest, EveryCallOfARankIsOnItsDevice) {
  api_.set_device_count(3);
  std::vector<std::unique_ptr<Transport>> ranks;
  for (int32_t rank = 0; rank < 2; ++rank) {
    ranks.push_back(*MakeNcclTransport({.device = rank + 1, .api = &api_}, rank, 2, kIdentity));
  }
  const auto addresses = Addresses(ranks);
  OnEveryRank(ranks, [&](Transport& rank) {
    ASSERT_TRUE(rank.Connect(addresses, {kForward}, kPatience).ok());
    double value = 1;
    ASSERT_TRUE(rank.AllReduceSum({&value, 1}, kPatience).ok());
    std::array<std::byte, 4> bytes = {};
    auto work = rank.rank() == 0 ? *rank.Send(kForward, bytes) : *rank.Receive(kForward, bytes);
    // Something else of this thread, as a library may, has made another device the current one.
    ASSERT_TRUE(api_.UseDevice(0).ok());
    EXPECT_TRUE(work->Wait(kPatience).ok());
  });
  EXPECT_EQ(api_.devices(), (std::map<int, int>{{0, 1}, {1, 2}}));
  // Here the thread's device is the last rank's.
  ASSERT_TRUE(api_.UseDevice(0).ok());
  ranks.clear();
}

TEST_F(NcclTransportTest, SumsAreInRankOrder) {
  auto ranks = MakeAll(3);
  const auto addresses = Addresses(ranks);
  OnEveryRank(ranks, [&](Transport& rank) {
    ASSERT_TRUE(rank.Connect(addresses, {}, kPatience).ok());
    const std::array<double, 3> parts = {1e16, 1.0, -1e16};
    std::array<double, 2> values = {parts[rank.rank()], 1.0};
    ASSERT_TRUE(rank.AllReduceSum(values, kPatience).ok());
    EXPECT_EQ(values[0], (1e16 + 1.0) - 1e16);
    EXPECT_EQ(values[1], 3.0);
  });
}

TEST_F(NcclTransportTest, OtherLanesDoNotConnect) {
  auto ranks = MakeAll(2);
  const auto addresses = Addresses(ranks);
  OnEveryRank(ranks, [&](Transport& rank) {
    const std::vector<Lane> lanes = {rank.rank() == 0 ? kForward : kGradient};
    EXPECT_EQ(ErrorReason(rank.Connect(addresses, lanes, kPatience)), "TRANSPORT_LANES_DIFFER");
  });
  EXPECT_EQ(api_.aborted(), 2);
}

TEST_F(NcclTransportTest, OtherSecretIsRefusedBeforeNcclIsCalled) {
  AttemptIdentity other = kIdentity;
  other.secret = "guess";
  auto zero = Make(0, 2);
  auto one = Make(1, 2, other);
  EXPECT_EQ(ErrorReason(zero->Connect({zero->Address(), one->Address()}, {}, kPatience)), "ATTEMPT_SECRET_MISMATCH");
  EXPECT_EQ(ErrorReason(one->Connect({zero->Address(), one->Address()}, {}, kPatience)), "ATTEMPT_SECRET_MISMATCH");
  EXPECT_EQ(api_.initialised(), 0);
}

TEST_F(NcclTransportTest, SilentPeerEndsConnectAtItsTimeout) {
  auto ranks = MakeAll(2);
  const absl::Status status = ranks[0]->Connect(Addresses(ranks), {kForward}, absl::Milliseconds(20));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_EQ(api_.aborted(), 1);
  double value = 0;
  EXPECT_EQ(ranks[0]->AllReduceSum({&value, 1}, kPatience), status);
}

TEST_F(NcclTransportTest, AbortEndsConnect) {
  auto ranks = MakeAll(2);
  const auto addresses = Addresses(ranks);
  std::thread aborter([&] {
    while (api_.initialised() == 0) std::this_thread::yield();
    ranks[0]->Abort(absl::CancelledError("stop"));
  });
  EXPECT_EQ(ranks[0]->Connect(addresses, {}, absl::InfiniteDuration()), absl::CancelledError("stop"));
  aborter.join();
}

TEST_F(NcclTransportTest, CommunicatorErrorKillsTheInstance) {
  auto ranks = MakeAll(2);
  const auto addresses = Addresses(ranks);
  OnEveryRank(ranks, [&](Transport& rank) { ASSERT_TRUE(rank.Connect(addresses, {kForward}, kPatience).ok()); });
  std::array<std::byte, 8> bytes = {};
  auto work = *ranks[1]->Receive(kForward, bytes);
  EXPECT_TRUE(work->Wait(absl::InfiniteDuration()).ok()) << "only orders the stream";
  api_.FailCommunicators("remote process exited");
  AwaitDone(*work);
  const absl::Status status = ranks[1]->Receive(kForward, bytes).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReason(status), "TRANSPORT_NCCL");
  EXPECT_NE(status.message().find("remote process exited"), absl::string_view::npos) << status;
  EXPECT_EQ(work->Wait(kPatience), status);
}

TEST_F(NcclTransportTest, AbortDoesNotWaitForNcclToEndTheCommunicators) {
  auto ranks = MakeAll(2);
  const auto addresses = Addresses(ranks);
  OnEveryRank(ranks, [&](Transport& rank) { ASSERT_TRUE(rank.Connect(addresses, {kForward}, kPatience).ok()); });
  std::array<std::byte, 8> bytes = {};
  auto work = *ranks[1]->Receive(kForward, bytes);
  api_.HoldAborts(true);
  ranks[1]->Abort(absl::CancelledError("first"));
  const absl::Duration deadline = Clock::Real()->Monotonic() + kPatience;
  while (api_.aborts_begun() == 0 && Clock::Real()->Monotonic() < deadline) std::this_thread::yield();
  ASSERT_EQ(api_.aborts_begun(), 1);
  ranks[1]->Abort(absl::CancelledError("second"));
  EXPECT_FALSE(work->Done()) << "NCCL may still write into the buffer";
  EXPECT_EQ(ranks[1]->Receive(kForward, bytes).status(), absl::CancelledError("first"));
  api_.HoldAborts(false);
  EXPECT_EQ(work->Wait(kPatience), absl::CancelledError("first"));
  EXPECT_EQ(api_.aborted(), 2) << "the world and the lane";
}

TEST_F(NcclTransportTest, WaitedReceiveThatGetsNothingTimesOut) {
  auto ranks = MakeAll(2);
  const auto addresses = Addresses(ranks);
  OnEveryRank(ranks, [&](Transport& rank) { ASSERT_TRUE(rank.Connect(addresses, {kForward}, kPatience).ok()); });
  std::array<std::byte, 8> bytes = {};
  auto work = *ranks[1]->Receive(kForward, bytes);
  EXPECT_TRUE(work->Wait(absl::Milliseconds(10)).ok());
  AwaitDone(*work);
  EXPECT_EQ(ErrorReason(work->Wait(kPatience)), "TRANSPORT_TIMEOUT");
}

TEST_F(NcclTransportTest, LaneToItselfIsRefused) {
  auto ranks = MakeAll(1);
  EXPECT_EQ(ErrorReason(ranks[0]->Connect(Addresses(ranks), {{0, 0, 0, LaneKind::kForward}}, kPatience)),
            "TRANSPORT_LANE_INVALID");
}

TEST_F(NcclTransportTest, MachineWithoutDeviceSaysSo) {
  api_.set_device_count(0);
  const absl::Status status = MakeNcclTransport({.api = &api_}, 0, 1, kIdentity).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ErrorReason(status), "DEVICE_UNAVAILABLE");
  api_.set_device_count(1);
  EXPECT_EQ(ErrorReason(MakeNcclTransport({.device = 3, .api = &api_}, 0, 1, kIdentity).status()),
            "DEVICE_UNAVAILABLE");
}

}  // namespace
}  // namespace atl::transport
