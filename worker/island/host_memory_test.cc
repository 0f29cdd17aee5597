#include "worker/island/host_memory.h"

#include <gtest/gtest.h>

namespace atl::worker {
namespace {

TEST(HostMemoryTest, RanksShareAHostWhereTheLeaderIsOnItOrTheLauncherSaysSo) {
  const RankIdentity local{.ranks = 4, .leader = "127.0.0.1:7170"};
  const RankIdentity far{.ranks = 16, .leader = "node1:7170"};
  EXPECT_EQ(RanksPerHost(local, {}), 4);
  EXPECT_EQ(RanksPerHost({.ranks = 1, .leader = "[::1]:0"}, {}), 1);
  EXPECT_EQ(RanksPerHost(far, {}), 1);
  EXPECT_EQ(RanksPerHost(far, {{"LOCAL_WORLD_SIZE", "8"}}), 8);
  EXPECT_EQ(RanksPerHost(far, {{"SLURM_NTASKS_PER_NODE", "2"}}), 2);
  EXPECT_EQ(RanksPerHost(far, {{"LOCAL_WORLD_SIZE", "64"}}), 16) << "other work of the launcher";
  EXPECT_EQ(RanksPerHost(far, {{"LOCAL_WORLD_SIZE", "2(x3)"}}), 1);
}

TEST(HostMemoryTest, AContainersLimitCountsWhereItIsLess) {
  EXPECT_EQ(MemoryShare(1000, "max\n", 4), 250);
  EXPECT_EQ(MemoryShare(1000, "", 1), 1000);
  EXPECT_EQ(MemoryShare(1000, "400\n", 2), 200);
  EXPECT_EQ(MemoryShare(1000, "9223372036854771712\n", 2), 500);
  EXPECT_GT(HostMemoryPerRank(1), HostMemoryPerRank(2));
}

}  // namespace
}  // namespace atl::worker
