// The REST facade over real HTTP on loopback, with a fake model version. What a client must not send is written byte by
// byte; a sane one is curl, where it is installed.
#include "router/rest/rest_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>
#include <thread>

#include "absl/strings/escaping.h"
#include "absl/synchronization/notification.h"
#include "common/base/errors.h"
#include "common/base/fake_clock.h"
#include "common/dataset/image_codec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "router/engine/testing/fake_backend.h"
#include "router/engine/testing/serve_inline.h"
#include "router/engine/testing/ticked_engine.h"

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
  explicit Connection(int port, int receive_buffer = 0) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer > 0) setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
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
  // One answer; what came behind it stays for the next time.
  std::string Receive() {
    while (AnswerSize() == 0 && ReadMore()) {
    }
    const size_t size = AnswerSize();
    const std::string answer = came_.substr(0, size == 0 ? came_.size() : size);
    came_.erase(0, answer.size());
    return answer;
  }
  // All that comes until the other side closes; longer than its patience it waits for nothing.
  std::string ReceiveAll() {
    while (ReadMore()) {
    }
    EXPECT_TRUE(closed_) << "the connection is still open";
    return std::exchange(came_, "");
  }
  // Until `text` has come so many times.
  void Await(std::string_view text, int times) {
    const auto count = [&] {
      int found = 0;
      for (size_t at = 0; (at = came_.find(text, at)) != std::string::npos; ++at) ++found;
      return found;
    };
    while (count() < times && ReadMore()) {
    }
    EXPECT_EQ(count(), times) << text;
  }
  void EndSending() { shutdown(socket_, SHUT_WR); }

 private:
  bool ReadMore() {
    char buffer[65'536];
    const ssize_t count = read(socket_, buffer, sizeof(buffer));
    closed_ = count == 0 || (count < 0 && errno == ECONNRESET);
    if (count > 0) came_.append(buffer, count);
    return count > 0;
  }
  // Returns the size of the first complete answer in the received bytes; 0: none yet.
  size_t AnswerSize() const {
    const size_t head = came_.find("\r\n\r\n");
    if (head == std::string::npos) return 0;
    const size_t length = came_.find("Content-Length: ");
    if (length < head) {
      const size_t size = head + 4 + std::stoul(came_.substr(length + 16));
      return came_.size() < size ? 0 : size;
    }
    if (came_.find("Transfer-Encoding: chunked") > head) return came_.starts_with("HTTP/1.1 100") ? head + 4 : 0;
    const size_t end = came_.find("\r\n0\r\n\r\n");
    return end == std::string::npos ? 0 : end + 7;
  }

  const int socket_;
  std::string came_;
  bool closed_ = false;
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
    engine_ = std::make_unique<TickedEngine>(options, Clock::Real(), nullptr);
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
  void AwaitSeen(const std::string& line) {
    absl::MutexLock lock(&mutex_);
    const auto seen = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return std::find(seen_.begin(), seen_.end(), line) != seen_.end();
    };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&seen), absl::Seconds(20))) << line;
  }
  void AwaitWaiting(size_t count) {
    const absl::Time end = absl::Now() + absl::Seconds(20);
    while (engine_->waiting_requests() != count && absl::Now() < end) std::this_thread::yield();
    ASSERT_EQ(engine_->waiting_requests(), count);
  }

  FakeClock lane_clock_;  // no measured time decides what shares a batch
  std::shared_ptr<FakeBackend> backend_ = std::make_shared<FakeBackend>(Info());
  std::unique_ptr<TickedEngine> engine_;
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
      {PostText(R"({"prompt": "one", "steps": 100000})"), 400, "VALUE_OUT_OF_RANGE"},
      {PostText(R"({"prompt": "one", "guidance": -1})"), 400, "VALUE_OUT_OF_RANGE"},
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
      {PostText(R"({"prompt": "one"})", "application/jsonx"), 415, "CONTENT_TYPE_NOT_JSON"},
      {PostText(R"({"prompt": "one", "steps": 0.5})"), 400, "VALUE_OUT_OF_RANGE"},
      {PostText(R"({"prompt": "one", "guidance": NaN})"), 400, "BODY_MALFORMED"},
      {PostText(R"({"prompt": "one", "mode": "best"})"), 400, "UNKNOWN_MODE"},
      {PostText(R"({"prompt": "one", "solver": "rk4"})"), 400, "UNKNOWN_SOLVER"},
      {"GET /v1/models/ HTTP/1.1\r\nHost: x\r\n\r\n", 404, "UNKNOWN_PATH"},
      {"nonsense\r\n\r\n", 400, "REQUEST_MALFORMED"},
  };
  for (const Case& bad : cases) {
    const Answer answer = Exchange(bad.request);
    EXPECT_EQ(answer.code, bad.code) << bad.request;
    EXPECT_EQ(answer.ErrorCode(), bad.reason) << bad.request << answer.body;
  }
  EXPECT_THAT(Get("/v1/images/generations").head, HasSubstr("Allow: POST"));
  EXPECT_THAT(Post("{\"prompt\": 1,}").Json()["error"]["message"].get<std::string>(), HasSubstr("at byte 14"));
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
  EXPECT_EQ(refused.Json()["error"]["type"], "rate_limit_error");
  EXPECT_THAT(refused.head, HasSubstr("Retry-After: 1"));
  EXPECT_EQ(Get("/healthz").code, 200);
  engine_->Start();
  EXPECT_EQ(Parse(waits.Receive()).code, 200);
}

TEST_F(RestServerTest, ACallerThatHangsUpLeavesAtTheNextStep) {
  Start();
  for (const std::string stream : {"false", "true"}) {
    {
      Connection leaves(server_->port());
      leaves.Send(PostText(R"({"prompt": "one", "steps": 2, "stream": )" + stream + "}"));
      AwaitWaiting(1);
    }
    const absl::Time end = absl::Now() + absl::Seconds(20);
    while (!engine_->has_leavers() && absl::Now() < end) std::this_thread::yield();
    ASSERT_TRUE(engine_->has_leavers());
    EXPECT_FALSE(engine_->RunTick());
    EXPECT_TRUE(backend_->TakeSeen().empty());
  }
}

TEST_F(RestServerTest, OneConnectionServesManyRequests) {
  Start();
  engine_->Start();
  const std::string post = PostText(R"({"prompt": "one", "steps": 2})");
  const std::string health = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
  Connection connection(server_->port());
  for (const std::string& request : {post, health, post}) {
    connection.Send(request);
    const Answer answer = Parse(connection.Receive());
    EXPECT_EQ(answer.code, 200);
    EXPECT_THAT(answer.head, HasSubstr("Connection: keep-alive"));
  }
  connection.Send(post + health);  // before the first answer is there
  EXPECT_EQ(Parse(connection.Receive()).Json()["data"].size(), 1u);
  EXPECT_EQ(Parse(connection.Receive()).body, "ok\n");
  connection.Send("HEAD /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const Answer last = Parse(connection.ReceiveAll());
  EXPECT_THAT(last.head, HasSubstr("Content-Length: 3\r\n"));
  EXPECT_THAT(last.head, HasSubstr("Connection: close"));
  EXPECT_EQ(last.body, "");

  Connection old(server_->port());
  old.Send("GET /healthz HTTP/1.0\r\n\r\n");
  EXPECT_EQ(Parse(old.ReceiveAll()).code, 200);
}

TEST_F(RestServerTest, AHeadThatCanBeReadInTwoWaysIsRefusedAndEndsTheConnection) {
  Start();
  engine_->Start();
  const std::string body = R"({"prompt": "one", "steps": 1})";
  const std::string length = "Content-Length: " + std::to_string(body.size()) + "\r\n";
  std::string many;
  for (int i = 0; i < 2000; ++i) many += "X-Field: 1\r\n";
  const std::vector<std::pair<std::string, int>> cases = {
      {"Content-Length: 0\r\n" + length, 400},
      {length + "Content-Length: 0\r\n", 400},
      {length + "Transfer-Encoding: chunked\r\n", 400},
      {"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", 400},
      {"Transfer-Encoding: gzip, chunked\r\n", 400},
      {"Transfer-Encoding: identity\r\n", 400},
      {"Content-Length: +" + std::to_string(body.size()) + "\r\n", 400},
      {"Content-Length: " + std::to_string(body.size()) + ", 0\r\n", 400},
      {"Content-Length: -1\r\n", 400},
      {"Content-Length: \r\n", 400},
      {many + length, 431},
      {"X-Field: " + std::string(40'000, 'x') + "\r\n" + length, 431},
  };
  for (const auto& [fields, code] : cases) {
    SCOPED_TRACE(fields.substr(0, 80));
    Connection connection(server_->port());
    connection.Send("POST /v1/images/generations HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + fields +
                    "\r\n" + body + "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
    const std::string text = connection.ReceiveAll();
    EXPECT_EQ(Parse(text).code, code) << text;
    EXPECT_THAT(Parse(text).ErrorCode(), ::testing::AnyOf("REQUEST_MALFORMED", "HEAD_TOO_LARGE"));
    EXPECT_EQ(text.find("HTTP/1.1 200", 1), std::string::npos) << "what follows is no request: " << text;
  }
}

TEST_F(RestServerTest, ABodyThatNobodyReadsIsNotTakenForARequest) {
  Start();
  Connection connection(server_->port());
  connection.Send(
      "GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\nGET /healthz HTTP/1.1\r\n\r\n");
  const std::string text = connection.ReceiveAll();
  EXPECT_EQ(Parse(text).body, "ok\n");
  EXPECT_EQ(text.find("HTTP/1.1 200", 1), std::string::npos);
}

TEST_F(RestServerTest, ACallerThatAsksBeforeItSendsIsToldToGoOn) {
  Start();
  engine_->Start();
  const std::string body = R"({"prompt": "one", "steps": 1})";
  const auto head = [](size_t size) {
    return "POST /v1/images/generations HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nExpect: "
           "100-continue\r\nContent-Length: " +
           std::to_string(size) + "\r\n\r\n";
  };
  Connection connection(server_->port());
  connection.Send(head(body.size()));
  EXPECT_EQ(Parse(connection.Receive()).code, 100);
  connection.Send(body);
  EXPECT_EQ(Parse(connection.Receive()).code, 200);
  connection.Send(head(99'999'999));
  EXPECT_EQ(Parse(connection.Receive()).code, 413);
}

TEST_F(RestServerTest, ABodyThatEndsEarlyIsRefused) {
  Start();
  Connection connection(server_->port());
  connection.Send(
      "POST /v1/images/generations HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Content-Length: 100\r\n\r\n{\"prompt\"");
  connection.EndSending();
  EXPECT_EQ(Parse(connection.ReceiveAll()).ErrorCode(), "BODY_TRUNCATED");
}

TEST_F(RestServerTest, SilentConnectionsAreClosed) {
  Start({.limits = {.start_time = absl::Milliseconds(200), .idle_time = absl::Milliseconds(50)}});
  Connection nothing(server_->port());
  Connection half_a_head(server_->port());
  half_a_head.Send("GET /healthz HTTP/1.1\r\nHo");
  Connection once(server_->port());
  once.Send("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(nothing.ReceiveAll(), "");
  half_a_head.ReceiveAll();
  EXPECT_EQ(Parse(once.ReceiveAll()).code, 200);
}

TEST_F(RestServerTest, IdleConnectionsLeaveRoomForOthers) {
  Start({.max_connections = 8, .limits = {.idle_time = absl::Minutes(1)}});
  const std::string health = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
  std::vector<std::unique_ptr<Connection>> connections;
  for (int i = 0; i < 20; ++i) {
    connections.push_back(std::make_unique<Connection>(server_->port()));
    connections.back()->Send(health);
    const Answer answer = Parse(connections.back()->Receive());
    ASSERT_EQ(answer.code, 200);
    EXPECT_THAT(answer.head, HasSubstr("Connection: keep-alive"));
  }
  // The youngest connections continue; the oldest were closed to make room.
  connections[19]->Send(health);
  EXPECT_EQ(Parse(connections[19]->Receive()).code, 200);
  EXPECT_EQ(connections[0]->ReceiveAll(), "");
}

class LargeImagesTest : public RestServerTest {
 protected:
  LargeImagesTest() {
    SamplerInfo info = Info();
    info.width = info.height = 256;
    backend_ = std::make_shared<FakeBackend>(info);
  }
};

TEST_F(LargeImagesTest, ACallerThatDoesNotReadIsCutOff) {
  Start({.limits = {.answer_time = absl::Milliseconds(200)}});
  engine_->Start();
  // 14 MB, many times what a connection's buffers hold.
  const std::string request =
      PostText(R"({"prompt": "one", "steps": 1, "n": 40, "output_format": "raw", "stream": STREAM})");
  for (const std::string stream : {"false", "true"}) {
    std::string asked = request;
    asked.replace(asked.find("STREAM"), 6, stream + (stream == "true" ? "  " : " "));
    Connection silent(server_->port(), /*receive_buffer=*/4096);
    silent.Send(asked);
    AwaitSeen("images 200");
    EXPECT_EQ(Get("/healthz").code, 200);
    EXPECT_LT(silent.ReceiveAll().size(), 10'000'000u) << stream;
    absl::MutexLock lock(&mutex_);
    seen_.clear();
  }
  // Their places are free again.
  EXPECT_EQ(engine_->RequestsOn("digits", "v1"), 0);
}

// Event names, and the data of each.
std::vector<std::pair<std::string, json>> EventsOf(const std::string& answer) {
  // Taken out of its chunks.
  std::string text;
  std::string_view left = std::string_view(answer).substr(answer.find("\r\n\r\n") + 4);
  while (!left.empty()) {
    const size_t size = std::stoul(std::string(left.substr(0, left.find("\r\n"))), nullptr, 16);
    left.remove_prefix(left.find("\r\n") + 2);
    text += left.substr(0, size);
    left.remove_prefix(size + 2);
  }
  std::vector<std::pair<std::string, json>> events;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find("\n\n", at);
    const std::string event = text.substr(at, end - at);
    const size_t data = event.find("\ndata: ");
    EXPECT_THAT(event, StartsWith("event: "));
    events.emplace_back(event.substr(7, data - 7), json::parse(event.substr(data + 7)));
    EXPECT_EQ(events.back().first, events.back().second["type"]);
    at = end + 2;
  }
  return events;
}

TEST_F(RestServerTest, AStreamHasPreviewsImagesAndAReport) {
  Start();
  Connection connection(server_->port());
  connection.Send(
      PostText(R"({"prompt": "two", "n": 2, "seed": 40, "steps": 9, "stream": true, "partial_images": 2})"));
  AwaitWaiting(1);
  for (int step = 1; step <= 9; ++step) {
    engine_->RunTick();
    if (step == 3) connection.Await("\"partial_image_index\":0", 2);
    if (step == 6) connection.Await("\"partial_image_index\":1", 2);
  }
  const std::string text = connection.Receive();
  EXPECT_THAT(Parse(text).head, HasSubstr("Content-Type: text/event-stream"));
  const auto events = EventsOf(text);
  std::map<std::string, int> counts;
  for (const auto& [name, data] : events) {
    ++counts[name];
    if (!data.contains("b64_json")) continue;
    EXPECT_EQ(data["seed"], 40 + data["index"].get<int>());
    EXPECT_EQ(data["size"], "8x8");
    std::string png;
    ASSERT_TRUE(absl::Base64Unescape(data["b64_json"].get<std::string>(), &png));
    EXPECT_TRUE(dataset::DecodeImage(png, name).ok());
  }
  EXPECT_EQ(counts["image_generation.completed"], 2);
  EXPECT_EQ(counts["image_generation.partial_image"], 4);
  EXPECT_EQ(events.front().second["partial_image_index"], 0);
  EXPECT_EQ(events.back().first, "image_generation.done");
  EXPECT_EQ(events.back().second["version"], "v1");
  // The connection stays open.
  connection.Send("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(Parse(connection.Receive()).body, "ok\n");
}

TEST_F(RestServerTest, AStreamThatFailsEndsWithTheErrorAndARefusedOneIsNoStream) {
  Start();
  engine_->Start();
  backend_->expert_status = [](int32_t) {
    return MakeError(absl::StatusCode::kInternal, "NETWORK_FAILED", "as the test says");
  };
  Connection connection(server_->port());
  connection.Send(PostText(R"({"prompt": "one", "steps": 2, "stream": true})"));
  const auto events = EventsOf(connection.Receive());
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].second["error"]["code"], "NETWORK_FAILED");
  connection.Send(PostText(R"({"prompt": "seven", "stream": true})"));
  const Answer refused = Parse(connection.Receive());
  EXPECT_EQ(refused.code, 400);
  EXPECT_EQ(refused.ErrorCode(), "UNKNOWN_CLASS");
}

TEST_F(RestServerTest, AStreamToAnOldCallerHasNoChunks) {
  Start();
  engine_->Start();
  const std::string body = R"({"prompt": "one", "steps": 1, "stream": true})";
  Connection connection(server_->port());
  connection.Send("POST /v1/images/generations HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: " +
                  std::to_string(body.size()) + "\r\n\r\n" + body);
  EXPECT_THAT(Parse(connection.ReceiveAll()).body, StartsWith("event: image_generation.completed\ndata: {"));
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

TEST_F(RestServerTest, ADrainingRouterSaysThatItIsNotReady) {
  Start();
  engine_->Start();
  EXPECT_EQ(Get("/healthz").code, 200);
  engine_->Drain(absl::ZeroDuration());
  EXPECT_EQ(Get("/healthz").code, 503);
  const Answer refused = Post(R"({"prompt": "one"})");
  EXPECT_EQ(refused.code, 503);
  EXPECT_EQ(refused.ErrorCode(), "DRAINING");
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
  for (const char* listen : {"nonsense", "127.0.0.1:84237"}) {
    EXPECT_EQ(ErrorReason(RestServer::Start({.listen = listen}, engine_.get(), Clock::Real()).status()),
              "INVALID_ADDRESS")
        << listen;
  }
  EXPECT_EQ(ErrorReason(RestServer::Start({.listen = server_->address()}, engine_.get(), Clock::Real()).status()),
            "CANNOT_LISTEN");
}

}  // namespace
}  // namespace atl::router
