// Training that diverges goes back and leaves out what it read since, with the bits of a run that never read it; a task
// that diverges again and again fails and says why; a damaged checkpoint is left for the one before.
#include <signal.h>

#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "coordinator/store/sqlite_store.h"
#include "tests/multiproc/cluster.h"

namespace atl::testing_cluster {
namespace {

namespace pb = atlpb::job::v1;

constexpr absl::Duration kPatience = absl::Seconds(120);
constexpr int kSteps = 20;
constexpr int kCheckpointEvery = 5;
constexpr int kBatch = 8;

pb::Task ExpertOf(Cluster& cluster, const std::string& job) {
  return TaskOf(cluster.GetJob(job), pb::TASK_KIND_TRAIN_EXPERT);
}

TEST(Rollback, ADivergedRunEndsWithTheBitsOfOneThatNeverReadWhatBroke) {
  // The expert trains first: its 12th loss is no number, and no later one.
  Cluster cluster({.worker_environment = {"ATOLL_FAILPOINTS=trainer.loss=error@12"}});
  cluster.WriteDataset();
  const spec::JobSpec spec = SmallJob(1, kSteps, kCheckpointEvery);
  const std::string diverged = cluster.Submit(spec);
  ASSERT_TRUE(cluster.AwaitSuccess(diverged, kPatience));
  const pb::Task expert = ExpertOf(cluster, diverged);
  ASSERT_EQ(expert.rollbacks_size(), 1) << expert.DebugString();
  const pb::Rollback& rollback = expert.rollbacks(0);
  EXPECT_EQ(rollback.attempt(), 1);
  EXPECT_EQ(rollback.from_step(), 12);
  // 10, where a busy machine did not keep that checkpoint from its commit.
  EXPECT_TRUE(rollback.to_step() == 10 || rollback.to_step() == 5) << rollback.to_step();
  const int64_t skipped = 12 - rollback.to_step();
  EXPECT_EQ(rollback.skipped_first_step(), rollback.to_step() + 1);
  EXPECT_EQ(rollback.skipped_steps(), skipped);
  EXPECT_EQ(rollback.reason(), "LOSS_NOT_FINITE");
  EXPECT_EQ(expert.attempt(), 2);
  const auto evidence = cluster.store()->Read(rollback.evidence_uri());
  ASSERT_TRUE(evidence.ok()) << evidence.status();
  EXPECT_NE(evidence->find("\"cause\": \"LOSS_NOT_FINITE\""), std::string::npos) << *evidence;

  // The same job again, told before its first step to leave the same batches out.
  cluster.KillIsland(0);
  const std::string told = cluster.Submit(spec);
  cluster.coordinator().Kill();
  {
    auto store = store::SqliteStore::Open({cluster.folder() + "/coordinator.db"});
    ASSERT_TRUE(store.ok()) << store.status();
    const auto written = (*store)->Write("test", [&](store::Transaction& transaction) {
      return transaction.InsertRollback(told + "/train_expert-0",
                                        {.skipped = {rollback.skipped_first_step(), skipped}, .reason = "TEST"});
    });
    ASSERT_TRUE(written.ok()) << written;
  }
  cluster.StartCoordinator();
  cluster.StartIsland(0);
  ASSERT_TRUE(cluster.AwaitSuccess(told, kPatience));
  EXPECT_EQ(ExpertOf(cluster, told).attempt(), 1);

  const storage::CheckpointReader a = cluster.FinalCheckpoint(diverged, 0);
  const storage::CheckpointReader b = cluster.FinalCheckpoint(told, 0);
  EXPECT_EQ(a.manifest().step, kSteps);
  EXPECT_EQ(a.manifest().samples_consumed, (kSteps + skipped) * kBatch);
  EXPECT_EQ(b.manifest().samples_consumed, (kSteps + skipped) * kBatch);
  EXPECT_EQ(TensorDifference(a, b), "");
}

TEST(Rollback, ATaskThatDivergesAThirdTimeFailsWithAllEvidenceNamed) {
  // After the expert's steps the second of the router network is no number, nor is any later one.
  Cluster cluster({.worker_environment = {fmt::format("ATOLL_FAILPOINTS=trainer.loss=error@{}+", kSteps + 2)}});
  cluster.WriteDataset();
  const std::string id = cluster.Submit(SmallJob(1, kSteps, kCheckpointEvery));
  pb::Job job;
  ASSERT_TRUE(cluster.AwaitJob(id, kPatience, [&](const pb::Job& now) {
    job = now;
    return job.state() == pb::Job::STATE_FAILED;
  }));
  EXPECT_EQ(TaskOf(job, pb::TASK_KIND_TRAIN_EXPERT).state(), pb::Task::STATE_SUCCEEDED);
  const pb::Task& router = TaskOf(job, pb::TASK_KIND_TRAIN_ROUTER);
  EXPECT_EQ(router.state(), pb::Task::STATE_FAILED);
  ASSERT_EQ(router.rollbacks_size(), 2) << router.DebugString();
  EXPECT_EQ(router.rollbacks(0).to_step(), 0);
  EXPECT_EQ(router.rollbacks(0).skipped_first_step(), 1);
  EXPECT_EQ(router.rollbacks(0).skipped_steps(), 2);
  EXPECT_EQ(router.rollbacks(1).skipped_first_step(), 3) << "its first step is now the third of a run without skips";
  EXPECT_EQ(router.rollbacks(1).skipped_steps(), 1);
  EXPECT_NE(job.message().find(router.task_id()), std::string::npos) << job.message();
  for (int attempt = 1; attempt <= 3; ++attempt) {
    const std::string evidence = cluster.store()->UriOf(
        fmt::format("jobs/{}/1-{}/evidence/{:08}.json", router.task_id(), attempt, attempt == 1 ? 2 : 1));
    EXPECT_NE(job.message().find(evidence), std::string::npos) << job.message();
    EXPECT_TRUE(cluster.store()->Read(evidence).ok()) << evidence;
  }
  ASSERT_EQ(router.last_errors_size(), 3);
  EXPECT_EQ(router.last_errors(0).attempt(), 3);
  EXPECT_EQ(router.last_errors(0).code(), "LOSS_NOT_FINITE");
  EXPECT_EQ(router.last_errors(0).island_id(), "island-0");
}

TEST(Rollback, AFlippedByteInTheNewestCheckpointCostsOneIntervalAndNothingElse) {
  Cluster cluster({});
  cluster.WriteDataset();
  const spec::JobSpec spec = SmallJob(1, kSteps, kCheckpointEvery);
  const std::string whole = cluster.Submit(spec);
  ASSERT_TRUE(cluster.AwaitSuccess(whole, kPatience));

  // The coordinator falls right after the second commit: however fast the island is, nothing later is committed.
  cluster.StartCoordinator({"ATOLL_FAILPOINTS=store.commit_checkpoint.after_commit=kill@2"});
  const std::string damaged = cluster.Submit(spec);
  ASSERT_EQ(cluster.coordinator().Wait(kPatience), -SIGKILL);
  cluster.KillIsland(0);
  cluster.StartCoordinator();
  const int64_t newest = ExpertOf(cluster, damaged).committed_step();
  const std::string name = fmt::format("/{:08}-", newest);
  const std::string folder = fmt::format("{}/blobs/jobs/{}/train_expert-0/1-1", cluster.folder(), damaged);
  std::string flipped;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const std::string path = entry.path();
    if (path.find(name) == std::string::npos || !path.ends_with(".safetensors")) continue;
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-1, std::ios::end);
    const char last = static_cast<char>(file.get() ^ 1);
    file.seekp(-1, std::ios::end);
    ASSERT_TRUE(file.put(last).good()) << path;
    flipped = path;
    break;
  }
  ASSERT_FALSE(flipped.empty()) << "no checkpoint of step " << newest << " in " << folder;
  cluster.StartIsland(0);
  ASSERT_TRUE(cluster.AwaitSuccess(damaged, kPatience));
  const pb::Task expert = ExpertOf(cluster, damaged);
  ASSERT_EQ(expert.rollbacks_size(), 1) << expert.DebugString();
  EXPECT_EQ(expert.rollbacks(0).from_step(), newest);
  EXPECT_LT(expert.rollbacks(0).to_step(), newest);
  EXPECT_GT(expert.rollbacks(0).to_step(), 0);
  EXPECT_EQ(expert.rollbacks(0).skipped_steps(), 0);
  EXPECT_EQ(expert.rollbacks(0).reason(), "CHECKPOINT_UNREADABLE");
  EXPECT_NE(expert.rollbacks(0).message().find(std::filesystem::path(flipped).filename().string()), std::string::npos)
      << expert.rollbacks(0).message();
  const storage::CheckpointReader a = cluster.FinalCheckpoint(whole, 0);
  const storage::CheckpointReader b = cluster.FinalCheckpoint(damaged, 0);
  EXPECT_EQ(b.manifest().samples_consumed, kSteps * kBatch);
  EXPECT_EQ(TensorDifference(a, b), "");
}

}  // namespace
}  // namespace atl::testing_cluster
