// An island of real leaders and ranks in one process, over real streams, against a coordinator of the test.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "absl/cleanup/cleanup.h"
#include "absl/synchronization/notification.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/fake_clock.h"
#include "common/formats/checkpoint.h"
#include "common/formats/step_trace.h"
#include "common/planner/frozen_flow.h"
#include "common/rpc/channel.h"
#include "worker/attempt/fake_training.h"
#include "worker/island/rendezvous_client.h"
#include "worker/leader/fake_island_service.h"
#include "worker/leader/leader.h"

namespace atl::worker {
namespace {

namespace pb = atlpb::island::v1;

constexpr char kSecret[] = "reef";

// No test here is about silence, and a busy machine lets a rank wait long for its turn.
constexpr absl::Duration kSilence = absl::Seconds(30);

// One rank other than the leader, as its process would run it.
class Follower {
 public:
  Follower(FakeTraining* training, storage::BlobStore* store, WorkerMetrics* metrics, RendezvousOptions options)
      : client_(std::move(options), Clock::Real(), metrics),
        runner_(FakeParts(training, store, metrics),
                [this](pb::JoinRequest report) { client_.Send(std::move(report)); }),
        thread_([this] { status_ = client_.Run(&runner_); }) {}
  ~Follower() { static_cast<void>(Stop()); }

  absl::Status Stop() {
    AskToStop();
    return Join();
  }
  void AskToStop(absl::Duration deadline = absl::InfiniteDuration()) {
    client_.Stop({.reason = "the test says so", .deadline = deadline});
  }
  // Until the leader's word to stop after a step is here; false after 20 s.
  bool AwaitStopAfter() const {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (runner_.progress().stop_after == 0 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
    return runner_.progress().stop_after > 0;
  }
  absl::Status Join() {
    if (thread_.joinable()) thread_.join();
    return status_;
  }

 private:
  RendezvousClient client_;
  RankRunner runner_;
  absl::Status status_;
  std::thread thread_;
};

class IslandTest : public testing::Test {
 protected:
  IslandTest() {
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    store_ = *storage::BlobStore::Open("file://" + folder_);
    dataset::DatasetManifest manifest{.name = "dots", .channels = 1, .height = 8, .width = 8, .classes = {"a", "b"}};
    EXPECT_TRUE(store_->Write(dataset::DatasetManifestUri(*store_, "dots"), dataset::ToJson(manifest)).ok());
    const std::string name = pb::IslandService::service_full_name();
    coordinator_server_ = *rpc::Server::Start({.services = {{name, &coordinator_}}});
  }
  ~IslandTest() override {
    training_.pause_at_step = 0;
    training_.hang_at_step = 0;
    if (leader_thread_.joinable()) static_cast<void>(StopLeader());
    leader_.reset();
    followers_.clear();
    coordinator_server_->Shutdown(absl::ZeroDuration());
    std::filesystem::remove_all(folder_);
  }

  void StartLeader(int32_t ranks, absl::Duration rejoin_timeout = absl::Seconds(20)) {
    LeaderOptions options;
    options.island = {.state = {.ranks = ranks, .build = "b1", .devices = devices_, .silence_timeout = kSilence},
                      .secret = kSecret,
                      .beat_interval = absl::Milliseconds(50)};
    options.listen = "127.0.0.1:0";
    options.coordinator = {.address = coordinator_server_->address(), .island_id = "lagoon"};
    options.parts = FakeParts(&training_, store_.get(), &metrics_);
    options.run_task = [this](const tasks::TaskContext& context) { return run_task_(context); };
    options.rejoin_timeout = rejoin_timeout;
    options.farewell_grace = absl::Seconds(20);
    options.store_interval = absl::Milliseconds(20);
    options.store_patience = store_patience_;
    options.island.state.hung_timeout = absl::Milliseconds(200);
    options.hung = [this](const absl::Status& why) { TakeHung(why); };
    leader_ = *Leader::Start(std::move(options));
    leader_thread_ = std::thread([this] { leader_status_ = leader_->Run(); });
  }
  absl::Status StopLeader() {
    leader_->Stop({.reason = "the test is over"});
    leader_thread_.join();
    return leader_status_;
  }
  RendezvousOptions FollowerOptions(int32_t rank) {
    return {.leader = fmt::format("127.0.0.1:{}", leader_->rendezvous_port()),
            .rank = rank,
            .secret = kSecret,
            .build = "b1",
            .where = "test",
            .beat_interval = absl::Milliseconds(50),
            .silence_timeout = kSilence,
            .retry_delay = absl::Milliseconds(20),
            .hung_timeout = absl::Milliseconds(200),
            .hung = [this](const absl::Status& why) { TakeHung(why); }};
  }
  Follower* AddFollower(int32_t rank, storage::BlobStore* store = nullptr) {
    followers_.push_back(std::make_unique<Follower>(&training_, store != nullptr ? store : store_.get(), &metrics_,
                                                    FollowerOptions(rank)));
    return followers_.back().get();
  }

  void TakeHung(const absl::Status& why) {
    absl::MutexLock lock(&hung_mutex_);
    hung_.push_back(why);
  }
  // Returns the reason of the first process that should end, or "nothing" after 30 s.
  std::string AwaitHung() {
    absl::MutexLock lock(&hung_mutex_);
    const auto any = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(hung_mutex_) { return !hung_.empty(); };
    hung_mutex_.AwaitWithTimeout(absl::Condition(&any), absl::Seconds(30));
    return hung_.empty() ? "nothing" : std::string(hung_.front().message());
  }
  // The rank of plan rank `rank` never comes back from its sixth step.
  void HangInTraining(int32_t rank) {
    training_.hanging_rank = rank;
    training_.hang_at_step = 6;
    training_.activity = {.least = absl::Seconds(1)};
  }

  spec::TaskGrant TrainingGrant(int64_t attempt, int32_t steps, int32_t min_ranks = 1) {
    spec::TaskGrant grant;
    grant.token = {.task_id = "job/train_expert/0", .store_epoch = 1, .attempt = attempt, .attempt_secret = "s"};
    grant.job_id = "job";
    grant.kind = spec::TaskKind::kTrainExpert;
    grant.spec.model_name = "dots";
    grant.spec.dataset = "dots";
    grant.spec.experts = 1;
    grant.spec.training.steps = steps;
    grant.spec.training.batch_size = 8;
    grant.spec.training.checkpoint_every = 10;
    grant.spec.requirements.min_ranks = min_ranks;
    grant.dataset_manifest_uri = dataset::DatasetManifestUri(*store_, "dots");
    grant.inputs.push_back({.task_id = "job/partition/0",
                            .kind = spec::TaskKind::kPartition,
                            .artifacts = {{.name = "partition/0", .uri = store_->UriOf("p0"), .rows = 8}}});
    grant.write_prefix = store_->UriOf(fmt::format("tasks/expert-0/1-{}", attempt));
    return grant;
  }
  // Returns the grant of a task that finds the store full. The leader has no room either: a folder has the name of its
  // trial file.
  spec::TaskGrant FullStoreGrant() {
    spec::TaskGrant grant = TrainingGrant(1, 25);
    grant.kind = spec::TaskKind::kPartition;
    run_task_ = [obstacle = grant.write_prefix + "/room/x"](
                    const tasks::TaskContext& context) -> absl::StatusOr<std::vector<spec::Artifact>> {
      if (!context.store->Write(obstacle, "x").ok()) return absl::InternalError("no obstacle");
      return MakeError(absl::StatusCode::kResourceExhausted, "DISK_FULL", "no space left on device");
    };
    return grant;
  }
  void Grant(spec::TaskGrant grant) {
    coordinator_.Change([&](auto* state) { state->to_grant.push_back(std::move(grant)); });
  }
  static auto Completed() {
    return [](const FakeIslandService::State& state) { return !state.completed.empty(); };
  }

  // A leader that waits only shortly for its ranks may have gone on alone before.
  static auto RegisteredWith(int32_t ranks) {
    return [ranks](const FakeIslandService::State& state) {
      return !state.registered_ranks.empty() && state.registered_ranks.back() == ranks;
    };
  }

  std::string folder_ = testing::TempDir() + "atoll_island_XXXXXX";
  FakeTraining training_;
  std::unique_ptr<metrics::Registry> registry_ = metrics::Registry::Create("test");
  WorkerMetrics metrics_{registry_.get()};
  std::unique_ptr<storage::BlobStore> store_;
  std::unique_ptr<storage::BlobStore> other_store_;  // of a rank that is set up wrong
  FakeIslandService coordinator_;
  std::unique_ptr<rpc::Server> coordinator_server_;
  std::function<absl::StatusOr<std::vector<spec::Artifact>>(const tasks::TaskContext&)> run_task_;
  std::vector<RankDevice> devices_;  // of the leader
  absl::Duration store_patience_ = absl::Minutes(10);
  std::unique_ptr<Leader> leader_;
  std::thread leader_thread_;
  absl::Status leader_status_;
  std::vector<std::unique_ptr<Follower>> followers_;
  absl::Mutex hung_mutex_;
  std::vector<absl::Status> hung_ ABSL_GUARDED_BY(hung_mutex_);
};

TEST_F(IslandTest, AnIslandWithAnotherBlobStoreClaimsNothing) {
  coordinator_.Change([](auto* state) { state->epoch_uri = "file:///elsewhere/coordinator/epochs/000000000001"; });
  Grant(TrainingGrant(1, 25));
  StartLeader(1);
  leader_thread_.join();
  EXPECT_EQ(ErrorReason(leader_status_), "BLOB_STORE_OTHER") << leader_status_;
  EXPECT_TRUE(coordinator_.Copy().granted.empty());
}

TEST_F(IslandTest, ABlobStoreThatGoesAwayIsNotTheTasksFault) {
  store_patience_ = absl::Milliseconds(100);
  const std::string uri = store_->UriOf("coordinator/epochs/000000000001");
  ASSERT_TRUE(store_->Write(uri, "store").ok());
  coordinator_.Change([&](auto* state) { state->epoch_uri = uri; });
  run_task_ = [&](const tasks::TaskContext& context) -> absl::StatusOr<std::vector<spec::Artifact>> {
    // As if the folder were not mounted any more.
    const absl::Status gone = context.store->DeleteTree(context.store->UriOf("coordinator"));
    return gone.ok() ? context.store->Read(context.store->UriOf("datasets/none")).status() : gone;
  };
  spec::TaskGrant grant = TrainingGrant(1, 25);
  grant.kind = spec::TaskKind::kPartition;
  Grant(grant);
  Grant(grant);
  StartLeader(1);
  leader_thread_.join();
  EXPECT_EQ(ErrorReason(leader_status_), "BLOB_STORE_OTHER") << leader_status_;
  const FakeIslandService::State state = coordinator_.Copy();
  EXPECT_EQ(state.granted.size(), 1u) << "it claims nothing more";
  EXPECT_TRUE(state.failed.empty()) << state.failed.front();
  ASSERT_EQ(state.released.size(), 1u);
  EXPECT_NE(state.released[0].find("expected the coordinator's blob store"), std::string::npos) << state.released[0];
  EXPECT_EQ(state.store_failures, 1);
}

TEST_F(IslandTest, ARankWithAnotherBlobStoreFailsNoTaskAndTheIslandEnds) {
  const std::string uri = store_->UriOf("coordinator/epochs/000000000001");
  ASSERT_TRUE(store_->Write(uri, "store").ok());
  coordinator_.Change([&](auto* state) { state->epoch_uri = uri; });
  other_store_ = *storage::BlobStore::Open("file://" + folder_ + "/elsewhere");
  StartLeader(2);
  AddFollower(1, other_store_.get());
  ASSERT_TRUE(coordinator_.Await(RegisteredWith(2)));
  Grant(TrainingGrant(1, 25));
  Grant(TrainingGrant(2, 25));
  leader_thread_.join();
  EXPECT_EQ(ErrorReason(leader_status_), "BLOB_STORE_OTHER") << leader_status_;
  EXPECT_NE(leader_status_.message().find("rank 1: expected the coordinator's blob store"), std::string::npos)
      << leader_status_;
  const FakeIslandService::State state = coordinator_.Copy();
  EXPECT_EQ(state.granted.size(), 1u) << "it claims nothing more";
  EXPECT_TRUE(state.failed.empty()) << state.failed.front();
  EXPECT_EQ(state.released.size(), 1u);
  EXPECT_EQ(state.store_failures, 1);
  EXPECT_EQ(ErrorReason(followers_[0]->Join()), "ISLAND_ENDED");
}

TEST_F(IslandTest, AnIslandWhoseStoreTakesNoKeysFailsNoTaskAndEnds) {
  spec::TaskGrant grant = TrainingGrant(1, 25);
  grant.storage.access_key = "key";
  grant.storage.secret_key = "secret";
  grant.storage.expires = absl::Now() + absl::Hours(1);
  Grant(grant);
  Grant(grant);
  StartLeader(1);
  leader_thread_.join();
  EXPECT_EQ(ErrorReason(leader_status_), "GRANTS_UNSUPPORTED") << leader_status_;
  const FakeIslandService::State state = coordinator_.Copy();
  EXPECT_EQ(state.granted.size(), 1u) << "it claims nothing more";
  EXPECT_TRUE(state.failed.empty()) << state.failed.front();
  EXPECT_EQ(state.released.size(), 1u);
  EXPECT_EQ(state.store_failures, 1);
}

TEST_F(IslandTest, ATaskThatFoundTheStoreFullIsKeptUntilThereIsRoom) {
  const spec::TaskGrant grant = FullStoreGrant();
  Grant(grant);
  StartLeader(1);
  while (!store_->Exists(grant.write_prefix + "/room/x").value()) absl::SleepFor(absl::Milliseconds(1));
  const int64_t beats = coordinator_.Copy().beats;
  ASSERT_TRUE(coordinator_.Await([&](const auto& state) { return state.beats > beats + 10; }))
      << "the lease is kept meanwhile";
  EXPECT_TRUE(coordinator_.Copy().released.empty());
  // The obstacle alone: the leader writes into the folder above it all the time.
  std::error_code error;
  EXPECT_EQ(std::filesystem::remove_all(grant.write_prefix.substr(std::string_view("file://").size()) + "/room", error),
            2u)
      << error.message();
  ASSERT_TRUE(coordinator_.Await([](const auto& state) { return !state.released.empty(); }));
  const FakeIslandService::State state = coordinator_.Copy();
  EXPECT_EQ(state.released[0], "no space left on device");
  EXPECT_EQ(state.store_failures, 1);
  EXPECT_TRUE(state.failed.empty());
  // The file that was tried is gone again.
  EXPECT_TRUE(StopLeader().ok());
  EXPECT_TRUE(store_->List(grant.write_prefix)->empty());
}

TEST_F(IslandTest, AStoreThatStaysFullFailsTheTask) {
  store_patience_ = absl::Milliseconds(100);
  Grant(FullStoreGrant());
  StartLeader(1);
  ASSERT_TRUE(coordinator_.Await([](const auto& state) { return !state.failed.empty(); }));
  EXPECT_TRUE(coordinator_.Copy().released.empty());
}

TEST_F(IslandTest, AStoreThatStaysFullFailsOneTaskPerPatience) {
  store_patience_ = absl::Milliseconds(500);
  const spec::TaskGrant grant = FullStoreGrant();
  for (int i = 0; i < 3; ++i) Grant(grant);
  const absl::Time begun = absl::Now();
  StartLeader(1);
  ASSERT_TRUE(coordinator_.Await([](const auto& state) { return state.failed.size() == 3; }));
  EXPECT_GE(absl::Now() - begun, 3 * store_patience_);
}

TEST_F(IslandTest, ARankThatHangsIsLeftBehindAndItsProcessEnds) {
  HangInTraining(1);
  StartLeader(2, /*rejoin_timeout=*/absl::Seconds(2));
  AddFollower(1);
  ASSERT_TRUE(coordinator_.Await(RegisteredWith(2)));
  Grant(TrainingGrant(1, 25));
  ASSERT_TRUE(coordinator_.Await([](const auto& state) { return !state.released.empty(); }));
  EXPECT_NE(AwaitHung().find("rank 1: expected an aborted attempt to end"), std::string::npos) << AwaitHung();
  // Without it.
  Grant(TrainingGrant(2, 25));
  ASSERT_TRUE(coordinator_.Await(Completed()));
  training_.hang_at_step = 0;
  EXPECT_EQ(ErrorReason(followers_[0]->Join()), "RANK_HUNG");
}

TEST_F(IslandTest, ALeaderThatHangsSaysSo) {
  HangInTraining(0);
  Grant(TrainingGrant(1, 25));
  StartLeader(1);
  EXPECT_NE(AwaitHung().find("rank 0 (the leader) is lost: stuck: 0F0 has taken"), std::string::npos) << AwaitHung();
  training_.hang_at_step = 0;
}

TEST_F(IslandTest, TwoRanksTrainToTheEndAndEveryCheckpointIsCommitted) {
  // Both checkpoints are committed before there is a third: of more than two that wait, the oldest are given up.
  training_.pause_at_step = 21;
  Grant(TrainingGrant(3, 25));
  StartLeader(2);
  AddFollower(1);
  ASSERT_TRUE(coordinator_.Await([](const auto& state) { return state.commits.size() == 2; }));
  training_.pause_at_step = 0;
  ASSERT_TRUE(coordinator_.Await(Completed()));
  const auto state = coordinator_.Copy();
  const std::vector<std::pair<int64_t, int64_t>> commits = {{3, 10}, {3, 20}, {3, 25}};
  EXPECT_EQ(state.commits, commits);
  EXPECT_EQ(state.registered_ranks, std::vector<int32_t>({2}));
  ASSERT_EQ(state.outputs.size(), 1u);
  EXPECT_EQ(state.outputs[0].name, "checkpoint");
  const auto reader = storage::CheckpointReader::Open(store_.get(), state.outputs[0].uri, state.outputs[0].sha256);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->manifest().step, 25);
  EXPECT_EQ(reader->manifest().samples_consumed, 200);
  EXPECT_EQ(reader->manifest().files.size(), 2u);
  EXPECT_TRUE(StopLeader().ok());
  // The leader's end is the island's end.
  EXPECT_TRUE(followers_[0]->Join().ok());
  EXPECT_EQ(metrics_.lost_ranks->Value(), 0);
}

TEST_F(IslandTest, OnlyTheRankOfTheLastStageHasALoss) {
  const auto registry = metrics::Registry::Create("last");
  WorkerMetrics last(registry.get());
  Grant(TrainingGrant(1, 10, /*min_ranks=*/2));
  StartLeader(2);
  followers_.push_back(std::make_unique<Follower>(&training_, store_.get(), &last, FollowerOptions(1)));
  ASSERT_TRUE(coordinator_.Await(Completed()));
  EXPECT_EQ(metrics_.loss->Value(), 0);
  EXPECT_EQ(last.loss->Value(), 0.1);
  static_cast<void>(StopLeader());
  followers_.clear();  // before its metrics
}

TEST_F(IslandTest, EveryRankLeavesTracesOfAnEarlyStepAndOfTheLatestCheckpoints) {
  Grant(TrainingGrant(1, 25));
  StartLeader(2);
  AddFollower(1);
  ASSERT_TRUE(coordinator_.Await(Completed()));
  const std::string prefix = store_->UriOf("tasks/expert-0/1-1");
  const auto files = store_->List(prefix + "/trace/");
  ASSERT_TRUE(files.ok()) << files.status();
  std::vector<std::string> found;
  for (const storage::FileInfo& file : *files) found.push_back(file.uri);
  std::vector<std::string> expected;
  for (const int64_t step : {3, 20, 25}) {
    for (const int32_t rank : {0, 1}) expected.push_back(storage::StepTraceUri(prefix, step, rank));
  }
  EXPECT_EQ(found, expected);
  std::vector<storage::StepTrace> traces;
  for (const int32_t rank : {0, 1}) {
    const std::string uri = storage::StepTraceUri(prefix, 20, rank);
    auto trace = storage::ParseStepTrace(*store_->Read(uri), uri);
    ASSERT_TRUE(trace.ok()) << trace.status();
    EXPECT_EQ(trace->task_id, "job/train_expert/0");
    EXPECT_EQ(trace->attempt, 1);
    EXPECT_EQ(trace->step, 20);
    EXPECT_EQ(trace->rank, rank);
    EXPECT_EQ(trace->ranks, 2);
    ASSERT_EQ(trace->actions.size(), 1u);
    EXPECT_EQ(trace->actions[0].action.stage, rank);
    EXPECT_EQ(trace->actions[0].end, absl::Microseconds(20));
    EXPECT_FALSE(trace->boot_id.empty());
    traces.push_back(*std::move(trace));
  }
  EXPECT_EQ(traces[0].boot_id, traces[1].boot_id);
}

TEST_F(IslandTest, RanksMeasureForAPlanThatTheJobLeavesOpenAndKeepTheProfile) {
  spec::TaskGrant open = TrainingGrant(3, 10);
  open.spec.pipeline.schedule = "auto";
  open.spec.pipeline.micro_batches = 2;
  Grant(open);
  StartLeader(2);
  AddFollower(1);
  ASSERT_TRUE(coordinator_.Await(Completed()));
  EXPECT_EQ(training_.profiles, 2);
  EXPECT_FALSE(std::filesystem::is_empty(folder_ + "/profiles"));

  // The next task of the same kind only looks how fast the machine is now.
  open.token.attempt = 4;
  open.write_prefix += "-again";
  Grant(open);
  ASSERT_TRUE(coordinator_.Await([](const auto& state) { return state.completed.size() == 2; }));
  EXPECT_EQ(training_.profiles, 4);
}

bool IsFrozen(const schedule::Action& action) {
  return action.kind == schedule::ActionKind::kFrozen;
}

// How many frozen pieces come before another action of their rank.
int64_t PiecesInBubbles(const planner::Plan& plan) {
  int64_t pieces = 0;
  for (const auto& rank : plan.schedule.ranks) {
    const auto last = std::find_if_not(rank.rbegin(), rank.rend(), IsFrozen);
    pieces += std::count_if(last, rank.rend(), IsFrozen);
  }
  return pieces;
}

spec::TaskGrant WithFrozenComponents(spec::TaskGrant grant) {
  grant.spec.model = {.patch = 2, .width = 384, .depth = 6, .heads = 4};
  grant.spec.training.batch_size = 64;
  grant.spec.frozen = {
      {.name = "encoder",
       .output = "latent",
       .layers = {{.kind = "convolution", .width = 2, .stride = 2}, {.kind = "block"}}},
      {.name = "labels", .input = "label", .output = "condition", .layers = {{.kind = "embedding", .width = 384}}}};
  return grant;
}

TEST_F(IslandTest, MeasuredFrozenLayersGoIntoTheBubbles) {
  Grant(WithFrozenComponents(TrainingGrant(1, 5)));
  StartLeader(2);
  AddFollower(1);
  ASSERT_TRUE(coordinator_.Await(Completed()));
  EXPECT_EQ(training_.profiles, 2) << "nothing else is open in this job";
  absl::MutexLock lock(&training_.mutex);
  ASSERT_EQ(training_.plans.size(), 1u);
  const planner::Plan& plan = training_.plans[0];
  EXPECT_EQ(plan.components.size(), 2u);
  EXPECT_TRUE(planner::FrozenFlowOf(plan).ok()) << planner::FrozenFlowOf(plan).status();
  EXPECT_GT(PiecesInBubbles(plan), 0);
}

TEST_F(IslandTest, ATaskThatGoesOnRunsTheFrozenPiecesOfTheAttemptBefore) {
  Grant(WithFrozenComponents(TrainingGrant(1, 10)));
  StartLeader(2);
  AddFollower(1);
  ASSERT_TRUE(coordinator_.Await(Completed()));
  spec::TaskGrant again = WithFrozenComponents(TrainingGrant(2, 20));
  again.resume_from = coordinator_.Copy().committed.back();
  // Another plan would come of this, if one were made.
  again.spec.pipeline.fill = "never";
  Grant(again);
  ASSERT_TRUE(coordinator_.Await([](const auto& state) { return state.completed.size() == 2; }));
  EXPECT_EQ(training_.profiles, 2);
  absl::MutexLock lock(&training_.mutex);
  ASSERT_EQ(training_.plans.size(), 2u);
  EXPECT_EQ(training_.plans[0].frozen, training_.plans[1].frozen);
  EXPECT_EQ(training_.plans[0].schedule, training_.plans[1].schedule);
}

TEST_F(IslandTest, FrozenWorkWhoseCostsNobodyKnowsComesAfterTheFlush) {
  training_.fail_profiles = true;
  spec::TaskGrant grant = WithFrozenComponents(TrainingGrant(1, 5));
  const auto program = store_->Write(store_->UriOf("inputs/e.pt"), "a program");
  ASSERT_TRUE(program.ok()) << program.status();
  grant.spec.frozen[0] = {.name = "encoder",
                          .output = "latent",
                          .torchscript = {program->uri},
                          .shape = {2, 4, 4},
                          .file_sha256 = {program->sha256}};
  Grant(grant);
  StartLeader(2);
  AddFollower(1);
  ASSERT_TRUE(coordinator_.Await(Completed()));
  absl::MutexLock lock(&training_.mutex);
  ASSERT_EQ(training_.plans.size(), 1u);
  EXPECT_EQ(training_.plans[0].frozen.size(), 4u);  // both components, a half of the batch on each rank
  EXPECT_EQ(PiecesInBubbles(training_.plans[0]), 0);
}

TEST_F(IslandTest, RanksShareThePassWhoseOutputsAreKept) {
  spec::TaskGrant grant = WithFrozenComponents(TrainingGrant(1, 5));
  grant.spec.pipeline.frozen_cache = "always";
  Grant(grant);
  StartLeader(2);
  AddFollower(1);
  ASSERT_TRUE(coordinator_.Await(Completed()));
  EXPECT_EQ(training_.profiles, 0) << "nothing is open in this plan";
  absl::MutexLock lock(&training_.mutex);
  ASSERT_EQ(training_.plans.size(), 1u);
  EXPECT_TRUE(training_.plans[0].reads_frozen_cache);
  EXPECT_TRUE(training_.plans[0].frozen.empty());
  ASSERT_EQ(training_.frozen_passes.size(), 2u);
  EXPECT_EQ(training_.frozen_passes[0].ranks, 2);
  EXPECT_EQ(training_.frozen_passes[0].rank + training_.frozen_passes[1].rank, 1);
  EXPECT_EQ(training_.frozen_passes[0].folder, training_.frozen_passes[1].folder);
  EXPECT_TRUE(training_.frozen_passes[0].folder.starts_with(store_->UriOf("frozen/")));
}

TEST_F(IslandTest, ALeaderThatStopsDuringAPassGivesTheTaskBack) {
  training_.slow_frozen_pass = true;
  spec::TaskGrant grant = WithFrozenComponents(TrainingGrant(1, 5));
  grant.spec.pipeline.frozen_cache = "always";
  Grant(grant);
  StartLeader(2);
  AddFollower(1);
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  const auto both_compute = [this] {
    absl::MutexLock lock(&training_.mutex);
    return training_.frozen_passes.size() == 2;
  };
  while (!both_compute() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
  ASSERT_TRUE(both_compute());
  EXPECT_TRUE(StopLeader().ok());
  const auto state = coordinator_.Copy();
  EXPECT_EQ(state.released.size(), 1u);
  EXPECT_TRUE(state.failed.empty());
}

TEST_F(IslandTest, AMeasurementThatFailsDoesNotKeepATaskFromTraining) {
  training_.fail_profiles = true;
  spec::TaskGrant open = TrainingGrant(3, 10);
  open.spec.pipeline.schedule = "auto";
  open.spec.pipeline.micro_batches = 2;
  Grant(open);
  StartLeader(2);
  AddFollower(1);
  ASSERT_TRUE(coordinator_.Await(Completed()));
  EXPECT_EQ(training_.profiles, 0);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/profiles"));
}

TEST_F(IslandTest, AnAttemptGoesOnFromTheCommittedCheckpoint) {
  Grant(TrainingGrant(1, 10));
  StartLeader(1);
  ASSERT_TRUE(coordinator_.Await(Completed()));
  spec::TaskGrant again = TrainingGrant(2, 25);
  again.resume_from = coordinator_.Copy().committed.back();
  Grant(again);
  ASSERT_TRUE(coordinator_.Await([](const auto& state) { return state.completed.size() == 2; }));
  const std::vector<std::pair<int64_t, int64_t>> commits = {{1, 10}, {2, 20}, {2, 25}};
  EXPECT_EQ(coordinator_.Copy().commits, commits);
}

TEST_F(IslandTest, ATaskWhoseLastStepWasCommittedIsCompletedWithoutTraining) {
  Grant(TrainingGrant(1, 10));
  StartLeader(1);
  ASSERT_TRUE(coordinator_.Await(Completed()));
  spec::TaskGrant again = TrainingGrant(2, 10);
  again.resume_from = coordinator_.Copy().committed.back();
  Grant(again);
  ASSERT_TRUE(coordinator_.Await([](const auto& state) { return state.completed.size() == 2; }));
  const auto state = coordinator_.Copy();
  EXPECT_EQ(state.commits.size(), 1u);
  EXPECT_EQ(state.outputs[0], state.outputs[1]);
}

TEST_F(IslandTest, AnAbsentCoordinatorStopsNoStepAndChangesNoAttempt) {
  coordinator_.Change([](auto* state) { state->commits_to_refuse = 3; });
  Grant(TrainingGrant(5, 60));
  StartLeader(2);
  AddFollower(1);
  ASSERT_TRUE(coordinator_.Await(Completed()));
  const auto state = coordinator_.Copy();
  EXPECT_EQ(state.granted.size(), 1u);
  ASSERT_FALSE(state.commits.empty());
  EXPECT_EQ(state.commits.back(), (std::pair<int64_t, int64_t>(5, 60)));
  EXPECT_TRUE(state.released.empty());
}

TEST_F(IslandTest, ATokenThatIsReplacedLateDropsNoCommit) {
  coordinator_.Change([](auto* state) {
    state->commits_to_refuse = 2;
    state->commit_refusal = MakeError(absl::StatusCode::kUnauthenticated, "TOKEN_EXPIRED", "a minute ago");
  });
  Grant(TrainingGrant(5, 10));
  StartLeader(1);
  ASSERT_TRUE(coordinator_.Await(Completed()));
  const std::vector<std::pair<int64_t, int64_t>> commits = {{5, 10}};
  EXPECT_EQ(coordinator_.Copy().commits, commits);
}

TEST_F(IslandTest, AnIslandThatIsShutOutTriesOnForFiveMinutes) {
  FakeClock clock;
  CoordinatorClient client({.address = coordinator_server_->address(), .island_id = "lagoon"}, &clock, &metrics_);
  ASSERT_TRUE(client.Register({}, "r").ok());
  coordinator_.Change([](auto* state) {
    state->commits_to_refuse = 1'000'000;
    state->commit_refusal = MakeError(absl::StatusCode::kUnauthenticated, "TOKEN_EXPIRED", "a minute ago");
  });
  const spec::LeaseToken token = TrainingGrant(1, 25).token;
  absl::Status status;
  absl::Notification over;
  std::thread committing([&] {
    status = client.Commit(token, {.step = 10});
    over.Notify();
  });
  while (!over.HasBeenNotified()) {
    clock.Advance(absl::Seconds(1));
    absl::SleepFor(absl::Milliseconds(1));
  }
  committing.join();
  EXPECT_EQ(ErrorReason(status), "TOKEN_EXPIRED") << status;
  EXPECT_GE(clock.Monotonic(), absl::Minutes(5));
}

TEST_F(IslandTest, ACommitThatIsGivenUpDoesNotWaitForItsNextTry) {
  FakeClock clock;  // no delay ever passes
  CoordinatorClient client({.address = coordinator_server_->address(), .island_id = "lagoon"}, &clock, &metrics_);
  coordinator_.Change([](auto* state) { state->commits_to_refuse = 1; });
  const spec::LeaseToken token = TrainingGrant(1, 25).token;
  absl::Status status;
  std::thread committing([&] { status = client.Commit(token, {.step = 10}); });
  EXPECT_TRUE(coordinator_.Await([](const auto& state) { return state.commits_to_refuse == 0; }));
  client.GiveUpCommits(token);
  committing.join();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_TRUE(coordinator_.Copy().commits.empty());
}

TEST_F(IslandTest, ALastCheckpointThatTheStoreDidNotTakeIsNotTheTasksFault) {
  const absl::Cleanup mend = [] { ASSERT_TRUE(SetFailpoints("").ok()); };
  ASSERT_TRUE(SetFailpoints("manifest.before_write=error:UNAVAILABLE@1").ok());
  Grant(TrainingGrant(1, 10));
  StartLeader(1);
  ASSERT_TRUE(coordinator_.Await([](const auto& state) { return !state.released.empty() || !state.failed.empty(); }));
  const auto state = coordinator_.Copy();
  EXPECT_TRUE(state.failed.empty()) << state.failed.front();
  ASSERT_EQ(state.released.size(), 1u);
  EXPECT_EQ(state.released[0],
            "task job/train_expert/0: step 10 is done, but its checkpoint is not committed: failpoint "
            "manifest.before_write");
}

TEST_F(IslandTest, ALastCheckpointThatIsRefusedFailsTheTaskAndSaysWhy) {
  const absl::Cleanup mend = [] { ASSERT_TRUE(SetFailpoints("").ok()); };
  ASSERT_TRUE(SetFailpoints("manifest.before_write=error:PERMISSION_DENIED@1").ok());
  Grant(TrainingGrant(1, 10));
  StartLeader(1);
  ASSERT_TRUE(coordinator_.Await([](const auto& state) { return !state.failed.empty(); }));
  EXPECT_EQ(coordinator_.Copy().failed[0],
            "INTERNAL: task job/train_expert/0: step 10 is done, but its checkpoint is not committed: failpoint "
            "manifest.before_write");
}

TEST_F(IslandTest, TrainingWhoseCheckpointsAreRefusedEnds) {
  const absl::Cleanup mend = [] { ASSERT_TRUE(SetFailpoints("").ok()); };
  ASSERT_TRUE(SetFailpoints("shard.before_write=error:PERMISSION_DENIED").ok());
  Grant(TrainingGrant(1, 1'000'000));
  StartLeader(1);
  ASSERT_TRUE(coordinator_.Await([](const auto& state) { return !state.failed.empty(); }));
  const auto state = coordinator_.Copy();
  EXPECT_EQ(state.failed[0].find("PERMISSION_DENIED: rank 0: "), 0u) << state.failed[0];
  EXPECT_NE(state.failed[0].find("checkpoints in a row could not be written: failpoint shard.before_write"),
            std::string::npos)
      << state.failed[0];
}

TEST_F(IslandTest, TrainingGoesOnWhileTheStoreIsAway) {
  const absl::Cleanup mend = [] { ASSERT_TRUE(SetFailpoints("").ok()); };
  ASSERT_TRUE(SetFailpoints("shard.before_write=error:UNAVAILABLE").ok());
  Grant(TrainingGrant(1, 80));
  StartLeader(1);
  ASSERT_TRUE(coordinator_.Await([](const auto& state) { return !state.released.empty() || !state.failed.empty(); }));
  const auto state = coordinator_.Copy();
  EXPECT_TRUE(state.failed.empty()) << state.failed.front();
  ASSERT_EQ(state.released.size(), 1u);
  EXPECT_EQ(state.released[0], "rank 0: failpoint shard.before_write");
}

// Joins, makes itself ready and goes away: what a killed process looks like to its leader.
TEST_F(IslandTest, ALostRankEndsTheAttemptAndTheNextPlanHasTheRanksThatAreThere) {
  StartLeader(2, /*rejoin_timeout=*/absl::Milliseconds(100));
  auto stub = pb::RendezvousService::NewStub(rpc::MakeChannel(fmt::format("127.0.0.1:{}", leader_->rendezvous_port())));
  grpc::ClientContext context;
  rpc::SetTimeout(&context, absl::Seconds(20));
  const auto stream = stub->Join(&context);
  pb::JoinRequest hello;
  hello.mutable_hello()->set_rank(1);
  hello.mutable_hello()->set_island_secret(kSecret);
  hello.mutable_hello()->set_build("b1");
  ASSERT_TRUE(stream->Write(hello));
  ASSERT_TRUE(coordinator_.Await(RegisteredWith(2)));
  Grant(TrainingGrant(1, 20));
  pb::JoinResponse response;
  while (!response.has_start()) ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.start().plan_rank(), 1);
  EXPECT_EQ(response.start().incarnation(), 7);
  Grant(TrainingGrant(2, 20));
  context.TryCancel();
  ASSERT_TRUE(coordinator_.Await(Completed()));
  const auto state = coordinator_.Copy();
  ASSERT_EQ(state.released.size(), 1u);
  EXPECT_NE(state.released[0].find("rank 1"), std::string::npos) << state.released[0];
  EXPECT_EQ(state.registered_ranks.back(), 1);
  EXPECT_EQ(metrics_.lost_ranks->Value(), 1);
  absl::MutexLock lock(&training_.mutex);
  EXPECT_EQ(training_.plan_ranks, std::vector<int32_t>({2, 1}));
}

TEST_F(IslandTest, ATaskThatNeedsMoreRanksThanThereAreIsReleased) {
  Grant(TrainingGrant(1, 20, /*min_ranks=*/2));
  StartLeader(2, /*rejoin_timeout=*/absl::Milliseconds(50));
  ASSERT_TRUE(coordinator_.Await([](const auto& state) { return !state.released.empty(); }));
  EXPECT_NE(coordinator_.Copy().released[0].find("expected 2 ranks, found 1"), std::string::npos);
}

TEST_F(IslandTest, ARevokedLeaseStopsEveryRankAtOnce) {
  training_.pause_at_step = 15;
  Grant(TrainingGrant(1, 1'000'000));
  StartLeader(2);
  AddFollower(1);
  ASSERT_TRUE(coordinator_.Await([](const auto& state) { return !state.commits.empty(); }));
  coordinator_.Change([](auto* state) { state->revoke = "JOB_CANCELLED"; });
  // The paused step ends with its transport aborted.
  training_.pause_at_step = 0;
  Grant(TrainingGrant(2, 1'000'000));
  ASSERT_TRUE(coordinator_.Await([](const auto& state) { return state.granted.size() == 2; }));
  const auto state = coordinator_.Copy();
  EXPECT_TRUE(state.completed.empty());
  EXPECT_TRUE(state.released.empty());
  EXPECT_TRUE(state.failed.empty());
}

TEST_F(IslandTest, AnIslandThatIsShutOutWhileItTrainsEnds) {
  training_.pause_at_step = 15;
  Grant(TrainingGrant(1, 1'000'000));
  StartLeader(1);
  ASSERT_TRUE(coordinator_.Await([](const auto& state) { return !state.commits.empty(); }));
  coordinator_.Change([](auto* state) {
    state->heartbeat_refusal = MakeError(absl::StatusCode::kUnauthenticated, "TOKEN_REVOKED", "on the deny list");
  });
  training_.pause_at_step = 0;
  leader_thread_.join();
  EXPECT_EQ(ErrorReason(leader_status_), "TOKEN_REVOKED") << leader_status_;
}

TEST_F(IslandTest, CheckpointsOfALeaseThatIsLostAreNotCountedAnyMore) {
  absl::Notification begun;
  run_task_ = [&](const tasks::TaskContext&) -> absl::StatusOr<std::vector<spec::Artifact>> {
    begun.Notify();
    return absl::AbortedError("over");
  };
  coordinator_.Change([](auto* state) { state->commits_to_refuse = 1'000'000; });
  training_.pause_at_step = 15;
  Grant(TrainingGrant(1, 1'000'000));
  StartLeader(1);
  while (metrics_.uncommitted_checkpoints->Value() < 1) absl::SleepFor(absl::Milliseconds(1));
  coordinator_.Change([](auto* state) { state->revoke = "JOB_CANCELLED"; });
  training_.pause_at_step = 0;
  spec::TaskGrant next = TrainingGrant(2, 1);
  next.kind = spec::TaskKind::kFeaturize;
  Grant(next);
  begun.WaitForNotification();
  EXPECT_EQ(metrics_.uncommitted_checkpoints->Value(), 0);
}

TEST_F(IslandTest, TrainingThatDivergesGoesBackAndLeavesTheBatchesOut) {
  training_.nan_at_step = 17;
  Grant(TrainingGrant(1, 25));
  StartLeader(2);
  AddFollower(1);
  ASSERT_TRUE(coordinator_.Await([](const auto& state) { return !state.rolled_back.empty(); }));
  const auto state = coordinator_.Copy();
  const pb::RollbackTaskRequest& request = state.rolled_back[0];
  EXPECT_EQ(request.token().attempt(), 1);
  EXPECT_EQ(request.before_step(), 17);
  EXPECT_EQ(request.through_step(), 17);
  EXPECT_EQ(request.reason(), "LOSS_NOT_FINITE");
  EXPECT_EQ(request.message(), "training diverged: step 17: found nan");
  EXPECT_TRUE(state.failed.empty());
  const std::string uri = store_->UriOf("tasks/expert-0/1-1/evidence/00000017.json");
  EXPECT_EQ(request.evidence_uri(), uri);
  const auto evidence = nlohmann::json::parse(store_->Read(uri).value());
  EXPECT_EQ(evidence["cause"], "LOSS_NOT_FINITE");
  EXPECT_EQ(evidence["step"], 17);
  EXPECT_EQ(evidence["build"], "b1");
  EXPECT_EQ(evidence["plan"]["ranks"], 2);
  EXPECT_EQ(evidence["steps"].size(), 17u);
  EXPECT_EQ(evidence["steps"][15]["loss"], 1.0 / 16);
  EXPECT_TRUE(evidence["steps"][16]["loss"].is_null());
  EXPECT_EQ(evidence["samples"].size(), 8u) << "those of the step that broke";
  // As the coordinator grants it anew.
  ASSERT_EQ(state.committed.size(), 1u);
  training_.nan_at_step = 0;
  spec::TaskGrant again = TrainingGrant(2, 25);
  again.resume_from = state.committed[0];
  again.skipped = {{11, 7}};
  Grant(again);
  ASSERT_TRUE(coordinator_.Await(Completed()));
  const spec::Artifact output = coordinator_.Copy().outputs.at(0);
  const auto reader = storage::CheckpointReader::Open(store_.get(), output.uri, output.sha256);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->manifest().step, 25);
  EXPECT_EQ(reader->manifest().samples_consumed, (25 + 7) * 8);
}

TEST_F(IslandTest, LossesThatExplodeAreNotTrustedFromTheFirstOneOn) {
  training_.explode_from = 15;
  Grant(TrainingGrant(1, 25));
  StartLeader(1);
  ASSERT_TRUE(coordinator_.Await([](const auto& state) { return !state.rolled_back.empty(); }));
  const auto request = coordinator_.Copy().rolled_back[0];
  EXPECT_EQ(request.reason(), "LOSS_EXPLODED");
  EXPECT_EQ(request.before_step(), 15);
  EXPECT_EQ(request.through_step(), 17);
  const auto evidence = nlohmann::json::parse(store_->Read(request.evidence_uri()).value());
  EXPECT_EQ(evidence["samples"].size(), 3u * 8);
}

TEST_F(IslandTest, ACheckpointThatIsDamagedIsGivenUpForTheOneBefore) {
  training_.pause_at_step = 21;
  Grant(TrainingGrant(1, 25));
  StartLeader(1);
  ASSERT_TRUE(coordinator_.Await([](const auto& state) { return state.commits.size() == 2; }));
  training_.pause_at_step = 0;
  ASSERT_TRUE(coordinator_.Await(Completed()));
  const auto committed = coordinator_.Copy().committed;
  const auto file_of = [&](const spec::CommittedCheckpoint& checkpoint) {
    return checkpoint.manifest_uri.substr(0, checkpoint.manifest_uri.rfind('/')) + "/stage-0.safetensors";
  };
  // A flipped byte, a missing file, a missing manifest; that of the last step too, which nobody trains on from.
  std::string bytes = store_->Read(file_of(committed[0])).value();
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  ASSERT_TRUE(store_->Write(file_of(committed[0]), bytes).ok());
  ASSERT_TRUE(store_->Delete(file_of(committed[1])).ok());
  ASSERT_TRUE(store_->Delete(committed[2].manifest_uri).ok());
  for (size_t i = 0; i < 3; ++i) {
    spec::TaskGrant again = TrainingGrant(static_cast<int64_t>(i) + 2, 25);
    again.resume_from = committed[i];
    Grant(again);
    ASSERT_TRUE(coordinator_.Await([&](const auto& state) { return state.rolled_back.size() == i + 1; }));
    const auto request = coordinator_.Copy().rolled_back[i];
    EXPECT_EQ(request.before_step(), committed[i].step);
    EXPECT_EQ(request.through_step(), 0) << "the data is not to blame";
    EXPECT_EQ(request.reason(), "CHECKPOINT_UNREADABLE");
    EXPECT_NE(request.message().find(fmt::format("the checkpoint of step {} is damaged: ", committed[i].step)),
              std::string::npos)
        << request.message();
    EXPECT_EQ(request.evidence_uri(), "");
  }
  EXPECT_TRUE(coordinator_.Copy().failed.empty());
}

TEST_F(IslandTest, AnErrorOfTheTaskIsReportedWithItsCode) {
  training_.fail_at_step = 5;
  Grant(TrainingGrant(1, 20));
  StartLeader(2);
  AddFollower(1);
  ASSERT_TRUE(coordinator_.Await([](const auto& state) { return !state.failed.empty(); }));
  EXPECT_EQ(coordinator_.Copy().failed[0], "DATA_LOSS permanent: rank 0: shard 3 is broken");
}

TEST_F(IslandTest, AStopLeavesACheckpointOfTheStepItStoppedAfterAndGivesTheLeaseBack) {
  training_.pause_at_step = 15;
  Grant(TrainingGrant(1, 1'000'000));
  StartLeader(2);
  const Follower* const follower = AddFollower(1);
  ASSERT_TRUE(coordinator_.Await([](const auto& state) { return !state.commits.empty(); }));
  leader_->Stop({.reason = "SIGTERM"});
  // Steps without work are over long before the half second that the leader reckons a message takes.
  ASSERT_TRUE(follower->AwaitStopAfter());
  training_.pause_at_step = 0;
  leader_thread_.join();
  EXPECT_TRUE(leader_status_.ok()) << leader_status_;
  const auto state = coordinator_.Copy();
  ASSERT_EQ(state.released.size(), 1u);
  EXPECT_EQ(state.released[0], fmt::format("stopped after step {} of 1000000", state.commits.back().second));
}

TEST_F(IslandTest, AStopWhoseCheckpointIsRefusedSaysSo) {
  const absl::Cleanup mend = [] { ASSERT_TRUE(SetFailpoints("").ok()); };
  training_.pause_at_step = 15;
  Grant(TrainingGrant(1, 1'000'000));
  StartLeader(2);
  const Follower* const follower = AddFollower(1);
  ASSERT_TRUE(coordinator_.Await([](const auto& state) { return !state.commits.empty(); }));
  ASSERT_TRUE(SetFailpoints("manifest.before_write=error:PERMISSION_DENIED").ok());
  leader_->Stop({.reason = "SIGTERM"});
  ASSERT_TRUE(follower->AwaitStopAfter());
  training_.pause_at_step = 0;
  leader_thread_.join();
  EXPECT_TRUE(leader_status_.ok()) << leader_status_;
  const auto state = coordinator_.Copy();
  EXPECT_TRUE(state.failed.empty()) << state.failed.front();
  ASSERT_EQ(state.released.size(), 1u);
  EXPECT_EQ(state.released[0].find("stopped after step "), 0u) << state.released[0];
  EXPECT_NE(state.released[0].find(" of 1000000, but its checkpoint is not committed: failpoint manifest.before_write"),
            std::string::npos)
      << state.released[0];
}

TEST_F(IslandTest, ATaskThatTheCoordinatorAsksForIsGivenBackWellAndTheIslandGoesOn) {
  training_.pause_at_step = 15;
  Grant(TrainingGrant(1, 1'000'000));
  StartLeader(2);
  const Follower* const follower = AddFollower(1);
  ASSERT_TRUE(coordinator_.Await([](const auto& state) { return !state.commits.empty(); }));
  coordinator_.Change([](auto* state) { state->stopping = "MOVED"; });
  ASSERT_TRUE(follower->AwaitStopAfter());
  training_.pause_at_step = 0;
  ASSERT_TRUE(coordinator_.Await([](const auto& state) { return !state.released.empty(); }));
  const auto state = coordinator_.Copy();
  EXPECT_EQ(state.released[0], fmt::format("stopped after step {} of 1000000", state.commits.back().second));
  // The next task is another one: nobody asks for it.
  coordinator_.Change([](auto* to_change) { to_change->stopping.clear(); });
  Grant(TrainingGrant(2, 20));
  EXPECT_TRUE(coordinator_.Await(Completed()));
}

TEST_F(IslandTest, HeartbeatsSayWhatAStepTakes) {
  Grant(TrainingGrant(1, 1'000'000));
  StartLeader(1);
  EXPECT_TRUE(coordinator_.Await([](const auto& state) { return state.step_seconds > 0; }));
}

TEST_F(IslandTest, ADrainedIslandGivesATaskOfTheLeaderAloneBackToo) {
  absl::Notification begun;
  run_task_ = [&](const tasks::TaskContext& context) -> absl::StatusOr<std::vector<spec::Artifact>> {
    begun.Notify();
    while (!context.cancelled()) absl::SleepFor(absl::Milliseconds(1));
    return absl::AbortedError("stopped");
  };
  spec::TaskGrant grant = TrainingGrant(1, 1);
  grant.kind = spec::TaskKind::kFeaturize;
  Grant(grant);
  StartLeader(1);
  begun.WaitForNotification();
  coordinator_.Change([](auto* state) { state->drain_reason = "new disk"; });
  ASSERT_TRUE(coordinator_.Await([](const auto& state) { return !state.released.empty(); }));
  EXPECT_EQ(coordinator_.Copy().released[0], "cancelled: the island is drained: new disk");
  EXPECT_TRUE(coordinator_.Copy().failed.empty());
}

TEST_F(IslandTest, AStopWithoutTimeForACheckpointGivesTheLeaseBackAtOnce) {
  training_.pause_at_step = 15;
  Grant(TrainingGrant(1, 1'000'000));
  StartLeader(2);
  AddFollower(1);
  ASSERT_TRUE(coordinator_.Await([](const auto& state) { return !state.commits.empty(); }));
  leader_->Stop({.reason = "two minutes ago", .deadline = Clock::Real()->Monotonic()});
  training_.pause_at_step = 0;
  leader_thread_.join();
  EXPECT_TRUE(leader_status_.ok()) << leader_status_;
  const auto state = coordinator_.Copy();
  ASSERT_EQ(state.released.size(), 1u);
  EXPECT_NE(state.released[0].find("two minutes ago: released at once"), std::string::npos) << state.released[0];
}

TEST_F(IslandTest, ARankWithoutTimeForACheckpointEndsTheAttemptAtOnce) {
  training_.pause_at_step = 15;
  StartLeader(2, /*rejoin_timeout=*/absl::Milliseconds(50));
  Follower* const follower = AddFollower(1);
  ASSERT_TRUE(coordinator_.Await(RegisteredWith(2)));
  Grant(TrainingGrant(1, 1'000'000));
  ASSERT_TRUE(coordinator_.Await([](const auto& state) { return !state.commits.empty(); }));
  Grant(TrainingGrant(2, 20));
  follower->AskToStop(Clock::Real()->Monotonic() + absl::Milliseconds(400));
  training_.pause_at_step = 0;
  ASSERT_TRUE(coordinator_.Await([](const auto& state) { return !state.released.empty(); }));
  EXPECT_TRUE(follower->Join().ok());
  ASSERT_TRUE(coordinator_.Await(Completed()));
  EXPECT_NE(coordinator_.Copy().released[0].find("rank 1 leaves: the test says so: released at once"),
            std::string::npos);
}

TEST_F(IslandTest, ARankThatWantsToEndStopsTheAttemptWell) {
  training_.pause_at_step = 15;
  StartLeader(2, /*rejoin_timeout=*/absl::Milliseconds(50));
  Follower* const follower = AddFollower(1);
  ASSERT_TRUE(coordinator_.Await(RegisteredWith(2)));
  Grant(TrainingGrant(1, 1'000'000));
  ASSERT_TRUE(coordinator_.Await([](const auto& state) { return !state.commits.empty(); }));
  Grant(TrainingGrant(2, 20));
  follower->AskToStop();
  ASSERT_TRUE(follower->AwaitStopAfter());
  training_.pause_at_step = 0;
  EXPECT_TRUE(follower->Join().ok());
  ASSERT_TRUE(coordinator_.Await(Completed()));
  const auto state = coordinator_.Copy();
  ASSERT_EQ(state.released.size(), 1u);
  EXPECT_EQ(state.released[0].find("stopped after step "), 0u) << state.released[0];
  EXPECT_EQ(metrics_.lost_ranks->Value(), 0) << "it left as announced";
}

TEST_F(IslandTest, ATaskForTheLeaderAloneRunsAndIsCompleted) {
  run_task_ = [](const tasks::TaskContext& context) -> absl::StatusOr<std::vector<spec::Artifact>> {
    return std::vector<spec::Artifact>{{.name = "features", .uri = context.grant.write_prefix + "/f"}};
  };
  spec::TaskGrant grant = TrainingGrant(1, 1);
  grant.kind = spec::TaskKind::kFeaturize;
  Grant(grant);
  StartLeader(1);
  ASSERT_TRUE(coordinator_.Await(Completed()));
  EXPECT_EQ(coordinator_.Copy().outputs[0].name, "features");
}

TEST_F(IslandTest, EachRankComputesOnADeviceOfItsOwn) {
  devices_ = {{"cuda:0", "GPU-a"}};
  StartLeader(2);
  RendezvousOptions taken = FollowerOptions(1);
  taken.devices = devices_;
  const absl::Status refused = Follower(&training_, store_.get(), &metrics_, taken).Join();
  EXPECT_EQ(ErrorReason(refused), "DEVICE_TAKEN") << refused;
  EXPECT_NE(refused.message().find("cuda:0 (GPU-a) with rank 0"), std::string::npos) << refused;
  RendezvousOptions free = FollowerOptions(1);
  free.devices = {{"cuda:0", "GPU-a"}, {"cuda:1", "GPU-b"}};
  followers_.push_back(std::make_unique<Follower>(&training_, store_.get(), &metrics_, free));
  Grant(TrainingGrant(1, 10, /*min_ranks=*/2));
  ASSERT_TRUE(coordinator_.Await(Completed()));
  absl::MutexLock lock(&training_.mutex);
  EXPECT_EQ(training_.devices, (std::map<int32_t, std::string>{{0, "cuda:0"}, {1, "cuda:1"}}));
}

TEST_F(IslandTest, WhoDoesNotBelongIsRefusedForGood) {
  StartLeader(2);
  const auto refusal = [this](const std::function<void(RendezvousOptions*)>& change) {
    RendezvousOptions options = FollowerOptions(1);
    change(&options);
    return ErrorReason(Follower(&training_, store_.get(), &metrics_, options).Join());
  };
  EXPECT_EQ(refusal([](auto* options) { options->secret = "Reef"; }), "WRONG_ISLAND_SECRET");
  EXPECT_EQ(refusal([](auto* options) { options->secret.clear(); }), "WRONG_ISLAND_SECRET");
  EXPECT_EQ(refusal([](auto* options) { options->build = "b2"; }), "WRONG_BUILD");
  EXPECT_EQ(refusal([](auto* options) { options->rank = 2; }), "RANK_OUT_OF_RANGE");
}

TEST_F(IslandTest, ACoordinatorThatLostItsStoreIsServedByTheSameProcesses) {
  Grant(TrainingGrant(1, 10));
  StartLeader(2);
  AddFollower(1);
  ASSERT_TRUE(coordinator_.Await(Completed()));
  // It counts incarnations and attempts anew, and has a later epoch.
  coordinator_.Change([](auto* state) {
    state->knows_island = false;
    state->incarnation = 1;
  });
  ASSERT_TRUE(coordinator_.Await([](const auto& state) { return state.knows_island; }));
  spec::TaskGrant anew = TrainingGrant(1, 10);
  anew.token.store_epoch = 2;
  anew.token.attempt_secret = "t";
  anew.write_prefix = store_->UriOf("tasks/expert-0/2-1");
  Grant(anew);
  ASSERT_TRUE(coordinator_.Await([](const auto& state) { return state.completed.size() == 2; }));
  EXPECT_TRUE(coordinator_.Copy().released.empty());
}

TEST_F(IslandTest, ACoordinatorThatForgotTheIslandIsServedByTheSameProcesses) {
  Grant(TrainingGrant(1, 10));
  StartLeader(2);
  AddFollower(1);
  ASSERT_TRUE(coordinator_.Await(Completed()));
  // After long silence: it counts incarnations anew, and is of the same epoch.
  coordinator_.Change([](auto* state) {
    state->knows_island = false;
    state->incarnation = 1;
  });
  ASSERT_TRUE(coordinator_.Await([](const auto& state) { return state.knows_island; }));
  Grant(TrainingGrant(2, 10));
  ASSERT_TRUE(coordinator_.Await([](const auto& state) { return state.completed.size() == 2; }));
  EXPECT_TRUE(coordinator_.Copy().released.empty());
}

TEST_F(IslandTest, ALeaderWhoseIslandWasTakenOverEnds) {
  StartLeader(1);
  ASSERT_TRUE(coordinator_.Await([](const auto& state) { return !state.registered_ranks.empty(); }));
  coordinator_.Change([](auto* state) { state->incarnation = 8; });
  leader_thread_.join();
  EXPECT_EQ(ErrorReason(leader_status_), "STALE_INCARNATION");
}

TEST_F(IslandTest, AnIslandThatEndsWithAnErrorEndsEveryRankWithOne) {
  StartLeader(2);
  Follower* const follower = AddFollower(1);
  ASSERT_TRUE(coordinator_.Await(RegisteredWith(2)));
  coordinator_.Change([](auto* state) { state->incarnation = 8; });
  leader_thread_.join();
  const absl::Status status = follower->Join();
  EXPECT_EQ(ErrorReason(status), "ISLAND_ENDED") << status;
  EXPECT_NE(status.message().find("another process"), std::string::npos) << status;
  EXPECT_EQ(metrics_.lost_leader->Value(), 0);
  EXPECT_EQ(metrics_.lost_ranks->Value(), 0);
}

}  // namespace
}  // namespace atl::worker
