// Memories of devices without weights, on a clock of the test.
#include "inference/local/device_placer.h"

#include <algorithm>
#include <set>
#include <string>

#include "common/base/errors.h"
#include "common/base/fake_clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "inference/hosted_networks.h"

namespace atl::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

NetworkId Expert(int32_t number) {
  return {.model = "m", .version = "v", .digest = "d", .expert = number};
}

// The tests never dereference it.
std::shared_ptr<const Network> SomeNetwork() {
  const auto byte = std::make_shared<char>();
  return {byte, reinterpret_cast<const Network*>(byte.get())};
}

class DevicePlacerTest : public ::testing::Test {
 protected:
  void Make(int devices, int64_t budget, bool replicate = true) {
    for (int i = 0; i < devices; ++i) memories_.push_back(std::make_shared<NetworkMemory>(budget, &clock_));
    placer_ = std::make_unique<DevicePlacer>(
        DevicePlacerOptions{.replicate = replicate, .interval = absl::ZeroDuration()}, memories_, &clock_);
  }
  // Hosts experts of ten bytes, each loaded where it goes first; the devices.
  std::vector<size_t> Host(const std::vector<int32_t>& experts) {
    std::vector<size_t> devices;
    for (const int32_t expert : experts) {
      const auto device = Announce(expert);
      EXPECT_TRUE(memories_[device]->Pin(Expert(expert)).ok());
      memories_[device]->Arrived(Expert(expert));
      devices.push_back(device);
    }
    return devices;
  }
  size_t Announce(int32_t expert) {
    const auto device = placer_->Host(Expert(expert), 10, [this, expert](size_t) -> NetworkMemory::Load {
      return [this, expert]() -> absl::StatusOr<std::shared_ptr<const Network>> {
        clock_.Advance(absl::Milliseconds(100));
        if (broken_.contains(expert)) return MakeError(absl::StatusCode::kUnavailable, "FILE_ERROR", "away");
        return SomeNetwork();
      };
    });
    EXPECT_TRUE(device.ok()) << device.status();
    return device.value_or(0);
  }
  std::vector<int32_t> On(size_t device) const {
    std::vector<int32_t> experts;
    for (const HostedNetwork& network : *memories_[device]->hosted()) {
      if (network.resident) experts.push_back(network.id.expert);
    }
    return experts;
  }

  FakeClock clock_;
  std::set<int32_t> broken_;
  std::vector<std::shared_ptr<NetworkMemory>> memories_;
  std::unique_ptr<DevicePlacer> placer_;
};

TEST_F(DevicePlacerTest, EveryNetworkLiesOnOneDeviceFirst) {
  Make(2, 30);
  EXPECT_THAT(Host({0, 1, 2, 3}), ElementsAre(0, 1, 0, 1));
  EXPECT_FALSE(placer_->Step());
  EXPECT_THAT(On(0), ElementsAre(0, 2));
  EXPECT_THAT(On(1), ElementsAre(1, 3));
  EXPECT_EQ(memories_[0]->hosted()->size(), 4u) << "every device hosts all of them";
  const NetworkMemoryStats stats = placer_->stats();
  EXPECT_EQ(stats.networks, 4);
  EXPECT_EQ(stats.resident, 4);
  EXPECT_EQ(stats.replicated, 0);
  EXPECT_EQ(stats.budget_bytes, 60);
  EXPECT_THAT(Host({2}), ElementsAre(0)) << "where it lies already";
}

TEST_F(DevicePlacerTest, AHotNetworkIsLoadedAheadWhereThereIsRoom) {
  Make(2, 30);
  Host({0, 1, 2, 3});
  placer_->Record(Expert(0), absl::Milliseconds(900));
  EXPECT_FALSE(placer_->Step()) << "half of it is not worth a load";
  placer_->Record(Expert(0), absl::Milliseconds(200));
  EXPECT_TRUE(placer_->Step());
  EXPECT_FALSE(placer_->Step());
  EXPECT_THAT(On(0), ElementsAre(0, 2));
  EXPECT_THAT(On(1), ElementsAre(0, 1, 3));
  const NetworkMemoryStats stats = placer_->stats();
  EXPECT_EQ(stats.replicated, 1);
  EXPECT_EQ(stats.loads_ahead, 1);
  EXPECT_EQ(stats.loads, 5);
}

TEST_F(DevicePlacerTest, WithoutReplicasEveryNetworkLiesOnce) {
  Make(2, 30, /*replicate=*/false);
  Host({0, 1});
  placer_->Record(Expert(0), absl::Seconds(20));
  EXPECT_FALSE(placer_->Step());
  EXPECT_EQ(placer_->stats().replicated, 0);
}

TEST_F(DevicePlacerTest, AColdOneMovesForAHotOnesCopy) {
  Make(2, 30);
  Host({0, 1, 2, 3, 4});
  ASSERT_THAT(On(0), ElementsAre(0, 2, 4));
  placer_->Record(Expert(1), absl::Seconds(20));
  ASSERT_TRUE(placer_->Step());
  EXPECT_THAT(On(1), ElementsAre(1, 3, 4));
  ASSERT_TRUE(placer_->Step());
  EXPECT_FALSE(placer_->Step());
  EXPECT_THAT(On(0), ElementsAre(0, 1, 2));
  EXPECT_THAT(On(1), ElementsAre(1, 3, 4));
  EXPECT_EQ(placer_->stats().evictions, 1);
}

TEST_F(DevicePlacerTest, UseFadesSoThatAHotterOneTakesTheCopysPlace) {
  Make(2, 20);
  Host({0, 1, 2});
  placer_->Record(Expert(0), absl::Seconds(20));
  ASSERT_TRUE(placer_->Step());
  placer_->Record(Expert(2), absl::Seconds(20));
  EXPECT_FALSE(placer_->Step()) << "as hot, but the other lies there already";
  clock_.Advance(absl::Minutes(5));
  placer_->Record(Expert(2), absl::Seconds(20));
  EXPECT_TRUE(placer_->Step());
  EXPECT_FALSE(placer_->Step());
  EXPECT_THAT(On(0), ElementsAre(0, 2));
  EXPECT_THAT(On(1), ElementsAre(1, 2));
}

TEST_F(DevicePlacerTest, ACopyGivesWayToWhatLiesNowhere) {
  Make(2, 20);
  Host({0, 1, 2});
  placer_->Record(Expert(0), absl::Seconds(20));
  ASSERT_TRUE(placer_->Step());
  ASSERT_FALSE(placer_->Step());
  ASSERT_THAT(On(0), ElementsAre(0, 2));
  ASSERT_THAT(On(1), ElementsAre(0, 1));
  // Expert 2 was not asked for longest, so it makes room for another one.
  clock_.Advance(absl::Seconds(1));
  ASSERT_TRUE(memories_[0]->Pin(Expert(0)).ok());
  ASSERT_THAT(Host({5}), ElementsAre(0));
  ASSERT_THAT(On(0), ElementsAre(0, 5));
  EXPECT_TRUE(placer_->Step());
  EXPECT_FALSE(placer_->Step());
  EXPECT_EQ(placer_->stats().resident, 4);
  EXPECT_EQ(placer_->stats().replicated, 0);
}

TEST_F(DevicePlacerTest, WhatABatchUsesIsNotReplaced) {
  Make(2, 20);
  Host({0, 1, 2});
  placer_->Record(Expert(0), absl::Seconds(1));
  ASSERT_TRUE(placer_->Step());
  placer_->Record(Expert(2), absl::Seconds(20));
  {
    const auto pin = memories_[1]->Pin(Expert(0));
    EXPECT_FALSE(placer_->Step());
    memories_[1]->Expect(Expert(0));
  }
  EXPECT_FALSE(placer_->Step()) << "a batch for it is on its way";
  memories_[1]->Arrived(Expert(0));
  EXPECT_TRUE(placer_->Step());
  EXPECT_THAT(On(1), ElementsAre(1, 2));
}

TEST_F(DevicePlacerTest, WhatIsToComeIsNotLoadedElsewhere) {
  Make(2, 0);
  const size_t device = Announce(0);
  EXPECT_NE(FindHosted(*memories_[device]->hosted(), Expert(0)), nullptr);
  EXPECT_THAT(On(device), ElementsAre(0)) << "listed before it is there, so that no other lane loads it";
  EXPECT_FALSE(placer_->Step());
  EXPECT_EQ(placer_->stats().loads, 0);
  memories_[device]->Arrived(Expert(0));
  EXPECT_THAT(On(device), IsEmpty());
  EXPECT_TRUE(placer_->Step()) << "nobody came for it";
  EXPECT_EQ(placer_->stats().loads, 1);
}

TEST_F(DevicePlacerTest, ALoadThatFailsIsTriedAgainLater) {
  Make(2, 0);
  Host({0, 1});
  placer_->Record(Expert(0), absl::Seconds(20));
  broken_ = {0};
  EXPECT_FALSE(placer_->Step());
  EXPECT_EQ(placer_->stats().resident, 2);
  broken_ = {};
  EXPECT_FALSE(placer_->Step());
  clock_.Advance(absl::Seconds(30));
  EXPECT_TRUE(placer_->Step());
  EXPECT_EQ(placer_->stats().replicated, 1);
}

TEST_F(DevicePlacerTest, WhatIsForgottenIsForgottenEverywhere) {
  Make(2, 0);
  Host({0, 1});
  placer_->Record(Expert(0), absl::Seconds(20));
  ASSERT_TRUE(placer_->Step());
  placer_->Forget(Expert(0));
  EXPECT_EQ(placer_->stats().networks, 1);
  EXPECT_EQ(placer_->stats().resident_bytes, 10);
  EXPECT_FALSE(placer_->Step());
  Host({0});
  EXPECT_FALSE(placer_->Step()) << "its use is forgotten too";
}

TEST_F(DevicePlacerTest, ABudgetTooSmallIsRefusedAndNothingStays) {
  Make(2, 9);
  const auto device = placer_->Host(Expert(0), 10, [](size_t) { return NetworkMemory::Load(); });
  EXPECT_EQ(ErrorReason(device.status()), "EXPERT_DOES_NOT_FIT");
  EXPECT_EQ(placer_->stats().networks, 0);
}

}  // namespace
}  // namespace atl::router
