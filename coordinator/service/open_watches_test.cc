#include "coordinator/service/open_watches.h"

#include "common/base/errors.h"
#include "gtest/gtest.h"

namespace atl::coordinator {
namespace {

TEST(OpenWatchesTest, EachCallerHasItsOwnLimit) {
  OpenWatches watches;
  for (int i = 0; i < kMostWatchesOfCaller; ++i) ASSERT_TRUE(watches.Open("alice").ok()) << i;
  const absl::Status refused = watches.Open("alice");
  EXPECT_EQ(ErrorReason(refused), "TOO_MANY_WATCHES");
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(watches.Open("bob").ok());
  watches.Close("alice");
  EXPECT_TRUE(watches.Open("alice").ok());
  EXPECT_FALSE(watches.Open("alice").ok()) << "one place was given back";
}

}  // namespace
}  // namespace atl::coordinator
