#include "common/rpc/server.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <future>

#include "absl/synchronization/notification.h"
#include "atoll/job/v1/job_service.grpc.pb.h"
#include "common/base/errors.h"
#include "common/rpc/channel.h"
#include "common/rpc/listen_probe.h"
#include "common/wire/status.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"

namespace atl::rpc {
namespace {

using atlpb::job::v1::GetJobRequest;
using atlpb::job::v1::GetJobResponse;
using atlpb::job::v1::JobService;

// Refuses the job "missing"; holds "slow" until its caller gives up; echoes any other.
class FakeJobs : public JobService::CallbackService {
 public:
  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context, const GetJobRequest* request,
                                   GetJobResponse* response) override {
    auto* reactor = new Reactor;
    if (request->job_id() == "slow") {
      started.Notify();
      return reactor;
    }
    if (absl::Status status = RequireDeadline(*context); !status.ok()) {
      reactor->Finish(ToGrpc(status));
    } else if (request->job_id() == "missing") {
      reactor->Finish(ToGrpc(MakeError(absl::StatusCode::kNotFound, "JOB_NOT_FOUND", "no job 'missing'")));
    } else {
      response->mutable_job()->set_job_id(request->job_id());
      reactor->Finish(grpc::Status::OK);
    }
    return reactor;
  }

  absl::Notification started;

 private:
  class Reactor : public grpc::ServerUnaryReactor {
    void OnCancel() override { Finish(grpc::Status(grpc::StatusCode::CANCELLED, "")); }
    void OnDone() override { delete this; }
  };
};

class ServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto server = Server::Start({.listen = "127.0.0.1:0", .services = {{JobService::service_full_name(), &jobs_}}});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  absl::Status GetJob(const std::string& id, absl::Duration timeout = absl::Seconds(20)) {
    auto stub = JobService::NewStub(MakeChannel(server_->address()));
    grpc::ClientContext context;
    if (timeout < absl::InfiniteDuration()) SetTimeout(&context, timeout, true);
    GetJobRequest request;
    request.set_job_id(id);
    GetJobResponse response;
    return FromGrpc(stub->GetJob(&context, request, &response));
  }

  // grpc.health.v1.Health/Check by hand: field 1 of the request is the name, field 1 of the answer the status.
  std::string CheckHealth(const std::string& name) {
    grpc::GenericStub stub(MakeChannel(server_->address()));
    std::string bytes;
    if (!name.empty()) bytes = std::string("\x0a") + static_cast<char>(name.size()) + name;
    grpc::Slice slice(bytes);
    grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer response;
    grpc::ClientContext context;
    SetTimeout(&context, absl::Seconds(20), true);
    std::promise<grpc::Status> done;
    stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", grpc::StubOptions(), &request, &response,
                   [&done](grpc::Status status) { done.set_value(std::move(status)); });
    const grpc::Status status = done.get_future().get();
    if (!status.ok()) return std::string(DefaultReason(static_cast<absl::StatusCode>(status.error_code())));
    grpc::Slice answer;
    response.DumpToSingleSlice(&answer);
    return answer.size() == 2 && answer.begin()[1] == 1 ? "SERVING" : "NOT_SERVING";
  }

  FakeJobs jobs_;
  std::unique_ptr<Server> server_;
};

TEST_F(ServerTest, AMessageOverTheLimitIsRefused) {
  FakeJobs jobs;
  auto server = Server::Start({.services = {{JobService::service_full_name(), &jobs}}, .max_message_bytes = 1000});
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  EXPECT_TRUE(GetJob(std::string(900, 'x')).ok());
  EXPECT_EQ(GetJob(std::string(1100, 'x')).code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(ServerTest, OpenFilesAreRaisedToWhatTheSystemAllows) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low{.rlim_cur = std::min<rlim_t>(256, before.rlim_max), .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  FakeJobs jobs;
  ASSERT_TRUE(Server::Start({.services = {{JobService::service_full_name(), &jobs}}}).ok());
  rlimit after{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &after), 0);
  EXPECT_EQ(after.rlim_cur, before.rlim_max);
}

// A process of its own, for descriptors of its own: when told to, connects and stays silent, says 'r' when a connection
// was refused ('n' if none is within 20 s), and ends when the other end of `go` is closed. Only system calls.
int Flood(int port, int go, int told) {
  char word = 0;
  if (read(go, &word, 1) != 1) return 1;
  std::array<pollfd, 64> connections{};
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (pollfd& connection : connections) {
    connection = {.fd = socket(AF_INET, SOCK_STREAM, 0), .events = POLLRDHUP, .revents = 0};
    if (connect(connection.fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) return 1;
  }
  word = poll(connections.data(), connections.size(), 20'000) > 0 ? 'r' : 'n';
  if (write(told, &word, 1) != 1) return 1;
  return read(go, &word, 1) == 0 ? 0 : 1;
}

TEST_F(ServerTest, ItListensOnAfterItsDescriptorsWereUsedUp) {
  std::array<int, 2> go{};
  std::array<int, 2> told{};
  ASSERT_EQ(pipe(go.data()), 0);
  ASSERT_EQ(pipe(told.data()), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(go[1]);
    _exit(Flood(server_->port(), go[0], told[1]));
  }
  ASSERT_GT(child, 0);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = dup(go[0]);
  close(next);
  const rlimit low{.rlim_cur = static_cast<rlim_t>(next) + 8, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_EQ(write(go[1], "g", 1), 1);
  char word = 0;
  EXPECT_EQ(read(told[0], &word, 1), 1);
  EXPECT_EQ(word, 'r') << "who comes when all are used up is refused at once";
  close(go[1]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(GetJob("a").ok()) << "gRPC alone would not listen any more";
  for (const int descriptor : {go[0], told[0], told[1]}) close(descriptor);
}

TEST_F(ServerTest, BindsAFreePortAndAnswers) {
  EXPECT_GT(server_->port(), 0);
  EXPECT_EQ(server_->address(), "127.0.0.1:" + std::to_string(server_->port()));
  EXPECT_TRUE(GetJob("a").ok());
}

TEST_F(ServerTest, ItsAddressIsTheOneThatItListensAt) {
  FakeJobs jobs;
  for (const std::string host : {"0.0.0.0", "[::]", "localhost"}) {
    const auto server = Server::Start({.listen = host + ":0", .services = {{"x", &jobs}}});
    ASSERT_TRUE(server.ok()) << server.status();
    EXPECT_EQ((*server)->address(), host + ":" + std::to_string((*server)->port()));
  }
}

// A loopback port that can ask more of a call than a port in the clear, and costs its callers nothing.
TEST_F(ServerTest, CredentialsOfTheLoopbackTakeCallersThatHaveNone) {
  FakeJobs jobs;
  auto server = Server::Start({.listen = "127.0.0.1:0",
                               .services = {{JobService::service_full_name(), &jobs}},
                               .credentials = grpc::experimental::LocalServerCredentials(LOCAL_TCP)});
  ASSERT_TRUE(server.ok()) << server.status();
  for (const auto& credentials :
       {grpc::InsecureChannelCredentials(), grpc::experimental::LocalCredentials(LOCAL_TCP)}) {
    auto stub = JobService::NewStub(MakeChannel((*server)->address(), credentials));
    grpc::ClientContext context;
    SetTimeout(&context, absl::Seconds(20), true);
    GetJobRequest request;
    request.set_job_id("a");
    GetJobResponse response;
    EXPECT_TRUE(FromGrpc(stub->GetJob(&context, request, &response)).ok());
    EXPECT_EQ(response.job().job_id(), "a");
  }
}

TEST_F(ServerTest, AnEndThatIsAnnouncedTurnsProbesAwayAndNoCalls) {
  server_->SetServing(true);
  EXPECT_EQ(CheckHealth(""), "SERVING");
  server_->AnnounceEnd();
  EXPECT_EQ(CheckHealth(""), "NOT_SERVING");
  EXPECT_EQ(CheckHealth(JobService::service_full_name()), "NOT_SERVING");
  EXPECT_TRUE(GetJob("a").ok());
}

TEST_F(ServerTest, ErrorsArriveWithTheirReason) {
  const absl::Status status = GetJob("missing");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ErrorReason(status), "JOB_NOT_FOUND");
  EXPECT_EQ(status.message(), "no job 'missing'");
}

TEST_F(ServerTest, CallsWithoutADeadlineAreRefusedWhereRequired) {
  const absl::Status status = GetJob("a", absl::InfiniteDuration());
  EXPECT_EQ(ErrorReason(status), "DEADLINE_REQUIRED");
}

TEST_F(ServerTest, ACallEndsAtItsDeadline) {
  EXPECT_EQ(GetJob("slow", absl::Milliseconds(200)).code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(ServerTest, APortThatIsTakenIsAnError) {
  FakeJobs jobs;
  const auto second = Server::Start({.listen = server_->address(), .services = {{"x", &jobs}}});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(ErrorReason(second.status()), "CANNOT_LISTEN");
  for (const char* listen : {"nonsense", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:84236"}) {
    EXPECT_EQ(ErrorReason(Server::Start({.listen = listen}).status()), "INVALID_ADDRESS") << listen;
    EXPECT_EQ(ErrorReason(ProbeListen(listen)), "INVALID_ADDRESS") << listen;
  }
}

TEST_F(ServerTest, HealthSpeaksForProcessAndEachService) {
  EXPECT_EQ(CheckHealth(""), "SERVING");
  EXPECT_EQ(CheckHealth(JobService::service_full_name()), "NOT_SERVING");
  server_->SetServing(true);
  EXPECT_EQ(CheckHealth(JobService::service_full_name()), "SERVING");
  EXPECT_EQ(CheckHealth("no.such.Service"), "NOT_FOUND");
}

TEST_F(ServerTest, ShutdownCancelsWhatOutlivesItsGrace) {
  auto call = std::async(std::launch::async, [this] { return GetJob("slow"); });
  jobs_.started.WaitForNotification();
  server_->Shutdown(absl::Milliseconds(10));
  EXPECT_FALSE(call.get().ok());
  server_->Shutdown(absl::ZeroDuration());
}

TEST(ChannelTest, NobodyThereIsUnavailableAtOnce) {
  auto stub = JobService::NewStub(MakeChannel("127.0.0.1:1"));
  grpc::ClientContext context;
  SetTimeout(&context, absl::Seconds(20));
  GetJobResponse response;
  const absl::Status status = FromGrpc(stub->GetJob(&context, GetJobRequest(), &response));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace atl::rpc
