#include "router/policy/failover.h"

#include "common/base/errors.h"
#include "gtest/gtest.h"

namespace atl::router {
namespace {

constexpr absl::Duration Ms(int64_t ms) {
  return absl::Milliseconds(ms);
}

TEST(FirstAttemptLimitTest, IsAMultipleOfWhatSuchBatchesTookWithinBounds) {
  EXPECT_EQ(FirstAttemptLimit({}, 4), kLongestCall) << "nothing was measured";
  EXPECT_EQ(FirstAttemptLimit({.fixed = Ms(10), .per_row = Ms(10)}, 4), Ms(400));
  EXPECT_EQ(FirstAttemptLimit({.per_row = Ms(1)}, 4), Ms(200));
  EXPECT_EQ(FirstAttemptLimit({.per_row = absl::Seconds(2)}, 4), kLongestCall);
}

TEST(CircuitBreakerTest, OpensForLongerWithEveryFailureAndAnAnswerClosesIt) {
  CircuitBreaker breaker;
  EXPECT_FALSE(breaker.open(Ms(0)));
  EXPECT_FALSE(breaker.half_open(Ms(0)));
  breaker.Trip(Ms(0));
  EXPECT_TRUE(breaker.open(Ms(499)));
  breaker.Trip(Ms(400));
  EXPECT_EQ(breaker.open_until(), Ms(500)) << "this call left before";
  EXPECT_TRUE(breaker.half_open(Ms(500)));
  breaker.Trip(Ms(600));
  EXPECT_EQ(breaker.open_until(), Ms(1600));
  for (int i = 0; i < 20; ++i) breaker.Trip(breaker.open_until());
  const absl::Duration before = breaker.open_until();
  breaker.Trip(before);
  EXPECT_EQ(breaker.open_until() - before, absl::Seconds(30));
  breaker.Close();
  EXPECT_FALSE(breaker.open(Ms(0)));
  EXPECT_FALSE(breaker.half_open(Ms(0)));
  breaker.Trip(Ms(0));
  EXPECT_EQ(breaker.open_until(), Ms(500)) << "from the beginning";
}

TEST(FailoverErrorTest, OnlyWhatAnotherReplicaMayDoBetter) {
  EXPECT_TRUE(IsFailoverError(absl::UnavailableError("")));
  EXPECT_TRUE(IsFailoverError(absl::DeadlineExceededError("")));
  EXPECT_TRUE(IsFailoverError(absl::CancelledError("")));
  EXPECT_TRUE(IsFailoverError(absl::ResourceExhaustedError("")));
  EXPECT_TRUE(IsFailoverError(MakeError(absl::StatusCode::kNotFound, "NETWORK_NOT_HOSTED", "")));
  EXPECT_FALSE(IsFailoverError(absl::OkStatus()));
  EXPECT_FALSE(IsFailoverError(absl::NotFoundError("")));
  EXPECT_FALSE(IsFailoverError(absl::InternalError("")));
  EXPECT_FALSE(IsFailoverError(absl::InvalidArgumentError("")));
}

TEST(ExpertLostTest, NamesTheNetworkAndWhy) {
  const absl::Status lost = ExpertLost({.model = "digits", .version = "v1", .digest = "d", .expert = 3}, "'a': gone");
  EXPECT_EQ(lost.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReason(lost), "EXPERT_LOST");
  EXPECT_EQ(lost.message(), "expert 3 of model 'digits' version 'v1': no replica answers: 'a': gone");
}

}  // namespace
}  // namespace atl::router
