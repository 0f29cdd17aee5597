#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>

#include "common/base/errors.h"
#include "common/metrics/exposer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tls_client.h"

namespace atl::metrics {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ExposerTlsTest : public ::testing::Test {
 protected:
  ExposerTlsTest() {
    const std::filesystem::path folder =
        std::filesystem::path(::testing::TempDir()) / ("exposer_tls_test." + std::to_string(getpid()));
    std::filesystem::remove_all(folder);
    testing::WriteTlsFolder(folder, authority_.IssueServer("server"), authority_.certificate());
    security_.tls_dir = folder;
    registry_->AddGauge("atoll_islands", "Islands that are registered.")->Set(2);
  }

  void Start() {
    auto exposer = Exposer::Start(registry_.get(), "127.0.0.1:0", {}, {}, security_);
    ASSERT_TRUE(exposer.ok()) << exposer.status();
    exposer_ = *std::move(exposer);
  }
  std::string Get(const std::string& path, const std::string& headers = "",
                  const testing::Certificate& certificate = {}) {
    return testing::Get({.port = exposer_->port(), .authority = authority_.certificate(), .certificate = certificate},
                        path, headers);
  }

  const testing::CertificateAuthority authority_;
  http::HttpSecurity security_;
  const std::unique_ptr<Registry> registry_ = Registry::Create("test");
  std::unique_ptr<Exposer> exposer_;
};

TEST_F(ExposerTlsTest, ServesOverTls) {
  Start();
  EXPECT_THAT(Get("/metrics"), HasSubstr("atoll_islands 2"));
  EXPECT_THAT(Get("/healthz"), HasSubstr("200 OK"));
  EXPECT_THAT(testing::Get({.port = exposer_->port()}, "/metrics"), Not(HasSubstr("atoll_islands")));
}

TEST_F(ExposerTlsTest, MetricsAreForThoseWhoMayAndHealthIsForAll) {
  security_.access = [](const http::HttpCaller& caller, std::string_view route) -> absl::StatusOr<http::HttpSubject> {
    EXPECT_EQ(route, "/metrics");
    if (caller.certificate_names == std::vector<std::string>{"prometheus"}) return http::HttpSubject{"prometheus"};
    if (caller.bearer == "right") return http::HttpSubject{"reader"};
    if (caller.bearer == "sampler") return MakeError(absl::StatusCode::kPermissionDenied, "ROLE_REQUIRED", "no reader");
    return MakeError(absl::StatusCode::kUnauthenticated, "TOKEN_UNKNOWN", "unknown token");
  };
  Start();
  const std::string anonymous = Get("/metrics");
  EXPECT_THAT(anonymous, HasSubstr("HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Bearer\r\n"));
  EXPECT_THAT(anonymous, Not(HasSubstr("atoll_islands")));
  EXPECT_THAT(Get("/metrics", "Authorization: Bearer wrong\r\n"), HasSubstr("HTTP/1.1 401"));
  EXPECT_THAT(Get("/metrics", "Authorization: Basic right\r\n"), HasSubstr("HTTP/1.1 401"));
  EXPECT_THAT(Get("/metrics", "Authorization: Bearer sampler\r\n"), HasSubstr("HTTP/1.1 403"));
  EXPECT_THAT(Get("/metrics", "authorization: bearer right\r\n"), HasSubstr("atoll_islands 2"));
  EXPECT_THAT(Get("/metrics", "", authority_.IssueClient("prometheus")), HasSubstr("atoll_islands 2"));
  EXPECT_THAT(Get("/healthz"), HasSubstr("200 OK"));
}

TEST_F(ExposerTlsTest, HeadsThatDoNotEndKeepNobodyOut) {
  Start();
  std::vector<std::unique_ptr<testing::TlsClient>> slow;
  while (slow.size() < 100) {
    slow.push_back(testing::TlsClient::Connect({.port = exposer_->port(), .authority = authority_.certificate()}));
    ASSERT_NE(slow.back(), nullptr);
    slow.back()->Write("GET /healthz HTTP/1.1\r\nX: a");
  }
  EXPECT_THAT(Get("/healthz"), HasSubstr("200 OK"));
  EXPECT_THAT(Get("/metrics"), HasSubstr("atoll_islands 2"));
}

TEST_F(ExposerTlsTest, NorDoTheyInTheClear) {
  security_.tls_dir.clear();
  Start();
  std::vector<int> slow;
  while (slow.size() < 100) {
    slow.push_back(testing::ConnectTo(exposer_->port()));
    ASSERT_GT(send(slow.back(), "GET /healthz HTTP/1.1\r\nX: a", 27, MSG_NOSIGNAL), 0);
  }
  EXPECT_THAT(testing::Get({.port = exposer_->port()}, "/healthz"), HasSubstr("200 OK"));
  EXPECT_THAT(testing::Get({.port = exposer_->port()}, "/metrics"), HasSubstr("atoll_islands 2"));
  for (const int descriptor : slow) close(descriptor);
}

TEST_F(ExposerTlsTest, BeyondThisMachineItTakesTlsOrAWord) {
  EXPECT_TRUE(Exposer::Start(registry_.get(), "0.0.0.0:0", {}, {}, security_).ok());
  const absl::Status status = Exposer::Start(registry_.get(), "0.0.0.0:0").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ErrorReason(status), "TLS_REQUIRED");
  EXPECT_THAT(std::string(status.message()), HasSubstr("--metrics-open"));
  const auto open = Exposer::Start(registry_.get(), "0.0.0.0:0", {}, {}, {.allow_clear = true});
  ASSERT_TRUE(open.ok()) << open.status();
  EXPECT_THAT(testing::Get({.port = (*open)->port()}, "/metrics"), HasSubstr("atoll_islands 2"));
}

}  // namespace
}  // namespace atl::metrics
