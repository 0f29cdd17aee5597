// The coordinator dies in mid-training: no step stops, no attempt changes, nothing acknowledged is lost.
#include <signal.h>

#include <algorithm>
#include <cstdlib>

#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "tests/multiproc/cluster.h"

namespace atl::testing_cluster {
namespace {

namespace pb = atlpb::job::v1;

// No claim: for what only has to happen at all.
constexpr absl::Duration kPatience = absl::Seconds(180);

class LostCoordinator : public testing::Test {
 protected:
  LostCoordinator() { cluster_.WriteDataset(); }

  pb::Task Expert(const std::string& job) { return TaskOf(cluster_.GetJob(job), pb::TASK_KIND_TRAIN_EXPERT); }
  bool AwaitCommit(const std::string& job, int64_t step) {
    return cluster_.AwaitJob(job, kPatience, [step](const pb::Job& found) {
      return TaskOf(found, pb::TASK_KIND_TRAIN_EXPERT).committed_step() >= step;
    });
  }
  void ExpectOneAttemptEach(const std::string& job) {
    const pb::Job found = cluster_.GetJob(job);
    EXPECT_GT(found.tasks_size(), 0);
    for (const pb::Task& task : found.tasks()) EXPECT_EQ(task.attempt(), 1) << task.DebugString();
  }
  // The newest step of which the expert's attempts wrote files, committed or not.
  int64_t NewestWrittenStep(const std::string& job) {
    int64_t newest = 0;
    const auto files = cluster_.store()->List(cluster_.store()->root() + "/jobs/" + job);
    if (!files.ok()) return 0;
    for (const storage::FileInfo& file : *files) {
      const size_t name = file.uri.rfind('/');
      const size_t folder = file.uri.rfind('/', name - 1);
      if (file.uri.find(".safetensors", name) == std::string::npos) continue;
      if (file.uri.find("train_expert") == std::string::npos) continue;
      newest = std::max<int64_t>(newest, std::atoll(file.uri.c_str() + folder + 1));
    }
    return newest;
  }

  Cluster cluster_{{.islands = 1, .ranks = 2}};
};

TEST_F(LostCoordinator, KilledAndStartedAgainInTraining) {
  const std::string job = cluster_.Submit(MediumJob(/*steps=*/200, /*checkpoint_every=*/20));
  int64_t committed = 0;
  for (int64_t step = 20; step <= 100; step += 40) {
    ASSERT_TRUE(AwaitCommit(job, step));
    committed = Expert(job).committed_step();
    cluster_.coordinator().Signal(SIGKILL);
    cluster_.StartCoordinator();
    EXPECT_GE(Expert(job).committed_step(), committed) << "an acknowledged commit is lost";
  }
  ASSERT_TRUE(cluster_.AwaitSuccess(job, kPatience));
  ExpectOneAttemptEach(job);
  EXPECT_EQ(cluster_.FinalCheckpoint(job, 0).manifest().step, 200);
}

TEST_F(LostCoordinator, AwayForHalfAMinuteWhileTrainingGoesOn) {
  const std::string job = cluster_.Submit(MediumJob(/*steps=*/600, /*checkpoint_every=*/20));
  ASSERT_TRUE(AwaitCommit(job, 20));
  const int64_t committed = Expert(job).committed_step();
  const absl::Time killed = absl::Now();
  cluster_.coordinator().Kill();
  // Training continues: later steps are written, though they cannot be committed.
  EXPECT_TRUE(Await(kPatience, [&] { return NewestWrittenStep(job) >= committed + 60; }))
      << "newest " << NewestWrittenStep(job) << ", committed " << committed;
  absl::SleepFor(killed + absl::Seconds(30) - absl::Now());
  cluster_.StartCoordinator();
  EXPECT_GE(Expert(job).committed_step(), committed);
  ASSERT_TRUE(cluster_.AwaitSuccess(job, kPatience));
  ExpectOneAttemptEach(job);
  EXPECT_EQ(cluster_.FinalCheckpoint(job, 0).manifest().step, 600);
}

}  // namespace
}  // namespace atl::testing_cluster
