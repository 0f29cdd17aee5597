#include "router/service/caller_quotas.h"

#include "common/base/errors.h"
#include "gtest/gtest.h"

namespace atl::router {
namespace {

TEST(CallerQuotasTest, AShareIsTakenAndGivenBack) {
  CallerQuotas quotas;
  auto first = quotas.Take("alice", 3, 4);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(ErrorReason(quotas.Take("alice", 2, 4).status()), "QUOTA_EXCEEDED");
  EXPECT_EQ(quotas.Take("alice", 2, 4).status().code(), absl::StatusCode::kResourceExhausted);
  const auto second = quotas.Take("alice", 1, 4);
  EXPECT_TRUE(second.ok());
  EXPECT_FALSE(quotas.Take("alice", 1, 4).ok());
  EXPECT_TRUE(quotas.Take("bob", 4, 4).ok()) << "everybody has a quota of its own";
  first->reset();
  EXPECT_TRUE(quotas.Take("alice", 3, 4).ok());
}

TEST(CallerQuotasTest, WithoutALimitNothingIsCounted) {
  CallerQuotas quotas;
  const auto many = quotas.Take("alice", 1'000'000, std::nullopt);
  EXPECT_TRUE(many.ok());
  EXPECT_TRUE(quotas.Take("alice", 1, 1).ok());
}

TEST(CallerQuotasTest, ZeroIsNothingAtAll) {
  CallerQuotas quotas;
  EXPECT_FALSE(quotas.Take("alice", 1, 0).ok());
  EXPECT_FALSE(quotas.Take("alice", INT64_MAX, 5).ok());
}

TEST(CallerQuotasTest, AShareOutlivesTheQuotas) {
  auto quotas = std::make_unique<CallerQuotas>();
  auto share = quotas->Take("alice", 1, 1);
  quotas.reset();
  ASSERT_TRUE(share.ok());
  share->reset();
}

}  // namespace
}  // namespace atl::router
