#include "client/cluster/stoppable_children.h"

#include <unistd.h>

#include <filesystem>
#include <string>

#include "gtest/gtest.h"

namespace atl::client {
namespace {

class StoppableChildrenTest : public testing::Test {
 protected:
  ~StoppableChildrenTest() override { std::filesystem::remove(log_); }

  SubprocessOptions Shell(const std::string& script) {
    return {.command = {"/bin/sh", "-c", script}, .log_file = log_};
  }

  const std::string log_ = testing::TempDir() + "/stoppable_children_test." + std::to_string(getpid());
};

TEST_F(StoppableChildrenTest, TheFirstThatEndsIsAwaitedFirst) {
  StoppableChildren children;
  ASSERT_TRUE(children.Start(Shell("exec sleep 1000")).ok());
  ASSERT_TRUE(children.Start(Shell("exit 3")).ok());
  const StoppableChildren::Ended failed = children.AwaitAny();
  EXPECT_EQ(failed.child, 1u);
  EXPECT_EQ(DescribeExit(failed.wait_status), "exited with code 3");
  EXPECT_EQ(children.left(), 1u);
  children.Kill();
  const StoppableChildren::Ended killed = children.AwaitAny();
  EXPECT_EQ(killed.child, 0u);
  EXPECT_EQ(DescribeExit(killed.wait_status), "was ended by signal 9");
  EXPECT_EQ(children.left(), 0u);
}

TEST_F(StoppableChildrenTest, AChildOfAnEarlierProgramIsPassedOver) {
  const pid_t stranger = fork();
  if (stranger == 0) _exit(7);
  StoppableChildren children;
  ASSERT_TRUE(children.Start(Shell("exit 3")).ok());
  const StoppableChildren::Ended ended = children.AwaitAny();
  EXPECT_EQ(ended.child, 0u);
  EXPECT_EQ(DescribeExit(ended.wait_status), "exited with code 3");
}

TEST_F(StoppableChildrenTest, WithoutStatusesEveryEndIsStillSeen) {
  signal(SIGCHLD, SIG_IGN);
  {
    StoppableChildren children;
    ASSERT_TRUE(children.Start(Shell("exit 3")).ok());
    ASSERT_TRUE(children.Start(Shell("exit 4")).ok());
    EXPECT_EQ(children.AwaitAny().child, 0u);
    EXPECT_EQ(children.AwaitAny().child, 1u);
    EXPECT_EQ(children.left(), 0u);
  }
  signal(SIGCHLD, SIG_DFL);
}

}  // namespace
}  // namespace atl::client
