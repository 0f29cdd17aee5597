// A model served through the coordinator's registry, by real processes that know only the coordinator's address. Expert
// servers are killed, restarted and asked to end, the version is replaced, and the coordinator is unreachable. All
// requests meanwhile succeed.
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "atoll/model/v1/model_service.grpc.pb.h"
#include "atoll/sample/v1/sample_service.grpc.pb.h"
#include "atoll/serving/v1/serving_service.grpc.pb.h"
#include "common/formats/model_index.h"
#include "common/rpc/channel.h"
#include "common/storage/blob_store.h"
#include "common/wire/status.h"
#include "coordinator/store/sqlite_store.h"
#include "fmt/format.h"
#include "gtest/gtest.h"
#include "inference/testing/published_tiny_model.h"
#include "tests/multiproc/process.h"

namespace atl {
namespace {

namespace pb = atlpb::serving::v1;

using atlpb::expert::v1::HostedNetwork;
using testing_cluster::Await;
using testing_cluster::Process;

// No claim: for what only has to happen at all.
constexpr absl::Duration kPatience = absl::Minutes(2);
constexpr int kServers = 3;
constexpr int kExperts = 3;

struct Sampled {
  std::string version;
  std::string image;
};

// One image of `label`, alone in its batches.
absl::StatusOr<Sampled> Sample(const std::string& router, int32_t label) {
  namespace sample = atlpb::sample::v1;
  const auto stub = sample::SampleService::NewStub(rpc::MakeChannel(router));
  grpc::ClientContext context;
  rpc::SetTimeout(&context, kPatience);
  sample::SampleRequest request;
  request.add_classes(label);
  request.add_seeds(11);
  request.set_steps(6);
  request.set_mode(sample::SampleRequest::MODE_FULL);
  request.set_format(sample::SampleRequest::FORMAT_RAW);
  const auto reader = stub->Sample(&context, request);
  Sampled sampled;
  sample::SampleResponse event;
  while (reader->Read(&event)) {
    if (event.has_queued()) sampled.version = event.queued().version();
    if (event.has_image()) sampled.image = event.image().data();
  }
  const absl::Status status = rpc::FromGrpc(reader->Finish());
  if (!status.ok()) return status;
  return sampled;
}

// Callers that request one image after the other until Stop.
class Callers {
 public:
  Callers(const std::string& router, int count) : router_(router) {
    for (int i = 0; i < count; ++i) threads_.emplace_back([this, i] { Run(i); });
  }
  ~Callers() { Stop(); }

  // Waits for so many further answers.
  bool AwaitAnswers(int64_t count) {
    const int64_t enough = answers_ + count;
    return Await(kPatience, [&] { return answers_ >= enough; });
  }
  void Stop() {
    stopping_ = true;
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }
  // Returns the failures; empty if there were none.
  std::string failures() const {
    absl::MutexLock lock(&mutex_);
    return failures_;
  }

 private:
  void Run(int caller) {
    while (!stopping_) {
      const absl::StatusOr<Sampled> sampled = Sample(router_, caller % 4);
      ++answers_;
      if (sampled.ok()) continue;
      absl::MutexLock lock(&mutex_);
      failures_ += sampled.status().ToString() + "\n";
    }
  }

  const std::string router_;
  std::atomic<bool> stopping_ = false;
  std::atomic<int64_t> answers_ = 0;
  mutable absl::Mutex mutex_;
  std::string failures_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

class ServingDirectoryTest : public testing::Test {
 protected:
  ServingDirectoryTest() {
    char pattern[] = "/tmp/atoll_serving_directory_XXXXXX";
    folder_ = mkdtemp(pattern);
    blobs_ = storage::BlobStore::Open("file://" + folder_ + "/blobs").value();
    PublishTwoVersions();
    servers_.resize(kServers);
    StartCoordinator();
    for (int i = 0; i < kServers; ++i) StartServer(i);
    StartRouter();
  }
  ~ServingDirectoryTest() override {
    if (HasFailure()) {
      for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
        if (entry.path().extension() != ".log") continue;
        std::ifstream log(entry.path());
        fmt::print(stderr, "---- {}\n{}\n", entry.path().filename().string(),
                   std::string(std::istreambuf_iterator<char>(log), {}));
      }
    }
    router_.reset();
    servers_.clear();
    coordinator_.reset();
    std::filesystem::remove_all(folder_);
  }

  // "v1", which is served, and "v2": the same networks under another name. Straight into the coordinator's file, in
  // place of the jobs that would train them.
  void PublishTwoVersions() {
    const auto store = store::SqliteStore::Open({.path = folder_ + "/coordinator.db"}).value();
    for (const std::string version : {"v1", "v2"}) {
      const std::string uri = blobs_->UriOf("models/tiny/" + version);
      std::string digest = router::PublishTinyModel(blobs_.get(), uri);
      const std::string index_uri = uri + "/model_index.json";
      storage::ModelIndex index = storage::ParseModelIndex(blobs_->Read(index_uri).value(), index_uri).value();
      index.version = version;
      digest = blobs_->Write(index_uri, storage::ToJson(index)).value().sha256;
      const absl::Status written = store->Write("publish", [&](store::Transaction& transaction) {
        return transaction.InsertModelVersion(
            {.name = "tiny", .version = version, .job_id = version, .uri = uri, .digest = digest, .experts = kExperts});
      });
      ASSERT_TRUE(written.ok()) << written;
    }
    const absl::Status served = store->Write("serve", [](store::Transaction& transaction) {
      return transaction.PutServing({.name = "tiny", .version = "v1", .generation = 1, .cause = "published"});
    });
    ASSERT_TRUE(served.ok()) << served;
  }

  static std::string Program(const std::string& name) {
    return std::string(std::getenv("ATOLL_BINARY_DIR")) + "/bin/" + name;
  }
  std::unique_ptr<Process> Start(const std::string& name, std::vector<std::string> command) {
    std::filesystem::remove(folder_ + "/" + name + ".port");
    command.insert(command.end(), {"--port-file", folder_ + "/" + name + ".port"});
    return std::make_unique<Process>(command, folder_ + "/" + name + ".log",
                                     std::vector<std::string>{"OMP_NUM_THREADS=1"});
  }
  // "host:port".
  std::string AddressOf(const std::string& name, Process* process) {
    std::string text;
    EXPECT_TRUE(Await(kPatience, [&] {
      std::ifstream(folder_ + "/" + name + ".port") >> text;
      return !text.empty() || !process->Running();
    }));
    EXPECT_FALSE(text.empty()) << process->Log();
    return text;
  }

  // At the address it had before.
  void StartCoordinator() {
    coordinator_.reset();
    coordinator_ = Start("coordinator", {Program("atoll-coordinator"), "--listen",
                                         coordinator_address_.empty() ? "127.0.0.1:0" : coordinator_address_, "--store",
                                         folder_ + "/coordinator.db", "--blob-store", blobs_->root()});
    coordinator_address_ = AddressOf("coordinator", coordinator_.get());
  }
  void StartServer(int i) {
    servers_[i].reset();
    const std::string name = fmt::format("s{}", i);
    servers_[i] = Start(name, {Program("atoll-worker"), "--serve", "--coordinator", coordinator_address_,
                               "--blob-store", blobs_->root(), "--server-id", name, "--threads", "1"});
    AddressOf(name, servers_[i].get());
  }
  void StartRouter() {
    router_ = Start("router", {Program("atoll-router"), "--coordinator", coordinator_address_, "--blob-store",
                               blobs_->root(), "--own-networks", "router", "--threads", "1"});
    router_address_ = AddressOf("router", router_.get());
  }

  // Returns the coordinator's list; no servers while it does not answer.
  pb::WatchServersResponse Directory() {
    const auto stub = pb::ServingService::NewStub(rpc::MakeChannel(coordinator_address_));
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(10), /*wait_for_ready=*/true);
    const auto reader = stub->WatchServers(&context, {});
    pb::WatchServersResponse response;
    reader->Read(&response);
    context.TryCancel();
    (void)reader->Finish();
    return response;
  }
  // Ready replicas of each expert of a version, the fewest of all; -1 until exactly `servers` are known.
  int FewestReplicas(const std::string& version, int servers) {
    const pb::WatchServersResponse directory = Directory();
    if (directory.servers_size() != servers) return -1;
    std::vector<int> replicas(kExperts, 0);
    for (const pb::ExpertServer& server : directory.servers()) {
      for (const HostedNetwork& hosted : server.hosting().networks()) {
        const bool counts = hosted.state() == HostedNetwork::STATE_READY && hosted.network().version() == version &&
                            hosted.network().expert() >= 0;
        if (counts) ++replicas[hosted.network().expert()];
      }
    }
    return *std::min_element(replicas.begin(), replicas.end());
  }
  bool AwaitReplicas(const std::string& version, int servers, int replicas) {
    return Await(kPatience, [&] { return FewestReplicas(version, servers) >= replicas; });
  }
  bool AwaitVersion(const std::string& version) {
    return Await(kPatience, [&] {
      const auto sampled = Sample(router_address_, 1);
      return sampled.ok() && sampled->version == version;
    });
  }
  absl::Status SetServing(const std::string& version, int64_t expected_generation) {
    const auto stub = atlpb::model::v1::ModelService::NewStub(rpc::MakeChannel(coordinator_address_));
    grpc::ClientContext context;
    rpc::SetTimeout(&context, kPatience, /*wait_for_ready=*/true);
    atlpb::model::v1::SetServingVersionRequest request;
    request.set_name("tiny");
    request.set_version(version);
    request.set_expected_generation(expected_generation);
    request.set_request_id(fmt::format("00000000-0000-4000-8000-{:012}", expected_generation));
    atlpb::model::v1::SetServingVersionResponse response;
    return rpc::FromGrpc(stub->SetServingVersion(&context, request, &response));
  }

  std::string folder_;
  std::unique_ptr<storage::BlobStore> blobs_;
  std::string coordinator_address_;
  std::string router_address_;
  std::unique_ptr<Process> coordinator_;
  std::vector<std::unique_ptr<Process>> servers_;
  std::unique_ptr<Process> router_;
};

TEST_F(ServingDirectoryTest, ServersComeAndGoAndVersionsChangeWithoutAFailedRequest) {
  ASSERT_TRUE(AwaitVersion("v1"));
  ASSERT_TRUE(AwaitReplicas("v1", kServers, 2));
  // The expected samples come from a router that has all networks itself.
  const auto alone =
      Start("alone", {Program("atoll-router"), "--model-dir", folder_ + "/blobs/models/tiny/v1", "--threads", "1"});
  const std::string alone_address = AddressOf("alone", alone.get());
  for (const int32_t label : {-1, 0, 1, 2, 3}) {
    const auto expected = Sample(alone_address, label);
    const auto found = Sample(router_address_, label);
    ASSERT_TRUE(expected.ok()) << expected.status();
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->image, expected->image) << label;
  }

  Callers callers(router_address_, 2);
  ASSERT_TRUE(callers.AwaitAnswers(4));
  // The others take over what is lost.
  servers_[0]->Kill();
  EXPECT_TRUE(AwaitReplicas("v1", kServers - 1, 2));
  EXPECT_TRUE(callers.AwaitAnswers(4));
  EXPECT_EQ(callers.failures(), "");
  // The same server again.
  StartServer(0);
  EXPECT_TRUE(AwaitReplicas("v1", kServers, 2));
  EXPECT_TRUE(callers.AwaitAnswers(4));
  // A new version, and back.
  ASSERT_TRUE(SetServing("v2", 1).ok());
  EXPECT_TRUE(AwaitVersion("v2"));
  EXPECT_TRUE(callers.AwaitAnswers(4));
  ASSERT_TRUE(SetServing("v1", 2).ok());
  EXPECT_TRUE(AwaitVersion("v1"));
  EXPECT_EQ(callers.failures(), "");
  // A server that is asked to end does so without a failed request.
  servers_[1]->Signal(SIGTERM);
  EXPECT_EQ(servers_[1]->Wait(kPatience), 0) << servers_[1]->Log();
  EXPECT_TRUE(AwaitReplicas("v1", kServers - 1, 2));
  EXPECT_TRUE(callers.AwaitAnswers(4));
  callers.Stop();
  EXPECT_EQ(callers.failures(), "");
}

TEST_F(ServingDirectoryTest, SamplingGoesOnWithoutTheCoordinatorWhichLearnsEverythingAgain) {
  ASSERT_TRUE(AwaitVersion("v1"));
  ASSERT_TRUE(AwaitReplicas("v1", kServers, 2));
  Callers callers(router_address_, 2);
  ASSERT_TRUE(callers.AwaitAnswers(4));
  coordinator_->Kill();
  EXPECT_TRUE(callers.AwaitAnswers(20));
  StartCoordinator();
  EXPECT_TRUE(AwaitReplicas("v1", kServers, 2));
  EXPECT_TRUE(callers.AwaitAnswers(20));
  // It decides again.
  ASSERT_TRUE(SetServing("v2", 1).ok());
  EXPECT_TRUE(AwaitVersion("v2"));
  callers.Stop();
  EXPECT_EQ(callers.failures(), "");
  // No served network was dropped while the coordinator did not know the servers: a version is dropped only after the
  // roll.
  for (const auto& server : servers_) {
    const std::string log = server->Log();
    const size_t dropped = log.find("drops");
    EXPECT_TRUE(dropped == std::string::npos || dropped > log.find("version 'v2'")) << log;
  }
}

TEST_F(ServingDirectoryTest, TheOlderOfTwoServersOfOneNameEnds) {
  ASSERT_TRUE(AwaitReplicas("v1", kServers, 2));
  const auto second = Start("second", {Program("atoll-worker"), "--serve", "--coordinator", coordinator_address_,
                                       "--blob-store", blobs_->root(), "--server-id", "s2", "--threads", "1"});
  EXPECT_EQ(servers_[2]->Wait(kPatience), 1) << servers_[2]->Log();
  EXPECT_NE(servers_[2]->Log().find("another one has taken its place"), std::string::npos);
  EXPECT_TRUE(second->Running());
  EXPECT_TRUE(AwaitReplicas("v1", kServers, 2));
}

}  // namespace
}  // namespace atl
