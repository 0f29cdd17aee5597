// What calls leave in the audit log, and how many watches a caller may have.
#include <filesystem>
#include <fstream>
#include <set>

#include "common/base/errors.h"
#include "coordinator/service/test_support.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace atl::coordinator {
namespace {

using atlpb::job::v1::JobService;
using nlohmann::json;
using ::testing::ElementsAre;

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
  EXPECT_THAT(Audited(), ElementsAre("SubmitJob " + job->job_id() + " OK", "SubmitJob  NOT_FOUND",
                                     "RegisterIsland a OK", "ClaimTask " + claim->grant().token().task_id() + " OK",
                                     "CancelJob nothing NOT_FOUND", "CancelJob " + job->job_id() + " OK"));
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
  for (int i = 0; i < WatchLimits().per_caller; ++i) {
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
