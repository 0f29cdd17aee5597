// Two real coordinators on one PostgreSQL server: whatever happens to the active one, a job continues, no acknowledged
// write is lost, and a coordinator that was stopped too long writes nothing.
#include <signal.h>

#include <cstdlib>
#include <fstream>

#include "absl/time/clock.h"
#include "atoll/job/v1/job_service.grpc.pb.h"
#include "common/base/errors.h"
#include "common/dataset/dataset.h"
#include "common/storage/testing.h"
#include "gmock/gmock.h"
#include "tests/facility.h"
#include "tests/multiproc/fake_island.h"
#include "tests/multiproc/process.h"
#include "tests/postgres/pg_server.h"

namespace atl::multiproc {
namespace {

using atlpb::job::v1::Job;
using atlpb::job::v1::JobService;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing_cluster::Await;
using testing_cluster::Process;
using testing_postgres::PgServer;

// No claim: for what only has to happen at all.
constexpr absl::Duration kPatience = absl::Seconds(90);

std::string FirstWordOf(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

class FailoverTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string missing = testing_postgres::MissingPgServer();
    ATOLL_REQUIRE_FACILITY(missing.empty(), missing);
    ASSERT_NE(std::getenv("ATOLL_BINARY_DIR"), nullptr) << "run through ctest";
    server_ = std::make_unique<PgServer>();
    uri_ = server_->NewDatabase();
    auto blobs = storage::BlobStore::Open(blob_root());
    ASSERT_TRUE(blobs.ok()) << blobs.status();
    dataset::DatasetManifest manifest;
    manifest.name = "digits";
    manifest.channels = 1;
    manifest.height = manifest.width = 8;
    manifest.classes = {"0", "1"};
    manifest.shards = {{(*blobs)->UriOf("datasets/digits/0.parquet"), "train", 1000, 1, std::string(64, 'a')}};
    ASSERT_TRUE((*blobs)->Write(dataset::DatasetManifestUri(**blobs, "digits"), dataset::ToJson(manifest)).ok());
  }

  std::string blob_root() const { return "file://" + folder_.path() + "/blobs"; }
  std::string PortFile(const std::string& name) const { return folder_.path() + "/" + name + ".address"; }

  // Starts a coordinator and waits until it listens, as the active one or as standby.
  std::unique_ptr<Process> Start(const std::string& name, const std::string& listen = "127.0.0.1:0") {
    std::remove(PortFile(name).c_str());
    auto process = std::make_unique<Process>(
        std::vector<std::string>{std::string(std::getenv("ATOLL_BINARY_DIR")) + "/bin/atoll-coordinator", "--listen",
                                 listen, "--port-file", PortFile(name), "--store", uri_, "--store-lease", store_lease_,
                                 "--blob-store", blob_root()},
        folder_.path() + "/" + name + ".log");
    EXPECT_TRUE(Await(kPatience, [&] { return !FirstWordOf(PortFile(name)).empty() || !process->Running(); }));
    EXPECT_TRUE(process->Running()) << process->Log();
    return process;
  }
  std::string AddressOf(const std::string& name) const { return FirstWordOf(PortFile(name)); }

  absl::Status Submit(const std::string& address, const std::string& request_id, std::string* job_id) {
    atlpb::job::v1::SubmitJobRequest request;
    request.mutable_spec()->set_model_name("digits");
    request.mutable_spec()->set_dataset("digits");
    request.mutable_spec()->set_experts(1);
    request.mutable_spec()->mutable_training()->set_steps(100);
    request.mutable_spec()->mutable_router_training()->set_steps(100);
    request.set_request_id(request_id);
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(20));
    atlpb::job::v1::SubmitJobResponse response;
    const absl::Status status =
        rpc::FromGrpc(JobService::NewStub(rpc::MakeChannel(address))->SubmitJob(&context, request, &response));
    if (status.ok()) *job_id = response.job().job_id();
    return status;
  }

  // Submits a job and holds it in training, heartbeats going on.
  void SubmitAndTrain(const std::string& addresses) {
    addresses_ = addresses;
    const absl::Status submitted =
        CallWithRetry([&] { return addresses_; }, kPatience,
                      [&](const std::shared_ptr<grpc::Channel>&) { return Submit(addresses_, "submit-1", &job_id_); });
    ASSERT_TRUE(submitted.ok()) << submitted;
    island_ = std::make_unique<FakeIsland>("island", blob_root(), [this] { return addresses_; });
    island_->HoldTraining(true);
    island_->ClaimAgainWhenStale();
    ASSERT_TRUE(Await(kPatience, [&] { return island_->training() || !island_->complaint().empty(); }));
    ASSERT_EQ(island_->complaint(), "");
  }

  int64_t HighestAttempt() {
    int64_t highest = 0;
    for (const auto& [task, attempt] : island_->acknowledged().attempts) highest = std::max(highest, attempt);
    return highest;
  }

  // Lets the job end, and compares it with the answers that the island got.
  void ExpectTheJobToEnd() {
    island_->HoldTraining(false);
    Job job;
    EXPECT_TRUE(Await(kPatience, [&] {
      const auto stub = JobService::NewStub(rpc::MakeChannel(addresses_));
      grpc::ClientContext context;
      rpc::SetTimeout(&context, absl::Seconds(5));
      atlpb::job::v1::GetJobRequest request;
      request.set_job_id(job_id_);
      atlpb::job::v1::GetJobResponse response;
      if (stub->GetJob(&context, request, &response).ok()) job = response.job();
      return job.state() == Job::STATE_SUCCEEDED || !island_->complaint().empty();
    }));
    island_->Stop();  // it has every answer then
    EXPECT_EQ(island_->complaint(), "");
    ASSERT_EQ(job.state(), Job::STATE_SUCCEEDED);
    const FakeIsland::Acknowledged told = island_->acknowledged();
    for (const auto& task : job.tasks()) {
      ASSERT_EQ(told.attempts.count(task.task_id()), 1U) << task.task_id();
      ASSERT_EQ(told.completed.count(task.task_id()), 1U) << task.task_id();
      EXPECT_EQ(told.attempts.at(task.task_id()), task.attempt()) << task.task_id();
      EXPECT_EQ(told.completed.at(task.task_id()), task.outputs(0).sha256()) << task.task_id();
    }
  }

  std::vector<std::string> Epoch() { return server_->Ask(uri_, "SELECT value FROM meta WHERE key = 'store_epoch'"); }

  storage::TemporaryFolder folder_;
  std::unique_ptr<PgServer> server_;
  std::string uri_;
  std::string store_lease_ = "2s";
  std::string addresses_;
  std::string job_id_;
  std::unique_ptr<FakeIsland> island_;
};

TEST_F(FailoverTest, TheStandbyTakesOverFromOneThatWasKilled) {
  const auto a = Start("a");
  const auto b = Start("b");
  ASSERT_NO_FATAL_FAILURE(SubmitAndTrain(AddressOf("a") + "," + AddressOf("b")));
  std::string none;
  const absl::Status standby = Submit(AddressOf("b"), "submit-2", &none);
  EXPECT_EQ(standby.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReason(standby), "COORDINATOR_STANDBY") << standby;
  EXPECT_THAT(Epoch(), ElementsAre("1"));

  a->Kill();
  EXPECT_TRUE(Await(kPatience, [&] { return HighestAttempt() == 2; })) << island_->complaint() << b->Log();
  EXPECT_THAT(Epoch(), ElementsAre("2")) << "leases of before are void";
  // The one that was killed comes back, and waits.
  const auto again = Start("a", AddressOf("a"));
  EXPECT_EQ(ErrorReason(Submit(AddressOf("a"), "submit-2", &none)), "COORDINATOR_STANDBY");
  ExpectTheJobToEnd();
  again->Signal(SIGTERM);
  EXPECT_EQ(again->Wait(kPatience), 0) << "a standby can be stopped\n" << again->Log();
}

TEST_F(FailoverTest, OneThatSleptBeyondItsLeaseIsRefusedAndEnds) {
  const auto a = Start("a");
  const auto b = Start("b");
  ASSERT_NO_FATAL_FAILURE(SubmitAndTrain(AddressOf("a") + "," + AddressOf("b")));
  a->Signal(SIGSTOP);
  addresses_ = AddressOf("b");  // connections to one that sleeps stay open
  EXPECT_TRUE(Await(kPatience, [&] { return HighestAttempt() == 2; })) << island_->complaint() << b->Log();
  a->Signal(SIGCONT);
  std::string none;
  EXPECT_FALSE(Submit(AddressOf("a"), "submit-2", &none).ok());
  EXPECT_EQ(a->Wait(kPatience), 3) << a->Log();
  EXPECT_THAT(a->Log(), HasSubstr("STORE_SUPERSEDED"));
  ExpectTheJobToEnd();
  EXPECT_THAT(server_->Ask(uri_, "SELECT job_id FROM jobs"), ElementsAre(job_id_)) << "it wrote nothing";
}

TEST_F(FailoverTest, OneThatIsStoppedHandsOverAtOnceAndNoAttemptChanges) {
  store_lease_ = "10m";
  const auto a = Start("a");
  const auto b = Start("b");
  ASSERT_NO_FATAL_FAILURE(SubmitAndTrain(AddressOf("a") + "," + AddressOf("b")));
  a->Signal(SIGTERM);
  EXPECT_EQ(a->Wait(kPatience), 0) << a->Log();
  ExpectTheJobToEnd();
  EXPECT_EQ(HighestAttempt(), 1);
  EXPECT_THAT(Epoch(), ElementsAre("1"));
}

TEST_F(FailoverTest, KilledAndStartedAgainWhereItWasItWaitsForNobody) {
  store_lease_ = "10m";
  auto a = Start("a");
  ASSERT_NO_FATAL_FAILURE(SubmitAndTrain(AddressOf("a")));
  a->Kill();
  const std::string address = AddressOf("a");
  // The first process took any port, so its name contained its process id. The restarted one has another name and could
  // not take the lease before it expires.
  server_->Ask(uri_, "UPDATE coordinator_lease SET expires = 0");
  a = Start("a", address);
  EXPECT_TRUE(Await(kPatience, [&] { return HighestAttempt() == 2; })) << island_->complaint() << a->Log();
  a->Kill();
  a = Start("a", address);
  ExpectTheJobToEnd();
  EXPECT_EQ(HighestAttempt(), 2) << "the second time it had its own lease";
  EXPECT_THAT(Epoch(), ElementsAre("2"));
}

TEST_F(FailoverTest, TheServerIsKilledAndStartedAgainUnderARunningJob) {
  store_lease_ = "10m";
  const auto a = Start("a");
  ASSERT_NO_FATAL_FAILURE(SubmitAndTrain(AddressOf("a")));
  server_->Kill();
  std::string none;
  const absl::Status away = Submit(AddressOf("a"), "submit-2", &none);
  EXPECT_EQ(away.code(), absl::StatusCode::kUnavailable) << away;
  EXPECT_EQ(ErrorReason(away), "STORE_UNREACHABLE") << away;
  server_->Start();
  ExpectTheJobToEnd();
  EXPECT_EQ(HighestAttempt(), 1);
  EXPECT_THAT(Epoch(), ElementsAre("1"));
}

}  // namespace
}  // namespace atl::multiproc
