#include "expert_server/hosting_keeper.h"

#include <map>
#include <string>

#include "common/base/errors.h"
#include "common/base/fake_clock.h"
#include "gtest/gtest.h"

namespace atl::worker {
namespace {

AssignedNetwork Expert(int32_t expert, const std::string& digest = "d1") {
  return {.id = {.model = "m", .version = "v1", .digest = digest, .expert = expert}, .uri = "file:///m"};
}

// Records loads and drops, in order; fails the configured loads.
class Loads {
 public:
  HostingKeeper::Calls Calls() {
    return {.load = [this](const AssignedNetwork& network) -> absl::StatusOr<int64_t> {
              absl::MutexLock lock(&mutex_);
              done_ += "+" + std::to_string(network.id.expert);
              if (failing_.contains(network.id.expert)) return failing_[network.id.expert];
              return 100 + network.id.expert;
            },
            .drop =
                [this](const NetworkId& id) {
                  absl::MutexLock lock(&mutex_);
                  done_ += "-" + std::to_string(id.expert);
                }};
  }
  void Fail(int32_t expert, const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    failing_[expert] = status;
  }
  void Heal(int32_t expert) {
    absl::MutexLock lock(&mutex_);
    failing_.erase(expert);
  }
  // Waits until so much was done.
  bool Await(const std::string& done) {
    absl::MutexLock lock(&mutex_);
    const auto reached = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return done_ == done; };
    return mutex_.AwaitWithTimeout(absl::Condition(&reached), absl::Seconds(30));
  }

 private:
  absl::Mutex mutex_;
  std::string done_ ABSL_GUARDED_BY(mutex_);
  std::map<int32_t, absl::Status> failing_ ABSL_GUARDED_BY(mutex_);
};

TEST(HostingKeeper, LoadsWhatIsAssignedAndDropsTheRestFirst) {
  Loads loads;
  HostingKeeper keeper(loads.Calls(), Clock::Real());
  keeper.Assign({Expert(2), Expert(0)});
  EXPECT_TRUE(keeper.AwaitReady().ok());
  EXPECT_TRUE(loads.Await("+0+2"));
  keeper.Assign({Expert(1), Expert(2)});
  EXPECT_TRUE(loads.Await("+0+2-0+1"));
  EXPECT_TRUE(keeper.AwaitReady().ok());
  const auto hosted = keeper.hosted();
  ASSERT_EQ(hosted.size(), 2u);
  EXPECT_EQ(hosted[0].network, Expert(1).id);
  EXPECT_EQ(hosted[0].state, placement::NetworkState::kReady);
  EXPECT_EQ(hosted[0].bytes, 101);
  EXPECT_EQ(hosted[1].network, Expert(2).id);
  // The same assignment again changes nothing.
  keeper.Assign({Expert(1), Expert(2)});
  EXPECT_TRUE(keeper.AwaitReady().ok());
  EXPECT_TRUE(loads.Await("+0+2-0+1"));
}

TEST(HostingKeeper, WhatFailsIsSaidAndTriedAgain) {
  Loads loads;
  loads.Fail(0, MakeError(absl::StatusCode::kUnavailable, "STORE_AWAY", "not now"));
  FakeClock clock;
  HostingKeeper keeper(loads.Calls(), &clock);
  keeper.Assign({Expert(0), Expert(1)});
  EXPECT_EQ(ErrorReason(keeper.AwaitReady()), "STORE_AWAY");
  EXPECT_TRUE(loads.Await("+0+1"));
  loads.Heal(0);
  clock.Advance(absl::Milliseconds(1100));
  EXPECT_TRUE(loads.Await("+0+1+0"));
  EXPECT_TRUE(keeper.AwaitReady().ok());
  EXPECT_EQ(keeper.hosted()[0].state, placement::NetworkState::kReady);
}

TEST(HostingKeeper, WhatIsHostedNoLongerIsLoadedAgainAndFailsByItsReason) {
  Loads loads;
  FakeClock clock;
  HostingKeeper keeper(loads.Calls(), &clock);
  keeper.Assign({Expert(0), Expert(1)});
  EXPECT_TRUE(keeper.AwaitReady().ok());
  loads.Fail(0, MakeError(absl::StatusCode::kDataLoss, "HASH_MISMATCH", "damaged"));
  keeper.LoadAgain(Expert(0).id);
  keeper.LoadAgain(Expert(2).id);  // of which it knows nothing
  EXPECT_EQ(ErrorReason(keeper.AwaitReady()), "HASH_MISMATCH");
  EXPECT_TRUE(loads.Await("+0+1+0"));
  loads.Heal(0);
  clock.Advance(absl::Milliseconds(2100));
  EXPECT_TRUE(loads.Await("+0+1+0+0"));
  EXPECT_TRUE(keeper.AwaitReady().ok());
}

TEST(HostingKeeper, AnotherDigestIsAnotherNetwork) {
  Loads loads;
  HostingKeeper keeper(loads.Calls(), Clock::Real());
  keeper.Assign({Expert(0, "d1")});
  EXPECT_TRUE(keeper.AwaitReady().ok());
  keeper.Assign({Expert(0, "d2")});
  EXPECT_TRUE(loads.Await("+0-0+0"));
}

}  // namespace
}  // namespace atl::worker
