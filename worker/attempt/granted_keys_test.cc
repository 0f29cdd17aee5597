#include "worker/attempt/granted_keys.h"

#include "gtest/gtest.h"

namespace atl::worker {
namespace {

TEST(GrantedKeysTest, AGrantWithoutAnAccessKeyLeavesTheIslandItsOwn) {
  EXPECT_EQ(KeysOf({.writes = {"s3://b/jobs/j/"}}), std::nullopt);
  const storage::GrantedKeys keys{
      .access_key = "k", .secret_key = "s", .session_token = "t", .expires = absl::FromUnixSeconds(1)};
  EXPECT_EQ(KeysOf({.access_key = "k", .secret_key = "s", .session_token = "t", .expires = keys.expires}), keys);
}

}  // namespace
}  // namespace atl::worker
