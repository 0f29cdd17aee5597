// The audit lines of calls, and the limit on watches per caller.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "absl/time/clock.h"
#include "atoll/admin/v1/admin_service.grpc.pb.h"
#include "atoll/serving/v1/serving_service.grpc.pb.h"
#include "common/auth/principals.h"
#include "common/auth/roles.h"
#include "common/auth/security.h"
#include "common/base/errors.h"
#include "coordinator/service/test_support.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace atl::coordinator {
namespace {

using atlpb::job::v1::JobService;
using nlohmann::json;
using ::testing::ElementsAre;

absl::Time TimeOf(const json& entry) {
  absl::Time time;
  EXPECT_TRUE(absl::ParseTime(absl::RFC3339_full, entry["time"].get<std::string>(), &time, nullptr)) << entry;
  return time;
}

class AuditCallsTest : public CoordinatorFixture {
 protected:
  // "METHOD RESOURCE CODE" of every line.
  std::vector<std::string> Audited() {
    std::vector<std::string> lines;
    std::ifstream file(audit_log());
    for (std::string line; std::getline(file, line);) {
      const json entry = json::parse(line);
      EXPECT_EQ(entry["subject"], "anonymous");
      EXPECT_TRUE(entry["peer"].get<std::string>().starts_with("ipv4:127.0.0.1:")) << line;
      lines.push_back(entry["method"].get<std::string>() + " " + entry["resource"].get<std::string>() + " " +
                      entry["code"].get<std::string>());
    }
    return lines;
  }
  absl::Status Cancel(const std::string& job_id) {
    atlpb::job::v1::CancelJobRequest request;
    request.set_job_id(job_id);
    atlpb::job::v1::CancelJobResponse response;
    return Call(*jobs_, &JobService::Stub::CancelJob, request, &response);
  }
};

TEST_F(AuditCallsTest, EveryCallThatChangesSomethingLeavesALine) {
  auto request = SubmitRequest();
  request.set_validate_only(true);
  ASSERT_TRUE(Submit(request).ok());
  request.set_validate_only(false);
  const auto job = Submit(request);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_FALSE(Submit(SubmitRequest("none")).ok());
  ASSERT_TRUE(Register("a").ok());
  const auto claim = Claim("a");
  ASSERT_TRUE(claim.ok() && claim->has_grant());
  EXPECT_FALSE(Cancel("nothing").ok());
  ASSERT_TRUE(Cancel(job->job_id()).ok());
  // The task of a job that is over is not handed out again.
  ASSERT_TRUE(Claim("a").ok());
  EXPECT_THAT(Audited(), ElementsAre("SubmitJob " + job->job_id() + " OK", "SubmitJob digits NOT_FOUND",
                                     "RegisterIsland a OK", "ClaimTask " + claim->grant().token().task_id() + " OK",
                                     "CancelJob nothing NOT_FOUND", "CancelJob " + job->job_id() + " OK"));
}

TEST_F(AuditCallsTest, ChangesThatWereRefusedLeaveABoundedNumberOfLinesAndTheOthersEachOne) {
  constexpr int kCalls = 300;
  const absl::Time start = absl::Now();
  for (int i = 0; i < kCalls; ++i) EXPECT_FALSE(Cancel("nothing").ok());
  const double most = kRefusedLines.burst + kRefusedLines.per_second * absl::ToDoubleSeconds(absl::Now() - start) + 1;
  ASSERT_TRUE(Register("a").ok());
  ASSERT_TRUE(Register("b").ok());
  const std::vector<std::string> lines = Audited();
  EXPECT_LE(static_cast<double>(lines.size()), most + 2);
  ASSERT_GT(lines.size(), 2u);
  EXPECT_EQ(lines[lines.size() - 2], "RegisterIsland a OK");
  EXPECT_EQ(lines.back(), "RegisterIsland b OK");
  int64_t told = 0;
  std::ifstream file(audit_log());
  for (std::string line; std::getline(file, line);) told += 1 + json::parse(line).value("left_out", int64_t{0});
  EXPECT_EQ(told, kCalls + 2) << "every call is in the log, or counted in it";
}

class RefusedCallsTest : public CoordinatorFixture {
 protected:
  absl::Status Get(const std::string& bearer) {
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(20), true);
    if (!bearer.empty()) context.AddMetadata("authorization", "Bearer " + bearer);
    atlpb::job::v1::GetJobResponse response;
    return rpc::FromGrpc(jobs_->GetJob(&context, {}, &response));
  }
  std::vector<std::string> Lines() {
    std::vector<std::string> lines;
    std::ifstream file(audit_log());
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }
};

TEST_F(RefusedCallsTest, CallsThatTheGuardRefusesLeaveALineWithoutTheirCredential) {
  const rpc::NewToken ann = rpc::MakeToken();
  const rpc::NewToken sam = rpc::MakeToken();
  const rpc::NewToken nobody = rpc::MakeToken();
  std::ofstream(folder_.File("principals.yaml"))
      << "principals:\n- {subject: ann, roles: [reader], token_sha256: " << ann.sha256
      << "}\n- {subject: sam, roles: [island], islands: [a], token_sha256: " << sam.sha256 << "}\n";
  const auto security = rpc::Security::Make({.principals = folder_.File("principals.yaml")});
  ASSERT_TRUE(security.ok()) << security.status();
  coordinator_.reset();
  StartCoordinator(/*restored=*/false, /*adopt=*/false, *security);
  EXPECT_EQ(ErrorReason(Get(ann.token)), "JOB_UNKNOWN") << "let in, and nothing to audit";
  EXPECT_EQ(ErrorReason(Get("")), "CREDENTIAL_REQUIRED");
  EXPECT_EQ(ErrorReason(Get(nobody.token)), "TOKEN_UNKNOWN");
  EXPECT_EQ(ErrorReason(Get(sam.token)), "ROLE_REQUIRED");
  // Let in by the guard, and refused behind it; it would have changed nothing.
  {
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(20), true);
    context.AddMetadata("authorization", "Bearer " + sam.token);
    atlpb::island::v1::HeartbeatRequest request;
    request.set_island_id("b");
    atlpb::island::v1::HeartbeatResponse response;
    EXPECT_EQ(ErrorReason(rpc::FromGrpc(islands_->Heartbeat(&context, request, &response))), "ISLAND_NOT_YOURS");
  }
  std::vector<std::string> found;
  for (const std::string& line : Lines()) {
    const json entry = json::parse(line);
    found.push_back(entry["method"].get<std::string>() + " '" + entry["subject"].get<std::string>() + "' " +
                    entry["code"].get<std::string>() + " " + entry["reason"].get<std::string>());
    EXPECT_LT(absl::AbsDuration(absl::Now() - TimeOf(entry)), absl::Minutes(10)) << line;
    for (const rpc::NewToken& token : {ann, sam, nobody}) {
      EXPECT_EQ(line.find(token.token), std::string::npos);
      EXPECT_EQ(line.find(token.sha256), std::string::npos);
    }
  }
  EXPECT_THAT(found,
              ElementsAre("GetJob '' UNAUTHENTICATED CREDENTIAL_REQUIRED", "GetJob '' UNAUTHENTICATED TOKEN_UNKNOWN",
                          "GetJob 'sam' PERMISSION_DENIED ROLE_REQUIRED",
                          "Heartbeat 'sam' PERMISSION_DENIED ISLAND_NOT_YOURS"));
}

// "CancelJob" of "/atoll.job.v1.JobService/CancelJob", as the audit log and the metrics call it.
std::string NameOf(std::string_view method) {
  if (method == "/atoll.serving.v1.ServingService/Heartbeat") return "ExpertHeartbeat";
  return std::string(method.substr(method.rfind('/') + 1));
}

// One call of every method that the coordinator serves, each with success. What the table of roles says of them is
// compared with what they leave in the log.
TEST_F(AuditCallsTest, TheMethodsThatTheTableCallsMutatingAreTheOnesThatLeaveALine) {
  namespace island = atlpb::island::v1;
  using island::IslandService;
  const auto channel = rpc::MakeChannel(coordinator_->address());
  const auto admin = atlpb::admin::v1::AdminService::NewStub(channel);
  const auto serving = atlpb::serving::v1::ServingService::NewStub(channel);
  const auto good = [&](auto& stub, auto method, const auto& request, auto response) {
    const absl::Status status = Call(stub, method, request, &response);
    EXPECT_TRUE(status.ok()) << status;
    return response;
  };
  // Until the first message; how a watch ends is no matter.
  const auto watch = [](auto open, auto response) {
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(20));
    const auto reader = open(&context);
    EXPECT_TRUE(reader->Read(&response));
    context.TryCancel();
    while (reader->Read(&response)) {
    }
    reader->Finish();
  };

  const auto job = Submit(SubmitRequest());
  ASSERT_TRUE(job.ok()) << job.status();
  atlpb::job::v1::GetJobRequest get;
  get.set_job_id(job->job_id());
  good(*jobs_, &JobService::Stub::GetJob, get, atlpb::job::v1::GetJobResponse());
  good(*jobs_, &JobService::Stub::ListJobs, atlpb::job::v1::ListJobsRequest(), atlpb::job::v1::ListJobsResponse());
  atlpb::job::v1::WatchJobRequest watch_job;
  watch_job.set_job_id(job->job_id());
  watch([&](auto* context) { return jobs_->WatchJob(context, watch_job); }, atlpb::job::v1::WatchJobResponse());

  ASSERT_TRUE(Register("a").ok() && Register("b").ok());
  island::HeartbeatRequest beat;
  beat.set_island_id("a");
  beat.set_incarnation(1);
  beat.set_sequence(1);
  good(*islands_, &IslandService::Stub::Heartbeat, beat, island::HeartbeatResponse());

  auto claim = Claim("a");
  ASSERT_TRUE(claim.ok() && claim->has_grant()) << claim.status();
  island::ReportProgressRequest progress;
  *progress.mutable_token() = claim->grant().token();
  progress.set_sequence(1);
  good(*islands_, &IslandService::Stub::ReportProgress, progress, island::ReportProgressResponse());
  atlpb::admin::v1::MoveTaskRequest move;
  move.set_task_id(claim->grant().token().task_id());
  move.set_to_island_id("b");
  good(*admin, &atlpb::admin::v1::AdminService::Stub::MoveTask, move, atlpb::admin::v1::MoveTaskResponse());
  island::ReleaseTaskRequest release;
  *release.mutable_token() = claim->grant().token();
  good(*islands_, &IslandService::Stub::ReleaseTask, release, island::ReleaseTaskResponse());
  claim = Claim("b", absl::Seconds(10));
  ASSERT_TRUE(claim.ok() && claim->has_grant()) << claim.status();
  island::RenewStorageRequest renew;
  *renew.mutable_token() = claim->grant().token();
  good(*islands_, &IslandService::Stub::RenewStorage, renew, island::RenewStorageResponse());
  island::FailTaskRequest fail;
  *fail.mutable_token() = claim->grant().token();
  fail.set_code("OUT_OF_MEMORY");
  fail.set_message("there was none left");
  good(*islands_, &IslandService::Stub::FailTask, fail, island::FailTaskResponse());

  atlpb::admin::v1::DrainIslandRequest drain;
  drain.set_island_id("b");
  drain.set_reason("new disk");
  good(*admin, &atlpb::admin::v1::AdminService::Stub::DrainIsland, drain, atlpb::admin::v1::DrainIslandResponse());
  good(*admin, &atlpb::admin::v1::AdminService::Stub::ListIslands, atlpb::admin::v1::ListIslandsRequest(),
       atlpb::admin::v1::ListIslandsResponse());
  atlpb::admin::v1::UndrainIslandRequest undrain;
  undrain.set_island_id("b");
  good(*admin, &atlpb::admin::v1::AdminService::Stub::UndrainIsland, undrain,
       atlpb::admin::v1::UndrainIslandResponse());

  const std::string expert = job->job_id() + "/train_expert-0";
  for (int task = 0; task < 4; ++task) EXPECT_THAT(FinishNext("a"), ::testing::StartsWith(job->job_id() + "/"));
  claim = Claim("a", absl::Seconds(10));
  ASSERT_TRUE(claim.ok() && claim->has_grant()) << claim.status();
  ASSERT_EQ(claim->grant().token().task_id(), expert);
  ASSERT_TRUE(Commit(claim->grant(), 10).ok());
  island::RollbackTaskRequest roll_back;
  *roll_back.mutable_token() = claim->grant().token();
  roll_back.set_before_step(12);
  roll_back.set_through_step(12);
  roll_back.set_reason("LOSS_EXPLODED");
  roll_back.set_message("training diverged");
  roll_back.set_evidence_uri(claim->grant().storage().write_prefix() + "/evidence/00000012.json");
  good(*islands_, &IslandService::Stub::RollbackTask, roll_back, island::RollbackTaskResponse());
  for (int task = 0; task < 3; ++task) EXPECT_THAT(FinishNext("a"), ::testing::StartsWith(job->job_id() + "/"));

  using atlpb::model::v1::ModelService;
  good(*models_, &ModelService::Stub::ListModels, atlpb::model::v1::ListModelsRequest(),
       atlpb::model::v1::ListModelsResponse());
  atlpb::model::v1::GetModelRequest get_model;
  get_model.set_name("digits");
  const auto model = good(*models_, &ModelService::Stub::GetModel, get_model, atlpb::model::v1::GetModelResponse());
  atlpb::model::v1::SetServingVersionRequest serve;
  serve.set_name("digits");
  serve.set_version(job->job_id());
  serve.set_expected_generation(model.model().serving_generation());
  good(*models_, &ModelService::Stub::SetServingVersion, serve, atlpb::model::v1::SetServingVersionResponse());
  atlpb::model::v1::WatchModelRequest watch_model;
  watch_model.set_name("digits");
  watch([&](auto* context) { return models_->WatchModel(context, watch_model); },
        atlpb::model::v1::WatchModelResponse());

  using atlpb::serving::v1::ServingService;
  atlpb::serving::v1::HeartbeatRequest expert_beat;
  expert_beat.set_sequence(1);
  expert_beat.mutable_server()->set_server_id("e");
  expert_beat.mutable_server()->set_incarnation("e-1");
  expert_beat.mutable_server()->set_address("e:1");
  expert_beat.mutable_server()->mutable_hosting()->set_memory_bytes(100);
  expert_beat.mutable_server()->mutable_hosting()->set_slots(1);
  good(*serving, &ServingService::Stub::Heartbeat, expert_beat, atlpb::serving::v1::HeartbeatResponse());
  atlpb::serving::v1::ReportRoutingRequest routing;
  routing.set_router_id("r");
  good(*serving, &ServingService::Stub::ReportRouting, routing, atlpb::serving::v1::ReportRoutingResponse());
  watch([&](auto* context) { return serving->WatchServers(context, {}); }, atlpb::serving::v1::WatchServersResponse());

  const auto cancelled = Submit(SubmitRequest());
  ASSERT_TRUE(cancelled.ok()) << cancelled.status();
  ASSERT_TRUE(Cancel(cancelled->job_id()).ok());
  atlpb::job::v1::DeleteJobRequest remove;
  remove.set_job_id(job->job_id());
  good(*jobs_, &JobService::Stub::DeleteJob, remove, atlpb::job::v1::DeleteJobResponse());
  coordinator_->Stop(absl::Seconds(10));  // the watches, too, have ended

  std::set<std::string> served;  // every method of the coordinator
  std::set<std::string> mutating;
  for (const rpc::Access& row : rpc::AccessTable()) {
    const bool here = std::ranges::any_of(
        std::initializer_list<std::string_view>{"/atoll.admin.", "/atoll.job.", "/atoll.model.", "/atoll.serving.",
                                                "/atoll.island.v1.IslandService/"},
        [&](std::string_view prefix) { return row.method.starts_with(prefix); });
    if (here) served.insert(NameOf(row.method));
    if (row.mutating) mutating.insert(NameOf(row.method));
    EXPECT_TRUE(here || !row.mutating) << row.method << ": other processes keep no audit log";
  }
  const std::string metrics = coordinator_->registry().Text();
  for (const std::string& name : served) {
    EXPECT_THAT(metrics, ::testing::HasSubstr("atoll_coordinator_requests_total{method=\"" + name + "\"} "))
        << name << " is missing in this test";
  }
  std::set<std::string> audited;
  for (const std::string& line : Audited()) {
    EXPECT_TRUE(line.ends_with(" OK")) << line;
    audited.insert(line.substr(0, line.find(' ')));
  }
  EXPECT_EQ(audited, mutating);
}

TEST_F(AuditCallsTest, AMovedFileIsLeftAloneAfterReopening) {
  ASSERT_TRUE(Register("a").ok());
  std::filesystem::rename(audit_log(), audit_log() + ".1");
  ASSERT_TRUE(coordinator_->ReopenAuditLog().ok());
  ASSERT_TRUE(Register("b").ok());
  EXPECT_THAT(Audited(), ElementsAre("RegisterIsland b OK"));
}

TEST_F(AuditCallsTest, WatchesOfOneCallerAreCounted) {
  const auto job = Submit(SubmitRequest());
  ASSERT_TRUE(job.ok());
  atlpb::job::v1::WatchJobRequest request;
  request.set_job_id(job->job_id());
  struct Open {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<atlpb::job::v1::WatchJobResponse>> reader;
  };
  const auto open = [&] {
    auto watch = std::make_unique<Open>();
    rpc::SetTimeout(&watch->context, absl::Seconds(20));
    watch->reader = jobs_->WatchJob(&watch->context, request);
    return watch;
  };
  atlpb::job::v1::WatchJobResponse response;
  std::vector<std::unique_ptr<Open>> watches;
  for (int i = 0; i < kMostWatchesOfCaller; ++i) {
    watches.push_back(open());
    ASSERT_TRUE(watches.back()->reader->Read(&response)) << i;
  }
  const auto refused = open();
  EXPECT_FALSE(refused->reader->Read(&response));
  EXPECT_EQ(ErrorReason(rpc::FromGrpc(refused->reader->Finish())), "TOO_MANY_WATCHES");
  watches.back()->context.TryCancel();
  while (watches.back()->reader->Read(&response)) {
  }
  EXPECT_FALSE(watches.back()->reader->Finish().ok());
  // The server hears of it in its own time.
  const absl::Time end = absl::Now() + absl::Seconds(20);
  bool admitted = false;
  while (!admitted && absl::Now() < end) admitted = open()->reader->Read(&response);
  EXPECT_TRUE(admitted);
  for (const auto& watch : watches) watch->context.TryCancel();
}

}  // namespace
}  // namespace atl::coordinator
