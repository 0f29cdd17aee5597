#include "common/base/failpoint.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/time/clock.h"
#include "common/base/errors.h"
#include "gtest/gtest.h"

namespace atl {
namespace {

class FailpointTest : public testing::Test {
 protected:
  ~FailpointTest() override { EXPECT_TRUE(SetFailpoints("").ok()); }
};

TEST_F(FailpointTest, APlaceThatNobodyNamesIsPassed) {
  ASSERT_TRUE(SetFailpoints("manifest.after_write=error").ok());
  EXPECT_TRUE(Failpoint("manifest.before_write").ok());
  EXPECT_EQ(Failpoint("manifest.after_write").code(), absl::StatusCode::kUnavailable);
}

TEST_F(FailpointTest, AnErrorHasTheCodeAndNamesThePlace) {
  ASSERT_TRUE(SetFailpoints("a.b=error:DATA_LOSS").ok());
  const absl::Status status = Failpoint("a.b");
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ErrorReason(status), "FAILPOINT");
  EXPECT_EQ(status.message(), "failpoint a.b");
}

TEST_F(FailpointTest, CountsHowOftenAPlaceIsReached) {
  ASSERT_TRUE(SetFailpoints("once=error@2; later=error@2+; *=error:ABORTED@7; o*=error:INTERNAL@5").ok());
  EXPECT_TRUE(Failpoint("once").ok());
  EXPECT_FALSE(Failpoint("once").ok());
  EXPECT_TRUE(Failpoint("once").ok());
  EXPECT_TRUE(Failpoint("later").ok());
  EXPECT_FALSE(Failpoint("later").ok());
  EXPECT_FALSE(Failpoint("later").ok());
  // The seventh place of any name.
  EXPECT_EQ(Failpoint("other").code(), absl::StatusCode::kAborted);
  // The fifth place whose name starts with o.
  EXPECT_EQ(Failpoint("other").code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(Failpoint("other").ok());
}

TEST_F(FailpointTest, ATextThatCannotBeReadChangesNothing) {
  ASSERT_TRUE(SetFailpoints("a=error").ok());
  for (const std::string text : {"a", "=kill", "a=explode", "a=error:OOPS", "a=error:OK", "a=delay:soon", "a=delay:-1s",
                                 "a=delay:inf", "a=kill@0", "a=kill@x", "b=error;c"}) {
    const absl::Status status = SetFailpoints(text);
    EXPECT_EQ(ErrorReason(status), "INVALID_FAILPOINT") << text;
  }
  EXPECT_FALSE(Failpoint("a").ok());
  EXPECT_TRUE(Failpoint("b").ok());
}

TEST_F(FailpointTest, ADelayWaits) {
  ASSERT_TRUE(SetFailpoints("a=delay:20ms").ok());
  const absl::Time start = absl::Now();
  EXPECT_TRUE(Failpoint("a").ok());
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(20));
}

TEST(FailpointDeathTest, AKillIsSigkill) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        setenv("ATOLL_FAILPOINTS", "a=kill@2", 1);
        (void)Failpoint("a");
        (void)Failpoint("a");
      },
      testing::KilledBySignal(SIGKILL), "");
}

TEST(FailpointDeathTest, TheListHasEveryNameOnceAndEveryFaultThatStruck) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  // The death test runs this body again in another process: the name must be the same there.
  const std::string list = testing::TempDir() + "failpoint_list_of_" + std::to_string(getuid());
  const auto strike = [&] {
    std::remove(list.c_str());
    setenv("ATOLL_FAILPOINT_LIST", list.c_str(), 1);
    setenv("ATOLL_FAILPOINTS", "a=error;b=delay:1ms@2;c=kill", 1);
    for (const char* name : {"a", "b", "a", "b", "b", "d", "c"}) (void)Failpoint(name);
  };
  EXPECT_EXIT(strike(), testing::KilledBySignal(SIGKILL), "");
  std::ifstream file(list);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "a\na=error\nb\na=error\nb=delay\nd\nc\nc=kill\n");
  std::remove(list.c_str());
}

TEST(FailpointDeathTest, AnEnvironmentThatCannotBeReadEndsTheProcess) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        setenv("ATOLL_FAILPOINTS", "a=explode", 1);
        (void)Failpoint("a");
      },
      testing::ExitedWithCode(2), "ATOLL_FAILPOINTS: expected name=kill");
}

}  // namespace
}  // namespace atl
