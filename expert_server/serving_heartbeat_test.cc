#include "expert_server/serving_heartbeat.h"

#include <memory>
#include <string>
#include <vector>

#include "common/base/errors.h"
#include "common/wire/network_wire.h"
#include "expert_server/expert_wire.h"
#include "expert_server/fake_serving_service.h"
#include "gtest/gtest.h"

namespace atl::worker {
namespace {

using State = FakeServingService::State;

constexpr absl::Duration kInterval = absl::Seconds(2);

TEST(NextHeartbeat, AnIntervalAfterTheOneBeforeOrSoonAfterAChange) {
  HeartbeatTimes times;
  EXPECT_LE(NextHeartbeat(times, kInterval), absl::ZeroDuration());
  times.last_start = absl::Seconds(100);
  times.last_end = absl::Seconds(101);
  EXPECT_EQ(NextHeartbeat(times, kInterval), absl::Seconds(102));
  times.changed = true;
  EXPECT_EQ(NextHeartbeat(times, kInterval), absl::Seconds(100.1));
  EXPECT_EQ(NextHeartbeat(times, absl::Milliseconds(20)), absl::Seconds(100.02));
}

TEST(NextHeartbeat, WhileNobodyAnswersTheWaitGrowsToAnIntervalWhateverChanges) {
  HeartbeatTimes times{.last_start = absl::Seconds(98), .last_end = absl::Seconds(100), .changed = true};
  const auto wait = [&](int failures, double jitter) {
    times.failures = failures;
    times.jitter = jitter;
    return NextHeartbeat(times, kInterval) - times.last_end;
  };
  EXPECT_EQ(wait(1, 0), absl::Milliseconds(200));
  EXPECT_EQ(wait(1, 0.5), absl::Milliseconds(150));
  EXPECT_EQ(wait(3, 0), absl::Milliseconds(800));
  EXPECT_EQ(wait(4, 0), absl::Milliseconds(1600));
  EXPECT_EQ(wait(5, 0), kInterval);
  EXPECT_EQ(wait(1000, 0), kInterval);
}

TEST(AdvertisedAddress, IsWhereRoutersReachTheServer) {
  EXPECT_EQ(AdvertisedAddress("127.0.0.1:0", "", 7201).value(), "127.0.0.1:7201");
  EXPECT_EQ(AdvertisedAddress("node-a:7201", "", 7201).value(), "node-a:7201");
  EXPECT_EQ(AdvertisedAddress("[fd00::1]:0", "", 7201).value(), "[fd00::1]:7201");
  EXPECT_EQ(AdvertisedAddress("0.0.0.0:7201", "node-a", 7201).value(), "node-a:7201");
  EXPECT_EQ(AdvertisedAddress("[::]:0", "[fd00::1]", 7201).value(), "[fd00::1]:7201");
  EXPECT_EQ(AdvertisedAddress("0.0.0.0:7201", "node-a:0", 7201).value(), "node-a:7201");
  // Behind a port that is forwarded.
  EXPECT_EQ(AdvertisedAddress("127.0.0.1:7201", "gate:9000", 7201).value(), "gate:9000");
  for (const char* listen : {"0.0.0.0:7201", "[::]:7201", ":7201"}) {
    const absl::Status refused = AdvertisedAddress(listen, "", 7201).status();
    EXPECT_EQ(ErrorReason(refused), "ADVERTISED_ADDRESS_REQUIRED") << listen;
    EXPECT_EQ(ErrorField(refused), "--advertise");
  }
  for (const char* advertise : {"0.0.0.0", "0.0.0.0:7201", ":7201", "node-a:port", "node-a:70000", "node-a:"}) {
    EXPECT_EQ(ErrorReason(AdvertisedAddress("0.0.0.0:7201", advertise, 7201).status()), "INVALID_ADDRESS") << advertise;
  }
}

atlpb::serving::v1::AssignedNetwork Assigned(int32_t expert) {
  atlpb::serving::v1::AssignedNetwork network;
  *network.mutable_network() = wire::ToProto(NetworkId{.model = "m", .version = "v1", .digest = "d", .expert = expert});
  network.set_uri("file:///m");
  return network;
}

class ServingHeartbeatTest : public testing::Test {
 protected:
  ServingHeartbeat::Calls Calls() {
    return {.hosting =
                [this] {
                  absl::MutexLock lock(&mutex_);
                  return hosting_;
                },
            .assign =
                [this](std::vector<AssignedNetwork> assigned) {
                  absl::MutexLock lock(&mutex_);
                  assigned_.push_back(std::move(assigned));
                },
            .superseded =
                [this](const absl::Status& status) {
                  absl::MutexLock lock(&mutex_);
                  superseded_.push_back(ErrorReason(status));
                },
            .answered =
                [this](const absl::Status& status) {
                  absl::MutexLock lock(&mutex_);
                  answered_.push_back(status.code());
                }};
  }
  std::unique_ptr<ServingHeartbeat> Start(const std::string& coordinator) {
    auto heartbeat = std::make_unique<ServingHeartbeat>(
        ServingHeartbeatOptions{.coordinator = coordinator, .server_id = "s", .address = "node-a:1"}, Calls(),
        Clock::Real());
    heartbeat->Start();
    return heartbeat;
  }
  // Waits for the `count`-th assignment.
  std::vector<AssignedNetwork> AwaitAssigned(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return assigned_.size() >= count; };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(20))) return {};
    return assigned_[count - 1];
  }
  bool AwaitFailures(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return std::count(answered_.begin(), answered_.end(), absl::StatusCode::kOk) + count <= answered_.size();
    };
    return mutex_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(20));
  }

  absl::Mutex mutex_;
  atlpb::expert::v1::ListNetworksResponse hosting_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::vector<AssignedNetwork>> assigned_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> superseded_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::StatusCode> answered_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(ServingHeartbeatTest, SaysWhatIsHostedAndHostsWhatIsAssigned) {
  RunningServingService coordinator;
  coordinator.service.Change([](State* state) { state->to_assign = {Assigned(0), Assigned(2)}; });
  const auto heartbeat = Start(coordinator.server->address());
  const std::vector<AssignedNetwork> assigned = AwaitAssigned(1);
  ASSERT_EQ(assigned.size(), 2u);
  EXPECT_EQ(assigned[1].id, (NetworkId{.model = "m", .version = "v1", .digest = "d", .expert = 2}));
  EXPECT_EQ(assigned[1].uri, "file:///m");

  // The interval is a minute, but a change is told at once.
  {
    absl::MutexLock lock(&mutex_);
    hosting_.set_slots(3);
  }
  coordinator.service.Change([](State* state) { state->to_assign = {Assigned(1)}; });
  heartbeat->HostingChanged();
  EXPECT_EQ(AwaitAssigned(2).size(), 1u);
  const auto told = coordinator.service.Copy().heartbeats;
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told[0].server().server_id(), "s");
  EXPECT_EQ(told[0].server().address(), "node-a:1");
  EXPECT_EQ(told[0].server().incarnation().size(), 32u);
  EXPECT_EQ(told[1].server().incarnation(), told[0].server().incarnation());
  EXPECT_GT(told[1].sequence(), told[0].sequence());
  EXPECT_EQ(told[1].server().hosting().slots(), 3);
}

TEST_F(ServingHeartbeatTest, TheCoordinatorSetsTheInterval) {
  RunningServingService coordinator;
  coordinator.service.Change([](State* state) { state->interval = absl::Milliseconds(20); });
  const auto heartbeat = Start(coordinator.server->address());
  EXPECT_TRUE(coordinator.service.AwaitHeartbeats(10));
}

TEST_F(ServingHeartbeatTest, WhatIsHostedStaysWhileNothingIsDecided) {
  RunningServingService coordinator;
  coordinator.service.Change([](State* state) {
    state->undecided = true;
    state->interval = absl::Milliseconds(20);
  });
  const auto heartbeat = Start(coordinator.server->address());
  EXPECT_TRUE(coordinator.service.AwaitHeartbeats(3));
  coordinator.service.Change([](State* state) {
    state->undecided = false;
    state->to_assign = {Assigned(0)};
  });
  EXPECT_EQ(AwaitAssigned(1).size(), 1u);
}

TEST_F(ServingHeartbeatTest, ACoordinatorThatIsAwayChangesNothingAndIsFoundAgain) {
  auto coordinator = std::make_unique<RunningServingService>();
  coordinator->service.Change([](State* state) {
    state->to_assign = {Assigned(0)};
    state->interval = absl::Milliseconds(20);
  });
  const std::string address = coordinator->server->address();
  const auto heartbeat = Start(address);
  EXPECT_EQ(AwaitAssigned(1).size(), 1u);
  coordinator.reset();
  EXPECT_TRUE(AwaitFailures(3));
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& assigned : assigned_) EXPECT_EQ(assigned.size(), 1u);
    assigned_.clear();
  }
  coordinator = std::make_unique<RunningServingService>(address);
  coordinator->service.Change([](State* state) { state->to_assign = {Assigned(0), Assigned(1)}; });
  EXPECT_FALSE(AwaitAssigned(1).empty());
}

TEST_F(ServingHeartbeatTest, WhoIsReplacedSaysSoOnceAndFallsSilent) {
  RunningServingService coordinator;
  coordinator.service.Change([](State* state) {
    state->interval = absl::Milliseconds(10);
    state->answer = MakeError(absl::StatusCode::kAborted, "STALE_INCARNATION", "another process");
  });
  const auto heartbeat = Start(coordinator.server->address());
  {
    absl::MutexLock lock(&mutex_);
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !superseded_.empty(); };
    ASSERT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(20)));
  }
  heartbeat->Leave();
  EXPECT_EQ(coordinator.service.Copy().heartbeats.size(), 1u);
  absl::MutexLock lock(&mutex_);
  EXPECT_EQ(superseded_, std::vector<std::string>{"STALE_INCARNATION"});
  EXPECT_TRUE(assigned_.empty());
}

TEST_F(ServingHeartbeatTest, LeavingIsTheLastWordEvenWhileACallHangs) {
  RunningServingService coordinator;
  coordinator.service.Change([](State* state) { state->hang = true; });
  const auto heartbeat = Start(coordinator.server->address());
  ASSERT_TRUE(coordinator.service.AwaitHeartbeats(1));
  heartbeat->Leave();
  heartbeat->Leave();
  heartbeat->HostingChanged();
  ASSERT_TRUE(coordinator.service.AwaitHeartbeats(2));
  coordinator.service.Change([](State* state) { state->hang = false; });
  const auto told = coordinator.service.Copy().heartbeats;
  EXPECT_FALSE(told[0].leaving());
  EXPECT_TRUE(told[1].leaving());
  EXPECT_EQ(told[1].server().incarnation(), told[0].server().incarnation());
  absl::MutexLock lock(&mutex_);
  EXPECT_TRUE(assigned_.empty());
}

}  // namespace
}  // namespace atl::worker
