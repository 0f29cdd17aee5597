// A whole job over real processes: two islands of two ranks.
#include <gtest/gtest.h>

#include "tests/multiproc/cluster.h"

namespace atl::testing_cluster {
namespace {

TEST(WholeJob, TwoIslandsOfTwoRanksPublishAModel) {
  Cluster cluster({.islands = 2, .ranks = 2});
  cluster.WriteDataset();
  const std::string job_id = cluster.Submit(SmallJob(/*experts=*/2, /*steps=*/30, /*checkpoint_every=*/10));
  ASSERT_TRUE(cluster.AwaitSuccess(job_id, absl::Seconds(120)));
  const atlpb::job::v1::Job job = cluster.GetJob(job_id);
  EXPECT_FALSE(job.model_version().empty());
  for (const atlpb::job::v1::Task& task : job.tasks()) {
    EXPECT_EQ(task.state(), atlpb::job::v1::Task::STATE_SUCCEEDED) << task.DebugString();
    EXPECT_EQ(task.attempt(), 1) << task.DebugString();
  }
  for (int expert = 0; expert < 2; ++expert) {
    const storage::CheckpointReader checkpoint = cluster.FinalCheckpoint(job_id, expert);
    EXPECT_EQ(checkpoint.manifest().step, 30);
    EXPECT_EQ(checkpoint.manifest().samples_consumed, 240);
    EXPECT_EQ(checkpoint.manifest().files.size(), 2u) << "one per stage";
  }
}

}  // namespace
}  // namespace atl::testing_cluster
