// Access to attempts: only callers for the island that holds an attempt may use it, whatever secret the call sends.
#include <fstream>
#include <functional>
#include <map>
#include <set>

#include "atoll/admin/v1/admin_service.grpc.pb.h"
#include "atoll/expert/v1/expert_service.grpc.pb.h"
#include "atoll/island/v1/rendezvous_service.grpc.pb.h"
#include "atoll/sample/v1/sample_service.grpc.pb.h"
#include "atoll/serving/v1/serving_service.grpc.pb.h"
#include "common/auth/principals.h"
#include "common/auth/roles.h"
#include "common/auth/security.h"
#include "common/base/errors.h"
#include "coordinator/service/test_support.h"
#include "fmt/format.h"
#include "google/protobuf/descriptor.h"

namespace atl::coordinator {
namespace {

namespace pb = atlpb::island::v1;
using IslandStub = pb::IslandService::Stub;
using AdminStub = atlpb::admin::v1::AdminService::Stub;

// Whether a message of this type may name a task, an attempt or an island.
bool NamesAnAttempt(const google::protobuf::Descriptor& type, std::set<std::string>* seen) {
  if (!seen->insert(std::string(type.full_name())).second) return false;
  for (int i = 0; i < type.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *type.field(i);
    for (const char* name : {"task_id", "attempt", "attempt_secret", "island_id"}) {
      if (std::string(field.name()) == name) return true;
    }
    if (field.message_type() != nullptr && NamesAnAttempt(*field.message_type(), seen)) return true;
  }
  return false;
}

class AttemptHolderTest : public CoordinatorFixture {
 protected:
  void SetUp() override {
    std::ofstream principals(folder_.File("principals.yaml"));
    principals << "principals:\n";
    for (const auto& [name, more] :
         {std::pair("eu", "roles: [island], islands: [eu-*]"), std::pair("us", "roles: [island], islands: [us-*]"),
          std::pair("alice", "roles: [submitter, reader]")}) {
      const rpc::NewToken token = rpc::MakeToken();
      tokens_[name] = token.token;
      principals << fmt::format("- {{subject: {}, {}, token_sha256: {}}}\n", name, more, token.sha256);
    }
    principals.close();
    const auto security = rpc::Security::Make({.principals = folder_.File("principals.yaml")});
    ASSERT_TRUE(security.ok()) << security.status();
    coordinator_.reset();
    StartCoordinator(/*restored=*/false, /*adopt=*/false, *security);
    admin_ = atlpb::admin::v1::AdminService::NewStub(rpc::MakeChannel(coordinator_->address()));

    atlpb::job::v1::SubmitJobResponse submitted;
    ASSERT_TRUE(As("alice", *jobs_, &atlpb::job::v1::JobService::Stub::SubmitJob, SubmitRequest(), &submitted).ok());
    job_id_ = submitted.job().job_id();
    for (const auto& [name, island] : {std::pair("eu", "eu-1"), std::pair("us", "us-1")}) {
      ASSERT_TRUE(RegisterAs(name, island).ok());
    }
    pb::ClaimTaskResponse claim;
    ASSERT_TRUE(As("eu", *islands_, &IslandStub::ClaimTask, ClaimRequestOf("eu-1", absl::ZeroDuration()), &claim).ok());
    ASSERT_TRUE(claim.has_grant());
    token_ = claim.grant().token();
  }

  template <typename Stub, typename Request, typename Response>
  absl::Status As(const std::string& name, Stub& stub,
                  grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*), const Request& request,
                  Response* response) {
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(20), true);
    context.AddMetadata("authorization", "Bearer " + tokens_[name]);
    return rpc::FromGrpc((stub.*method)(&context, request, response));
  }

  absl::Status RegisterAs(const std::string& name, const std::string& island_id) {
    pb::RegisterIslandRequest request;
    request.set_island_id(island_id);
    request.set_request_id("start of " + name);
    auto* capabilities = request.mutable_capabilities();
    for (pb::VersionRange* range : {capabilities->mutable_protocol(), capabilities->mutable_format()}) {
      range->set_min(1);
      range->set_max(1);
    }
    capabilities->set_ranks(1);
    capabilities->set_device_kind("cpu");
    pb::RegisterIslandResponse response;
    return As(name, *islands_, &IslandStub::RegisterIsland, request, &response);
  }

  template <typename Request, typename Response>
  absl::Status WithToken(const std::string& name, const pb::LeaseToken& token,
                         grpc::Status (IslandStub::*method)(grpc::ClientContext*, const Request&, Response*),
                         Request request = {}) {
    *request.mutable_token() = token;
    Response response;
    return As(name, *islands_, method, request, &response);
  }

  absl::Status HeartbeatAs(const std::string& name, const std::string& island_id, const pb::LeaseToken& token,
                           pb::HeartbeatResponse* response) {
    pb::HeartbeatRequest request;
    request.set_island_id(island_id);
    request.set_incarnation(1);
    request.set_sequence(++sequence_);
    *request.add_leases() = token;
    return As(name, *islands_, &IslandStub::Heartbeat, request, response);
  }

  std::map<std::string, std::string> tokens_;
  std::unique_ptr<AdminStub> admin_;
  std::string job_id_;
  pb::LeaseToken token_;  // eu-1's
  int64_t sequence_ = 0;
};

TEST_F(AttemptHolderTest, EveryCallThatNamesAnAttemptIsBoundToItsIsland) {
  // How a caller of another island calls each of them, with a token of an attempt that is not its own.
  const std::map<std::string, std::function<absl::Status(const pb::LeaseToken&)>> calls = {
      {"/atoll.admin.v1.AdminService/DrainIsland",
       [&](const pb::LeaseToken&) {
         atlpb::admin::v1::DrainIslandRequest request;
         request.set_island_id("eu-1");
         request.set_reason("because");
         atlpb::admin::v1::DrainIslandResponse response;
         return As("us", *admin_, &AdminStub::DrainIsland, request, &response);
       }},
      {"/atoll.admin.v1.AdminService/MoveTask",
       [&](const pb::LeaseToken& token) {
         atlpb::admin::v1::MoveTaskRequest request;
         request.set_task_id(token.task_id());
         atlpb::admin::v1::MoveTaskResponse response;
         return As("us", *admin_, &AdminStub::MoveTask, request, &response);
       }},
      {"/atoll.admin.v1.AdminService/UndrainIsland",
       [&](const pb::LeaseToken&) {
         atlpb::admin::v1::UndrainIslandRequest request;
         request.set_island_id("eu-1");
         atlpb::admin::v1::UndrainIslandResponse response;
         return As("us", *admin_, &AdminStub::UndrainIsland, request, &response);
       }},
      {"/atoll.island.v1.IslandService/ClaimTask",
       [&](const pb::LeaseToken&) {
         pb::ClaimTaskResponse response;
         return As("us", *islands_, &IslandStub::ClaimTask, ClaimRequestOf("eu-1", absl::ZeroDuration()), &response);
       }},
      {"/atoll.island.v1.IslandService/CommitCheckpoint",
       [&](const pb::LeaseToken& token) { return WithToken("us", token, &IslandStub::CommitCheckpoint); }},
      {"/atoll.island.v1.IslandService/CompleteTask",
       [&](const pb::LeaseToken& token) { return WithToken("us", token, &IslandStub::CompleteTask); }},
      {"/atoll.island.v1.IslandService/FailTask",
       [&](const pb::LeaseToken& token) { return WithToken("us", token, &IslandStub::FailTask); }},
      {"/atoll.island.v1.IslandService/Heartbeat",
       [&](const pb::LeaseToken& token) {
         pb::HeartbeatResponse response;
         return HeartbeatAs("us", "us-1", token, &response);
       }},
      {"/atoll.island.v1.IslandService/RegisterIsland",
       [&](const pb::LeaseToken&) { return RegisterAs("us", "eu-1"); }},
      {"/atoll.island.v1.IslandService/ReleaseTask",
       [&](const pb::LeaseToken& token) { return WithToken("us", token, &IslandStub::ReleaseTask); }},
      {"/atoll.island.v1.IslandService/RenewStorage",
       [&](const pb::LeaseToken& token) { return WithToken("us", token, &IslandStub::RenewStorage); }},
      {"/atoll.island.v1.IslandService/ReportProgress",
       [&](const pb::LeaseToken& token) { return WithToken("us", token, &IslandStub::ReportProgress); }},
      {"/atoll.island.v1.IslandService/RollbackTask",
       [&](const pb::LeaseToken& token) { return WithToken("us", token, &IslandStub::RollbackTask); }},
  };
  // Their messages are only known where something uses them.
  ASSERT_NE(pb::JoinRequest::descriptor(), nullptr);
  ASSERT_NE(atlpb::expert::v1::DenoiseRequest::descriptor(), nullptr);
  ASSERT_NE(atlpb::sample::v1::SampleRequest::descriptor(), nullptr);
  ASSERT_NE(atlpb::serving::v1::HeartbeatRequest::descriptor(), nullptr);
  for (const rpc::Access& row : rpc::AccessTable()) {
    if (!row.method.starts_with("/atoll.")) continue;
    std::string name(row.method.substr(1));
    name[name.find('/')] = '.';
    const auto* const method = google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(name);
    ASSERT_NE(method, nullptr) << name;
    std::set<std::string> seen;
    // A rank says no more than its number and the island's secret, and the leader knows its attempt.
    const bool bound =
        NamesAnAttempt(*method->input_type(), &seen) && row.method != "/atoll.island.v1.RendezvousService/Join";
    EXPECT_EQ(calls.contains(std::string(row.method)), bound) << row.method;
  }

  pb::LeaseToken guessed = token_;
  guessed.set_attempt_secret("guessed");
  for (const auto& [method, call] : calls) {
    const absl::Status right = call(token_);
    const bool admin = method.starts_with("/atoll.admin.");
    EXPECT_EQ(ErrorReason(right), admin ? "ROLE_REQUIRED" : "ISLAND_NOT_YOURS") << method << ": " << right;
    EXPECT_EQ(right, call(guessed)) << method << " tells whether the secret was right";
  }
  const absl::Status failed = WithToken("us", token_, &IslandStub::FailTask);
  EXPECT_EQ(failed.message(),
            fmt::format("'us' may act for the islands [us-*], not for the one that holds attempt 1 of task {}",
                        token_.task_id()));
  // The rejected calls had no effect.
  pb::HeartbeatResponse verdict;
  ASSERT_TRUE(HeartbeatAs("eu", "eu-1", token_, &verdict).ok());
  EXPECT_EQ(verdict.revoked_size(), 0) << verdict.DebugString();
  EXPECT_EQ(verdict.drain_reason(), "");
  atlpb::job::v1::GetJobRequest request;
  request.set_job_id(job_id_);
  atlpb::job::v1::GetJobResponse job;
  ASSERT_TRUE(As("alice", *jobs_, &atlpb::job::v1::JobService::Stub::GetJob, request, &job).ok());
  EXPECT_EQ(job.job().tasks(0).island_id(), "eu-1");
  EXPECT_EQ(job.job().tasks(0).attempt(), 1);
  EXPECT_EQ(job.job().tasks(0).state(), atlpb::job::v1::Task::STATE_LEASED);
}

TEST_F(AttemptHolderTest, AnEndedAttemptStaysItsIslands) {
  EXPECT_TRUE(WithToken("eu", token_, &IslandStub::ReleaseTask).ok());
  EXPECT_TRUE(WithToken("eu", token_, &IslandStub::ReleaseTask).ok()) << "a repeated call gets the same answer";
  EXPECT_EQ(ErrorReason(WithToken("us", token_, &IslandStub::ReleaseTask)), "ISLAND_NOT_YOURS");
  pb::ClaimTaskResponse claim;
  ASSERT_TRUE(As("us", *islands_, &IslandStub::ClaimTask, ClaimRequestOf("us-1", absl::ZeroDuration()), &claim).ok());
  ASSERT_TRUE(claim.has_grant());
  // The task is us-1's by now, and attempt 1 of it still eu-1's.
  EXPECT_EQ(ErrorReason(WithToken("eu", claim.grant().token(), &IslandStub::FailTask)), "ISLAND_NOT_YOURS");
  EXPECT_EQ(ErrorReason(WithToken("eu", token_, &IslandStub::FailTask)), "STALE_ATTEMPT");
  pb::LeaseToken unknown = token_;
  unknown.set_attempt(7);
  EXPECT_EQ(ErrorReason(WithToken("us", unknown, &IslandStub::FailTask)), "STALE_ATTEMPT");
}

TEST_F(AttemptHolderTest, AnIslandRenewsItsOwnLeasesAlone) {
  ASSERT_TRUE(RegisterAs("eu", "eu-2").ok());
  pb::HeartbeatResponse verdict;
  ASSERT_TRUE(HeartbeatAs("eu", "eu-2", token_, &verdict).ok());
  ASSERT_EQ(verdict.revoked_size(), 1);
  EXPECT_EQ(verdict.revoked(0).reason(), "STALE_ATTEMPT");
  ASSERT_TRUE(HeartbeatAs("eu", "eu-1", token_, &verdict).ok());
  EXPECT_EQ(verdict.revoked_size(), 0);
}

}  // namespace
}  // namespace atl::coordinator
