// A client that is not ours, grpcurl, over TLS with a token of each role: it learns the services by reflection, of
// which it asks for version v1 first, and calls. The calls are written out by hand, as the table in
// common/auth/roles.cc has them.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "atoll/admin/v1/admin_service.grpc.pb.h"
#include "atoll/island/v1/island_service.grpc.pb.h"
#include "atoll/job/v1/job_service.grpc.pb.h"
#include "atoll/model/v1/model_service.grpc.pb.h"
#include "atoll/serving/v1/serving_service.grpc.pb.h"
#include "common/rpc/server.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/contract/entry_callers.h"
#include "tests/facility.h"

namespace atl::entry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string Grpcurl() {
  return Variable("ATOLL_PREFIX") + "/grpcurl";
}

// Each answers one method, which callers with some role may call, with an empty message.
struct Admin final : atlpb::admin::v1::AdminService::Service {
  grpc::Status ListIslands(grpc::ServerContext*, const atlpb::admin::v1::ListIslandsRequest*,
                           atlpb::admin::v1::ListIslandsResponse*) override {
    return grpc::Status::OK;
  }
};
struct Islands final : atlpb::island::v1::IslandService::Service {
  grpc::Status Heartbeat(grpc::ServerContext*, const atlpb::island::v1::HeartbeatRequest*,
                         atlpb::island::v1::HeartbeatResponse*) override {
    return grpc::Status::OK;
  }
};
struct Jobs final : atlpb::job::v1::JobService::Service {
  grpc::Status ListJobs(grpc::ServerContext*, const atlpb::job::v1::ListJobsRequest*,
                        atlpb::job::v1::ListJobsResponse*) override {
    return grpc::Status::OK;
  }
};
struct Models final : atlpb::model::v1::ModelService::Service {
  grpc::Status ListModels(grpc::ServerContext*, const atlpb::model::v1::ListModelsRequest*,
                          atlpb::model::v1::ListModelsResponse*) override {
    return grpc::Status::OK;
  }
};
struct Serving final : atlpb::serving::v1::ServingService::Service {
  grpc::Status Heartbeat(grpc::ServerContext*, const atlpb::serving::v1::HeartbeatRequest*,
                         atlpb::serving::v1::HeartbeatResponse*) override {
    return grpc::Status::OK;
  }
};

struct Case {
  std::string role;
  bool reflection;
  std::string may;
  std::string may_not;  // empty: nothing
};

const Case kCases[] = {
    {"admin", true, "atoll.admin.v1.AdminService/ListIslands", ""},
    {"submitter", false, "atoll.job.v1.JobService/ListJobs", "atoll.admin.v1.AdminService/ListIslands"},
    {"sampler", false, "atoll.model.v1.ModelService/ListModels", "atoll.job.v1.JobService/ListJobs"},
    {"island", false, "atoll.island.v1.IslandService/Heartbeat", "atoll.job.v1.JobService/ListJobs"},
    {"expert", false, "atoll.serving.v1.ServingService/Heartbeat", "atoll.model.v1.ModelService/ListModels"},
    {"router", false, "atoll.model.v1.ModelService/ListModels", "atoll.job.v1.JobService/ListJobs"},
    {"reader", true, "atoll.job.v1.JobService/ListJobs", "atoll.job.v1.JobService/CancelJob"},
};

class GrpcurlTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ATOLL_REQUIRE_FACILITY(access(Grpcurl().c_str(), X_OK) == 0,
                           fmt::format("grpcurl: '{}' is not there; run deploy/setup.sh --test-tools", Grpcurl()));
    const testing::CertificateAuthority authority;
    testing::WriteTlsFolder(tls_, authority.IssueServer("server"), authority.certificate());
    rpc::SecurityOptions security_options = callers_.security();
    security_options.tls_dir = tls_;
    const auto security = rpc::Security::Make(security_options);
    ASSERT_TRUE(security.ok()) << security.status();
    rpc::ServerOptions options;
    const auto credentials = (*security)->ServerCredentials(options.listen);
    ASSERT_TRUE(credentials.ok()) << credentials.status();
    options.credentials = *credentials;
    options.services = {
        {"admin", &admin_}, {"islands", &islands_}, {"jobs", &jobs_}, {"models", &models_}, {"serving", &serving_}};
    auto server = rpc::Server::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  // Returns all that grpcurl prints, and "exit N" at the end.
  std::string Run(const std::string& bearer, const std::string& options, const std::string& words) const {
    const std::string header = bearer.empty() ? "" : fmt::format("-H 'authorization: Bearer {}'", bearer);
    const std::string command = fmt::format("{} -max-time 20 -cacert {}/ca.crt {} {} {} {} 2>&1", Grpcurl(), tls_,
                                            header, options, server_->address(), words);
    FILE* const pipe = popen(command.c_str(), "r");
    if (pipe == nullptr) return "no pipe";
    std::string text;
    char piece[4096];
    while (const size_t got = fread(piece, 1, sizeof(piece), pipe)) text.append(piece, got);
    return text + fmt::format("exit {}", WEXITSTATUS(pclose(pipe)));
  }
  // Calls by reflection where the role has it, else with the .proto file.
  std::string Call(const Case& one, const std::string& bearer, const std::string& method) const {
    // "atoll.job.v1.JobService/ListJobs" is in atoll/job/v1/job_service.proto.
    const std::string area = method.substr(6, method.find('.', 6) - 6);
    const std::string files =
        fmt::format("-import-path {0}/proto -proto atoll/{1}/v1/{1}_service.proto", Variable("ATOLL_SOURCE_DIR"), area);
    return Run(bearer, one.reflection ? "" : files, method);
  }
  std::string TokenOf(const std::string& role) const {
    for (const Credential& credential : callers_.credentials()) {
      if (credential.role == role && credential.state == State::kRight && credential.kind == Kind::kToken) {
        return credential.bearer;
      }
    }
    return "";
  }

  const Callers callers_;
  const std::string tls_ = callers_.folder() / "tls";
  Admin admin_;
  Islands islands_;
  Jobs jobs_;
  Models models_;
  Serving serving_;
  std::unique_ptr<rpc::Server> server_;
};

TEST_F(GrpcurlTest, ReadersLearnTheServicesAndEveryRoleCallsWhatItMay) {
  for (const Case& one : kCases) {
    SCOPED_TRACE(one.role);
    const std::string bearer = TokenOf(one.role);
    const std::string list = Run(bearer, "", "list");
    const std::string describe = Run(bearer, "", "describe atoll.job.v1.JobService.SubmitJob");
    if (one.reflection) {
      EXPECT_THAT(list, AllOf(HasSubstr("atoll.job.v1.JobService"), HasSubstr("exit 0")));
      EXPECT_THAT(describe, AllOf(HasSubstr("rpc SubmitJob ( .atoll.job.v1.SubmitJobRequest )"), HasSubstr("exit 0")));
    } else {
      EXPECT_THAT(list, AllOf(HasSubstr("PermissionDenied"), HasSubstr("ROLE_REQUIRED"), HasSubstr("exit 1")));
      EXPECT_THAT(describe, AllOf(HasSubstr("ROLE_REQUIRED"), HasSubstr("exit 1")));
    }
    EXPECT_THAT(Call(one, bearer, one.may), AllOf(HasSubstr("{"), HasSubstr("exit 0")));
    if (one.may_not.empty()) continue;
    EXPECT_THAT(Call(one, bearer, one.may_not), AllOf(HasSubstr("Code: PermissionDenied"), HasSubstr("ROLE_REQUIRED")));
  }
}

TEST_F(GrpcurlTest, WithoutACredentialNothingIsLearned) {
  EXPECT_THAT(Run("", "", "list"), AllOf(HasSubstr("Unauthenticated"), HasSubstr("CREDENTIAL_REQUIRED")));
  EXPECT_THAT(Run("wrong", "", "list"), AllOf(HasSubstr("Unauthenticated"), HasSubstr("TOKEN_UNKNOWN")));
}

}  // namespace
}  // namespace atl::entry
