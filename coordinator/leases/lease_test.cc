#include "coordinator/leases/lease.h"

#include "common/base/errors.h"
#include "coordinator/leases/attempt_secret.h"
#include "gtest/gtest.h"

namespace atl::leases {
namespace {

constexpr int64_t kEpoch = 4;

Lease LeaseOf(std::string task_id, std::string island_id, int64_t attempt) {
  return {std::move(task_id), "j", std::move(island_id), 1, attempt, SecretHash("secret"), "", absl::ZeroDuration()};
}

absl::Duration At(int64_t seconds) {
  return absl::Seconds(seconds);
}

TEST(LeaseTest, HeartbeatRenewsEvenAfterTheLeaseRanOut) {
  LeaseTable table({});
  table.Grant(LeaseOf("j/t", "a", 1), At(0));
  EXPECT_FALSE(table.Expired("j/t", At(9)));
  EXPECT_TRUE(table.Expired("j/t", At(10)));
  EXPECT_TRUE(table.Check({"j/t", kEpoch, 1, "secret"}, kEpoch).ok()) << "expiry only makes a task claimable";
  table.Renew("j/t", At(12));
  EXPECT_FALSE(table.Expired("j/t", At(21)));
  EXPECT_TRUE(table.Expired("j/t", At(22)));
}

TEST(LeaseTest, ARestartGivesEveryLeaseAMinute) {
  LeaseTable table({});
  table.Restore(LeaseOf("j/t", "a", 1), At(100));
  EXPECT_FALSE(table.Expired("j/t", At(159)));
  EXPECT_TRUE(table.Expired("j/t", At(160)));
  table.Renew("j/t", At(101));
  EXPECT_FALSE(table.Expired("j/t", At(159))) << "a heartbeat does not shorten the grace";
}

TEST(LeaseTest, OnlyTheActiveAttemptsTokenPasses) {
  LeaseTable table({});
  table.Grant(LeaseOf("j/t", "a", 1), At(0));
  table.Grant(LeaseOf("j/t", "b", 2), At(20));
  struct Case {
    spec::LeaseToken token;
    bool valid;
  };
  const Case cases[] = {
      {{"j/t", kEpoch, 2, "secret"}, true},  {{"j/t", kEpoch, 1, "secret"}, false},
      {{"j/t", kEpoch, 3, "secret"}, false}, {{"j/t", kEpoch - 1, 2, "secret"}, false},
      {{"j/t", kEpoch, 2, "guess"}, false},  {{"j/other", kEpoch, 2, "secret"}, false},
  };
  for (const Case& c : cases) {
    const absl::Status status = table.Check(c.token, kEpoch);
    EXPECT_EQ(status.ok(), c.valid) << status;
    if (!c.valid) {
      EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
      EXPECT_EQ(ErrorReason(status), "STALE_ATTEMPT");
    }
  }
}

TEST(LeaseTest, AReplacedSecretIsTheOnlyOne) {
  LeaseTable table({});
  table.Grant(LeaseOf("j/t", "a", 1), At(0));
  table.ReplaceSecret("j/t", "other");
  EXPECT_EQ(table.Find("j/t")->secret, "other");
  EXPECT_TRUE(table.Check({"j/t", kEpoch, 1, "other"}, kEpoch).ok());
  EXPECT_EQ(ErrorReason(table.Check({"j/t", kEpoch, 1, "secret"}, kEpoch)), "STALE_ATTEMPT");
  EXPECT_EQ(table.Find("j/t")->expires, At(10)) << "a secret renews nothing";
  table.ReplaceSecret("j/u", "other");
  EXPECT_EQ(table.Find("j/u"), nullptr);
}

TEST(LeaseTest, AnIslandHoldsItsLeaseUntilItEndsOrAnotherGetsTheTask) {
  LeaseTable table({});
  table.Grant(LeaseOf("j/t", "a", 1), At(0));
  ASSERT_NE(table.HeldBy("a"), nullptr);
  table.Grant(LeaseOf("j/t", "b", 2), At(20));
  EXPECT_EQ(table.HeldBy("a"), nullptr);
  EXPECT_EQ(table.HeldBy("b")->attempt, 2);
  table.End("j/t");
  EXPECT_EQ(table.HeldBy("b"), nullptr);
  EXPECT_EQ(table.size(), 0u);
}

TEST(LeaseTest, NextExpiryLooksForward) {
  LeaseTable table({});
  EXPECT_EQ(table.NextExpiry(At(0)), absl::InfiniteDuration());
  table.Grant(LeaseOf("j/t", "a", 1), At(0));
  table.Grant(LeaseOf("j/u", "b", 1), At(5));
  EXPECT_EQ(table.NextExpiry(At(0)), At(10));
  EXPECT_EQ(table.NextExpiry(At(10)), At(15));
  EXPECT_EQ(table.CountExpired(At(10)), 1u);
  EXPECT_EQ(table.NextExpiry(At(15)), absl::InfiniteDuration());
}

}  // namespace
}  // namespace atl::leases
