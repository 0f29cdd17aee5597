// A rank dies or falls silent in mid-training: the others notice within five seconds, the job completes, and every step
// counts once. The trained bits are those of a run that lost no rank.
#include <signal.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "tests/multiproc/cluster.h"

namespace atl::testing_cluster {
namespace {

namespace pb = atlpb::job::v1;

// The steps of a job that is interrupted: at least this many, and more if this machine is too fast to catch it in
// mid-training.
constexpr int kFewestSteps = 240;
constexpr int kMostSteps = kFewestSteps << 6;
constexpr int kCheckpointEvery = 20;
// No claim: for what only has to happen at all.
constexpr absl::Duration kPatience = absl::Seconds(180);

class LostRank : public testing::Test {
 protected:
  LostRank() { cluster_.WriteDataset(); }

  // The job's expert is in training, past a commit, and not near its end.
  void SubmitAndAwaitMidTraining() {
    // A leader whose other rank starts late continues alone, and then cannot lose a rank.
    ASSERT_TRUE(Await(kPatience,
                      [&] { return cluster_.rank(0, 0).Log().find("2 of 2 ranks are there") != std::string::npos; }));
    job_ = cluster_.Submit(spec_);
    ASSERT_TRUE(cluster_.AwaitJob(job_, kPatience, [](const pb::Job& job) {
      return TaskOf(job, pb::TASK_KIND_TRAIN_EXPERT).committed_step() >= kCheckpointEvery;
    }));
  }
  pb::Task Expert() { return TaskOf(cluster_.GetJob(job_), pb::TASK_KIND_TRAIN_EXPERT); }

  // `survivor` logs `line` within five seconds of the signal.
  void SignalAndExpectNotice(int rank, int signal, int survivor, const std::string& line) {
    const size_t before = cluster_.rank(0, survivor).Log().size();
    const absl::Time sent = absl::Now();
    cluster_.rank(0, rank).Signal(signal);
    ASSERT_TRUE(Await(absl::Seconds(5),
                      [&] { return cluster_.rank(0, survivor).Log().find(line, before) != std::string::npos; }))
        << "rank " << survivor << " did not say: " << line;
    EXPECT_LT(absl::Now() - sent, absl::Seconds(5));
  }

  // Compares with the run that lost no rank.
  void ExpectEveryStepCountedOnce() {
    const storage::CheckpointReader found = cluster_.FinalCheckpoint(job_, 0);
    EXPECT_EQ(found.manifest().step, steps_);
    EXPECT_EQ(found.manifest().samples_consumed, int64_t{steps_} * spec_.training.batch_size);
    EXPECT_EQ(TensorDifference(*whole_, found), "");
  }

  // Trains the same job once without a loss: of as many steps that who waits for its first commit sees it with three
  // quarters of them left. A reader holds its tensors in memory.
  static void SetUpTestSuite() {
    for (int steps = kFewestSteps; whole_ == nullptr && steps <= kMostSteps; steps *= 2) {
      steps_ = steps;
      Cluster cluster({.islands = 1, .ranks = 2});
      cluster.WriteDataset();
      const std::string job = cluster.Submit(MediumJob(steps_, kCheckpointEvery));
      int64_t seen = 0;
      ASSERT_TRUE(cluster.AwaitJob(job, kPatience, [&](const pb::Job& now) {
        seen = TaskOf(now, pb::TASK_KIND_TRAIN_EXPERT).committed_step();
        return seen >= kCheckpointEvery;
      }));
      ASSERT_TRUE(cluster.AwaitSuccess(job, kPatience));
      if (seen <= steps_ / 4) whole_ = new storage::CheckpointReader(cluster.FinalCheckpoint(job, 0));
    }
  }
  static void TearDownTestSuite() { delete whole_; }
  void SetUp() override { ASSERT_NE(whole_, nullptr) << "no run that lost nobody, or none slow enough"; }

  Cluster cluster_{{.islands = 1, .ranks = 2, .worker_flags = {"--rejoin-seconds", "3"}}};
  const spec::JobSpec spec_ = MediumJob(steps_, kCheckpointEvery);
  std::string job_;
  inline static int steps_ = 0;
  inline static storage::CheckpointReader* whole_ = nullptr;
};

TEST_F(LostRank, AKilledRankComesBackAndTheJobCompletes) {
  ASSERT_NO_FATAL_FAILURE(SubmitAndAwaitMidTraining());
  ASSERT_NO_FATAL_FAILURE(SignalAndExpectNotice(1, SIGKILL, 0, "ended after step"));
  cluster_.StartRank(0, 1);
  ASSERT_TRUE(cluster_.AwaitSuccess(job_, kPatience));
  EXPECT_EQ(Expert().attempt(), 2);
  EXPECT_EQ(cluster_.FinalCheckpoint(job_, 0).manifest().files.size(), 2u) << "the rank is used again";
  ExpectEveryStepCountedOnce();
}

TEST_F(LostRank, ASilentRankIsLeftBehindAndComesBackLater) {
  ASSERT_NO_FATAL_FAILURE(SubmitAndAwaitMidTraining());
  ASSERT_NO_FATAL_FAILURE(SignalAndExpectNotice(1, SIGSTOP, 0, "ended after step"));
  ASSERT_TRUE(cluster_.AwaitSuccess(job_, kPatience));
  EXPECT_EQ(Expert().attempt(), 2);
  EXPECT_EQ(cluster_.FinalCheckpoint(job_, 0).manifest().files.size(), 1u) << "one stage on the rank that was left";
  const size_t before = cluster_.rank(0, 1).Log().size();
  cluster_.rank(0, 1).Signal(SIGCONT);
  EXPECT_TRUE(Await(kPatience,
                    [&] { return cluster_.rank(0, 1).Log().find("joined the leader", before) != std::string::npos; }));
  ExpectEveryStepCountedOnce();
}

TEST_F(LostRank, AKilledLeaderComesBackAndTheJobCompletes) {
  ASSERT_NO_FATAL_FAILURE(SubmitAndAwaitMidTraining());
  ASSERT_NO_FATAL_FAILURE(SignalAndExpectNotice(0, SIGKILL, 1, "lost the leader"));
  cluster_.StartRank(0, 0);
  ASSERT_TRUE(cluster_.AwaitSuccess(job_, kPatience));
  EXPECT_EQ(Expert().attempt(), 2);
  ExpectEveryStepCountedOnce();
}

TEST_F(LostRank, ASilentLeaderIsNoticedAndGoesOnWhenItWakes) {
  ASSERT_NO_FATAL_FAILURE(SubmitAndAwaitMidTraining());
  ASSERT_NO_FATAL_FAILURE(SignalAndExpectNotice(0, SIGSTOP, 1, "lost the leader"));
  cluster_.rank(0, 0).Signal(SIGCONT);
  ASSERT_TRUE(cluster_.AwaitSuccess(job_, kPatience));
  ExpectEveryStepCountedOnce();
}

TEST_F(LostRank, ATerminatedIslandLeavesACheckpointAndExitsWell) {
  ASSERT_NO_FATAL_FAILURE(SubmitAndAwaitMidTraining());
  // As Slurm does it: a notice ahead of the end, and the end twice; only the first one counts.
  for (const int signal : {SIGUSR1, SIGTERM, SIGTERM}) {
    for (int rank = 0; rank < 2; ++rank) cluster_.rank(0, rank).Signal(signal);
  }
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(cluster_.rank(0, rank).Wait(kPatience), 0) << rank;
  const pb::Task left = Expert();
  const std::string said = fmt::format("stopped after step {} of {}", left.committed_step(), steps_);
  EXPECT_NE(cluster_.rank(0, 0).Log().find(said), std::string::npos) << "no checkpoint of the step it stopped after";
  EXPECT_EQ(left.state(), pb::Task::STATE_READY) << left.DebugString();
  cluster_.StartIsland(0);
  ASSERT_TRUE(cluster_.AwaitSuccess(job_, kPatience));
  EXPECT_EQ(Expert().attempt(), 2);
  ExpectEveryStepCountedOnce();
}

}  // namespace
}  // namespace atl::testing_cluster
