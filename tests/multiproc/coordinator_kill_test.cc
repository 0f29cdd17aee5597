// A real coordinator is killed between any two of its commits, and restarted, while an island drives a whole job: the
// job continues, no acknowledged write is lost, and no attempt number changes because of it.
#include <signal.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/time/clock.h"
#include "atoll/job/v1/job_service.grpc.pb.h"
#include "atoll/model/v1/model_service.grpc.pb.h"
#include "common/base/errors.h"
#include "common/dataset/dataset.h"
#include "common/storage/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/multiproc/coordinator_process.h"
#include "tests/multiproc/fake_island.h"

namespace atl::multiproc {
namespace {

using atlpb::job::v1::Job;
using atlpb::job::v1::JobService;
using atlpb::model::v1::ModelService;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(30);

class CoordinatorKillTest : public testing::Test {
 protected:
  CoordinatorKillTest() { Renew(); }

  // A fresh store and blob store with a dataset.
  void Renew() {
    island_.reset();
    process_.reset();
    folder_ = std::make_unique<storage::TemporaryFolder>();
    process_ = std::make_unique<CoordinatorProcess>(folder_->path());
    auto blobs = storage::BlobStore::Open(process_->blob_root());
    ASSERT_TRUE(blobs.ok()) << blobs.status();
    dataset::DatasetManifest manifest;
    manifest.name = "digits";
    manifest.channels = 1;
    manifest.height = manifest.width = 8;
    manifest.classes = {"0", "1"};
    manifest.shards = {{(*blobs)->UriOf("datasets/digits/0.parquet"), "train", 1000, 1, std::string(64, 'a')}};
    ASSERT_TRUE((*blobs)->Write(dataset::DatasetManifestUri(**blobs, "digits"), dataset::ToJson(manifest)).ok());
  }

  void StartIsland() {
    island_ = std::make_unique<FakeIsland>("island", process_->blob_root(), [this] { return process_->address(); });
  }

  absl::Status Call(const std::function<absl::Status(const std::shared_ptr<grpc::Channel>&)>& call) {
    return CallWithRetry([this] { return process_->address(); }, kPatience, call);
  }

  // In a thread of its own, because the coordinator may be killed before it answers.
  void Submit() {
    submitter_ = std::thread([this] {
      atlpb::job::v1::SubmitJobRequest request;
      request.mutable_spec()->set_model_name("digits");
      request.mutable_spec()->set_dataset("digits");
      request.mutable_spec()->set_experts(1);
      request.mutable_spec()->mutable_training()->set_steps(100);
      request.mutable_spec()->mutable_router_training()->set_steps(100);
      request.set_request_id("submit-1");
      submitted_ = Call([&](const std::shared_ptr<grpc::Channel>& channel) {
        grpc::ClientContext context;
        rpc::SetTimeout(&context, absl::Seconds(5));
        atlpb::job::v1::SubmitJobResponse response;
        const absl::Status status =
            rpc::FromGrpc(JobService::NewStub(channel)->SubmitJob(&context, request, &response));
        if (status.ok()) job_id_ = response.job().job_id();
        return status;
      });
    });
  }

  // Returns all jobs, with their tasks; empty while the coordinator is unreachable.
  std::vector<Job> Jobs() {
    std::vector<Job> jobs;
    const std::string address = process_->address();
    if (address.empty()) return jobs;
    const auto stub = JobService::NewStub(rpc::MakeChannel(address));
    grpc::ClientContext list_context;
    rpc::SetTimeout(&list_context, absl::Seconds(5));
    atlpb::job::v1::ListJobsResponse list;
    if (!stub->ListJobs(&list_context, {}, &list).ok()) return jobs;
    for (const Job& job : list.jobs()) {
      grpc::ClientContext context;
      rpc::SetTimeout(&context, absl::Seconds(5));
      atlpb::job::v1::GetJobRequest request;
      request.set_job_id(job.job_id());
      atlpb::job::v1::GetJobResponse response;
      if (stub->GetJob(&context, request, &response).ok()) jobs.push_back(response.job());
    }
    return jobs;
  }

  // Until the job has succeeded, restarting the process whenever it was killed; returns how often it was. Each restart
  // has `failpoint`.
  int DriveJob(const std::string& failpoint) {
    int kills = 0;
    const absl::Time deadline = absl::Now() + absl::Minutes(1);
    while (absl::Now() < deadline) {
      if (const auto status = process_->AwaitEnd(absl::Milliseconds(20))) {
        EXPECT_TRUE(WIFSIGNALED(*status) && WTERMSIG(*status) == SIGKILL) << *status << "\n" << process_->log();
        if (!WIFSIGNALED(*status)) return -1;
        ++kills;
        process_->Start(failpoint);
      }
      if (!island_->complaint().empty()) break;
      const std::vector<Job> jobs = Jobs();
      if (!jobs.empty() && jobs[0].state() == Job::STATE_SUCCEEDED) return kills;
    }
    ADD_FAILURE() << "the job did not end; island: " << island_->complaint() << "\n" << process_->log();
    return -1;
  }

  // Checks that no acknowledged write is lost and that everything happened once.
  void ExpectWholeJob() {
    if (submitter_.joinable()) submitter_.join();
    EXPECT_TRUE(submitted_.ok()) << submitted_;
    island_->Stop();
    EXPECT_EQ(island_->complaint(), "");
    const std::vector<Job> jobs = Jobs();
    ASSERT_EQ(jobs.size(), 1u) << "one submission, one job";
    EXPECT_EQ(jobs[0].job_id(), job_id_);
    EXPECT_EQ(jobs[0].state(), Job::STATE_SUCCEEDED);
    const FakeIsland::Acknowledged acknowledged = island_->acknowledged();
    EXPECT_EQ(acknowledged.attempts.size(), static_cast<size_t>(jobs[0].tasks_size()));
    for (const auto& task : jobs[0].tasks()) {
      EXPECT_EQ(task.attempt(), 1) << task.task_id();
      EXPECT_EQ(task.state(), atlpb::job::v1::Task::STATE_SUCCEEDED) << task.task_id();
      EXPECT_EQ(acknowledged.attempts.at(task.task_id()), 1) << task.task_id();
      ASSERT_EQ(task.outputs_size(), 1) << task.task_id();
      EXPECT_EQ(acknowledged.completed.at(task.task_id()), task.outputs(0).sha256()) << task.task_id();
    }
    EXPECT_EQ(acknowledged.committed_steps.size(), 2u) << "an expert and the router network";
    for (const auto& [task_id, steps] : acknowledged.committed_steps) EXPECT_EQ(steps, (std::set<int64_t>{50, 100}));
    ExpectOneVersion();
    ExpectNoSecretIn(acknowledged.secrets);
  }

  // While the coordinator runs: in its store, the store's log, and its own.
  void ExpectNoSecretIn(const std::set<std::string>& secrets) {
    EXPECT_GE(secrets.size(), 7u) << "of every task at least one";
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_->path())) {
      if (!entry.is_regular_file()) continue;
      std::ifstream file(entry.path(), std::ios::binary);
      const std::string content{std::istreambuf_iterator<char>(file), {}};
      for (const std::string& secret : secrets) {
        EXPECT_EQ(content.find(secret), std::string::npos) << "an attempt's secret lies in " << entry.path();
      }
    }
  }

  void ExpectOneVersion() {
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(5));
    atlpb::model::v1::GetModelRequest request;
    request.set_name("digits");
    atlpb::model::v1::GetModelResponse response;
    const auto stub = ModelService::NewStub(rpc::MakeChannel(process_->address()));
    ASSERT_TRUE(stub->GetModel(&context, request, &response).ok());
    EXPECT_EQ(response.model().versions_size(), 1);
    EXPECT_EQ(response.model().serving_generation(), 1);
    EXPECT_EQ(response.model().serving_version(), job_id_);
  }

  void TearDown() override {
    if (submitter_.joinable()) submitter_.join();
  }

  std::unique_ptr<storage::TemporaryFolder> folder_;
  std::unique_ptr<CoordinatorProcess> process_;
  std::unique_ptr<FakeIsland> island_;
  std::thread submitter_;
  absl::Status submitted_;
  std::string job_id_;
};

TEST_F(CoordinatorKillTest, KilledOnceOnEitherSideOfEveryCommit) {
  // The n-th point of a whole job, for every n: exhaustive once a job passes that has no n-th point.
  constexpr int kMostPoints = 400;
  int points = 0;
  for (int n = 1; n <= kMostPoints && !HasFailure(); ++n) {
    SCOPED_TRACE("killed at point " + std::to_string(n));
    if (n > 1) Renew();
    process_->Start("*=kill@" + std::to_string(n));
    Submit();
    StartIsland();
    const int kills = DriveJob("");
    ExpectWholeJob();
    if (kills == 0) break;
    points = n;
  }
  // 1 submission, 1 registration, 7 grants, 4 commits, 7 completions; before and after each.
  EXPECT_GE(points, 40);
}

TEST_F(CoordinatorKillTest, KilledAgainAndAgain) {
  // Every start opens the store and has the island register again, four places; less than seven would leave no way on.
  process_->Start("store.*=kill@7");
  Submit();
  StartIsland();
  EXPECT_GE(DriveJob("store.*=kill@7"), 4);
  process_->Stop(SIGKILL);
  process_->Start();
  ASSERT_TRUE(Call([](const std::shared_ptr<grpc::Channel>& channel) {
                grpc::ClientContext context;
                rpc::SetTimeout(&context, absl::Seconds(5));
                atlpb::job::v1::ListJobsResponse response;
                return rpc::FromGrpc(JobService::NewStub(channel)->ListJobs(&context, {}, &response));
              }).ok());
  ExpectWholeJob();
}

TEST_F(CoordinatorKillTest, DownForSeveralLeasesDuringTraining) {
  const std::vector<std::string> flags = {"--lease", "400ms"};
  process_->Start("", flags);
  Submit();
  StartIsland();
  island_->HoldTraining(true);
  const absl::Time deadline = absl::Now() + kPatience;
  while (!island_->training() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(2));
  ASSERT_TRUE(island_->training()) << island_->complaint() << process_->log();
  process_->Stop(SIGKILL);
  absl::SleepFor(absl::Milliseconds(1200));  // the outage itself: three leases long
  process_->Start("", flags);
  island_->HoldTraining(false);
  EXPECT_EQ(DriveJob(""), 0);
  ExpectWholeJob();
}

TEST_F(CoordinatorKillTest, TermStopsCleanlyAndEndsWatches) {
  process_->Start();
  Submit();
  submitter_.join();
  ASSERT_TRUE(submitted_.ok()) << submitted_;
  grpc::ClientContext context;
  rpc::SetTimeout(&context, absl::Seconds(20));
  atlpb::job::v1::WatchJobRequest request;
  request.set_job_id(job_id_);
  const auto stub = JobService::NewStub(rpc::MakeChannel(process_->address()));
  const auto reader = stub->WatchJob(&context, request);
  atlpb::job::v1::WatchJobResponse response;
  ASSERT_TRUE(reader->Read(&response));
  const int status = process_->Stop(SIGTERM);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status << process_->log();
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(ErrorReason(rpc::FromGrpc(reader->Finish())), "COORDINATOR_STOPPING");
}

TEST_F(CoordinatorKillTest, ASecondCoordinatorOnTheSameStoreIsRefused) {
  process_->Start();
  Submit();
  submitter_.join();
  ASSERT_TRUE(submitted_.ok()) << submitted_;
  CoordinatorProcess second(folder_->path());
  second.Start();
  const auto status = second.AwaitEnd(absl::Seconds(20));
  ASSERT_TRUE(status.has_value());
  EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 1) << *status;
  EXPECT_THAT(process_->log(), HasSubstr("belongs to a running coordinator"));
}

// Otherwise the corrected command would find an existing store.
TEST_F(CoordinatorKillTest, ARestoreWithABadAddressMakesNoStore) {
  const auto expect = [this](const std::string& flag, const std::string& value, const std::string& found) {
    process_->Start("", {"--restore", folder_->File("backup.db"), flag, value});
    const std::optional<int> status = process_->AwaitEnd(kPatience);
    ASSERT_TRUE(status.has_value()) << value;
    EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 1) << *status;
    EXPECT_THAT(process_->log(), HasSubstr(found)) << "before the backup, which is not there, is looked at";
    EXPECT_FALSE(std::filesystem::exists(folder_->File("store.db")));
  };
  expect("--listen", "0.0.0.0:0", "TLS_REQUIRED");
  expect("--metrics-listen", "127.0.0.1:65536", "INVALID_ADDRESS");
}

// A coordinator that serves is no backup.
TEST_F(CoordinatorKillTest, AnEmptyPathOfABackupIsRefused) {
  for (const char* flag : {"--backup", "--restore"}) {
    process_->Start("", {flag, ""});
    const std::optional<int> status = process_->AwaitEnd(kPatience);
    ASSERT_TRUE(status.has_value()) << flag;
    EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 2) << *status;
    EXPECT_THAT(process_->log(), HasSubstr(std::string(flag) + ": expected the path of a backup"));
  }
  EXPECT_FALSE(std::filesystem::exists(folder_->File("store.db")));
}

}  // namespace
}  // namespace atl::multiproc
