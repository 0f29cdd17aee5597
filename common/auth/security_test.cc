// Security over real connections: who gets in, with which error who does not, and what takes effect while it runs.
#include "common/auth/security.h"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/cleanup/cleanup.h"
#include "absl/time/clock.h"
#include "atoll/job/v1/job_service.grpc.pb.h"
#include "common/auth/security_flags.h"
#include "common/auth/tls_check.h"
#include "common/base/errors.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "common/wire/status.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "spdlog/sinks/ringbuffer_sink.h"
#include "spdlog/spdlog.h"
#include "tests/pki.h"

namespace atl::rpc {
namespace {

namespace pb = atlpb::job::v1;
using ::testing::HasSubstr;

// Answers with the caller's name.
class Jobs final : public pb::JobService::Service {
 public:
  std::shared_ptr<Guard> guard;

  grpc::Status GetJob(grpc::ServerContext* call, const pb::GetJobRequest*, pb::GetJobResponse* response) override {
    const absl::StatusOr<Principal> caller = CallerOf(guard.get(), *call);
    if (caller.ok()) response->mutable_job()->set_job_id(caller->subject);
    return ToGrpc(caller.status());
  }

  // Until the caller is gone.
  grpc::Status WatchJob(grpc::ServerContext* call, const pb::WatchJobRequest*,
                        grpc::ServerWriter<pb::WatchJobResponse>* writer) override {
    writer->Write({});
    while (!call->IsCancelled()) absl::SleepFor(absl::Milliseconds(5));
    return grpc::Status::CANCELLED;
  }
};

// Within a bounded number of turns.
bool Becomes(const std::function<bool()>& holds) {
  for (int turn = 0; turn < 3000; ++turn) {
    if (holds()) return true;
    absl::SleepFor(absl::Milliseconds(20));
  }
  return false;
}

// Collects the log's lines while it lives.
class CapturedLog {
 public:
  CapturedLog() { spdlog::set_default_logger(std::make_shared<spdlog::logger>("security_test", lines_)); }
  ~CapturedLog() { spdlog::set_default_logger(before_); }

  std::string Text() const {
    std::string text;
    for (const std::string& line : lines_->last_formatted()) text += line;
    return text;
  }
  // Once it has this; bounded, so that a test fails and does not hang.
  std::string Await(const std::string& text) const {
    for (int turn = 0; turn < 2000 && Text().find(text) == std::string::npos; ++turn) {
      absl::SleepFor(absl::Milliseconds(10));
    }
    return Text();
  }

 private:
  const std::shared_ptr<spdlog::sinks::ringbuffer_sink_mt> lines_ =
      std::make_shared<spdlog::sinks::ringbuffer_sink_mt>(16);
  const std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
};

class SecurityTest : public ::testing::Test {
 protected:
  SecurityTest() {
    const ::testing::TestInfo* const info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = ::testing::TempDir() + "security_test_" + info->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~SecurityTest() override {
    running_.reset();
    std::filesystem::remove_all(folder_);
  }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(Path(name)) << text;
    return Path(name);
  }
  std::string Folder(const std::string& name, const testing::Certificate& certificate) const {
    WriteTlsFolder(Path(name), certificate, authority_.certificate());
    return Path(name);
  }
  // ann reads by a token or a certificate, sam does nothing here.
  std::string WritePrincipals() const {
    return Write("principals.yaml", fmt::format(R"(
principals:
- {{subject: ann, roles: [reader], token_sha256: {}, certificate: ann.example.org}}
- {{subject: sam, roles: [sampler], token_sha256: {}}}
)",
                                                TokenHash("ann's"), TokenHash("sam's")));
  }
  void Start() {
    const auto security = Security::Make(server_);
    ASSERT_TRUE(security.ok()) << security.status();
    const auto credentials = (*security)->ServerCredentials("127.0.0.1:0");
    ASSERT_TRUE(credentials.ok()) << credentials.status();
    jobs_.guard = (*security)->guard();
    auto running = Server::Start({.listen = "127.0.0.1:0",
                                  .services = {{pb::JobService::service_full_name(), &jobs_}},
                                  .credentials = *credentials,
                                  .open_streams = OpenStreamsOf(security->get())});
    open_streams_ = OpenStreamsOf(security->get());
    ASSERT_TRUE(running.ok()) << running.status();
    running_ = *std::move(running);
  }
  // The name under which the server knows the client, or its error.
  absl::StatusOr<std::string> Ask(const SecurityOptions& client) const {
    const auto security = Security::Make(client);
    if (!security.ok()) return security.status();
    const auto stub = pb::JobService::NewStub(MakeChannel(running_->address(), (*security)->channel_credentials()));
    grpc::ClientContext context;
    SetTimeout(&context, absl::Seconds(30));
    pb::GetJobResponse response;
    const absl::Status status = FromGrpc(stub->GetJob(&context, {}, &response));
    if (!status.ok()) return status;
    return response.job().job_id();
  }
  std::string Asked() const {
    const auto name = Ask(client_);
    return name.ok() ? *name : ErrorReason(name.status());
  }

  std::string Explained() const {
    return ErrorReason(ExplainConnection(client_, running_->address(), absl::Seconds(5)));
  }

  std::string folder_;
  const testing::CertificateAuthority authority_;
  SecurityOptions server_;
  SecurityOptions client_;
  Jobs jobs_;
  std::shared_ptr<OpenStreams> open_streams_;
  std::unique_ptr<Server> running_;
};

TEST_F(SecurityTest, WithoutAnythingEverybodyHereIsAnonymous) {
  Start();
  EXPECT_EQ(Asked(), "anonymous");
}

TEST_F(SecurityTest, TokensCountOnThisMachineWithoutTls) {
  server_.principals = WritePrincipals();
  Start();
  EXPECT_EQ(Asked(), "CREDENTIAL_REQUIRED");
  client_.token_file = Write("token", "ann's\n");
  EXPECT_EQ(Asked(), "ann");
  Write("token", "sam's");
  EXPECT_EQ(Asked(), "ROLE_REQUIRED");
  Write("token", "nobody's");
  EXPECT_EQ(Asked(), "TOKEN_UNKNOWN");
  const absl::Status refused = Ask(client_).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(refused.message(), "the token is not one of this service's");
}

TEST_F(SecurityTest, RefusedCallsAreToldWithWhoAndWhyAndWithoutTheCredential) {
  server_.principals = WritePrincipals();
  server_.tls_dir = Folder("server", authority_.IssueServer("localhost"));
  Start();
  absl::Mutex mutex;
  std::vector<std::string> told;
  jobs_.guard->TellRefused([&](const RefusedCall& call) {
    absl::MutexLock lock(&mutex);
    told.push_back(
        fmt::format("{} by '{}' at '{}': {}", call.method, call.subject, call.peer, ErrorReason(call.status)));
    EXPECT_EQ(std::string(call.status.message()).find("nobody's"), std::string::npos);
  });
  client_.ca = Path("server") + "/ca.crt";
  EXPECT_EQ(Asked(), "CREDENTIAL_REQUIRED");
  client_.token_file = Write("token", "ann's");
  EXPECT_EQ(Asked(), "ann");
  Write("token", "sam's");
  EXPECT_EQ(Asked(), "ROLE_REQUIRED");
  client_.ca.clear();
  client_.tls_dir = Folder("client", authority_.IssueClient("eve.example.org"));
  Write("token", "nobody's");
  EXPECT_EQ(Asked(), "TOKEN_UNKNOWN");
  client_.token_file.clear();
  EXPECT_EQ(Asked(), "CERTIFICATE_UNKNOWN");
  jobs_.guard->TellRefused(nullptr);
  EXPECT_EQ(Asked(), "CERTIFICATE_UNKNOWN");
  const std::string method = "/atoll.job.v1.JobService/GetJob";
  EXPECT_THAT(told, ::testing::ElementsAre(method + " by '' at '': CREDENTIAL_REQUIRED",
                                           method + " by 'sam' at '': ROLE_REQUIRED",
                                           method + " by 'eve.example.org' at '': TOKEN_UNKNOWN",
                                           method + " by 'eve.example.org' at '': CERTIFICATE_UNKNOWN"));
}

TEST_F(SecurityTest, ProbesNeedNoCredential) {
  server_.principals = WritePrincipals();
  Start();
  running_->SetServing(true);
  grpc::GenericStub stub(MakeChannel(running_->address()));
  grpc::CompletionQueue queue;
  const grpc::Slice empty;
  const grpc::ByteBuffer nothing(&empty, 1);
  for (const char* method : {"/grpc.health.v1.Health/Check", "/atoll.job.v1.JobService/GetJob", "/no.Service/Method"}) {
    grpc::ClientContext context;
    SetTimeout(&context, absl::Seconds(30));
    const auto call = stub.PrepareUnaryCall(&context, method, nothing, &queue);
    call->StartCall();
    grpc::ByteBuffer answer;
    grpc::Status status;
    call->Finish(&answer, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    EXPECT_EQ(status.ok(), std::string_view(method).starts_with("/grpc.health")) << method << status.error_message();
  }
}

TEST_F(SecurityTest, MutualTlsAloneLetsCertificatesIn) {
  server_.tls_dir = Folder("server", authority_.IssueServer("coordinator"));
  Start();
  client_.tls_dir = Folder("client", authority_.IssueClient("eu-1"));
  EXPECT_EQ(Asked(), "eu-1");
  EXPECT_EQ(Explained(), "");
  // Without a certificate, with one of another authority, or in the clear, no connection is made.
  client_ = {.ca = Write("ca.crt", authority_.certificate())};
  EXPECT_EQ(Asked(), "UNAVAILABLE");
  EXPECT_EQ(Explained(), "CERTIFICATE_REFUSED");
  const testing::CertificateAuthority other("other");
  WriteTlsFolder(Path("other"), other.IssueClient("eu-1"), authority_.certificate());
  client_ = {.tls_dir = Path("other")};
  EXPECT_EQ(Asked(), "UNAVAILABLE");
  EXPECT_EQ(Explained(), "CERTIFICATE_REFUSED");
  client_ = {};
  EXPECT_EQ(Asked(), "UNAVAILABLE");
  EXPECT_EQ(Explained(), "TLS_EXPECTED");
}

// A router may call a coordinator with a certificate of another authority, such as a public one that signs for all.
TEST_F(SecurityTest, AServerKnowsClientsByItsFolderWhateverAuthorityItTrustsItself) {
  const testing::CertificateAuthority other("other");
  server_.tls_dir = Folder("server", authority_.IssueServer("router"));
  server_.ca = Write("other.crt", other.certificate());
  Start();
  client_.tls_dir = Folder("client", authority_.IssueClient("eu-1"));
  EXPECT_EQ(Asked(), "eu-1");
  WriteTlsFolder(Path("stranger"), other.IssueClient("eu-1"), authority_.certificate());
  client_.tls_dir = Path("stranger");
  EXPECT_EQ(Asked(), "UNAVAILABLE");
}

TEST_F(SecurityTest, AServerOfAnotherAuthorityIsNotTrusted) {
  server_.tls_dir = Folder("server", authority_.IssueServer("coordinator"));
  Start();
  const testing::CertificateAuthority other("other");
  WriteTlsFolder(Path("client"), authority_.IssueClient("eu-1"), other.certificate());
  client_.tls_dir = Path("client");
  EXPECT_EQ(Asked(), "UNAVAILABLE");
  EXPECT_EQ(Explained(), "SERVER_NOT_TRUSTED");
}

TEST_F(SecurityTest, AServersNameHasToFit) {
  server_.tls_dir = Folder("server", authority_.Issue({.common_name = "c", .dns_names = {"coordinator.example.org"}}));
  Start();
  client_.tls_dir = Folder("client", authority_.IssueClient("eu-1"));
  EXPECT_EQ(Asked(), "UNAVAILABLE");
  EXPECT_THAT(std::string(ExplainConnection(client_, running_->address(), absl::Seconds(5)).message()),
              HasSubstr("is not trusted: its certificate: IP address mismatch"));
}

TEST_F(SecurityTest, AServerWithoutTlsIsNamedAsOne) {
  Start();
  EXPECT_EQ(Explained(), "");
  client_.ca = Write("ca.crt", authority_.certificate());
  EXPECT_EQ(Asked(), "UNAVAILABLE");
  EXPECT_EQ(Explained(), "TLS_NOT_SPOKEN");
  EXPECT_EQ(ErrorReason(ExplainConnection(client_, "dns:///" + running_->address(), absl::Seconds(5))),
            "TLS_NOT_SPOKEN");
  EXPECT_TRUE(ExplainConnection(client_, "127.0.0.1:1", absl::Seconds(5)).ok());
}

TEST_F(SecurityTest, AServerWhoseFilesAreBrokenIsNotTakenForOneWithoutTls) {
  std::signal(SIGPIPE, SIG_IGN);  // as every program here
  const testing::Certificate own = authority_.IssueServer("coordinator");
  server_.tls_dir = Folder("server", own);
  server_.principals = WritePrincipals();
  Start();
  client_.ca = Write("ca.crt", authority_.certificate());
  WriteTlsFolder(Path("server"), own, "no certificate");
  std::string message;
  const auto told = [&] {
    message = std::string(ExplainConnection(client_, running_->address(), absl::Seconds(5)).message());
    return message.find("does not speak TLS, or its certificate files are broken") != std::string::npos;
  };
  EXPECT_TRUE(Becomes(told)) << message;
}

TEST_F(SecurityTest, OverTlsATokenOrACertificateSaysWhoItIs) {
  server_.tls_dir = Folder("server", authority_.IssueServer("coordinator"));
  server_.principals = WritePrincipals();
  Start();
  client_.ca = Write("ca.crt", authority_.certificate());
  EXPECT_EQ(Asked(), "CREDENTIAL_REQUIRED");
  client_.token_file = Write("token", "ann's");
  EXPECT_EQ(Asked(), "ann");
  client_ = {.tls_dir = Folder("ann", authority_.Issue({.common_name = "x", .dns_names = {"ann.example.org"}}))};
  EXPECT_EQ(Asked(), "ann");
  client_ = {.tls_dir = Folder("eve", authority_.IssueClient("eve"))};
  EXPECT_EQ(Asked(), "CERTIFICATE_UNKNOWN");
  client_.token_file = Path("token");
  EXPECT_EQ(Asked(), "ann");
}

TEST_F(SecurityTest, ARequiredCertificateComesBesideTheToken) {
  server_.tls_dir = Folder("server", authority_.IssueServer("coordinator"));
  server_.principals = WritePrincipals();
  server_.require_client_certificate = true;
  Start();
  client_.ca = Write("ca.crt", authority_.certificate());
  client_.token_file = Write("token", "ann's");
  EXPECT_EQ(Asked(), "UNAVAILABLE");
  client_.ca = "";
  client_.tls_dir = Folder("eve", authority_.IssueClient("eve"));
  EXPECT_EQ(Asked(), "ann");
}

// The context of a connection is shared by its calls: what one says must not stick.
TEST_F(SecurityTest, CallsOfOneConnectionKeepTheirOwnNames) {
  server_.principals = Write("principals.yaml", fmt::format(R"(
principals:
- {{subject: ann, roles: [reader], token_sha256: {}}}
- {{subject: bob, roles: [reader], token_sha256: {}}}
)",
                                                            TokenHash("ann's"), TokenHash("bob's")));
  Start();
  const auto stub = pb::JobService::NewStub(MakeChannel(running_->address()));
  for (const std::string name : {"ann", "bob", "ann", "", "bob"}) {
    grpc::ClientContext context;
    SetTimeout(&context, absl::Seconds(30));
    if (!name.empty()) context.AddMetadata("authorization", "Bearer " + name + "'s");
    pb::GetJobResponse response;
    const absl::Status status = FromGrpc(stub->GetJob(&context, {}, &response));
    EXPECT_EQ(ErrorReason(status), name.empty() ? "CREDENTIAL_REQUIRED" : "");
    EXPECT_EQ(response.job().job_id(), name);
  }
  for (const std::string header : {"ann's", "Basic ann's", "Bearer", "Bearer  "}) {
    grpc::ClientContext context;
    SetTimeout(&context, absl::Seconds(30));
    context.AddMetadata("authorization", header);
    pb::GetJobResponse response;
    EXPECT_EQ(stub->GetJob(&context, {}, &response).error_code(), grpc::StatusCode::UNAUTHENTICATED) << header;
  }
}

TEST_F(SecurityTest, CertificatesAndTokensAreReplacedWhileItRuns) {
  server_.tls_dir = Folder("server", authority_.IssueServer("coordinator"));
  server_.principals = WritePrincipals();
  server_.deny_list = Write("deny", "");
  Start();
  client_.ca = Write("ca.crt", authority_.certificate());
  client_.token_file = Write("token", "ann's");
  EXPECT_EQ(Asked(), "ann");
  Write("deny", "subject ann\n");
  EXPECT_TRUE(Becomes([&] { return Asked() == "TOKEN_REVOKED"; }));
  Write("deny", "");
  // A new authority signs the server's certificate: who trusts the old one alone is no longer served.
  const testing::CertificateAuthority next("next");
  WriteTlsFolder(Path("server"), next.IssueServer("coordinator"), next.certificate());
  EXPECT_TRUE(Becomes([&] { return Asked() == "UNAVAILABLE"; }));
  client_.ca = Write("next.crt", next.certificate());
  EXPECT_EQ(Asked(), "ann");
}

TEST_F(SecurityTest, AKeyThatDoesNotFitItsCertificateIsToldOncePerChange) {
  const testing::Certificate first = authority_.IssueServer("coordinator");
  const testing::Certificate second = authority_.IssueServer("coordinator");
  server_.tls_dir = Folder("server", first);
  const CapturedLog log;
  const auto security = Security::Make(server_);
  ASSERT_TRUE(security.ok()) << security.status();
  testing::WriteTlsFolder(Path("server"), {.certificate = second.certificate, .key = first.key},
                          authority_.certificate());
  const std::string told = log.Await("found another");
  EXPECT_THAT(told, HasSubstr("new connections fail"));
  EXPECT_THAT(told, HasSubstr("tls.key: expected the key of"));
  WriteTlsFolder(Path("server"), second, authority_.certificate());
  const std::string after = log.Await("are good again");
  EXPECT_THAT(after, HasSubstr("are good again"));
  EXPECT_EQ(after.find("found another"), after.rfind("found another")) << after;
  WriteTlsFolder(Path("server"), second, "no certificate");
  EXPECT_THAT(log.Await("ca.crt: expected a certificate"), HasSubstr("ca.crt: expected a certificate"));
}

TEST_F(SecurityTest, ACertificateThatExpiresWhileItRunsIsToldOnce) {
  const absl::Time end = absl::FromUnixSeconds(absl::ToUnixSeconds(absl::Now()) + 5);
  server_.tls_dir = Folder("server", authority_.Issue({.common_name = "coordinator", .not_after = end}));
  const CapturedLog log;
  const auto security = Security::Make(server_);
  ASSERT_TRUE(security.ok()) << security.status();
  EXPECT_EQ((*security)->certificate_end(), end);
  EXPECT_THAT(log.Await("expired at"), HasSubstr("tls.crt: the certificate expired at 20"));
  WriteTlsFolder(Path("server"), authority_.IssueServer("coordinator"), authority_.certificate());
  const std::string after = log.Await("are good again");
  EXPECT_THAT(after, HasSubstr("are good again"));
  EXPECT_EQ(after.find("expired at"), after.rfind("expired at")) << after;
  EXPECT_TRUE(Becomes([&] { return (*security)->certificate_end() > absl::Now(); }));
}

TEST_F(SecurityTest, OpenStreamsOfCallersWhoAreShutOutAreCut) {
  server_.principals = Write("principals.yaml", fmt::format(R"(
principals:
- {{subject: ann, roles: [reader], token_sha256: {}}}
- {{subject: bob, roles: [reader], token_sha256: {}}}
)",
                                                            TokenHash("ann's"), TokenHash("bob's")));
  server_.deny_list = Write("deny", "");
  Start();
  const auto stub = pb::JobService::NewStub(MakeChannel(running_->address()));
  struct Stream {
    grpc::ClientContext context;
    pb::WatchJobResponse response;
    std::unique_ptr<grpc::ClientReader<pb::WatchJobResponse>> reader;
  };
  Stream ann;
  Stream bob;
  for (auto [stream, token] : {std::pair(&ann, "ann's"), std::pair(&bob, "bob's")}) {
    SetTimeout(&stream->context, absl::Minutes(2));
    stream->context.AddMetadata("authorization", fmt::format("Bearer {}", token));
    stream->reader = stub->WatchJob(&stream->context, {});
    ASSERT_TRUE(stream->reader->Read(&stream->response)) << token;
  }
  EXPECT_EQ(open_streams_->size(), 2u);
  Write("deny", "subject ann\n");
  EXPECT_FALSE(ann.reader->Read(&ann.response));
  EXPECT_EQ(ann.reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  // An entry is removed shortly after its stream's caller sees the end.
  for (int i = 0; i < 20'000 && open_streams_->size() > 1; ++i) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(open_streams_->size(), 1u);
  bob.context.TryCancel();
  EXPECT_EQ(bob.reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  running_.reset();
  EXPECT_EQ(open_streams_->size(), 0u);
}

// As where the deny list changes after the guard let it in.
TEST_F(SecurityTest, ATokenThatIsReplacedIsShownOnTheSameChannel) {
  server_.principals = WritePrincipals();
  Start();
  client_.token_file = Write("token", "nobody's");
  const auto security = Security::Make(client_);
  ASSERT_TRUE(security.ok()) << security.status();
  const auto stub = pb::JobService::NewStub(MakeChannel(running_->address(), (*security)->channel_credentials()));
  const auto ask = [&] {
    grpc::ClientContext context;
    SetTimeout(&context, absl::Seconds(30));
    pb::GetJobResponse response;
    return ErrorReason(FromGrpc(stub->GetJob(&context, {}, &response)));
  };
  EXPECT_EQ(ask(), "TOKEN_UNKNOWN");
  Write("token", "ann's");
  EXPECT_TRUE(Becomes([&] { return ask().empty(); }));
  // An invalid file leaves the token as it is, and the log says so.
  const auto log = std::make_shared<spdlog::sinks::ringbuffer_sink_mt>(16);
  const absl::Cleanup restore = [before = spdlog::default_logger()] { spdlog::set_default_logger(before); };
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("security_test", log));
  Write("token", "two words");
  EXPECT_TRUE(Becomes([&] { return !ask().empty() || !log->last_formatted().empty(); }));
  EXPECT_THAT(log->last_formatted(), ::testing::Contains(HasSubstr("token: expected one token on one line")));
  EXPECT_EQ(ask(), "");
}

TEST_F(SecurityTest, PortsBeyondThisMachineAreClosedUntilTheyAreOpened) {
  const auto reason = [](const SecurityOptions& options, std::string_view listen) {
    const auto security = Security::Make(options);
    return ErrorReason(security.ok() ? (*security)->ServerCredentials(listen).status() : security.status());
  };
  for (const char* listen : {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.org:1", ":1"}) {
    EXPECT_EQ(reason({}, listen), "TLS_REQUIRED") << listen;
    EXPECT_EQ(reason({.insecure_network = true}, listen), "") << listen;
  }
  for (const char* listen : {"127.0.0.1:1", "[::1]:1", "localhost:1"}) EXPECT_EQ(reason({}, listen), "") << listen;
  const std::string principals = WritePrincipals();
  EXPECT_EQ(reason({.principals = principals, .insecure_network = true}, "0.0.0.0:1"), "TLS_REQUIRED");
  const std::string folder = Folder("server", authority_.IssueServer("coordinator"));
  EXPECT_EQ(reason({.tls_dir = folder}, "0.0.0.0:1"), "");
  std::filesystem::remove(folder + "/ca.crt");
  EXPECT_EQ(reason({.tls_dir = folder}, "0.0.0.0:1"), "CALLERS_UNKNOWN");
  EXPECT_EQ(reason({.tls_dir = folder, .ca = Write("other.crt", authority_.certificate())}, "0.0.0.0:1"),
            "CALLERS_UNKNOWN");
  EXPECT_EQ(reason({.tls_dir = folder, .insecure_network = true}, "0.0.0.0:1"), "");
  EXPECT_EQ(reason({.tls_dir = folder, .principals = principals}, "0.0.0.0:1"), "");
  EXPECT_EQ(reason({.tls_dir = folder, .principals = principals, .require_client_certificate = true}, "0.0.0.0:1"),
            "CALLERS_UNKNOWN");
  for (const bool open : {false, true}) {
    EXPECT_EQ(reason({.require_client_certificate = true, .insecure_network = open}, "127.0.0.1:1"), "TLS_REQUIRED");
  }
  const absl::Status closed = (*Security::Make({}))->ServerCredentials("0.0.0.0:4000").status();
  EXPECT_EQ(closed.message(),
            "0.0.0.0:4000 can be reached from other machines: give --tls-dir DIR, or --insecure-network to serve "
            "everybody in the clear");
}

TEST_F(SecurityTest, ATokenLeavesThisMachineOverTlsOnly) {
  const auto open = Security::Make({.token_file = Write("token", "ann's")});
  ASSERT_TRUE(open.ok()) << open.status();
  EXPECT_TRUE((*open)->CheckTarget("127.0.0.1:1").ok());
  EXPECT_EQ(ErrorReason((*open)->CheckTarget("10.0.0.1:1")), "TOKEN_NEEDS_TLS");
  const auto secure = Security::Make({.ca = Write("ca.crt", authority_.certificate()), .token_file = Path("token")});
  EXPECT_TRUE((*secure)->CheckTarget("10.0.0.1:1").ok());
  EXPECT_TRUE((*Security::Make({}))->CheckTarget("10.0.0.1:1").ok());
}

TEST_F(SecurityTest, BadFilesAreNamed) {
  const auto status = [](const SecurityOptions& options) { return Security::Make(options).status(); };
  EXPECT_EQ(std::string(status({.tls_dir = Path("none")}).message()),
            "certificate: cannot read " + Path("none") + "/tls.crt: No such file or directory");
  const std::string expired = Folder("expired", authority_.IssueExpired("old"));
  EXPECT_EQ(ErrorReason(status({.tls_dir = expired})), "CERTIFICATE_EXPIRED");
  EXPECT_THAT(std::string(status({.tls_dir = expired}).message()),
              HasSubstr(expired + "/tls.crt: the certificate expired at 20"));
  const std::string early =
      Folder("early", authority_.Issue({.common_name = "x", .not_before = absl::Now() + absl::Hours(2)}));
  EXPECT_EQ(ErrorReason(status({.tls_dir = early})), "CERTIFICATE_NOT_YET_VALID");
  testing::Certificate mixed = authority_.IssueServer("a");
  mixed.key = authority_.IssueServer("b").key;
  EXPECT_EQ(ErrorReason(status({.tls_dir = Folder("mixed", mixed)})), "INVALID_KEY");
  mixed.key = "no key";
  EXPECT_EQ(ErrorReason(status({.tls_dir = Folder("keyless", mixed)})), "INVALID_KEY");
  EXPECT_EQ(ErrorReason(status({.ca = Write("ca.crt", "nothing")})), "INVALID_CERTIFICATE");
  // One valid authority of several suffices.
  const std::string old = authority_.IssueExpired("old").certificate;
  EXPECT_EQ(ErrorReason(status({.ca = Write("ca.crt", old)})), "CERTIFICATE_EXPIRED");
  EXPECT_TRUE(status({.ca = Write("ca.crt", old + authority_.certificate())}).ok());
  const std::string whole = authority_.certificate();
  for (const std::string end : {"# the end\n", "\n\n", "key below"}) {
    EXPECT_TRUE(status({.ca = Write("ca.crt", whole + end)}).ok()) << end;
  }
  testing::Certificate chain = authority_.IssueServer("a");
  chain.certificate += whole;
  EXPECT_TRUE(status({.tls_dir = Folder("chain", chain)}).ok());
  EXPECT_EQ(std::string(status({.token_file = Path("none")}).message()),
            "--token-file: cannot read " + Path("none") + ": No such file or directory");
  for (const char* token : {"", "two words", "two\nlines"}) {
    EXPECT_EQ(ErrorReason(status({.token_file = Write("token", token)})), "INVALID_TOKEN_FILE") << token;
  }
  EXPECT_EQ(ErrorReason(status({.principals = Write("principals.yaml", "principals: []")})), "INVALID_PRINCIPALS");
  EXPECT_EQ(ErrorReason(status({.deny_list = Write("deny", "")})), "PRINCIPALS_REQUIRED");
}

TEST(SecurityFlagsTest, FlagsAreWhatTheirSideNeeds) {
  for (const Side side : {Side::kClient, Side::kServer, Side::kBoth}) {
    CLI::App app;
    SecurityOptions options;
    AddSecurityFlags(app, &options, side);
    EXPECT_EQ(app.get_option_no_throw("--token-file") != nullptr, side != Side::kServer);
    EXPECT_EQ(app.get_option_no_throw("--principals") != nullptr, side != Side::kClient);
    app.parse("--tls-dir somewhere");
    EXPECT_EQ(options.tls_dir, "somewhere");
  }
}

}  // namespace
}  // namespace atl::rpc
