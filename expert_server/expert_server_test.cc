// Tests an expert server that follows a coordinator, in this process: a real server and real networks, and a registry
// with configured answers.
#include "expert_server/expert_server.h"

#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "atoll/expert/v1/expert_service.grpc.pb.h"
#include "common/base/errors.h"
#include "common/rpc/channel.h"
#include "common/wire/network_wire.h"
#include "expert_server/expert_wire.h"
#include "expert_server/fake_serving_service.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "inference/testing/published_tiny_model.h"

namespace atl::worker {
namespace {

namespace pb = atlpb::expert::v1;

using State = FakeServingService::State;
using ::testing::HasSubstr;

class ExpertServerTest : public testing::Test {
 protected:
  ExpertServerTest() : folder_(testing::TempDir() + "/expert_server_test." + std::to_string(getpid())) {
    std::filesystem::remove_all(folder_);
    const auto store = storage::BlobStore::Open("file://" + folder_).value();
    uri_ = store->UriOf("models/tiny/v1");
    router::PublishTinyModel(store.get(), uri_);
    files_ = router::OpenVersion(store.get(), uri_, "").value();
    coordinator_.service.Change([](State* state) { state->interval = absl::Milliseconds(50); });
    options_ = {.coordinator = coordinator_.server->address(), .blob_store = store->root(), .server_id = "s1"};
  }
  ~ExpertServerTest() override { std::filesystem::remove_all(folder_); }

  void Assign(const std::vector<int32_t>& experts, const std::string& uri) {
    coordinator_.service.Change([&](State* state) {
      state->to_assign.clear();
      for (const int32_t expert : experts) {
        atlpb::serving::v1::AssignedNetwork network;
        *network.mutable_network() = wire::ToProto(files_->network(expert));
        network.set_uri(uri);
        state->to_assign.push_back(network);
      }
    });
  }

  // Until the last heartbeat says so of all its networks: "0 ready, 1 failed".
  bool AwaitHosting(const std::string& expected) {
    return coordinator_.service.Await([&](const State& state) {
      if (state.heartbeats.empty()) return false;
      std::string found;
      for (const pb::HostedNetwork& network : state.heartbeats.back().server().hosting().networks()) {
        const std::string name = pb::HostedNetwork::State_Name(network.state()).substr(sizeof("STATE_") - 1);
        found += (found.empty() ? "" : ", ") + std::to_string(network.network().expert()) + " " + name;
      }
      return found == expected;
    });
  }

  const std::string folder_;
  std::string uri_;
  std::shared_ptr<const router::VersionFiles> files_;
  RunningServingService coordinator_;
  ExpertServerOptions options_;
};

TEST_F(ExpertServerTest, HostsWhatTheCoordinatorAssigns) {
  Assign({0, 2}, uri_);
  auto server = ExpertServer::Start(options_, Clock::Real());
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_TRUE(AwaitHosting("0 READY, 2 READY"));
  const auto told = coordinator_.service.Copy().heartbeats.back().server();
  EXPECT_EQ(told.server_id(), "s1");
  EXPECT_EQ(told.address(), (*server)->address());
  EXPECT_GT(told.hosting().networks(0).bytes(), 0);
  EXPECT_GT(told.hosting().slots(), 0);
  EXPECT_FALSE(told.hosting().fingerprint().empty());

  Assign({1, 2}, uri_);
  EXPECT_TRUE(AwaitHosting("1 READY, 2 READY"));
  EXPECT_EQ((*server)->hosting().networks[0].network, files_->network(1));
}

TEST_F(ExpertServerTest, WhatCannotBeLoadedIsToldAndTheRestIsHosted) {
  std::filesystem::remove_all(folder_ + "/models/tiny/v1/expert_1");
  Assign({0, 1}, uri_);
  auto server = ExpertServer::Start(options_, Clock::Real());
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_TRUE(AwaitHosting("0 READY, 1 FAILED"));
  const auto failed = coordinator_.service.Copy().heartbeats.back().server().hosting().networks(1);
  EXPECT_THAT(failed.error().message(), HasSubstr("expert_1"));

  // The server refuses to read outside the store.
  Assign({0, 2}, "file:///elsewhere");
  EXPECT_TRUE(AwaitHosting("0 READY, 2 FAILED"));
}

TEST_F(ExpertServerTest, AServerThatEndsLeavesAndHostsNothingForRouters) {
  Assign({0}, uri_);
  auto server = ExpertServer::Start(options_, Clock::Real());
  ASSERT_TRUE(server.ok()) << server.status();
  ASSERT_TRUE(AwaitHosting("0 READY"));
  (*server)->Shutdown(absl::Seconds(1));
  const auto last = coordinator_.service.Copy().heartbeats.back();
  EXPECT_TRUE(last.leaving());
  EXPECT_EQ(last.server().hosting().networks_size(), 0);
  EXPECT_TRUE((*server)->hosting().networks.empty());
}

TEST_F(ExpertServerTest, AProcessWhoseNameAnotherOneTookIsTold) {
  absl::Mutex mutex;
  absl::Status superseded;
  options_.superseded = [&](const absl::Status& status) {
    absl::MutexLock lock(&mutex);
    superseded = status;
  };
  coordinator_.service.Change([](State* state) {
    state->answer = MakeError(absl::StatusCode::kAborted, "STALE_INCARNATION", "another process");
  });
  auto server = ExpertServer::Start(options_, Clock::Real());
  ASSERT_TRUE(server.ok()) << server.status();
  absl::MutexLock lock(&mutex);
  const auto told = [&] { return !superseded.ok(); };
  ASSERT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&told), absl::Seconds(20)));
  EXPECT_EQ(ErrorReason(superseded), "STALE_INCARNATION");
}

TEST_F(ExpertServerTest, WhatCannotBeServedIsRefusedByItsFlag) {
  const auto refused = [&](const std::function<void(ExpertServerOptions*)>& change) {
    ExpertServerOptions options = options_;
    change(&options);
    const absl::Status status = ExpertServer::Start(options, Clock::Real()).status();
    return ErrorField(status) + " " + ErrorReason(status);
  };
  using Options = ExpertServerOptions;
  EXPECT_EQ(refused([](Options* options) { options->coordinator.clear(); }), "--model-dir MODEL_SOURCE_REQUIRED");
  EXPECT_EQ(refused([](Options* options) { options->model_dir = "/m"; }), "--model-dir MODEL_SOURCE_REQUIRED");
  EXPECT_EQ(refused([](Options* options) { options->blob_store.clear(); }), "--blob-store BLOB_STORE_REQUIRED");
  EXPECT_EQ(refused([](Options* options) { options->blob_store += "/typo"; }), " BLOB_STORE_NOT_FOUND");
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/typo"));
  EXPECT_EQ(refused([](Options* options) { options->networks = {0}; }), "--experts NETWORKS_ARE_ASSIGNED");
  EXPECT_EQ(refused([](Options* options) { options->listen = "0.0.0.0:0"; }),
            "--advertise ADVERTISED_ADDRESS_REQUIRED");
}

TEST(ExpertServerMetrics, CountsBatchesByOutcomeAndNetworksThatAnswered) {
  const auto registry = metrics::Registry::Create("test");
  ExpertServerMetrics metrics(registry.get());
  const NetworkId expert{.model = "tiny", .version = "v1", .expert = 1};
  metrics.OnBatch({.network = expert, .rows = 5, .compute_time = absl::Milliseconds(20)});
  metrics.OnBatch({.network = {.model = "guessed"}, .rows = 1, .outcome = absl::StatusCode::kNotFound});
  metrics.OnLoadFailed();
  metrics.OnHeartbeat(absl::OkStatus());
  metrics.OnHeartbeat(absl::UnavailableError("away"));
  ExpertService service(
      {}, {}, [] { return Hosting(); }, Clock::Real());
  Hosting hosting;
  hosting.networks = {{.state = placement::NetworkState::kReady}, {.state = placement::NetworkState::kLoading}};
  metrics.Refresh(hosting, {.resident_bytes = 77, .loads = 3}, service);
  metrics.Refresh(hosting, {.resident_bytes = 77, .loads = 4}, service);
  const std::string text = registry->Text();
  for (const char* line :
       {"atoll_expert_server_batches_total{code=\"OK\"} 1", "atoll_expert_server_batches_total{code=\"NOT_FOUND\"} 1",
        "atoll_expert_server_batch_rows_sum{expert=\"1\",model=\"tiny\"} 5",
        "atoll_expert_server_compute_seconds_sum{expert=\"1\",model=\"tiny\"} 0.02",
        "atoll_expert_server_networks{state=\"ready\"} 1", "atoll_expert_server_networks{state=\"failed\"} 0",
        "atoll_expert_server_network_loads_total 4", "atoll_expert_server_load_failures_total 1",
        "atoll_expert_server_resident_bytes 77", "atoll_expert_server_coordinator_connected 0",
        "atoll_expert_server_coordinator_errors_total 1"}) {
    EXPECT_THAT(text, HasSubstr(std::string(line) + "\n"));
  }
  EXPECT_EQ(text.find("guessed"), std::string::npos);
}

}  // namespace
}  // namespace atl::worker
