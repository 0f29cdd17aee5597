#include "worker/leader/storage_keeper.h"

#include "gtest/gtest.h"

namespace atl::worker {
namespace {

TEST(StorageKeeperTest, KeysAreRenewedAfterTwoThirdsOfTheirLifeAndThenMoreAndMoreOften) {
  const absl::Time came = absl::FromUnixSeconds(1'700'000'000);
  const auto at = [came](int64_t seconds) { return came + absl::Seconds(seconds); };
  struct Row {
    int64_t now;
    int64_t expires;
    int64_t failures;
    int64_t due;
  };
  for (const Row& row : std::vector<Row>{
           {.now = 0, .expires = 3600, .failures = 0, .due = 2400},
           {.now = 0, .expires = 3, .failures = 0, .due = 2},
           // By a clock that is an hour ahead they have expired when they come.
           {.now = 0, .expires = -60, .failures = 0, .due = 1},
           {.now = 2400, .expires = 3600, .failures = 1, .due = 2520},
           {.now = 2520, .expires = 3600, .failures = 2, .due = 2628},
           {.now = 3595, .expires = 3600, .failures = 9, .due = 3596},
           // Too late: still asked for, since the task waits for nothing else.
           {.now = 4000, .expires = 3600, .failures = 20, .due = 4001},
       }) {
    EXPECT_EQ(RenewalTime(at(row.now), came, at(row.expires), row.failures), at(row.due)) << row.now;
  }
  EXPECT_EQ(RenewalTime(came, came, absl::InfiniteFuture(), 0), absl::InfiniteFuture());
  EXPECT_EQ(RenewalTime(came, came, absl::InfiniteFuture(), 3), absl::InfiniteFuture());
}

}  // namespace
}  // namespace atl::worker
