// The server over real connections on loopback, with and without TLS, and a service of a few paths.
#include "common/http/http_server.h"

#include <malloc.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/base/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tls_client.h"

namespace atl::http {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using testing::TlsClient;

constexpr std::string_view kQuestion = "GET /small HTTP/1.1\r\nHost: x\r\n\r\n";

std::string PostText(std::string_view body) {
  return "POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + std::string(body);
}

// /small answers at once, /large with 64 MiB, /echo with the body, /wait when the test calls TakeWaiting.
class TestService : public HttpService {
 public:
  bool IsGuarded(std::string_view) const override { return false; }
  std::optional<HttpResponse> CheckHead(const HttpRequest& request, size_t* max_body_bytes) override {
    if (request.path == "/echo") *max_body_bytes = size_t{16} << 20;
    return std::nullopt;
  }
  void Handle(std::shared_ptr<HttpExchange> exchange) override {
    const HttpRequest& request = exchange->request();
    {
      absl::MutexLock lock(&mutex_);
      callers_.push_back(request.caller);
    }
    if (request.path == "/wait") {
      exchange->OnGone([this](const absl::Status& why) {
        absl::MutexLock lock(&mutex_);
        gone_ = ErrorReason(why);
      });
      absl::MutexLock lock(&mutex_);
      waiting_ = std::move(exchange);
      return;
    }
    if (request.path == "/large") return exchange->Answer({.body = std::string(size_t{64} << 20, 'x')});
    exchange->Answer({.body = request.path == "/echo" ? request.body : "small " + request.path});
  }
  HttpResponse ErrorResponse(int code, const absl::Status& status) const override {
    return {.code = code, .body = ErrorReason(status)};
  }

  std::shared_ptr<HttpExchange> TakeWaiting() {
    absl::MutexLock lock(&mutex_);
    const auto waits = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return waiting_ != nullptr; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&waits), absl::Seconds(20)));
    return std::exchange(waiting_, nullptr);
  }
  std::string AwaitGone() {
    absl::MutexLock lock(&mutex_);
    const auto gone = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !gone_.empty(); };
    mutex_.AwaitWithTimeout(absl::Condition(&gone), absl::Seconds(20));
    return gone_;
  }
  std::vector<HttpCaller> callers() {
    absl::MutexLock lock(&mutex_);
    return callers_;
  }

 private:
  absl::Mutex mutex_;
  std::vector<HttpCaller> callers_ ABSL_GUARDED_BY(mutex_);  // of requests, in their order
  std::shared_ptr<HttpExchange> waiting_ ABSL_GUARDED_BY(mutex_);
  std::string gone_ ABSL_GUARDED_BY(mutex_);
};

class HttpServerTest : public ::testing::Test {
 protected:
  HttpServerTest() {
    folder_ = std::filesystem::path(::testing::TempDir()) / ("http_server_test." + std::to_string(getpid()));
    std::filesystem::remove_all(folder_);
    testing::WriteTlsFolder(folder_, authority_.IssueServer("server"), authority_.certificate());
    options_.listen = "127.0.0.1:0";
    options_.what = "tests";
    options_.security.tls_dir = folder_;
  }
  ~HttpServerTest() override { std::filesystem::remove_all(folder_); }

  void Start() {
    auto server = HttpServer::Start(options_, &service_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  std::unique_ptr<TlsClient> Connect(const testing::Certificate& certificate = {}, int receive_buffer = 0) {
    return TlsClient::Connect({.port = server_->port(),
                               .authority = authority_.certificate(),
                               .certificate = certificate,
                               .receive_buffer = receive_buffer});
  }
  // In the clear.
  int ConnectAndSend(std::string_view bytes) {
    const int descriptor = testing::ConnectTo(server_->port());
    EXPECT_EQ(send(descriptor, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    return descriptor;
  }
  static std::string ReadToEnd(int descriptor) {
    std::string all;
    std::array<char, 4096> piece;
    for (ssize_t read; (read = recv(descriptor, piece.data(), piece.size(), 0)) > 0;) all.append(piece.data(), read);
    close(descriptor);
    return all;
  }

  const testing::CertificateAuthority authority_;
  std::filesystem::path folder_;
  HttpServerOptions options_;
  TestService service_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, MoreThanAnyBufferHoldsPassesBothWays) {
  Start();
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  std::string bytes(12 << 20, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 2654435761u >> 13);
  ASSERT_TRUE(client->Write(PostText(bytes)));
  const std::string answer = client->ReadToEnd();
  EXPECT_THAT(answer.substr(0, 100), StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_TRUE(answer.ends_with(bytes));
}

TEST_F(HttpServerTest, RequestsOfOneConnectionAreAnsweredInTheirOrder) {
  Start();
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  ASSERT_TRUE(
      client->Write("GET /a%20b?query HTTP/1.1\r\n\r\n\r\nHEAD /h HTTP/1.1\r\n\r\n"
                    "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
                    "GET /last HTTP/1.1\r\nConnection: close\r\n\r\n"));
  const std::string answers = client->ReadToEnd();
  EXPECT_THAT(answers, HasSubstr("\r\n\r\nsmall /a bHTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answers, HasSubstr("Connection: keep-alive\r\n\r\nHTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answers, HasSubstr("\r\n\r\nabcHTTP/1.1 200 OK\r\n"));
  EXPECT_TRUE(answers.ends_with("\r\n\r\nsmall /last")) << answers;
}

TEST_F(HttpServerTest, ACallerWithNothingMoreToSendGetsItsAnswer) {
  Start();
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  ASSERT_TRUE(client->Write(kQuestion));
  client->EndWriting();
  EXPECT_THAT(client->ReadToEnd(), HasSubstr("small"));
}

TEST_F(HttpServerTest, AServiceIsToldThatItsCallerHungUp) {
  Start();
  auto client = Connect();
  ASSERT_NE(client, nullptr);
  ASSERT_TRUE(client->Write("GET /wait HTTP/1.1\r\n\r\n"));
  const auto exchange = service_.TakeWaiting();
  client.reset();
  EXPECT_EQ(service_.AwaitGone(), "REQUEST_CANCELLED");
  exchange->Answer({});
}

TEST_F(HttpServerTest, AServerThatEndsTellsItsServiceAndSendsTheLastAnswer) {
  Start();
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  ASSERT_TRUE(client->Write("GET /wait HTTP/1.1\r\n\r\n"));
  const auto exchange = service_.TakeWaiting();
  std::string answer;
  std::thread reader([&] { answer = client->ReadToEnd(); });
  std::thread ends([&] { server_.reset(); });
  EXPECT_EQ(service_.AwaitGone(), "DRAINING");
  exchange->Answer({.code = 503, .body = "late"});
  ends.join();
  reader.join();
  EXPECT_TRUE(answer.ends_with("late")) << answer;
  exchange->Answer({.body = "too late"});  // does nothing
}

TEST_F(HttpServerTest, CallersAreKnownByTheirCertificateAndToken) {
  Start();
  for (const auto& certificate : {authority_.IssueClient("prometheus"), testing::Certificate{}}) {
    const auto client = Connect(certificate);
    ASSERT_NE(client, nullptr);
    ASSERT_TRUE(client->Write("GET / HTTP/1.1\r\nAuthorization: bearer  secret \r\nConnection: close\r\n\r\n"));
    client->ReadToEnd();
  }
  const std::vector<HttpCaller> callers = service_.callers();
  ASSERT_EQ(callers.size(), 2u);
  EXPECT_THAT(callers[0].certificate_names, ElementsAre("prometheus"));
  EXPECT_THAT(callers[0].address, StartsWith("127.0.0.1:"));
  EXPECT_EQ(callers[0].bearer, "secret");
  EXPECT_THAT(callers[1].certificate_names, IsEmpty());
}

TEST_F(HttpServerTest, OnlyCertificatesOfTheAuthorityMayCall) {
  const testing::CertificateAuthority other;
  struct Case {
    const char* name;
    bool required;
    testing::Certificate certificate;
    bool may;
  };
  const std::vector<Case> cases = {{"none", true, {}, false},
                                   {"another authority's", true, other.IssueClient("a"), false},
                                   {"expired", true, authority_.IssueExpired("a"), false},
                                   {"right", true, authority_.IssueClient("a"), true},
                                   {"another authority's where none is needed", false, other.IssueClient("a"), false},
                                   {"none where none is needed", false, {}, true}};
  for (const Case& test : cases) {
    options_.security.require_client_certificate = test.required;
    Start();
    const auto client = Connect(test.certificate);
    std::string answer;
    if (client != nullptr && client->Write(kQuestion)) answer = client->Read(1);
    EXPECT_EQ(answer, test.may ? "H" : "") << test.name;
  }
  EXPECT_EQ(service_.callers().size(), 2u);
}

TEST_F(HttpServerTest, AReplacedCertificateIsUsedWithoutARestart) {
  Start();
  const auto before = Connect();
  ASSERT_NE(before, nullptr);
  EXPECT_EQ(before->server_name(), "server");
  testing::WriteTlsFolder(folder_, authority_.IssueServer("renewed"), authority_.certificate());
  absl::SleepFor(absl::Seconds(1.1));  // the age up to which a certificate is used unseen
  const auto after = Connect();
  ASSERT_NE(after, nullptr);
  EXPECT_EQ(after->server_name(), "renewed");
  // An open connection goes on.
  ASSERT_TRUE(before->Write(kQuestion));
  EXPECT_EQ(before->Read(1), "H");
}

TEST_F(HttpServerTest, PlainHttpIsToldToUseTls) {
  Start();
  const std::string answer = testing::Get({.port = server_->port()}, "/metrics");
  EXPECT_THAT(answer, HasSubstr("HTTP/1.1 400"));
  EXPECT_THAT(answer, HasSubstr("use https, not http.\n"));
}

TEST_F(HttpServerTest, HandshakesAndHeadsHaveADeadline) {
  options_.limits.start_time = absl::Milliseconds(200);
  Start();
  EXPECT_EQ(ReadToEnd(testing::ConnectTo(server_->port())), "") << "without a handshake";
  for (const std::string part : {"", "GET / HTTP/1.1\r\n\r", "\r\n\r\n"}) {
    // On a busy machine it is cut off earlier, even in its handshake.
    if (const auto client = Connect(); client != nullptr) {
      for (const char byte : part) client->Write({&byte, 1});
      EXPECT_EQ(client->Read(1), "") << part;
    }
  }
  EXPECT_THAT(service_.callers(), IsEmpty());
}

TEST_F(HttpServerTest, AHeadThatComesByteByByteIsWhole) {
  Start();
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  for (const char byte : kQuestion) ASSERT_TRUE(client->Write({&byte, 1}));
  EXPECT_EQ(client->Read(1), "H");
}

TEST_F(HttpServerTest, ChunksThatComeByteByByteAreWhole) {
  Start();
  for (const std::string body : {"", "3\r\nabc\r\n"}) {
    const auto client = Connect();
    ASSERT_NE(client, nullptr);
    const std::string request =
        "POST /echo HTTP/1.1\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + body + "0\r\nT: t\r\n\r\n";
    for (const char byte : request) ASSERT_TRUE(client->Write({&byte, 1}));
    EXPECT_TRUE(client->ReadToEnd().ends_with(body.empty() ? "\r\n\r\n" : "\r\n\r\nabc"));
  }
}

TEST_F(HttpServerTest, AHeadIsBoundedHoweverItComes) {
  options_.security.tls_dir.clear();
  Start();
  const std::string line = "X-Field: " + std::string(1000, 'x') + "\r\n";
  const int in_pieces = ConnectAndSend("GET / HTTP/1.1\r\n");
  for (int i = 0; i < 20; ++i) {
    send(in_pieces, line.data(), line.size(), MSG_NOSIGNAL);
    absl::SleepFor(absl::Milliseconds(2));
  }
  EXPECT_THAT(ReadToEnd(in_pieces), HasSubstr("431 Request Header Fields Too Large"));
  EXPECT_THAT(ReadToEnd(ConnectAndSend("GET /" + std::string(40'000, 'x'))), HasSubstr("HEAD_TOO_LARGE"));
}

TEST_F(HttpServerTest, AChunkHeaderIsBoundedToo) {
  options_.security.tls_dir.clear();
  Start();
  const std::string head = "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_THAT(ReadToEnd(ConnectAndSend(head + "1;" + std::string(40'000, 'x'))), HasSubstr("REQUEST_MALFORMED"));
  EXPECT_THAT(ReadToEnd(ConnectAndSend(head + "1000001\r\n")), HasSubstr("BODY_TOO_LARGE"));
  EXPECT_THAT(ReadToEnd(ConnectAndSend(head + "what\r\n")), HasSubstr("REQUEST_MALFORMED"));
}

TEST_F(HttpServerTest, ABodyHasADeadlineHoweverItComes) {
  options_.security.tls_dir.clear();
  options_.limits.body_time = absl::Milliseconds(300);
  Start();
  for (const std::string start : {"Content-Length: 1000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n3e8\r\n"}) {
    const absl::Time begin = absl::Now();
    const int descriptor = ConnectAndSend("POST /echo HTTP/1.1\r\n" + start);
    std::thread drips([&] {
      for (int i = 0; i < 40; ++i) {
        send(descriptor, "x", 1, MSG_NOSIGNAL);
        absl::SleepFor(absl::Milliseconds(20));
      }
    });
    char byte = 0;
    EXPECT_EQ(recv(descriptor, &byte, 1, 0), 1);
    EXPECT_GE(absl::Now() - begin, absl::Milliseconds(290));
    EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
    drips.join();
    EXPECT_THAT(ReadToEnd(descriptor), HasSubstr("TTP/1.1 408 Request Timeout"));
  }
}

TEST_F(HttpServerTest, UnfinishedRequestsMakeRoomForOthersAndHandledOnesDoNot) {
  for (const bool tls : {true, false}) {
    options_.max_connections = 3;
    options_.limits.start_time = absl::InfiniteDuration();
    options_.limits.crowded_time = absl::Milliseconds(50);
    if (!tls) options_.security.tls_dir.clear();
    Start();
    const testing::TlsClientOptions sane{.port = server_->port(),
                                         .authority = tls ? authority_.certificate() : std::string()};
    std::string answer;
    std::thread waits([&] { answer = testing::Get(sane, "/wait"); });
    const auto exchange = service_.TakeWaiting();
    std::vector<std::unique_ptr<TlsClient>> slow;
    std::vector<int> slow_in_the_clear;
    for (int i = 0; i < 6; ++i) {
      if (tls) {
        slow.push_back(Connect());
        ASSERT_NE(slow.back(), nullptr) << i;
        slow.back()->Write("POST /echo HTTP/1.1\r\nContent-Length: 9\r\n\r\n");
      } else {
        slow_in_the_clear.push_back(ConnectAndSend("GET /"));
      }
    }
    EXPECT_THAT(testing::Get(sane, "/small"), HasSubstr("small"));
    exchange->Answer({.body = "at last"});
    waits.join();
    EXPECT_THAT(answer, HasSubstr("at last"));
    for (const int descriptor : slow_in_the_clear) close(descriptor);
  }
}

TEST_F(HttpServerTest, ACallerThatDoesNotReadIsCutOff) {
  options_.limits.answer_time = absl::Milliseconds(100);
  Start();
  const auto client = Connect({}, /*receive_buffer=*/4096);
  ASSERT_NE(client, nullptr);
  ASSERT_TRUE(client->Write("GET /large HTTP/1.1\r\n\r\n"));
  absl::SleepFor(absl::Milliseconds(500));
  EXPECT_LT(client->ReadToEnd().size(), size_t{64} << 20);
}

TEST_F(HttpServerTest, ACallerThatDoesNotReadMakesRoomForOthers) {
  options_.security.tls_dir.clear();
  options_.max_connections = 2;
  options_.limits.answer_time = absl::Minutes(10);
  options_.limits.crowded_time = absl::Milliseconds(50);
  Start();
  std::vector<int> slow;
  for (int i = 0; i < 4; ++i) {
    slow.push_back(testing::ConnectTo(server_->port(), /*receive_buffer=*/4096));
    send(slow.back(), "GET /large HTTP/1.1\r\n\r\n", 23, MSG_NOSIGNAL);
  }
  EXPECT_THAT(testing::Get({.port = server_->port()}, "/small"), HasSubstr("small"));
  for (const int descriptor : slow) close(descriptor);
}

TEST_F(HttpServerTest, AConnectionDoesNotKeepTheMemoryOfAnAnswer) {
  options_.security.tls_dir.clear();
  Start();
  const int descriptor = ConnectAndSend("GET /large HTTP/1.1\r\n\r\n");
  std::array<char, 65536> piece;
  for (size_t all = 0; all < size_t{64} << 20;) {
    const ssize_t read = recv(descriptor, piece.data(), piece.size(), 0);
    ASSERT_GT(read, 0);
    all += read;
  }
  send(descriptor, kQuestion.data(), kQuestion.size(), MSG_NOSIGNAL);
  // The rest of the first answer, and then the second one.
  for (std::string rest; rest.find("small") == std::string::npos;) {
    const ssize_t read = recv(descriptor, piece.data(), piece.size(), 0);
    ASSERT_GT(read, 0);
    rest.append(piece.data(), read);
  }
  EXPECT_LT(mallinfo2().hblkhd, size_t{60} << 20);
  close(descriptor);
}

TEST_F(HttpServerTest, AConnectionWhoseCallerSendsNoMoreEndsWithItsAnswer) {
  options_.security.tls_dir.clear();
  options_.limits.idle_time = absl::Seconds(15);
  Start();
  const int descriptor = ConnectAndSend("GET /large HTTP/1.1\r\n\r\n");
  char byte = 0;
  ASSERT_EQ(recv(descriptor, &byte, 1, 0), 1);  // its head says keep-alive
  shutdown(descriptor, SHUT_WR);
  absl::SleepFor(absl::Milliseconds(50));
  const absl::Time begin = absl::Now();
  EXPECT_GT(ReadToEnd(descriptor).size(), size_t{64} << 20);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
}

TEST_F(HttpServerTest, OnlyCallersOfHttp11AreToldToGoOn) {
  options_.security.tls_dir.clear();
  Start();
  const std::string rest = "Expect: 100-continue\r\nConnection: close\r\nContent-Length: 2\r\n\r\nab";
  EXPECT_THAT(ReadToEnd(ConnectAndSend("POST /echo HTTP/1.1\r\n" + rest)), StartsWith("HTTP/1.1 100 Continue\r\n"));
  EXPECT_THAT(ReadToEnd(ConnectAndSend("POST /echo HTTP/1.0\r\n" + rest)), StartsWith("HTTP/1.1 200 OK\r\n"));
}

TEST_F(HttpServerTest, ConnectionsBeyondTheLimitWaitForTheirTurn) {
  options_.max_connections = 1;
  Start();
  auto first = Connect();
  ASSERT_NE(first, nullptr);
  ASSERT_TRUE(first->Write("GET /wait HTTP/1.1\r\nConnection: close\r\n\r\n"));
  const auto exchange = service_.TakeWaiting();
  std::unique_ptr<TlsClient> second;
  std::thread waiting([&] { second = Connect(); });
  absl::SleepFor(absl::Milliseconds(100));
  exchange->Answer({});
  first->ReadToEnd();
  first.reset();
  waiting.join();
  EXPECT_NE(second, nullptr);
}

TEST_F(HttpServerTest, AddressesThatCannotBeServedAreErrors) {
  Start();
  const auto reason = [this](const std::string& listen) {
    options_.listen = listen;
    return ErrorReason(HttpServer::Start(options_, &service_).status());
  };
  EXPECT_EQ(reason(server_->address()), "CANNOT_LISTEN");
  EXPECT_EQ(reason("no.such.host.invalid:0"), "CANNOT_LISTEN");
  EXPECT_EQ(reason("127.0.0.1"), "INVALID_ADDRESS");
  EXPECT_EQ(reason("0.0.0.0:0"), "");
  EXPECT_EQ(reason("[::1]:0"), "");
  EXPECT_EQ(reason("localhost:0"), "");
  options_.security.tls_dir.clear();
  EXPECT_EQ(reason("0.0.0.0:0"), "TLS_REQUIRED");
}

}  // namespace
}  // namespace atl::http
