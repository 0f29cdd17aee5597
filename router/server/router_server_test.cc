// The whole router in this process: real gRPC, real networks, health and metrics.
#include "router/server/router_server.h"

#include <filesystem>
#include <fstream>
#include <future>

#include "common/base/errors.h"
#include "common/rpc/channel.h"
#include "common/storage/testing.h"
#include "common/wire/status.h"
#include "gmock/gmock.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "inference/testing/published_tiny_model.h"

namespace atl::router {
namespace {

namespace pb = atlpb::sample::v1;
using ::testing::HasSubstr;

// grpc.health.v1.Health/Check by hand: field 1 of the request is the name, field 1 of the answer the status.
bool IsServing(const std::string& address) {
  const std::string name = pb::SampleService::service_full_name();
  grpc::GenericStub stub(rpc::MakeChannel(address));
  grpc::Slice slice(std::string("\x0a") + static_cast<char>(name.size()) + name);
  grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  grpc::ClientContext context;
  rpc::SetTimeout(&context, absl::Seconds(20), /*wait_for_ready=*/true);
  std::promise<grpc::Status> done;
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", grpc::StubOptions(), &request, &response,
                 [&done](grpc::Status status) { done.set_value(std::move(status)); });
  EXPECT_TRUE(done.get_future().get().ok());
  grpc::Slice answer;
  EXPECT_TRUE(response.DumpToSingleSlice(&answer).ok());
  return answer.size() == 2 && answer.begin()[1] == 1;
}

class RouterServerTest : public ::testing::Test {
 protected:
  // Runs one request to its end; counts the images.
  absl::Status Sample(const RouterServer& router, std::vector<int32_t> classes, int* images = nullptr) {
    const auto stub = pb::SampleService::NewStub(rpc::MakeChannel(router.address()));
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(30));
    pb::SampleRequest request;
    request.mutable_classes()->Add(classes.begin(), classes.end());
    request.set_steps(3);
    const auto reader = stub->Sample(&context, request);
    pb::SampleResponse event;
    while (reader->Read(&event)) {
      if (images != nullptr && event.has_image()) ++*images;
    }
    return rpc::FromGrpc(reader->Finish());
  }

  storage::TemporaryStore store_;
};

TEST_F(RouterServerTest, ServesAModelFolderWithoutACoordinator) {
  const std::string uri = store_->UriOf("a model");
  PublishTinyModel(store_.get(), uri);
  const auto router =
      RouterServer::Start({.model_dir = store_.PathOf(uri), .metrics_listen = "127.0.0.1:0", .threads = 2});
  ASSERT_TRUE(router.ok()) << router.status();
  EXPECT_TRUE(IsServing((*router)->address()));
  int images = 0;
  EXPECT_TRUE(Sample(**router, {0, 3, -1}, &images).ok());
  EXPECT_EQ(images, 3);
  EXPECT_EQ(ErrorReason(Sample(**router, {4})), "UNKNOWN_CLASS");
  const std::string text = (*router)->MetricsText();
  for (const char* expected :
       {"atoll_router_requests_total{code=\"OK\",model=\"tiny\"} 1", "atoll_router_images_total{model=\"tiny\"} 3",
        "atoll_router_rejected_requests_total{code=\"INVALID_ARGUMENT\",model=\"tiny\"} 1",
        "atoll_router_queued_images 0", "atoll_router_step_seconds_count 9",
        "atoll_router_expert_image_steps_total{expert=\"0\",model=\"tiny\"}",
        "atoll_router_batches_total{code=\"OK\",place=\"local\"}",
        "atoll_router_batch_rows_count{expert=\"router\",model=\"tiny\"}",
        "atoll_router_batch_wait_seconds_count{expert=\"router\",model=\"tiny\"}",
        "atoll_router_first_image_seconds_count 1", "atoll_router_routing_entropy_nats_count{model=\"tiny\"} 1",
        "atoll_router_resident_networks 4", "atoll_router_replicated_networks 0",
        "atoll_router_network_evictions_total 0"}) {
    EXPECT_THAT(text, HasSubstr(expected));
  }
  (*router)->Shutdown(absl::Seconds(5));
}

TEST_F(RouterServerTest, WithoutItsCoordinatorItStartsAndSaysThatThereIsNoModel) {
  const auto router = RouterServer::Start({.coordinator = "127.0.0.1:1", .blob_store = store_->root()});
  ASSERT_TRUE(router.ok()) << router.status();
  EXPECT_FALSE(IsServing((*router)->address()));
  const absl::Status status = Sample(**router, {0});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ErrorReason(status), "NO_MODEL");
}

TEST_F(RouterServerTest, RestIsServedWhereItIsAskedFor) {
  const std::string uri = store_->UriOf("a model");
  PublishTinyModel(store_.get(), uri);
  RouterOptions options{.model_dir = store_.PathOf(uri)};
  auto router = RouterServer::Start(options);
  ASSERT_TRUE(router.ok()) << router.status();
  EXPECT_EQ((*router)->rest_address(), "");
  options.rest.listen = "127.0.0.1:0";
  router = RouterServer::Start(options);
  ASSERT_TRUE(router.ok()) << router.status();
  EXPECT_THAT((*router)->rest_address(), ::testing::MatchesRegex("127.0.0.1:[1-9][0-9]*"));
  options.rest.listen = (*router)->rest_address();
  EXPECT_EQ(ErrorReason(RouterServer::Start(options).status()), "CANNOT_LISTEN");
}

TEST_F(RouterServerTest, WrongOptionsNameTheFlag) {
  EXPECT_EQ(ErrorField(RouterServer::Start({}).status()), "--model-dir");
  EXPECT_EQ(ErrorField(RouterServer::Start({.coordinator = "127.0.0.1:1"}).status()), "--blob-store");
  EXPECT_EQ(ErrorField(RouterServer::Start({.model_dir = "x", .threads = 0}).status()), "--threads");
  EXPECT_EQ(ErrorField(RouterServer::Start({.model_dir = "x", .models = {"m"}}).status()), "--model");
  EXPECT_EQ(ErrorField(RouterServer::Start({.model_dir = "x", .pinned = {{"m", {"v"}}}}).status()), "--pin");
  EXPECT_EQ(ErrorField(RouterServer::Start({.coordinator = "here", .blob_store = store_->root()}).status()),
            "--coordinator");
  const absl::Status server = RouterServer::Start({.model_dir = "x", .expert_servers = {"foo"}}).status();
  EXPECT_EQ(ErrorReason(server), "INVALID_ADDRESS");
  EXPECT_EQ(server.message(), "--expert-server: expected HOST:PORT with a port from 1 to 65535, found 'foo'");
}

TEST_F(RouterServerTest, ATokenGoesToNoOtherMachineInTheClear) {
  const std::string token = store_.folder() + "/token";
  std::ofstream(token) << "ann's\n";
  const auto security = rpc::Security::Make({.token_file = token});
  ASSERT_TRUE(security.ok()) << security.status();
  RouterOptions options{.model_dir = "x", .security = *security, .threads = 0};
  options.expert_servers = {"127.0.0.1:1"};
  EXPECT_EQ(ErrorField(RouterServer::Start(options).status()), "--threads") << "which is looked at later";
  options.expert_servers = {"127.0.0.1:1", "10.0.0.1:1"};
  EXPECT_EQ(ErrorReason(RouterServer::Start(options).status()), "TOKEN_NEEDS_TLS");
  const RouterOptions followed{.coordinator = "10.0.0.1:1", .blob_store = store_->root(), .security = *security};
  EXPECT_EQ(ErrorReason(RouterServer::Start(followed).status()), "TOKEN_NEEDS_TLS");
}

TEST_F(RouterServerTest, WhatIsNoModelFolderIsNamed) {
  ASSERT_TRUE(store_->Write(store_->UriOf("file"), "x").ok());
  for (const std::string& folder : {store_.folder() + "/none", store_.folder(), store_.PathOf(store_->UriOf("file"))}) {
    const absl::Status status = RouterServer::Start({.model_dir = folder}).status();
    EXPECT_EQ(ErrorReason(status), "MODEL_FOLDER_NOT_FOUND");
    EXPECT_THAT(std::string(status.message()), HasSubstr("model_index.json in it, found none at '" + folder + "'"));
  }
}

TEST_F(RouterServerTest, ABlobStoreThatIsNotThereIsNotMade) {
  const std::string folder = store_.folder() + "/typo";
  const absl::Status status =
      RouterServer::Start({.coordinator = "127.0.0.1:1", .blob_store = "file://" + folder}).status();
  EXPECT_EQ(ErrorReason(status), "BLOB_STORE_NOT_FOUND");
  EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST_F(RouterServerTest, AVersionThatDoesNotFitIsRefusedWithTheBytes) {
  const std::string uri = store_->UriOf("a model");
  PublishTinyModel(store_.get(), uri);
  const absl::Status status =
      RouterServer::Start({.model_dir = store_.PathOf(uri), .memory_budget_bytes = 1000}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReason(status), "VERSION_DOES_NOT_FIT");
  EXPECT_THAT(std::string(status.message()), HasSubstr("for its router network and its largest expert, found 1000"));
}

TEST_F(RouterServerTest, ADamagedModelFolderIsRefusedAtTheStart) {
  const std::string uri = store_->UriOf("damaged");
  PublishTinyModel(store_.get(), uri);
  std::string weights = *store_->Read(uri + "/expert_1/diffusion_pytorch_model.safetensors");
  weights.back() ^= 1;
  ASSERT_TRUE(store_->Write(uri + "/expert_1/diffusion_pytorch_model.safetensors", weights).ok());
  const absl::Status status = RouterServer::Start({.model_dir = store_.PathOf(uri)}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("expert_1/diffusion_pytorch_model.safetensors"));
}

}  // namespace
}  // namespace atl::router
