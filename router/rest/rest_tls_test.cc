#include <unistd.h>

#include <filesystem>
#include <thread>

#include "common/base/errors.h"
#include "common/base/fake_clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/engine/testing/fake_backend.h"
#include "router/engine/testing/serve_inline.h"
#include "router/engine/testing/ticked_engine.h"
#include "router/rest/rest_server.h"
#include "tests/tls_client.h"

namespace atl::router {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::TlsClient;

constexpr char kImage[] = R"({"prompt": "two", "steps": 1, "seed": 1})";

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

class RestTlsTest : public ::testing::Test {
 protected:
  RestTlsTest() {
    const std::filesystem::path folder =
        std::filesystem::path(::testing::TempDir()) / ("rest_tls_test." + std::to_string(getpid()));
    testing::WriteTlsFolder(folder, authority_.IssueServer("router"), authority_.certificate());
    rest_.security.tls_dir = folder;
    ServeInline(&engine_, backend_, &lane_clock_);
  }
  ~RestTlsTest() override {
    engine_.Stop();
    server_.reset();
    std::filesystem::remove_all(rest_.security.tls_dir);
  }

  void Start() {
    auto server = RestServer::Start(rest_, &engine_, Clock::Real());
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  std::unique_ptr<TlsClient> Connect() {
    return TlsClient::Connect({.port = server_->port(), .authority = authority_.certificate()});
  }
  std::string Get(const std::string& path, const std::string& headers = "") {
    return testing::Get({.port = server_->port(), .authority = authority_.certificate()}, path, headers);
  }
  static std::string Post(const std::string& body) {
    return "POST /v1/images/generations HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
           "Content-Type: application/json\r\nContent-Length: " +
           std::to_string(body.size()) + "\r\n\r\n" + body;
  }

  const testing::CertificateAuthority authority_;
  CallerQuotas quotas_;
  RestOptions rest_;
  FakeClock lane_clock_;
  std::shared_ptr<FakeBackend> backend_ = std::make_shared<FakeBackend>(Info());
  TickedEngine engine_{{}, Clock::Real(), nullptr};
  std::unique_ptr<RestServer> server_;
};

TEST_F(RestTlsTest, ImagesComeOverTls) {
  Start();
  engine_.Start();
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  ASSERT_TRUE(client->Write(Post(kImage)));
  const std::string answer = client->ReadToEnd();
  EXPECT_THAT(answer, HasSubstr("HTTP/1.1 200 OK"));
  EXPECT_THAT(answer, HasSubstr("b64_json"));
}

TEST_F(RestTlsTest, WhoHangsUpGivesItsPlaceBack) {
  Start();
  auto client = Connect();
  ASSERT_NE(client, nullptr);
  // The engine does not run yet: the request waits.
  ASSERT_TRUE(client->Write(Post(kImage)));
  const absl::Time end = absl::Now() + absl::Seconds(20);
  while (engine_.waiting_requests() != 1 && absl::Now() < end) std::this_thread::yield();
  ASSERT_EQ(engine_.waiting_requests(), 1u);
  client.reset();
  while (!engine_.has_leavers() && absl::Now() < end) std::this_thread::yield();
  EXPECT_TRUE(engine_.has_leavers());
  EXPECT_FALSE(engine_.RunTick());
  EXPECT_TRUE(backend_->TakeSeen().empty()) << "nothing was sampled for a caller who is gone";
}

TEST_F(RestTlsTest, TheApiIsForThoseWhoMayAndHealthIsForAll) {
  rest_.security.access = [](const http::HttpCaller& caller,
                             std::string_view route) -> absl::StatusOr<http::HttpSubject> {
    EXPECT_TRUE(route.starts_with("/v1/")) << route;
    if (caller.bearer == "right") return http::HttpSubject{"alice"};
    if (caller.bearer == "reader") return MakeError(absl::StatusCode::kPermissionDenied, "ROLE_REQUIRED", "no sampler");
    return MakeError(absl::StatusCode::kUnauthenticated, "CREDENTIAL_REQUIRED", "no credential");
  };
  Start();
  engine_.Start();
  const std::string refused = Get("/v1/models");
  EXPECT_THAT(refused, HasSubstr("HTTP/1.1 401 Unauthorized"));
  EXPECT_THAT(refused, HasSubstr("WWW-Authenticate: Bearer"));
  EXPECT_THAT(refused, HasSubstr("CREDENTIAL_REQUIRED"));
  EXPECT_THAT(Get("/v1/models/digits"), HasSubstr("HTTP/1.1 401"));
  EXPECT_THAT(Get("/v1/nothing"), HasSubstr("HTTP/1.1 401"));
  EXPECT_THAT(Get("/v1/models", "Authorization: Bearer reader\r\n"), HasSubstr("HTTP/1.1 403 Forbidden"));
  EXPECT_THAT(Get("/v1/models", "Authorization: Bearer right\r\n"), HasSubstr("\"digits\""));
  EXPECT_THAT(Get("/healthz"), Not(HasSubstr("HTTP/1.1 4")));
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  ASSERT_TRUE(client->Write(Post(kImage)));
  EXPECT_THAT(client->ReadToEnd(), HasSubstr("HTTP/1.1 401"));
}

TEST_F(RestTlsTest, ACallerHasItsQuotaAndNoMore) {
  rest_.quotas = &quotas_;
  rest_.security.access = [](const http::HttpCaller& caller, std::string_view) -> absl::StatusOr<http::HttpSubject> {
    return http::HttpSubject{.name = caller.bearer, .images_in_flight = 1};
  };
  Start();
  const auto ask = [this](const std::string& bearer) {
    auto client = Connect();
    std::string request = Post(kImage);
    request.insert(request.find("Content-Type"), "Authorization: Bearer " + bearer + "\r\n");
    EXPECT_TRUE(client->Write(request));
    return client;
  };
  // The engine does not run yet: the request waits.
  const auto first = ask("alice");
  const absl::Time end = absl::Now() + absl::Seconds(20);
  while (engine_.waiting_requests() != 1 && absl::Now() < end) std::this_thread::yield();
  const std::string refused = ask("alice")->ReadToEnd();
  EXPECT_THAT(refused, HasSubstr("HTTP/1.1 429"));
  EXPECT_THAT(refused, HasSubstr("QUOTA_EXCEEDED"));
  const auto other = ask("bob");
  engine_.Start();
  EXPECT_THAT(first->ReadToEnd(), HasSubstr("HTTP/1.1 200"));
  EXPECT_THAT(other->ReadToEnd(), HasSubstr("HTTP/1.1 200"));
  EXPECT_THAT(ask("alice")->ReadToEnd(), HasSubstr("HTTP/1.1 200")) << "its share came back";
}

TEST_F(RestTlsTest, ACallerWhoAsksTooFastIsToldWhenToComeBack) {
  rest_.quotas = &quotas_;
  rest_.security.access = [](const http::HttpCaller&, std::string_view) -> absl::StatusOr<http::HttpSubject> {
    return http::HttpSubject{.name = "alice", .images_per_minute = 1};
  };
  Start();
  engine_.Start();
  const auto ask = [this] {
    auto client = Connect();
    EXPECT_TRUE(client->Write(Post(kImage)));
    return client->ReadToEnd();
  };
  EXPECT_THAT(ask(), HasSubstr("HTTP/1.1 200"));
  const std::string refused = ask();
  EXPECT_THAT(refused, HasSubstr("HTTP/1.1 429"));
  EXPECT_THAT(refused, HasSubstr("may ask for 1 images a minute"));
  EXPECT_THAT(refused, HasSubstr("Retry-After: "));
}

TEST_F(RestTlsTest, BeyondThisMachineItTakesTlsOrAWord) {
  const auto reason = [this](const RestOptions& options) {
    return ErrorReason(RestServer::Start(options, &engine_, Clock::Real()).status());
  };
  EXPECT_EQ(reason({.listen = "0.0.0.0:0"}), "TLS_REQUIRED");
  EXPECT_EQ(reason({.listen = "0.0.0.0:0", .security = {.allow_clear = true}}), "");
  EXPECT_EQ(reason({.listen = "0.0.0.0:0", .security = rest_.security}), "");
}

}  // namespace
}  // namespace atl::router
