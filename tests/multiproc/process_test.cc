#include "tests/multiproc/process.h"

#include <cstdlib>
#include <filesystem>

#include <gtest/gtest.h>

namespace atl::testing_cluster {
namespace {

TEST(ProcessTest, ItsEnvironmentReplacesWhatIsInherited) {
  std::string folder = testing::TempDir() + "atoll_process_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  setenv("ATOLL_PROCESS_TEST", "inherited", 1);
  setenv("ATOLL_PROCESS_TEST_2", "beside", 1);
  Process process(
      {"/bin/sh", "-c", "echo $ATOLL_PROCESS_TEST $ATOLL_PROCESS_TEST_2; env | grep -c ATOLL_PROCESS_TEST="},
      folder + "/log", {"ATOLL_PROCESS_TEST=given"});
  EXPECT_EQ(process.Wait(absl::Seconds(60)), 0);
  EXPECT_EQ(process.Log(), "given beside\n1\n");
  unsetenv("ATOLL_PROCESS_TEST");
  unsetenv("ATOLL_PROCESS_TEST_2");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace atl::testing_cluster
