// ServingService over real gRPC and a real blob store, on a fake clock.
#include "atoll/model/v1/model_service.grpc.pb.h"
#include "atoll/serving/v1/serving_service.grpc.pb.h"
#include "common/base/errors.h"
#include "common/base/fake_clock.h"
#include "common/formats/model_index.h"
#include "common/rpc/channel.h"
#include "common/storage/testing.h"
#include "common/wire/status.h"
#include "common/wire/status_proto.h"
#include "common/wire/time_wire.h"
#include "coordinator/service/coordinator.h"
#include "coordinator/store/sqlite_store.h"
#include "gmock/gmock.h"

namespace atl::coordinator {
namespace {

namespace pb = atlpb::serving::v1;
using atlpb::expert::v1::HostedNetwork;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Names = std::vector<std::string>;  // of networks, "v1/0"

std::string NameOf(const atlpb::expert::v1::Network& network) {
  return network.version() + "/" + std::to_string(network.expert());
}

class ServingServiceTest : public testing::Test {
 protected:
  // A store with model m, serving v1; v2 is published too. Their experts have 10 bytes each.
  ServingServiceTest() {
    auto blobs = storage::BlobStore::Open("file://" + folder_.File("blobs"));
    EXPECT_TRUE(blobs.ok()) << blobs.status();
    blobs_ = *std::move(blobs);
    auto store = store::SqliteStore::Open({.path = folder_.File("store.db")});
    EXPECT_TRUE(store.ok()) << store.status();
    const absl::Status written = (*store)->Write("test", [&](store::Transaction& transaction) -> absl::Status {
      for (const std::string version : {"v1", "v2"}) {
        const absl::Status inserted = transaction.InsertModelVersion({.name = "m",
                                                                      .version = version,
                                                                      .job_id = "j",
                                                                      .uri = FolderOf(version),
                                                                      .digest = DigestOf(version),
                                                                      .experts = 2});
        if (!inserted.ok()) return inserted;
      }
      return transaction.PutServing({.name = "m", .version = "v1", .generation = 1});
    });
    EXPECT_TRUE(written.ok()) << written;
  }

  std::string FolderOf(const std::string& version) { return blobs_->UriOf("models/m/" + version); }
  std::string IndexOf(const std::string& version) {
    storage::ModelIndex index{.name = "m", .version = version, .dataset = "d", .channels = 1, .height = 8, .width = 8};
    index.experts = 2;
    index.classes = {"0"};
    index.cluster_rows = {1, 1};
    for (const std::string network : {"router", "expert_0", "expert_1"}) {
      index.files.push_back(
          {.name = network + "/" + storage::kWeightsFile, .bytes = 10, .sha256 = std::string(64, 'a')});
    }
    return storage::ToJson(index);
  }
  std::string DigestOf(const std::string& version) { return storage::Sha256(IndexOf(version)); }
  void WriteIndex(const std::string& version) {
    const auto written = blobs_->Write(FolderOf(version) + "/model_index.json", IndexOf(version));
    ASSERT_TRUE(written.ok()) << written.status();
  }

  void Start(int32_t replicas = 2) {
    reader_.reset();
    CoordinatorOptions options;
    options.store = folder_.File("store.db");
    options.blob_store = "file://" + folder_.File("blobs");
    options.watch_interval = absl::ZeroDuration();
    options.expert_replicas = replicas;
    coordinator_.reset();
    auto coordinator = Coordinator::Start(std::move(options), &clock_);
    ASSERT_TRUE(coordinator.ok()) << coordinator.status();
    coordinator_ = *std::move(coordinator);
    const auto channel = rpc::MakeChannel(coordinator_->address());
    serving_ = pb::ServingService::NewStub(channel);
    models_ = atlpb::model::v1::ModelService::NewStub(channel);
    watch_ = std::make_unique<grpc::ClientContext>();
    rpc::SetTimeout(watch_.get(), absl::Seconds(30));
    reader_ = serving_->WatchServers(watch_.get(), {});
    ASSERT_TRUE(reader_->Read(&seen_)) << "the first message comes at once";
  }

  ~ServingServiceTest() override { EndWatch(); }
  void EndWatch() {
    if (reader_ == nullptr) return;
    watch_->TryCancel();
    while (reader_->Read(&seen_)) {
    }
    reader_->Finish();
    reader_.reset();
  }

  // Reads what the watch tells until it is as expected; whether it came so within the watch's deadline.
  bool Await(const std::function<bool(const pb::WatchServersResponse&)>& expected) {
    while (!expected(seen_)) {
      if (!reader_->Read(&seen_)) return false;
    }
    return true;
  }
  // The coordinator's assignment for the server `id`.
  Names AssignedTo(const std::string& id) const {
    Names names;
    for (const pb::ExpertServer& server : seen_.servers()) {
      if (server.server_id() != id) continue;
      for (const auto& network : server.assigned()) names.push_back(NameOf(network));
    }
    return names;
  }
  bool AwaitAssigned(const std::string& id, const Names& expected) {
    return Await([&](const auto&) { return AssignedTo(id) == expected; });
  }

  pb::HeartbeatRequest RequestOf(const std::string& id, const Names& hosted, int64_t memory) {
    pb::HeartbeatRequest request;
    request.set_sequence(++sequence_);
    pb::ExpertServer& server = *request.mutable_server();
    server.set_server_id(id);
    server.set_incarnation(id + "-1");
    server.set_address(id + ":1");
    server.mutable_hosting()->set_memory_bytes(memory);
    server.mutable_hosting()->set_slots(2);
    for (const std::string& name : hosted) {
      HostedNetwork& network = *server.mutable_hosting()->add_networks();
      const std::string version = name.substr(0, name.find('/'));
      network.mutable_network()->set_model("m");
      network.mutable_network()->set_version(version);
      network.mutable_network()->set_digest(DigestOf(version));
      network.mutable_network()->set_expert(std::stoi(name.substr(name.find('/') + 1)));
      network.set_state(HostedNetwork::STATE_READY);
      network.set_bytes(10);
    }
    return request;
  }
  template <typename Request, typename Response>
  absl::Status Call(grpc::Status (pb::ServingService::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request, Response* response) {
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(20));
    return rpc::FromGrpc((serving_.get()->*method)(&context, request, response));
  }
  absl::StatusOr<pb::HeartbeatResponse> Beat(const pb::HeartbeatRequest& request) {
    pb::HeartbeatResponse response;
    const absl::Status status = Call(&pb::ServingService::Stub::Heartbeat, request, &response);
    if (!status.ok()) return status;
    return response;
  }
  // A heartbeat's answer as names; "undecided", or an error.
  Names Beat(const std::string& id, const Names& hosted, int64_t memory = 0) {
    const auto response = Beat(RequestOf(id, hosted, memory));
    if (!response.ok()) return {response.status().ToString()};
    if (response->undecided()) return {"undecided"};
    Names names;
    for (const pb::AssignedNetwork& assigned : response->assigned()) {
      names.push_back(NameOf(assigned.network()));
      EXPECT_EQ(assigned.uri(), FolderOf(assigned.network().version()));
      EXPECT_EQ(assigned.network().digest(), DigestOf(assigned.network().version()));
    }
    return names;
  }

  void Serve(const std::string& version, int64_t generation) {
    atlpb::model::v1::SetServingVersionRequest request;
    request.set_name("m");
    request.set_version(version);
    request.set_expected_generation(generation);
    atlpb::model::v1::SetServingVersionResponse response;
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(20));
    const grpc::Status status = models_->SetServingVersion(&context, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }

  static pb::ReportRoutingRequest Report(const std::map<std::string, pb::VersionUse::State>& uses,
                                         const std::vector<int64_t>& chosen = {}) {
    pb::ReportRoutingRequest request;
    request.set_router_id("r");
    for (const auto& [version, state] : uses) {
      pb::VersionUse& use = *request.add_uses();
      use.set_model("m");
      use.set_version(version);
      use.set_state(state);
      use.mutable_chosen()->Add(chosen.begin(), chosen.end());
    }
    return request;
  }
  absl::Status Tell(const pb::ReportRoutingRequest& request) {
    pb::ReportRoutingResponse response;
    const absl::Status status = Call(&pb::ServingService::Stub::ReportRouting, request, &response);
    EXPECT_EQ(response.has_report_interval(), status.ok());
    return status;
  }

  storage::TemporaryFolder folder_;
  FakeClock clock_;
  std::unique_ptr<storage::BlobStore> blobs_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<pb::ServingService::Stub> serving_;
  std::unique_ptr<atlpb::model::v1::ModelService::Stub> models_;
  std::unique_ptr<grpc::ClientContext> watch_;
  std::unique_ptr<grpc::ClientReader<pb::WatchServersResponse>> reader_;
  pb::WatchServersResponse seen_;
  int64_t sequence_ = 0;
};

TEST_F(ServingServiceTest, TwoServersShareAVersionAndOneTakesOverWhenTheOtherDies) {
  WriteIndex("v1");
  Start(/*replicas=*/1);
  EXPECT_EQ(seen_.servers_size(), 0);
  EXPECT_THAT(Beat("a", {}, 20), ElementsAre("undecided")) << "servers may be there that it does not know yet";
  clock_.Advance(absl::Seconds(5));
  EXPECT_THAT(Beat("a", {}, 20), ElementsAre("undecided"));
  EXPECT_THAT(Beat("b", {}, 20), ElementsAre("undecided"));
  clock_.Advance(absl::Seconds(2));
  ASSERT_TRUE(AwaitAssigned("a", {"v1/0"}));
  ASSERT_TRUE(AwaitAssigned("b", {"v1/1"}));
  EXPECT_THAT(Beat("a", {}, 20), ElementsAre("v1/0"));
  EXPECT_THAT(Beat("b", {"v1/1"}, 20), ElementsAre("v1/1"));
  clock_.Advance(absl::Seconds(4));
  EXPECT_THAT(Beat("b", {"v1/1"}, 20), ElementsAre("v1/1"));
  clock_.Advance(absl::Seconds(3));
  ASSERT_TRUE(AwaitAssigned("b", {"v1/0", "v1/1"}));
  EXPECT_EQ(seen_.servers_size(), 1);
  EXPECT_THAT(Beat("b", {"v1/1"}, 20), ElementsAre("v1/0", "v1/1"));
}

TEST_F(ServingServiceTest, AVersionThatIsPublishedComesBesideTheOneThatRoutersServe) {
  WriteIndex("v1");
  WriteIndex("v2");
  Start();
  clock_.Advance(absl::Seconds(7));
  Beat("a", {"v1/0", "v1/1"}, 20);
  Beat("b", {"v1/0", "v1/1"}, 20);
  ASSERT_TRUE(Tell(Report({{"v1", pb::VersionUse::STATE_SERVING}})).ok());
  ASSERT_TRUE(AwaitAssigned("b", {"v1/0", "v1/1"}));
  Serve("v2", 1);
  // Each old expert keeps one of its two replicas.
  ASSERT_TRUE(Await([&](const auto&) { return AssignedTo("a").size() == 2 && AssignedTo("a") != AssignedTo("b"); }));
  Names both = AssignedTo("a");
  for (const std::string& name : AssignedTo("b")) both.push_back(name);
  std::sort(both.begin(), both.end());
  EXPECT_THAT(both, ElementsAre("v1/0", "v1/1", "v2/0", "v2/1"));
  EXPECT_EQ(seen_.shortages_size(), 0);
  // The router has switched and drained: the new one gets its second replicas.
  const Names on_a = AssignedTo("a"), on_b = AssignedTo("b");
  EXPECT_EQ(Beat("a", on_a, 20), on_a);
  EXPECT_EQ(Beat("b", on_b, 20), on_b);
  ASSERT_TRUE(Tell(Report({{"v2", pb::VersionUse::STATE_SERVING}})).ok());
  clock_.Advance(absl::Seconds(5));
  Beat("a", on_a, 20);
  Beat("b", on_b, 20);
  clock_.Advance(absl::Seconds(5));
  ASSERT_TRUE(AwaitAssigned("a", {"v2/0", "v2/1"}));
  EXPECT_THAT(Beat("a", on_a, 20), ElementsAre("v2/0", "v2/1"));
  EXPECT_THAT(Beat("b", on_b, 20), ElementsAre("v2/0", "v2/1"));
}

TEST_F(ServingServiceTest, AHotExpertGetsMoreReplicas) {
  WriteIndex("v1");
  Start(/*replicas=*/2);
  clock_.Advance(absl::Seconds(7));
  for (const std::string id : {"a", "b", "c", "d"}) Beat(id, {}, 20);
  const auto replicas = [&] {
    std::map<std::string, int> count;
    for (const std::string id : {"a", "b", "c", "d"}) {
      for (const std::string& name : AssignedTo(id)) ++count[name];
    }
    return count;
  };
  ASSERT_TRUE(Await([&](const auto&) { return replicas() == (std::map<std::string, int>{{"v1/0", 2}, {"v1/1", 2}}); }));
  ASSERT_TRUE(Tell(Report({{"v1", pb::VersionUse::STATE_SERVING}}, {1000, 9000})).ok());
  ASSERT_TRUE(Await([&](const auto&) { return replicas() == (std::map<std::string, int>{{"v1/0", 2}, {"v1/1", 3}}); }));
}

TEST_F(ServingServiceTest, ARestartMovesNothingThatIsHosted) {
  WriteIndex("v1");
  Start(/*replicas=*/1);
  EXPECT_THAT(Beat("a", {"v1/1"}), ElementsAre("undecided"));
  EXPECT_THAT(Beat("b", {"v1/0"}), ElementsAre("undecided"));
  clock_.Advance(absl::Seconds(6));
  Beat("a", {"v1/1"});
  Beat("b", {"v1/0"});
  clock_.Advance(absl::Seconds(1));
  ASSERT_TRUE(AwaitAssigned("a", {"v1/1"}) && AwaitAssigned("b", {"v1/0"}));
  Start(/*replicas=*/1);
  EXPECT_THAT(Beat("a", {"v1/1"}), ElementsAre("undecided"));
  clock_.Advance(absl::Seconds(6));
  EXPECT_THAT(Beat("b", {"v1/0"}), ElementsAre("undecided"));
  Beat("a", {"v1/1"});
  clock_.Advance(absl::Seconds(1));
  EXPECT_THAT(Beat("a", {"v1/1"}), ElementsAre("v1/1"));
  EXPECT_THAT(Beat("b", {"v1/0"}), ElementsAre("v1/0"));
}

TEST_F(ServingServiceTest, WhatLacksIsToldAndCounted) {
  Start();
  clock_.Advance(absl::Seconds(7));
  // No index: nothing is known of the weights, and the file is named.
  EXPECT_THAT(Beat("a", {}, 15), IsEmpty());
  ASSERT_TRUE(Await([](const auto& seen) { return seen.shortages_size() == 1; }));
  EXPECT_THAT(seen_.shortages(0).error().message(), HasSubstr(FolderOf("v1") + "/model_index.json"));
  EXPECT_THAT(seen_.shortages(0).networks(), ElementsAre(0, 1));
  // There it is: it fits but for one.
  WriteIndex("v1");
  clock_.Advance(absl::Seconds(1));
  ASSERT_TRUE(AwaitAssigned("a", {"v1/0"}));
  ASSERT_EQ(seen_.shortages_size(), 1);
  EXPECT_EQ(seen_.shortages(0).model(), "m");
  EXPECT_EQ(seen_.shortages(0).version(), "v1");
  EXPECT_THAT(seen_.shortages(0).networks(), ElementsAre(1));
  EXPECT_EQ(seen_.shortages(0).needed_bytes(), 20);
  EXPECT_EQ(seen_.shortages(0).lacking_bytes(), 10);
  EXPECT_EQ(ErrorReason(rpc::FromProto(seen_.shortages(0).error())), "EXPERT_SERVERS_FULL");
  EXPECT_EQ(seen_.lacking_bytes(), 10);
  const std::string text = coordinator_->registry().Text();
  EXPECT_THAT(text, HasSubstr("atoll_coordinator_expert_servers 1"));
  EXPECT_THAT(text, HasSubstr("atoll_coordinator_networks_assigned 1"));
  EXPECT_THAT(text, HasSubstr("atoll_coordinator_networks_unplaced 1"));
  EXPECT_THAT(text, HasSubstr("atoll_coordinator_lacking_bytes 10"));
  EXPECT_THAT(text, HasSubstr("atoll_coordinator_index_failures_total 1"));
}

TEST_F(ServingServiceTest, RoutersSeeWhatServersSay) {
  WriteIndex("v1");
  Start();
  pb::HeartbeatRequest request = RequestOf("a", {"v1/0", "v1/1"}, 100);
  HostedNetwork& failed = *request.mutable_server()->mutable_hosting()->mutable_networks(1);
  failed.set_state(HostedNetwork::STATE_FAILED);
  *failed.mutable_error() =
      rpc::ToProto(MakeError(absl::StatusCode::kDataLoss, "HASH_MISMATCH", "weights are damaged"));
  ASSERT_TRUE(Beat(request).ok());
  ASSERT_TRUE(Await([](const auto& seen) { return seen.servers_size() == 1; }));
  const pb::ExpertServer& server = seen_.servers(0);
  EXPECT_EQ(server.address(), "a:1");
  EXPECT_EQ(server.incarnation(), "a-1");
  EXPECT_EQ(server.hosting().memory_bytes(), 100);
  EXPECT_EQ(server.hosting().slots(), 2);
  ASSERT_EQ(server.hosting().networks_size(), 2);
  EXPECT_EQ(server.hosting().networks(0).state(), HostedNetwork::STATE_READY);
  EXPECT_EQ(server.hosting().networks(0).bytes(), 10);
  EXPECT_EQ(ErrorReason(rpc::FromProto(server.hosting().networks(1).error())), "HASH_MISMATCH");
  // A leaving server is removed at once, and its last heartbeat in flight changes nothing.
  pb::HeartbeatRequest leaving = RequestOf("a", {}, 100);
  leaving.set_leaving(true);
  ASSERT_TRUE(Beat(leaving).ok());
  EXPECT_EQ(ErrorReason(Beat(RequestOf("a", {"v1/0"}, 100)).status()), "STALE_INCARNATION");
  ASSERT_TRUE(Await([](const auto& seen) { return seen.servers_size() == 0; }));
}

TEST_F(ServingServiceTest, NonsenseIsRefusedByField) {
  Start();
  pb::HeartbeatRequest nameless = RequestOf("", {}, 0);
  pb::HeartbeatRequest stateless = RequestOf("a", {"v1/0"}, 0);
  stateless.mutable_server()->mutable_hosting()->mutable_networks(0)->clear_state();
  for (const auto& [request, field] :
       {std::pair{nameless, "server.server_id"}, std::pair{stateless, "server.hosting.networks[0].state"},
        std::pair{RequestOf("a", {}, -1), "server.hosting.memory_bytes"}}) {
    const absl::Status status = Beat(request).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ErrorReason(status), "INVALID_EXPERT_SERVER");
    EXPECT_EQ(ErrorField(status), field);
  }
  const absl::Status unspecified = Tell(Report({{"v1", pb::VersionUse::STATE_UNSPECIFIED}}));
  EXPECT_EQ(ErrorReason(unspecified), "INVALID_ROUTING_REPORT");
  EXPECT_EQ(ErrorField(unspecified), "uses[0].state");
  EXPECT_EQ(ErrorField(Tell({})), "router_id");
}

TEST_F(ServingServiceTest, AWatchEndsWithTheCoordinator) {
  Start();
  coordinator_->Stop(absl::Seconds(5));
  while (reader_->Read(&seen_)) {
  }
  EXPECT_EQ(ErrorReason(rpc::FromGrpc(reader_->Finish())), "COORDINATOR_STOPPING");
  reader_.reset();
}

}  // namespace
}  // namespace atl::coordinator
