// The REST facade over real HTTP on loopback, with a fake model version. What a client must not send is written byte by
// byte; a sane one is curl, where it is installed.
#include "router/service/rest_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <thread>

#include "absl/strings/escaping.h"
#include "absl/synchronization/notification.h"
#include "common/base/errors.h"
#include "common/dataset/image_codec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "router/engine/fake_backend.h"
#include "router/engine/serve_inline.h"

namespace atl::router {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

SamplerInfo Info() {
  return {.model = "digits",
          .version = "v1",
          .experts = 4,
          .classes = 3,
          .channels = 1,
          .height = 8,
          .width = 8,
          .class_names = {"zero", "one", "two"}};
}

// One connection. Closed by its destructor.
class Connection {
 public:
  explicit Connection(int port) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval limit{.tv_sec = 20, .tv_usec = 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    EXPECT_EQ(connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ~Connection() { close(socket_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes.remove_prefix(sent);
    }
  }
  // To its end.
  std::string Receive() {
    std::string answer;
    char buffer[4096];
    for (ssize_t n; (n = read(socket_, buffer, sizeof(buffer))) > 0;) answer.append(buffer, n);
    return answer;
  }

 private:
  const int socket_;
};

struct Answer {
  int code = 0;
  std::string head;
  std::string body;

  json Json() const { return json::parse(body, nullptr, /*allow_exceptions=*/false); }
  std::string ErrorCode() const {
    const json parsed = Json();
    return parsed.is_object() && parsed.contains("error") ? parsed["error"].value("code", "") : "";
  }
};

Answer Parse(const std::string& text) {
  Answer answer;
  std::sscanf(text.c_str(), "HTTP/1.1 %d", &answer.code);
  const size_t end = text.find("\r\n\r\n");
  answer.head = text.substr(0, end);
  if (end != std::string::npos) answer.body = text.substr(end + 4);
  return answer;
}

std::string PostText(std::string_view body, std::string_view type = "application/json") {
  return "POST /v1/images/generations HTTP/1.1\r\nHost: localhost\r\nContent-Type: " + std::string(type) +
         "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + std::string(body);
}

class RestServerTest : public ::testing::Test {
 protected:
  void Start(RestOptions rest = {}, EngineOptions options = {}, bool with_model = true) {
    engine_ = std::make_unique<Engine>(options, Clock::Real(), nullptr);
    if (with_model) ServeInline(engine_.get(), backend_, &lane_clock_);
    auto server =
        RestServer::Start(rest, engine_.get(), Clock::Real(), [this](std::string_view route, int code, absl::Duration) {
          absl::MutexLock lock(&mutex_);
          seen_.push_back(std::string(route) + " " + std::to_string(code));
        });
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  void TearDown() override {
    if (engine_ != nullptr) engine_->Stop();
    server_.reset();
  }
  Answer Exchange(const std::string& request) {
    Connection connection(server_->port());
    connection.Send(request);
    return Parse(connection.Receive());
  }
  Answer Get(const std::string& path) { return Exchange("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n"); }
  Answer Post(std::string_view body) { return Exchange(PostText(body)); }
  void AwaitWaiting(size_t count) {
    const absl::Time end = absl::Now() + absl::Seconds(20);
    while (engine_->waiting_requests() != count && absl::Now() < end) std::this_thread::yield();
    ASSERT_EQ(engine_->waiting_requests(), count);
  }

  FakeClock lane_clock_;  // no measured time decides what shares a batch
  std::shared_ptr<FakeBackend> backend_ = std::make_shared<FakeBackend>(Info());
  std::unique_ptr<Engine> engine_;
  absl::Mutex mutex_;
  std::vector<std::string> seen_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<RestServer> server_;
};

TEST_F(RestServerTest, ImagesComeAsPngInBase64) {
  Start();
  engine_->Start();
  const Answer answer = Post(R"({"prompt": "two", "n": 2, "seed": 40, "steps": 3})");
  ASSERT_EQ(answer.code, 200) << answer.body;
  EXPECT_THAT(answer.head, HasSubstr("Content-Type: application/json"));
  const json body = answer.Json();
  ASSERT_EQ(body["data"].size(), 2u);
  EXPECT_EQ(body["data"][1]["seed"], 41);
  EXPECT_EQ(body["data"][1]["class"], 2);
  EXPECT_EQ(body["routing"]["chosen"], json({0, 0, 6, 0}));
  std::string png;
  ASSERT_TRUE(absl::Base64Unescape(body["data"][0]["b64_json"].get<std::string>(), &png));
  const auto image = dataset::DecodeImage(png, "reply");
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ(image->width, 8);
}

TEST_F(RestServerTest, WithoutASeedEveryAnswerIsAnotherOneAndNamesItsSeed) {
  Start();
  engine_->Start();
  const json first = Post(R"({"prompt": "two", "steps": 1})").Json();
  const json second = Post(R"({"prompt": "two", "steps": 1})").Json();
  EXPECT_NE(first["data"][0]["seed"], second["data"][0]["seed"]);
  EXPECT_NE(first["data"][0]["b64_json"], second["data"][0]["b64_json"]);
  const json again = Post(R"({"prompt": "two", "steps": 1, "seed": )" + first["data"][0]["seed"].dump() + "}").Json();
  EXPECT_EQ(again["data"][0]["b64_json"], first["data"][0]["b64_json"]);
}

TEST_F(RestServerTest, CurlGetsImagesModelsAndHealth) {
  if (std::system("command -v curl >/dev/null 2>&1") != 0) GTEST_SKIP() << "curl is not installed";
  Start();
  engine_->Start();
  const auto curl = [this](const std::string& arguments) {
    const std::string command = "curl -sS -m 20 --noproxy '*' http://" + server_->address() + arguments;
    std::string output;
    FILE* const pipe = popen(command.c_str(), "r");
    char buffer[4096];
    for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) output.append(buffer, n);
    EXPECT_EQ(pclose(pipe), 0) << output;
    return output;
  };
  EXPECT_EQ(curl("/healthz"), "ok\n");
  EXPECT_EQ(json::parse(curl("/v1/models"))["data"][0]["id"], "digits");
  EXPECT_EQ(json::parse(curl("/v1/models/digits"))["class_names"][2], "two");
  const std::string images = curl(
      "/v1/images/generations -H 'Content-Type: application/json' "
      "-d '{\"model\": \"digits\", \"prompt\": \"one\", \"n\": 5, \"steps\": 2}'");
  EXPECT_EQ(json::parse(images)["data"].size(), 5u);
  // In chunks, with no length known beforehand.
  const std::string chunked = curl(
      "/v1/images/generations -H 'Content-Type: application/json' -H 'Transfer-Encoding: chunked' "
      "-d '{\"prompt\": \"one\", \"steps\": 2}'");
  EXPECT_EQ(json::parse(chunked)["data"].size(), 1u);
}

TEST_F(RestServerTest, ErrorsHaveOpenAisFormAndTheRightCode) {
  Start();
  engine_->Start();
  struct Case {
    std::string request;
    int code;
    std::string reason;
  };
  const std::vector<Case> cases = {
      {PostText(R"({"prompt": "seven"})"), 400, "UNKNOWN_CLASS"},
      {PostText(R"({"prompt": "one", "model": "faces"})"), 404, "UNKNOWN_MODEL"},
      {PostText(R"({"prompt": "one", "version": "v9"})"), 404, "UNKNOWN_VERSION"},
      {PostText(R"({"prompt": "one", "steps": 100000})"), 400, "STEPS_OUT_OF_RANGE"},
      {PostText(R"({"prompt": "one", "guidance": -1})"), 400, "GUIDANCE_OUT_OF_RANGE"},
      {PostText(R"({"prompt": "one", "n": 1000000000})"), 400, "VALUE_OUT_OF_RANGE"},
      {PostText("{\"prompt\": "), 400, "BODY_MALFORMED"},
      {PostText(""), 400, "BODY_MALFORMED"},
      {PostText("prompt=one", "application/x-www-form-urlencoded"), 415, "CONTENT_TYPE_NOT_JSON"},
      {PostText(R"({"prompt": "one"})", "text/plain"), 415, "CONTENT_TYPE_NOT_JSON"},
      {"GET /v1/images/generations HTTP/1.1\r\nHost: x\r\n\r\n", 405, "METHOD_NOT_ALLOWED"},
      {"DELETE /v1/models/digits HTTP/1.1\r\nHost: x\r\n\r\n", 405, "METHOD_NOT_ALLOWED"},
      {"GET /v1/models/faces HTTP/1.1\r\nHost: x\r\n\r\n", 404, "UNKNOWN_MODEL"},
      {"GET /etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", 404, "UNKNOWN_PATH"},
      {"GET /v1/models/../../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", 404, "UNKNOWN_PATH"},
      {"nonsense\r\n\r\n", 400, "REQUEST_MALFORMED"},
  };
  for (const Case& bad : cases) {
    const Answer answer = Exchange(bad.request);
    EXPECT_EQ(answer.code, bad.code) << bad.request;
    EXPECT_EQ(answer.ErrorCode(), bad.reason) << bad.request << answer.body;
  }
  EXPECT_THAT(Get("/v1/images/generations").head, HasSubstr("Allow: POST"));
  EXPECT_EQ(Post(R"({"prompt": "one", "steps": 2})").code, 200);
}

TEST_F(RestServerTest, ABodyBeyondTheLimitIsRefusedBeforeItIsRead) {
  Start({.max_body_bytes = 10'000});
  engine_->Start();
  const Answer told = Exchange(
      "POST /v1/images/generations HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Content-Length: 99999999999\r\n\r\n{");
  EXPECT_EQ(told.code, 413) << told.head;
  EXPECT_EQ(told.ErrorCode(), "BODY_TOO_LARGE");
  std::string chunks =
      "POST /v1/images/generations HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 16; ++i) chunks += "3e8\r\n" + std::string(1000, ' ') + "\r\n";
  EXPECT_EQ(Exchange(chunks).code, 413);
  // A caller that has sent all of it before it reads still gets the answer.
  EXPECT_EQ(Post(std::string(2'000'000, ' ')).code, 413);
  EXPECT_EQ(Exchange(PostText(std::string(2'000'000, ' '), "text/plain")).code, 415);
}

TEST_F(RestServerTest, AFullQueueIs429WithRetryAfter) {
  EngineOptions options;
  options.admission.max_queued_requests = 1;
  Start({}, options);
  Connection waits(server_->port());
  waits.Send(PostText(R"({"prompt": "one", "steps": 2})"));
  AwaitWaiting(1);
  const Answer refused = Post(R"({"prompt": "one", "steps": 2})");
  EXPECT_EQ(refused.code, 429);
  EXPECT_EQ(refused.ErrorCode(), "QUEUE_FULL");
  EXPECT_THAT(refused.head, HasSubstr("Retry-After: 1"));
  engine_->Start();
  EXPECT_EQ(Parse(waits.Receive()).code, 200);
}

TEST_F(RestServerTest, MoreRequestsThanThreadsAre429AndHealthStillAnswers) {
  Start({.max_requests = 2});
  Connection a(server_->port());
  Connection b(server_->port());
  a.Send(PostText(R"({"prompt": "one", "steps": 2})"));
  b.Send(PostText(R"({"prompt": "one", "steps": 2})"));
  AwaitWaiting(2);
  const Answer refused = Post(R"({"prompt": "one", "steps": 2})");
  EXPECT_EQ(refused.code, 429);
  EXPECT_EQ(refused.ErrorCode(), "TOO_MANY_REQUESTS");
  EXPECT_THAT(refused.head, HasSubstr("Retry-After: 1"));
  EXPECT_EQ(Get("/healthz").code, 200);
  engine_->Start();
  EXPECT_EQ(Parse(a.Receive()).code, 200);
  EXPECT_EQ(Parse(b.Receive()).code, 200);
}

TEST_F(RestServerTest, ACallerThatHangsUpLeavesAtTheNextStep) {
  Start();
  {
    Connection leaves(server_->port());
    leaves.Send(PostText(R"({"prompt": "one", "steps": 2})"));
    AwaitWaiting(1);
  }
  const absl::Time end = absl::Now() + absl::Seconds(20);
  while (!engine_->has_leavers() && absl::Now() < end) std::this_thread::yield();
  ASSERT_TRUE(engine_->has_leavers());
  EXPECT_FALSE(engine_->RunTick());
  EXPECT_TRUE(backend_->TakeSeen().empty());
}

TEST_F(RestServerTest, ATimeoutOfTheRequestIs504) {
  Start();
  engine_->Start();
  absl::Notification asked;
  absl::Notification go;
  backend_->velocity = [&](int32_t, std::span<const float> x, float, int64_t) {
    if (!asked.HasBeenNotified()) asked.Notify();
    go.WaitForNotificationWithTimeout(absl::Seconds(20));
    return std::vector<float>(x.size(), 0);
  };
  Connection connection(server_->port());
  connection.Send(PostText(R"({"prompt": "one", "steps": 2, "timeout": 0.05})"));
  asked.WaitForNotification();
  absl::SleepFor(absl::Milliseconds(60));  // the time that the caller gave passes
  go.Notify();
  const Answer answer = Parse(connection.Receive());
  EXPECT_EQ(answer.code, 504);
  EXPECT_EQ(answer.ErrorCode(), "DEADLINE_EXPIRED");
}

TEST_F(RestServerTest, WithoutAModelItIsNotReady) {
  Start({}, {}, /*with_model=*/false);
  EXPECT_EQ(Get("/healthz").code, 503);
  EXPECT_EQ(Get("/v1/models").Json()["data"].size(), 0u);
  const Answer answer = Post(R"({"prompt": "one"})");
  EXPECT_EQ(answer.code, 503);
  EXPECT_EQ(answer.ErrorCode(), "NO_MODEL");
}

TEST_F(RestServerTest, EndsWithoutWaitingForRequestsAndTellsTheObserver) {
  Start();
  Get("/v1/models");
  Get("/nowhere");
  Connection waits(server_->port());
  waits.Send(PostText(R"({"prompt": "one", "steps": 2})"));
  AwaitWaiting(1);
  server_.reset();
  EXPECT_EQ(Parse(waits.Receive()).code, 503);
  absl::MutexLock lock(&mutex_);
  EXPECT_THAT(seen_, ::testing::UnorderedElementsAre("models 200", "other 404", "images 503"));
}

TEST_F(RestServerTest, AnAddressThatCannotBeServedIsNamed) {
  Start();
  EXPECT_EQ(ErrorReason(RestServer::Start({.listen = "nonsense"}, engine_.get(), Clock::Real()).status()),
            "INVALID_ADDRESS");
  EXPECT_EQ(ErrorReason(RestServer::Start({.listen = server_->address()}, engine_.get(), Clock::Real()).status()),
            "CANNOT_LISTEN");
}

}  // namespace
}  // namespace atl::router
