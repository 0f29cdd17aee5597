// Resume is exact: a run that was killed and resumed ends with the bits of the run that was not.
#include <signal.h>

#include <gtest/gtest.h>

#include "tests/multiproc/cluster.h"

namespace atl::testing_cluster {
namespace {

namespace pb = atlpb::job::v1;

TEST(ExactResume, FortyStepsEqualTwentyThenSigkillThenTwenty) {
  Cluster cluster({.islands = 1, .ranks = 2});
  cluster.WriteDataset();
  const spec::JobSpec spec = MediumJob(/*steps=*/40, /*checkpoint_every=*/20);

  const std::string whole = cluster.Submit(spec);
  ASSERT_TRUE(cluster.AwaitSuccess(whole, absl::Seconds(120)));

  // The coordinator falls right after the first commit: however fast the island is, nothing later is committed.
  cluster.StartCoordinator({"ATOLL_FAILPOINTS=store.commit_checkpoint.after_commit=kill@1"});
  const std::string broken = cluster.Submit(spec);
  ASSERT_EQ(cluster.coordinator().Wait(absl::Seconds(120)), -SIGKILL);
  cluster.KillIsland(0);
  cluster.StartCoordinator();
  const auto expert = [&] { return TaskOf(cluster.GetJob(broken), pb::TASK_KIND_TRAIN_EXPERT); };
  ASSERT_EQ(expert().committed_step(), 20);
  ASSERT_EQ(expert().attempt(), 1);
  cluster.StartIsland(0);
  ASSERT_TRUE(cluster.AwaitSuccess(broken, absl::Seconds(120)));
  EXPECT_EQ(expert().attempt(), 2);

  const storage::CheckpointReader a = cluster.FinalCheckpoint(whole, 0);
  const storage::CheckpointReader b = cluster.FinalCheckpoint(broken, 0);
  EXPECT_EQ(a.manifest().step, 40);
  EXPECT_EQ(b.manifest().step, 40);
  EXPECT_EQ(a.manifest().samples_consumed, b.manifest().samples_consumed);
  EXPECT_GT(a.tensors().size(), 100u) << "weights, EMA and both moments of every layer";
  EXPECT_EQ(TensorDifference(a, b), "");
}

}  // namespace
}  // namespace atl::testing_cluster
