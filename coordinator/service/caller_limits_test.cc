// Limits on callers: access to other callers' islands and expert servers, and the state that they may leave behind.
#include <fstream>
#include <functional>
#include <future>
#include <map>

#include "absl/time/clock.h"
#include "atoll/serving/v1/serving_service.grpc.pb.h"
#include "common/auth/principals.h"
#include "common/auth/security.h"
#include "common/base/errors.h"
#include "coordinator/service/test_support.h"
#include "fmt/format.h"

namespace atl::coordinator {
namespace {

using atlpb::island::v1::IslandService;
using atlpb::job::v1::JobService;
using atlpb::serving::v1::ServingService;

class CallerLimitsTest : public CoordinatorFixture {
 protected:
  void SetUp() override {
    std::ofstream principals(folder_.File("principals.yaml"));
    principals << "principals:\n";
    for (const auto& [name, more] :
         {std::pair("eu", "roles: [island], islands: [eu-*], quota: {islands: 2}"),
          std::pair("us", "roles: [island], islands: [us-*]"), std::pair("ann", "roles: [expert]"),
          std::pair("bob", "roles: [expert]"), std::pair("north", "roles: [expert], expert_servers: [north-*]"),
          std::pair("root", "roles: [admin]")}) {
      const rpc::NewToken token = rpc::MakeToken();
      tokens_[name] = token.token;
      principals << fmt::format("- {{subject: {}, {}, token_sha256: {}}}\n", name, more, token.sha256);
    }
    principals.close();
    Deny("");
    const auto security =
        rpc::Security::Make({.principals = folder_.File("principals.yaml"), .deny_list = folder_.File("deny")});
    ASSERT_TRUE(security.ok()) << security.status();
    coordinator_.reset();
    StartCoordinator(/*restored=*/false, /*adopt=*/false, *security);
    serving_ = ServingService::NewStub(rpc::MakeChannel(coordinator_->address()));
  }

  void Deny(const std::string& lines) { std::ofstream(folder_.File("deny")) << lines; }

  template <typename Stub, typename Request, typename Response>
  absl::Status As(const std::string& name, Stub& stub,
                  grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*), const Request& request,
                  Response* response) {
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(20), true);
    context.AddMetadata("authorization", "Bearer " + tokens_[name]);
    return rpc::FromGrpc((stub.*method)(&context, request, response));
  }
  absl::Status RegisterAs(const std::string& name, const std::string& island_id, size_t label_bytes = 1) {
    atlpb::island::v1::RegisterIslandRequest request;
    request.set_island_id(island_id);
    request.set_request_id("start");
    auto* capabilities = request.mutable_capabilities();
    capabilities->mutable_protocol()->set_min(1);
    capabilities->mutable_protocol()->set_max(1);
    capabilities->mutable_format()->set_min(1);
    capabilities->mutable_format()->set_max(1);
    capabilities->set_ranks(1);
    capabilities->set_device_kind("cpu");
    (*capabilities->mutable_labels())["zone"] = std::string(label_bytes, 'x');
    atlpb::island::v1::RegisterIslandResponse response;
    return As(name, *islands_, &IslandService::Stub::RegisterIsland, request, &response);
  }
  std::string HeartbeatAs(const std::string& name, const std::string& server_id, const std::string& incarnation,
                          bool leaving = false) {
    atlpb::serving::v1::HeartbeatRequest request;
    request.mutable_server()->set_server_id(server_id);
    request.mutable_server()->set_incarnation(incarnation);
    request.mutable_server()->set_address("node-b:7201");
    request.set_sequence(++sequence_);
    request.set_leaving(leaving);
    atlpb::serving::v1::HeartbeatResponse response;
    return ErrorReason(As(name, *serving_, &ServingService::Stub::Heartbeat, request, &response));
  }

  std::map<std::string, std::string> tokens_;
  std::unique_ptr<ServingService::Stub> serving_;
  int64_t sequence_ = 0;
};

TEST_F(CallerLimitsTest, IslandsAreCountedForThoseWhoMayActForThem) {
  EXPECT_TRUE(RegisterAs("eu", "eu-1").ok());
  EXPECT_TRUE(RegisterAs("us", "us-1").ok());
  EXPECT_TRUE(RegisterAs("eu", "eu-2").ok());
  const absl::Status third = RegisterAs("eu", "eu-3");
  EXPECT_EQ(ErrorReason(third), "QUOTA_EXCEEDED") << third;
  EXPECT_EQ(third.message(),
            "island eu-3: 'eu' may have 2 islands registered, found 2, without those that are silent for a day "
            "(quota: {islands: N} in the principals file)");
  EXPECT_TRUE(RegisterAs("eu", "eu-2").ok()) << "it is registered";
  EXPECT_TRUE(RegisterAs("us", "us-2").ok()) << "others are not concerned";
  EXPECT_TRUE(RegisterAs("root", "eu-3").ok());
}

TEST_F(CallerLimitsTest, TextsThatAreKeptHaveLimits) {
  const absl::Status labels = RegisterAs("us", "us-1", 20'000);
  EXPECT_EQ(ErrorReason(labels), "INVALID_CAPABILITIES");
  EXPECT_EQ(labels.message(), "capabilities.labels: expected at most 4096 bytes of names and values, found 20004");
  auto submit = SubmitRequest();
  submit.set_request_id(std::string(2 << 20, 'x'));
  atlpb::job::v1::SubmitJobResponse response;
  const absl::Status status = As("root", *jobs_, &JobService::Stub::SubmitJob, submit, &response);
  EXPECT_EQ(ErrorReason(status), "INVALID_REQUEST_ID") << status;
  EXPECT_EQ(ErrorField(status), "request_id");
  submit.set_request_id("0b8ef1ea-7a8e-4c54-9f5a-4b7a3f0a2a11");
  EXPECT_TRUE(As("root", *jobs_, &JobService::Stub::SubmitJob, submit, &response).ok());
}

TEST_F(CallerLimitsTest, WhatAHeartbeatAndAClaimBringHasLimits) {
  ASSERT_TRUE(RegisterAs("us", "us-1").ok());
  atlpb::island::v1::HeartbeatRequest heartbeat;
  heartbeat.set_island_id("us-1");
  heartbeat.set_incarnation(1);
  heartbeat.set_sequence(1);
  for (int i = 0; i < 64; ++i) heartbeat.add_leases()->set_task_id(fmt::format("none/task-{}", i));
  atlpb::island::v1::HeartbeatResponse answer;
  const absl::Status all = As("us", *islands_, &IslandService::Stub::Heartbeat, heartbeat, &answer);
  ASSERT_TRUE(all.ok()) << all;
  EXPECT_EQ(answer.revoked_size(), 64);
  heartbeat.add_leases()->set_task_id("none/task-64");
  const absl::Status more = As("us", *islands_, &IslandService::Stub::Heartbeat, heartbeat, &answer);
  EXPECT_EQ(ErrorReason(more), "TOO_MANY_LEASES") << more;
  EXPECT_EQ(ErrorField(more), "leases");

  auto claim = ClaimRequestOf("us-1", absl::ZeroDuration());
  for (int i = 0; i < 60; ++i) claim.add_cached_uris(std::string(1024, 'x'));
  atlpb::island::v1::ClaimTaskResponse claimed;
  const absl::Status some = As("us", *islands_, &IslandService::Stub::ClaimTask, claim, &claimed);
  EXPECT_TRUE(some.ok()) << some;
  for (int i = 0; i < 5; ++i) claim.add_cached_uris(std::string(1024, 'x'));
  const absl::Status many = As("us", *islands_, &IslandService::Stub::ClaimTask, claim, &claimed);
  EXPECT_EQ(ErrorReason(many), "TOO_MANY_CACHED_URIS") << many;
  EXPECT_EQ(ErrorField(many), "cached_uris");
}

TEST_F(CallerLimitsTest, AClaimWhoseCallerIsShutOutWhileItWaitsIsGrantedNothing) {
  ASSERT_TRUE(RegisterAs("us", "us-1").ok());
  ASSERT_TRUE(RegisterAs("eu", "eu-1").ok());
  atlpb::island::v1::ClaimTaskResponse claimed;
  auto claim = std::async(std::launch::async, [&] {
    return As("us", *islands_, &IslandService::Stub::ClaimTask, ClaimRequestOf("us-1", absl::Seconds(15)), &claimed);
  });
  const auto becomes = [](const std::function<bool()>& so) {
    for (int tries = 0; tries < 2000 && !so(); ++tries) absl::SleepFor(absl::Milliseconds(5));
    return so();
  };
  ASSERT_TRUE(becomes([&] {
    size_t waiting = 0;
    coordinator_->WithCore([&](Core& core) { waiting = core.waiting_claims(); });
    return waiting == 1;
  }));
  Deny("subject us\n");
  ASSERT_TRUE(becomes([&] {
    atlpb::job::v1::ListJobsResponse none;
    const absl::Status status = As("us", *jobs_, &JobService::Stub::ListJobs, atlpb::job::v1::ListJobsRequest(), &none);
    return ErrorReason(status) == "TOKEN_REVOKED";
  }));
  atlpb::job::v1::SubmitJobResponse submitted;
  ASSERT_TRUE(As("root", *jobs_, &JobService::Stub::SubmitJob, SubmitRequest(), &submitted).ok());
  EXPECT_EQ(ErrorReason(claim.get()), "TOKEN_REVOKED");
  EXPECT_FALSE(claimed.has_grant());
  ASSERT_TRUE(
      As("eu", *islands_, &IslandService::Stub::ClaimTask, ClaimRequestOf("eu-1", absl::ZeroDuration()), &claimed)
          .ok());
  ASSERT_TRUE(claimed.has_grant());
  EXPECT_EQ(claimed.grant().token().attempt(), 1) << "no attempt was spent on who was shut out";
}

TEST_F(CallerLimitsTest, WhatAJobShowsOfItsTasksAndItsEndHasLimits) {
  atlpb::job::v1::SubmitJobResponse submitted;
  ASSERT_TRUE(As("root", *jobs_, &JobService::Stub::SubmitJob, SubmitRequest(), &submitted).ok());
  ASSERT_TRUE(RegisterAs("us", "us-1").ok());
  atlpb::island::v1::ClaimTaskResponse claimed;
  const auto claim = ClaimRequestOf("us-1", absl::ZeroDuration());
  ASSERT_TRUE(As("us", *islands_, &IslandService::Stub::ClaimTask, claim, &claimed).ok());
  ASSERT_TRUE(claimed.has_grant());
  const auto report = [&](size_t name_bytes, int64_t sequence) {
    atlpb::island::v1::ReportProgressRequest request;
    *request.mutable_token() = claimed.grant().token();
    request.set_sequence(sequence);
    (*request.mutable_progress()->mutable_metrics())[std::string(name_bytes, 'm')] = 1;
    atlpb::island::v1::ReportProgressResponse response;
    return ErrorReason(As("us", *islands_, &IslandService::Stub::ReportProgress, request, &response));
  };
  EXPECT_EQ(report(128, 1), "");
  EXPECT_EQ(report(129, 2), "INVALID_METRICS");
  atlpb::job::v1::CancelJobRequest cancel;
  cancel.set_job_id(submitted.job().job_id());
  cancel.set_reason(std::string(1 << 20, 'r'));
  atlpb::job::v1::CancelJobResponse cancelled;
  ASSERT_TRUE(As("root", *jobs_, &JobService::Stub::CancelJob, cancel, &cancelled).ok());
  EXPECT_LT(cancelled.job().message().size(), 2000u);
}

TEST_F(CallerLimitsTest, AnExpertServerIsSpokenForByItsOwnSubjectAlone) {
  EXPECT_EQ(HeartbeatAs("ann", "a", "start"), "");
  EXPECT_EQ(HeartbeatAs("bob", "a", "start", /*leaving=*/true), "EXPERT_SERVER_NOT_YOURS");
  EXPECT_EQ(HeartbeatAs("bob", "a", "another"), "EXPERT_SERVER_NOT_YOURS");
  EXPECT_EQ(HeartbeatAs("north", "a", "start"), "EXPERT_SERVER_NOT_YOURS") << "its entry names others";
  EXPECT_EQ(HeartbeatAs("ann", "a", "start"), "");
  EXPECT_EQ(HeartbeatAs("north", "north-1", "start"), "");
  EXPECT_EQ(HeartbeatAs("ann", "north-1", "another"), "EXPERT_SERVER_NOT_YOURS");
  EXPECT_EQ(HeartbeatAs("ann", "north-2", "start"), "") << "nobody speaks for it yet";
  EXPECT_EQ(HeartbeatAs("north", "north-2", "start-2"), "") << "it is named for it";
  EXPECT_EQ(HeartbeatAs("ann", "north-2", "start", /*leaving=*/true), "EXPERT_SERVER_NOT_YOURS");
  EXPECT_EQ(HeartbeatAs("ann", "a", "start", /*leaving=*/true), "");
  EXPECT_EQ(HeartbeatAs("bob", "a", "third"), "") << "it has left";
}

}  // namespace
}  // namespace atl::coordinator
