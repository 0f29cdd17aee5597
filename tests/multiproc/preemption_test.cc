// Preempted machines, islands that come and go, and tasks that are moved, with real processes. A process that is asked
// to end releases its task, with a checkpoint if there is time for one, and ends with 0; no other process is disturbed.
#include <signal.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "atoll/admin/v1/admin_service.grpc.pb.h"
#include "common/rpc/channel.h"
#include "tests/multiproc/cluster.h"
#include "worker/process/fake_metadata.h"

namespace atl::testing_cluster {
namespace {

namespace pb = atlpb::job::v1;
namespace admin = atlpb::admin::v1;

// No claim: for what only has to happen at all.
constexpr absl::Duration kPatience = absl::Seconds(180);
constexpr int kCheckpointEvery = 20;
// Steps of jobs that must not end during the test.
constexpr int kEndless = 1'000'000;

bool Says(const Process& process, const std::string& text, size_t from = 0) {
  return process.Log().find(text, from) != std::string::npos;
}

class Preemption : public testing::Test {
 protected:
  void Start(int islands, int ranks, std::vector<std::string> worker_flags = {}) {
    cluster_ = std::make_unique<Cluster>(
        ClusterOptions{.islands = islands, .ranks = ranks, .worker_flags = std::move(worker_flags)});
    cluster_->WriteDataset();
    stub_ = admin::AdminService::NewStub(rpc::MakeChannel(cluster_->coordinator_address()));
  }
  pb::Task Expert() { return TaskOf(cluster_->GetJob(job_), pb::TASK_KIND_TRAIN_EXPERT); }
  // Until the expert's attempt has committed something.
  void SubmitAndAwaitCommit() {
    if (cluster_->rank(0, 0).Log().find("leader of 2 ranks") != std::string::npos) {
      ASSERT_TRUE(Await(kPatience, [&] { return Says(cluster_->rank(0, 0), "2 of 2 ranks are there"); }));
    }
    job_ = cluster_->Submit(MediumJob(kEndless, kCheckpointEvery));
    ASSERT_TRUE(AwaitExpert([](const pb::Task& expert) { return expert.committed_step() >= kCheckpointEvery; }));
  }
  bool AwaitExpert(const std::function<bool(const pb::Task&)>& condition) {
    return cluster_->AwaitJob(job_, kPatience,
                              [&](const pb::Job& job) { return condition(TaskOf(job, pb::TASK_KIND_TRAIN_EXPERT)); });
  }
  // Which island holds the expert.
  int Holder() { return Expert().island_id() == "island-0" ? 0 : 1; }
  admin::Island IslandNamed(const std::string& name) {
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(20));
    admin::ListIslandsResponse response;
    EXPECT_TRUE(stub_->ListIslands(&context, {}, &response).ok());
    for (const admin::Island& island : response.islands()) {
      if (island.island_id() == name) return island;
    }
    return {};
  }

  worker::FakeMetadata metadata_{worker::Cloud::kAws};
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<admin::AdminService::Stub> stub_;
  std::string job_;
};

TEST_F(Preemption, NoticesOfTwoMinutesAndOfTwoSecondsEndTheIslandWell) {
  Start(1, 2, {"--preemption-notices", "aws", "--metadata-url", metadata_.url()});
  ASSERT_NO_FATAL_FAILURE(SubmitAndAwaitCommit());

  metadata_.Notice(absl::Now() + absl::Minutes(2));
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(cluster_->rank(0, rank).Wait(kPatience), 0) << rank;
  const pb::Task left = Expert();
  EXPECT_EQ(left.state(), pb::Task::STATE_READY) << left.DebugString();
  EXPECT_TRUE(Says(cluster_->rank(0, 0), "AWS takes the machine away (terminate)"));
  EXPECT_TRUE(Says(cluster_->rank(0, 0), "a checkpoint fits"));
  EXPECT_TRUE(Says(cluster_->rank(0, 0), fmt::format("stopped after step {} of", left.committed_step())))
      << "no checkpoint of the step it stopped after";

  metadata_.Quiet();
  cluster_->StartIsland(0);
  ASSERT_TRUE(AwaitExpert([&](const pb::Task& now) { return now.committed_step() > left.committed_step(); }));
  EXPECT_TRUE(Says(cluster_->rank(0, 0), fmt::format("resumed at step {}", left.committed_step())));

  // A second of them is kept for the end; what does not fit into the rest is not begun.
  metadata_.Notice(absl::Now() + absl::Seconds(2));
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(cluster_->rank(0, rank).Wait(kPatience), 0) << rank;
  EXPECT_EQ(Expert().state(), pb::Task::STATE_READY) << Expert().DebugString();
  EXPECT_EQ(Expert().attempt(), 2);

  // And one that comes too late.
  metadata_.Quiet();
  cluster_->StartIsland(0);
  const int64_t before = Expert().committed_step();
  ASSERT_TRUE(AwaitExpert([&](const pb::Task& now) { return now.committed_step() > before; }));
  metadata_.Notice(absl::Now() - absl::Seconds(2));
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(cluster_->rank(0, rank).Wait(kPatience), 0) << rank;
  EXPECT_EQ(Expert().state(), pb::Task::STATE_READY) << Expert().DebugString();
}

TEST_F(Preemption, ARankThatSlurmEndsLeavesTheOthersAtWork) {
  Start(1, 2, {"--rejoin-seconds", "1"});
  ASSERT_NO_FATAL_FAILURE(SubmitAndAwaitCommit());
  for (const int signal : {SIGUSR1, SIGTERM, SIGTERM}) cluster_->rank(0, 1).Signal(signal);
  EXPECT_EQ(cluster_->rank(0, 1).Wait(kPatience), 0);
  ASSERT_TRUE(Await(kPatience, [&] { return Says(cluster_->rank(0, 0), "rank 1 leaves: SIGUSR1"); }));
  ASSERT_TRUE(
      AwaitExpert([](const pb::Task& now) { return now.attempt() == 2 && now.state() == pb::Task::STATE_LEASED; }));
  const int64_t left = Expert().committed_step();
  EXPECT_TRUE(Says(cluster_->rank(0, 0), fmt::format("stopped after step {} of", left)));
  EXPECT_TRUE(AwaitExpert([&](const pb::Task& now) { return now.committed_step() > left; }));
}

TEST_F(Preemption, AnIslandThatComesAndGoesTouchesNobody) {
  Start(2, 1);
  ASSERT_NO_FATAL_FAILURE(SubmitAndAwaitCommit());
  const int holder = Holder();
  const int other = 1 - holder;
  const pb::Task before = Expert();
  cluster_->KillIsland(other);
  cluster_->StartIsland(other);
  ASSERT_TRUE(Await(kPatience, [&] { return Says(cluster_->rank(other, 0), "is registered with 1 ranks"); }));

  // Its pod is deleted.
  cluster_->rank(other, 0).Signal(SIGTERM);
  EXPECT_EQ(cluster_->rank(other, 0).Wait(kPatience), 0);
  ASSERT_TRUE(AwaitExpert([&](const pb::Task& now) { return now.committed_step() > before.committed_step(); }));
  EXPECT_EQ(Expert().attempt(), before.attempt());
  EXPECT_EQ(Expert().island_id(), before.island_id());
  EXPECT_FALSE(Says(cluster_->rank(holder, 0), "aborting"));
}

TEST_F(Preemption, AMovedTaskGoesOnWhereItIsMovedAndADrainedIslandGetsNothing) {
  Start(2, 1);
  ASSERT_NO_FATAL_FAILURE(SubmitAndAwaitCommit());
  const int holder = Holder();
  const std::string to = fmt::format("island-{}", 1 - holder);
  const std::string task_id = Expert().task_id();
  EXPECT_GT(IslandNamed(Expert().island_id()).step(), 0);

  admin::MoveTaskRequest move;
  move.set_task_id(task_id);
  move.set_to_island_id(to);
  admin::MoveTaskResponse moved;
  grpc::ClientContext context;
  rpc::SetTimeout(&context, absl::Seconds(20));
  ASSERT_TRUE(stub_->MoveTask(&context, move, &moved).ok());
  ASSERT_TRUE(AwaitExpert([&](const pb::Task& now) { return now.island_id() == to && now.attempt() == 2; }));
  const int64_t left = Expert().committed_step();
  EXPECT_TRUE(Says(cluster_->rank(holder, 0), "the coordinator wants it back: MOVED"));
  EXPECT_TRUE(Says(cluster_->rank(holder, 0), fmt::format("stopped after step {} of", left)));
  ASSERT_TRUE(AwaitExpert([&](const pb::Task& now) { return now.committed_step() > left; }));
  EXPECT_TRUE(Says(cluster_->rank(1 - holder, 0), fmt::format("resumed at step {}", left)));

  // Both are drained, so neither continues the task. Their processes live, and the first to be undrained takes it.
  for (const std::string& island : {to, fmt::format("island-{}", holder)}) {
    admin::DrainIslandRequest drain;
    drain.set_island_id(island);
    drain.set_reason("new disk");
    admin::DrainIslandResponse drained;
    grpc::ClientContext drain_context;
    rpc::SetTimeout(&drain_context, absl::Seconds(20));
    ASSERT_TRUE(stub_->DrainIsland(&drain_context, drain, &drained).ok());
  }
  ASSERT_TRUE(AwaitExpert([](const pb::Task& now) { return now.state() == pb::Task::STATE_READY; }));
  EXPECT_TRUE(Await(kPatience, [&] { return IslandNamed(to).state() == admin::Island::STATE_DRAINED; }));
  EXPECT_EQ(IslandNamed(to).drain_reason(), "new disk");
  EXPECT_TRUE(cluster_->rank(0, 0).Running() && cluster_->rank(1, 0).Running());
  admin::UndrainIslandRequest undrain;
  undrain.set_island_id(to);
  admin::UndrainIslandResponse undrained;
  grpc::ClientContext undrain_context;
  rpc::SetTimeout(&undrain_context, absl::Seconds(20));
  ASSERT_TRUE(stub_->UndrainIsland(&undrain_context, undrain, &undrained).ok());
  EXPECT_TRUE(AwaitExpert([&](const pb::Task& now) { return now.island_id() == to && now.attempt() == 3; }));
}

}  // namespace
}  // namespace atl::testing_cluster
