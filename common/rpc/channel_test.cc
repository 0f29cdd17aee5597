// Channels to several servers, of which one says that it serves.
#include "common/rpc/channel.h"

#include "atoll/job/v1/job_service.grpc.pb.h"
#include "common/base/errors.h"
#include "common/rpc/server.h"
#include "common/wire/status.h"
#include "gtest/gtest.h"

namespace atl::rpc {
namespace {

using atlpb::job::v1::GetJobRequest;
using atlpb::job::v1::GetJobResponse;
using atlpb::job::v1::JobService;

// Answers with its own name.
class NamedJobs : public JobService::CallbackService {
 public:
  explicit NamedJobs(std::string name) : name_(std::move(name)) {}
  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context, const GetJobRequest*,
                                   GetJobResponse* response) override {
    response->mutable_job()->set_job_id(name_);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  const std::string name_;
};

class ChannelListTest : public testing::Test {
 protected:
  ChannelListTest() : a_(StartOrDie(&jobs_a_)), b_(StartOrDie(&jobs_b_)) {}

  static std::unique_ptr<Server> StartOrDie(JobService::CallbackService* jobs) {
    auto server = Server::Start({.services = {{JobService::service_full_name(), jobs}}});
    if (!server.ok()) std::abort();
    return *std::move(server);
  }

  // Returns the name of the server that answers; waits until one serves.
  static std::string Ask(JobService::Stub& stub) {
    grpc::ClientContext context;
    SetTimeout(&context, absl::Seconds(20), /*wait_for_ready=*/true);
    GetJobResponse response;
    const absl::Status status = FromGrpc(stub.GetJob(&context, {}, &response));
    return status.ok() ? response.job().job_id() : status.ToString();
  }

  // Until `name` answers; what answered last when it never does.
  static std::string AskUntil(JobService::Stub& stub, const std::string& name) {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    std::string answer;
    while (answer != name && absl::Now() < deadline) answer = Ask(stub);
    return answer;
  }

  NamedJobs jobs_a_{"a"};
  NamedJobs jobs_b_{"b"};
  std::unique_ptr<Server> a_;
  std::unique_ptr<Server> b_;
};

TEST_F(ChannelListTest, CallsGoToTheOneThatServesAndMoveWithIt) {
  a_->SetServing("", false);
  const auto stub = JobService::NewStub(MakeChannel(a_->address() + "," + b_->address()));
  for (int i = 0; i < 10; ++i) EXPECT_EQ(Ask(*stub), "b");
  b_->SetServing("", false);
  a_->SetServing("", true);
  EXPECT_EQ(AskUntil(*stub, "a"), "a");
  // A server that has ended is skipped, and names resolve to this machine.
  b_->Shutdown(absl::ZeroDuration());
  for (int i = 0; i < 10; ++i) EXPECT_EQ(Ask(*stub), "a");
  const auto named = JobService::NewStub(
      MakeChannel("localhost:" + std::to_string(b_->port()) + ",localhost:" + std::to_string(a_->port())));
  EXPECT_EQ(Ask(*named), "a");
}

TEST_F(ChannelListTest, WhereNobodyServesACallFailsAndMayBeTriedAgain) {
  a_->SetServing("", false);
  b_->SetServing("", false);
  const auto stub = JobService::NewStub(MakeChannel(a_->address() + "," + b_->address()));
  grpc::ClientContext context;
  SetTimeout(&context, absl::Seconds(20));
  GetJobResponse response;
  const absl::Status status = FromGrpc(stub->GetJob(&context, {}, &response));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(IsRetryable(status));
  b_->SetServing("", true);
  EXPECT_EQ(Ask(*stub), "b");
}

TEST_F(ChannelListTest, NamesThatNobodyKnowsAreLeftOut) {
  const auto stub = JobService::NewStub(MakeChannel("no.such.host.invalid:7070," + a_->address()));
  EXPECT_EQ(Ask(*stub), "a");
}

}  // namespace
}  // namespace atl::rpc
