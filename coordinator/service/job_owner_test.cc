// Ownership: the jobs and models that a caller may change, and the limit on its jobs.
#include <filesystem>
#include <fstream>

#include "common/auth/principals.h"
#include "common/auth/security.h"
#include "common/base/errors.h"
#include "coordinator/service/test_support.h"
#include "fmt/format.h"

namespace atl::coordinator {
namespace {

using atlpb::job::v1::JobService;
using atlpb::model::v1::ModelService;

class JobOwnerTest : public CoordinatorFixture {
 protected:
  void SetUp() override {
    std::ofstream principals(folder_.File("principals.yaml"));
    principals << "principals:\n";
    for (const auto& [name, more] :
         {std::pair("alice", "roles: [submitter], quota: {open_jobs: 1}"), std::pair("bob", "roles: [submitter]"),
          std::pair("carol", "roles: [submitter], models: [faces-*]"),
          std::pair("dora", "roles: [submitter], models: [digits]"), std::pair("root", "roles: [admin]")}) {
      const rpc::NewToken token = rpc::MakeToken();
      tokens_[name] = token.token;
      principals << fmt::format("- {{subject: {}, {}, token_sha256: {}}}\n", name, more, token.sha256);
    }
    principals.close();
    const auto security = rpc::Security::Make({.principals = folder_.File("principals.yaml")});
    ASSERT_TRUE(security.ok()) << security.status();
    security_ = *security;
    coordinator_.reset();
    StartCoordinator(/*restored=*/false, /*adopt=*/false, security_);
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
  absl::StatusOr<atlpb::job::v1::Job> SubmitAs(const std::string& name) {
    atlpb::job::v1::SubmitJobResponse response;
    const absl::Status status = As(name, *jobs_, &JobService::Stub::SubmitJob, SubmitRequest(), &response);
    if (!status.ok()) return status;
    return response.job();
  }
  std::string CancelAs(const std::string& name, const std::string& job_id) {
    atlpb::job::v1::CancelJobRequest request;
    request.set_job_id(job_id);
    atlpb::job::v1::CancelJobResponse response;
    return ErrorReason(As(name, *jobs_, &JobService::Stub::CancelJob, request, &response));
  }
  std::string DeleteAs(const std::string& name, const std::string& job_id) {
    atlpb::job::v1::DeleteJobRequest request;
    request.set_job_id(job_id);
    atlpb::job::v1::DeleteJobResponse response;
    return ErrorReason(As(name, *jobs_, &JobService::Stub::DeleteJob, request, &response));
  }

  std::string ServeAs(const std::string& name) {
    atlpb::model::v1::SetServingVersionRequest request;
    request.set_name("digits");
    request.set_version("no-such-version");
    atlpb::model::v1::SetServingVersionResponse response;
    return ErrorReason(As(name, *models_, &ModelService::Stub::SetServingVersion, request, &response));
  }

  std::map<std::string, std::string> tokens_;
  std::shared_ptr<const rpc::Security> security_;
};

TEST_F(JobOwnerTest, SubmittersChangeTheirOwnJobsAlone) {
  const auto job = SubmitAs("alice");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->owner(), "alice");
  EXPECT_EQ(CancelAs("bob", job->job_id()), "JOB_NOT_YOURS");
  EXPECT_EQ(CancelAs("alice", job->job_id()), "");
  EXPECT_EQ(DeleteAs("bob", job->job_id()), "JOB_NOT_YOURS");
  EXPECT_EQ(DeleteAs("alice", job->job_id()), "");
}

TEST_F(JobOwnerTest, AdminsChangeEverybodysAlsoAfterARestart) {
  const auto job = SubmitAs("alice");
  ASSERT_TRUE(job.ok()) << job.status();
  coordinator_.reset();
  StartCoordinator(/*restored=*/false, /*adopt=*/false, security_);
  atlpb::job::v1::GetJobRequest request;
  request.set_job_id(job->job_id());
  atlpb::job::v1::GetJobResponse response;
  ASSERT_TRUE(As("root", *jobs_, &JobService::Stub::GetJob, request, &response).ok());
  EXPECT_EQ(response.job().owner(), "alice");
  EXPECT_EQ(CancelAs("bob", job->job_id()), "JOB_NOT_YOURS");
  EXPECT_EQ(CancelAs("root", job->job_id()), "");
  EXPECT_EQ(DeleteAs("root", job->job_id()), "");
}

TEST_F(JobOwnerTest, SubmittersPublishTheModelsOfTheirEntryAlone) {
  EXPECT_EQ(ErrorReason(SubmitAs("carol").status()), "MODEL_NOT_YOURS");
  EXPECT_EQ(ServeAs("carol"), "MODEL_NOT_YOURS");
  std::ifstream audited(audit_log());
  for (const char* method : {"SubmitJob", "SetServingVersion"}) {
    std::string line;
    std::getline(audited, line);
    EXPECT_NE(line.find(std::string("\"method\":\"") + method + R"(","resource":"digits")"), std::string::npos) << line;
  }
  // These callers pass the check of ownership, because no job has published the model yet.
  for (const char* name : {"dora", "bob", "root"}) {
    EXPECT_TRUE(SubmitAs(name).ok()) << name;
    EXPECT_EQ(ServeAs(name), "MODEL_UNKNOWN") << name;
  }
}

TEST_F(JobOwnerTest, OpenJobsAreCountedByTheirOwner) {
  const auto first = SubmitAs("alice");
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = SubmitAs("alice");
  EXPECT_EQ(second.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReason(second.status()), "QUOTA_EXCEEDED");
  EXPECT_TRUE(SubmitAs("bob").ok());
  EXPECT_TRUE(SubmitAs("bob").ok()) << "no quota, no limit";
  EXPECT_EQ(CancelAs("alice", first->job_id()), "");
  EXPECT_TRUE(SubmitAs("alice").ok());
}

}  // namespace
}  // namespace atl::coordinator
