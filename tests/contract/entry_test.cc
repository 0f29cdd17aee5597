// Access to RPCs: every method, every role, every state of a credential, over real connections. The expectations are
// written out by hand, so that a wrong row of the table in common/auth/roles.cc fails here.
#include <map>
#include <set>

#include "atoll/admin/v1/admin_service.grpc.pb.h"
#include "atoll/expert/v1/expert_service.grpc.pb.h"
#include "atoll/island/v1/island_service.grpc.pb.h"
#include "atoll/island/v1/rendezvous_service.grpc.pb.h"
#include "atoll/job/v1/job_service.grpc.pb.h"
#include "atoll/model/v1/model_service.grpc.pb.h"
#include "atoll/sample/v1/sample_service.grpc.pb.h"
#include "atoll/serving/v1/serving_service.grpc.pb.h"
#include "common/auth/roles.h"
#include "common/base/errors.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "common/wire/status.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "tests/contract/entry_callers.h"

namespace atl::entry {
namespace {

const std::string kAnybody = "anybody";

// By hand. An admin may call everything.
const std::map<std::string, std::set<std::string>> kExpected = {
    {"/atoll.admin.v1.AdminService/DrainIsland", {"admin"}},
    {"/atoll.admin.v1.AdminService/ListIslands", {"admin", "reader"}},
    {"/atoll.admin.v1.AdminService/MoveTask", {"admin"}},
    {"/atoll.admin.v1.AdminService/UndrainIsland", {"admin"}},
    {"/atoll.expert.v1.ExpertService/Denoise", {"admin", "router"}},
    {"/atoll.expert.v1.ExpertService/ListNetworks", {"admin", "router", "reader"}},
    {"/atoll.island.v1.IslandService/ClaimTask", {"admin", "island"}},
    {"/atoll.island.v1.IslandService/CommitCheckpoint", {"admin", "island"}},
    {"/atoll.island.v1.IslandService/CompleteTask", {"admin", "island"}},
    {"/atoll.island.v1.IslandService/FailTask", {"admin", "island"}},
    {"/atoll.island.v1.IslandService/Heartbeat", {"admin", "island"}},
    {"/atoll.island.v1.IslandService/RegisterIsland", {"admin", "island"}},
    {"/atoll.island.v1.IslandService/ReleaseTask", {"admin", "island"}},
    {"/atoll.island.v1.IslandService/RenewStorage", {"admin", "island"}},
    {"/atoll.island.v1.IslandService/ReportProgress", {"admin", "island"}},
    {"/atoll.island.v1.IslandService/RollbackTask", {"admin", "island"}},
    {"/atoll.island.v1.RendezvousService/Join", {"admin", "island"}},
    {"/atoll.job.v1.JobService/CancelJob", {"admin", "submitter"}},
    {"/atoll.job.v1.JobService/DeleteJob", {"admin", "submitter"}},
    {"/atoll.job.v1.JobService/GetJob", {"admin", "submitter", "reader"}},
    {"/atoll.job.v1.JobService/ListJobs", {"admin", "submitter", "reader"}},
    {"/atoll.job.v1.JobService/SubmitJob", {"admin", "submitter"}},
    {"/atoll.job.v1.JobService/WatchJob", {"admin", "submitter", "reader"}},
    {"/atoll.model.v1.ModelService/GetModel", {"admin", "submitter", "sampler", "router", "reader"}},
    {"/atoll.model.v1.ModelService/ListModels", {"admin", "submitter", "sampler", "router", "reader"}},
    {"/atoll.model.v1.ModelService/SetServingVersion", {"admin", "submitter"}},
    {"/atoll.model.v1.ModelService/WatchModel", {"admin", "submitter", "sampler", "router", "reader"}},
    {"/atoll.sample.v1.SampleService/CancelSample", {"admin", "sampler"}},
    {"/atoll.sample.v1.SampleService/GetSamplerInfo", {"admin", "sampler", "reader"}},
    {"/atoll.sample.v1.SampleService/Sample", {"admin", "sampler"}},
    {"/atoll.serving.v1.ServingService/Heartbeat", {"admin", "expert"}},
    {"/atoll.serving.v1.ServingService/ReportRouting", {"admin", "router"}},
    {"/atoll.serving.v1.ServingService/WatchServers", {"admin", "router", "reader"}},
    {"/grpc.health.v1.Health/Check", {kAnybody}},
    {"/grpc.health.v1.Health/Watch", {kAnybody}},
    {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", {"admin", "reader"}},
    // This version does not have it, for any caller. Clients then use v1alpha.
    {"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", {}},
    {"/atoll.job.v1.JobService/Nothing", {}},
    {"/elsewhere.Service/Method", {}},
};

// An outcome is one of these, or the reason of the refusal.
constexpr char kLetIn[] = "let in";
constexpr char kUnknown[] = "UNIMPLEMENTED [METHOD_UNKNOWN]";

class EntryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto security = rpc::Security::Make(callers_.security());
    ASSERT_TRUE(security.ok()) << security.status();
    rpc::ServerOptions options;
    const auto credentials = (*security)->ServerCredentials(options.listen);
    ASSERT_TRUE(credentials.ok()) << credentials.status();
    options.credentials = *credentials;
    // Their handlers answer UNIMPLEMENTED: a call that reaches one was let in.
    options.services = {{"admin", &admin_}, {"expert", &expert_}, {"island", &island_}, {"rendezvous", &rendezvous_},
                        {"job", &job_},     {"model", &model_},   {"sample", &sample_}, {"serving", &serving_}};
    auto server = rpc::Server::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = rpc::MakeChannel(server_->address());
    stub_ = std::make_unique<grpc::GenericStub>(channel_);
  }

  // One call with one empty message, as a stream, which every kind of method understands.
  std::string Call(const std::string& method, const std::string& bearer) {
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(20), true);
    if (!bearer.empty()) context.AddMetadata("authorization", "Bearer " + bearer);
    grpc::CompletionQueue queue;
    const auto next = [&queue] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    const auto call = stub_->PrepareCall(&context, method, &queue);
    call->StartCall(nullptr);
    std::string outcome;
    grpc::ByteBuffer answer;
    const grpc::Slice empty("");
    if (next()) {
      call->WriteLast(grpc::ByteBuffer(&empty, 1), grpc::WriteOptions(), nullptr);
      next();
      call->Read(&answer, nullptr);
      if (next()) outcome = kLetIn;  // a stream that may go on for ever
    }
    if (!outcome.empty()) context.TryCancel();
    grpc::Status status;
    call->Finish(&status, nullptr);
    next();
    queue.Shutdown();
    while (next()) {
    }
    if (!outcome.empty()) return outcome;
    const absl::Status error = rpc::FromGrpc(status);
    // A call that reached no server was neither admitted nor rejected.
    if (absl::IsUnavailable(error) || absl::IsDeadlineExceeded(error)) return error.ToString();
    if (ErrorReason(error) == "METHOD_UNKNOWN") return absl::IsUnimplemented(error) ? kUnknown : error.ToString();
    const bool refused = absl::IsUnauthenticated(error) || absl::IsPermissionDenied(error);
    return refused ? ErrorReason(error) : kLetIn;
  }

  const Callers callers_;
  atlpb::admin::v1::AdminService::Service admin_;
  atlpb::expert::v1::ExpertService::Service expert_;
  atlpb::island::v1::IslandService::Service island_;
  atlpb::island::v1::RendezvousService::Service rendezvous_;
  atlpb::job::v1::JobService::Service job_;
  atlpb::model::v1::ModelService::Service model_;
  atlpb::sample::v1::SampleService::Service sample_;
  atlpb::serving::v1::ServingService::Service serving_;
  std::unique_ptr<rpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<grpc::GenericStub> stub_;
};

std::string ExpectedOf(const std::set<std::string>& roles, const Credential& credential) {
  if (roles.contains(kAnybody)) return kLetIn;
  if (const std::string refusal = RefusalOf(credential); !refusal.empty()) return refusal;
  if (roles.contains(credential.role)) return kLetIn;
  return roles.empty() ? kUnknown : "ROLE_REQUIRED";
}

TEST_F(EntryTest, EveryCallIsLetInOrRefusedAsWrittenHere) {
  std::map<std::string, int> outcomes;
  for (const auto& [method, roles] : kExpected) {
    for (const Credential& credential : callers_.credentials()) {
      const std::string outcome = Call(method, credential.bearer);
      EXPECT_EQ(outcome, ExpectedOf(roles, credential)) << method << " by " << credential.name;
      ++outcomes[outcome];
    }
  }
  // All kinds of outcome were met: the test tells them apart.
  EXPECT_EQ(outcomes.size(), 8u) << ::testing::PrintToString(outcomes);
}

TEST_F(EntryTest, EveryMethodIsWrittenHere) {
  for (const rpc::Access& row : rpc::AccessTable()) {
    if (!row.method.starts_with("/atoll.") && !row.method.starts_with("/grpc.")) continue;
    EXPECT_TRUE(kExpected.contains(std::string(row.method))) << row.method << " is missing in this test";
  }
}

TEST_F(EntryTest, ASecondCredentialBesideTheFirstIsRefused) {
  for (const Credential& credential : callers_.credentials()) {
    if (credential.state != State::kRight || credential.role != "admin") continue;
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(20), true);
    context.AddMetadata("authorization", "Bearer " + credential.bearer);
    context.AddMetadata("authorization", "Bearer " + credential.bearer);
    const auto stub = atlpb::job::v1::JobService::NewStub(channel_);
    atlpb::job::v1::ListJobsResponse response;
    const absl::Status status = rpc::FromGrpc(stub->ListJobs(&context, {}, &response));
    EXPECT_EQ(ErrorReason(status), "TOKEN_INVALID") << status;
  }
}

}  // namespace
}  // namespace atl::entry
