// Networks without weights, on a clock of the test.
#include "inference/local/network_memory.h"

#include <thread>

#include "common/base/errors.h"
#include "common/base/fake_clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

NetworkId Expert(int32_t number) {
  return {.model = "m", .version = "v", .digest = "d", .expert = number};
}

class NetworkMemoryTest : public ::testing::Test {
 protected:
  using Pinned = std::shared_ptr<const Network>;

  void Make(int64_t budget, const std::vector<int64_t>& bytes) {
    memory_ = std::make_shared<NetworkMemory>(budget, &clock_);
    for (size_t i = 0; i < bytes.size(); ++i) {
      const auto load = []() -> absl::StatusOr<Pinned> {
        const auto byte = std::make_shared<char>();
        return Pinned(byte, reinterpret_cast<const Network*>(byte.get()));  // no caller looks into it
      };
      ASSERT_TRUE(memory_->Host(Expert(static_cast<int32_t>(i)), bytes[i], load).ok());
    }
  }
  Pinned Pin(int32_t expert) {
    clock_.Advance(absl::Seconds(1));
    return memory_->Pin(Expert(expert)).value();
  }
  std::vector<int32_t> Resident() const {
    std::vector<int32_t> resident;
    for (const HostedNetwork& network : *memory_->hosted()) {
      if (network.resident) resident.push_back(network.id.expert);
    }
    return resident;
  }

  FakeClock clock_;
  std::shared_ptr<NetworkMemory> memory_;
};

TEST_F(NetworkMemoryTest, WithoutALimitAllStays) {
  Make(0, {1'000'000, 1'000'000, 1});
  for (const int32_t expert : {0, 1, 2}) Pin(expert);
  EXPECT_THAT(Resident(), ElementsAre(0, 1, 2));
}

TEST_F(NetworkMemoryTest, TheLeastRecentlyUsedIsEvictedAndNoMoreThanHasTo) {
  Make(100, {40, 60, 20, 90});
  Pin(0);
  Pin(1);
  Pin(0);
  EXPECT_THAT(Resident(), ElementsAre(0, 1)) << "exactly the budget";
  Pin(2);
  EXPECT_THAT(Resident(), ElementsAre(0, 2));
  Pin(3);
  EXPECT_THAT(Resident(), ElementsAre(3)) << "as many as have to";
  EXPECT_EQ(memory_->stats().evictions, 3);
}

TEST_F(NetworkMemoryTest, WhatWasOnlyCheckedIsEvictedFirst) {
  Make(100, {40, 30, 30, 30, 80});
  Pin(0);
  for (const int32_t expert : {1, 2}) ASSERT_TRUE(memory_->PinForCheck(Expert(expert)).ok());
  Pin(3);
  EXPECT_THAT(Resident(), ElementsAre(0, 2, 3));
  Pin(2);
  EXPECT_TRUE(memory_->PinForCheck(Expert(1)).ok());
  EXPECT_THAT(Resident(), ElementsAre(1, 2, 3)) << "a network that a batch asked for stays as any other does";
}

TEST_F(NetworkMemoryTest, WhatIsPinnedStays) {
  Make(100, {50, 50, 50});
  const Pinned oldest = Pin(0);
  Pin(1);
  Pin(2);
  EXPECT_THAT(Resident(), ElementsAre(0, 2));
}

TEST_F(NetworkMemoryTest, WhereAllIsPinnedACallerWaits) {
  Make(100, {50, 50, 80});
  Pinned first = Pin(0);
  Pinned second = Pin(1);
  std::thread waits([&] { EXPECT_TRUE(memory_->Pin(Expert(2)).ok()); });
  EXPECT_EQ(memory_->LoadAhead(Expert(2), {}).value_or(true), false);
  first.reset();
  second.reset();
  waits.join();
  EXPECT_THAT(Resident(), ElementsAre(2));
}

TEST_F(NetworkMemoryTest, ALoadAheadEvictsNothingThatIsKeptOrExpected) {
  Make(100, {50, 50, 50});
  Pin(0);
  Pin(1);
  EXPECT_FALSE(*memory_->LoadAhead(Expert(2), {Expert(0), Expert(1)}));
  memory_->Expect(Expert(1));
  EXPECT_FALSE(*memory_->LoadAhead(Expert(2), {Expert(0)}));
  memory_->Arrived(Expert(1));
  EXPECT_TRUE(*memory_->LoadAhead(Expert(2), {Expert(0)}));
  EXPECT_THAT(Resident(), ElementsAre(0, 2));
  EXPECT_FALSE(*memory_->LoadAhead(Expert(2), {})) << "it is there";
  EXPECT_EQ(memory_->stats().loads_ahead, 1);
}

TEST_F(NetworkMemoryTest, WhatDoesNotFitAloneNamesTheNetworkAndTheBytes) {
  Make(200, {});
  const absl::Status status = memory_->Host(Expert(3), 300, nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReason(status), "EXPERT_DOES_NOT_FIT");
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("expert 3 of model 'm' version 'v': expected a memory budget of at least 300 bytes"));
}

}  // namespace
}  // namespace atl::router
