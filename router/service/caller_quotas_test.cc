#include "router/service/caller_quotas.h"

#include <vector>

#include "common/base/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/policy/admission.h"

namespace atl::router {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kNow = absl::Seconds(100);

absl::StatusOr<CallerQuotas::Share> TakeAtOnce(CallerQuotas* quotas, const std::string& subject, int64_t images,
                                               std::optional<int64_t> most) {
  return quotas->Take(subject, images, {.in_flight = most}, kNow);
}

TEST(CallerQuotasTest, AShareIsTakenAndGivenBack) {
  CallerQuotas quotas;
  auto first = TakeAtOnce(&quotas, "alice", 3, 4);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(ErrorReason(TakeAtOnce(&quotas, "alice", 2, 4).status()), "QUOTA_EXCEEDED");
  EXPECT_EQ(TakeAtOnce(&quotas, "alice", 2, 4).status().code(), absl::StatusCode::kResourceExhausted);
  const auto second = TakeAtOnce(&quotas, "alice", 1, 4);
  EXPECT_TRUE(second.ok());
  EXPECT_FALSE(TakeAtOnce(&quotas, "alice", 1, 4).ok());
  EXPECT_TRUE(TakeAtOnce(&quotas, "bob", 4, 4).ok()) << "everybody has a quota of its own";
  first->reset();
  EXPECT_TRUE(TakeAtOnce(&quotas, "alice", 3, 4).ok());
}

TEST(CallerQuotasTest, WithoutALimitNothingIsCounted) {
  CallerQuotas quotas;
  const auto many = TakeAtOnce(&quotas, "alice", 1'000'000, std::nullopt);
  EXPECT_TRUE(many.ok());
  EXPECT_TRUE(TakeAtOnce(&quotas, "alice", 1, 1).ok());
}

TEST(CallerQuotasTest, ZeroIsNothingAtAll) {
  CallerQuotas quotas;
  EXPECT_FALSE(TakeAtOnce(&quotas, "alice", 1, 0).ok());
  EXPECT_FALSE(TakeAtOnce(&quotas, "alice", INT64_MAX, 5).ok());
  const absl::Status none = quotas.Take("alice", 1, {.per_minute = 0}, kNow).status();
  EXPECT_EQ(ErrorReason(none), "QUOTA_EXCEEDED");
  EXPECT_EQ(RetryDelayOf(none), absl::ZeroDuration()) << "waiting does not help";
}

TEST(CallerQuotasTest, AMinutesImagesMayComeAtOnceAndThenOneByOne) {
  struct Step {
    absl::Duration after;
    std::string subject;
    int64_t images;
    absl::Duration retry;  // zero: they are let in
  };
  const std::vector<Step> steps = {
      {absl::ZeroDuration(), "alice", 20, absl::ZeroDuration()},
      {absl::ZeroDuration(), "alice", 10, absl::ZeroDuration()},
      {absl::ZeroDuration(), "alice", 1, absl::Seconds(2)},
      {absl::ZeroDuration(), "bob", 30, absl::ZeroDuration()},
      {absl::Seconds(1), "alice", 3, absl::Seconds(5)},
      {absl::Seconds(2), "alice", 1, absl::ZeroDuration()},
      {absl::Seconds(2), "alice", 1, absl::Seconds(2)},
      {absl::Hours(1), "alice", 30, absl::ZeroDuration()},
      {absl::Hours(1), "alice", 30, absl::Minutes(1)},
  };
  CallerQuotas quotas;
  for (size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    const absl::Status status = quotas.Take(step.subject, step.images, {.per_minute = 30}, kNow + step.after).status();
    EXPECT_EQ(status.ok(), step.retry == absl::ZeroDuration()) << i << ": " << status;
    EXPECT_EQ(RetryDelayOf(status), step.retry) << i;
    if (status.ok()) continue;
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(ErrorReason(status), "QUOTA_EXCEEDED");
  }
  const absl::Status one = quotas.Take("alice", 2, {.per_minute = 30}, kNow + absl::Hours(1)).status();
  EXPECT_EQ(std::string(one.message()),
            "'alice' may ask for 30 images a minute, found a request for 2 more: try again in 4s");
  const absl::Status never = quotas.Take("carol", 31, {.per_minute = 30}, kNow).status();
  EXPECT_THAT(std::string(never.message()), HasSubstr("found a request for 31: ask for fewer at a time"));
  EXPECT_EQ(RetryDelayOf(never), absl::ZeroDuration());
}

TEST(CallerQuotasTest, ImagesThatWereRefusedCountInNoMinute) {
  CallerQuotas quotas;
  const ImageQuota quota{.in_flight = 5, .per_minute = 5};
  const auto refused_here = quotas.Take("alice", 6, quota, kNow);
  EXPECT_FALSE(refused_here.ok());
  {
    const auto share = quotas.Take("alice", 5, quota, kNow);
    ASSERT_TRUE(share.ok()) << share.status();
    EXPECT_FALSE(quotas.Take("alice", 1, quota, kNow).ok());
    quotas.Refund("alice", 5, quota);
  }
  const auto again = quotas.Take("alice", 5, quota, kNow);
  EXPECT_TRUE(again.ok()) << again.status();
}

TEST(CallerQuotasTest, AMinuteGoesOnWhileNothingIsUnderWayAndManyCallersCome) {
  CallerQuotas quotas;
  ASSERT_TRUE(quotas.Take("alice", 5, {.per_minute = 5}, kNow).ok());
  for (int caller = 0; caller < 1000; ++caller) {
    ASSERT_TRUE(quotas.Take("caller-" + std::to_string(caller), 1, {.per_minute = 5}, kNow).ok());
  }
  EXPECT_FALSE(quotas.Take("alice", 1, {.per_minute = 5}, kNow).ok());
  EXPECT_TRUE(quotas.Take("alice", 1, {.per_minute = 5}, kNow + absl::Seconds(12)).ok());
}

}  // namespace
}  // namespace atl::router
