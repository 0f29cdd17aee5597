#include "common/auth/http_access.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/time/clock.h"
#include "common/auth/principals.h"
#include "common/base/errors.h"
#include "gtest/gtest.h"
#include "tests/pki.h"

namespace atl::rpc {
namespace {

class HttpAccessTest : public ::testing::Test {
 protected:
  HttpAccessTest()
      : folder_(std::filesystem::path(::testing::TempDir()) / ("http_access_test." + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
    testing::WriteTlsFolder(folder_ / "tls", authority_.IssueServer("server"), authority_.certificate());
    std::ofstream(folder_ / "principals.yaml")
        << "principals:\n- {subject: prometheus, roles: [reader], certificate: prometheus}\n"
        << "- {subject: alice, roles: [sampler], token_sha256: " << alice_.sha256
        << ", quota: {images_in_flight: 3, images_per_minute: 7}}\n"
        << "- {subject: root, roles: [admin], token_sha256: " << root_.sha256 << "}\n"
        << "- {subject: mallory, roles: [admin], token_sha256: " << mallory_.sha256 << ", certificate: m.example.org}\n"
        << "- subject: old\n  roles: admin\n  certificate: old.example.org\n  expires: 2023-01-01T00:00:00Z\n";
    options_.principals = folder_ / "principals.yaml";
  }
  ~HttpAccessTest() override { std::filesystem::remove_all(folder_); }

  http::HttpSecurity Make() {
    const auto security = Security::Make(options_);
    EXPECT_TRUE(security.ok()) << security.status();
    return security.ok() ? HttpSecurityOf(security->get()) : http::HttpSecurity{};
  }
  static std::string Outcome(const http::HttpSecurity& security, const http::HttpCaller& caller,
                             std::string_view route) {
    const auto subject = security.access(caller, route);
    return subject.ok() ? subject->name : ErrorReason(subject.status());
  }

  const testing::CertificateAuthority authority_;
  const NewToken alice_ = MakeToken();
  const NewToken root_ = MakeToken();
  const NewToken mallory_ = MakeToken();
  const std::filesystem::path folder_;
  SecurityOptions options_;
};

TEST_F(HttpAccessTest, RoutesAreForTheRolesOfTheTable) {
  const http::HttpSecurity security = Make();
  const http::HttpCaller nobody, wrong{.bearer = "wrong"}, alice{.bearer = alice_.token}, root{.bearer = root_.token},
      prometheus{.certificate_names = {"prometheus"}};
  EXPECT_EQ(Outcome(security, nobody, "/metrics"), "CREDENTIAL_REQUIRED");
  EXPECT_EQ(Outcome(security, wrong, "/metrics"), "TOKEN_UNKNOWN");
  EXPECT_EQ(Outcome(security, alice, "/metrics"), "ROLE_REQUIRED");
  EXPECT_EQ(Outcome(security, prometheus, "/metrics"), "prometheus");
  EXPECT_EQ(Outcome(security, prometheus, "/v1/models"), "ROLE_REQUIRED");
  EXPECT_EQ(Outcome(security, alice, "/v1/images/generations"), "alice");
  EXPECT_EQ(Outcome(security, root, "/v1/models/digits"), "root");
  EXPECT_EQ(Outcome(security, root, "/elsewhere"), "METHOD_UNKNOWN");
  const auto subject = security.access(alice, "/v1/models");
  ASSERT_TRUE(subject.ok());
  EXPECT_EQ(subject->images_in_flight, 3);
  EXPECT_EQ(subject->images_per_minute, 7);
}

TEST_F(HttpAccessTest, RefusedCallersAreTold) {
  const auto security = Security::Make(options_);
  ASSERT_TRUE(security.ok()) << security.status();
  std::vector<std::string> told;
  (*security)->guard()->TellRefused([&](const RefusedCall& call) {
    told.push_back(call.method + " by '" + call.subject + "' at " + call.peer + ": " + ErrorReason(call.status));
  });
  const http::HttpSecurity http = HttpSecurityOf(security->get());
  Outcome(http, {.address = "10.0.0.1:5"}, "/metrics");
  Outcome(http, {.bearer = alice_.token, .address = "10.0.0.2:5"}, "/metrics");
  Outcome(http, {.certificate_names = {"eve"}, .address = "10.0.0.3:5"}, "/metrics");
  Outcome(http, {.bearer = root_.token, .address = "10.0.0.4:5"}, "/metrics");
  EXPECT_EQ(told, (std::vector<std::string>{"/metrics by '' at 10.0.0.1:5: CREDENTIAL_REQUIRED",
                                            "/metrics by 'alice' at 10.0.0.2:5: ROLE_REQUIRED",
                                            "/metrics by 'eve' at 10.0.0.3:5: CERTIFICATE_UNKNOWN"}));
}

TEST_F(HttpAccessTest, CallersWhoWereShutOutAreToldByTheirEntry) {
  std::ofstream(folder_ / "deny.txt") << "subject mallory\ntoken " << alice_.sha256 << "\n";
  options_.deny_list = folder_ / "deny.txt";
  const auto security = Security::Make(options_);
  ASSERT_TRUE(security.ok()) << security.status();
  std::vector<std::string> told;
  (*security)->guard()->TellRefused(
      [&](const RefusedCall& call) { told.push_back(call.subject + " " + ErrorReason(call.status)); });
  const http::HttpSecurity http = HttpSecurityOf(security->get());
  Outcome(http, {.bearer = mallory_.token}, "/metrics");
  Outcome(http, {.certificate_names = {"m.example.org"}}, "/metrics");
  Outcome(http, {.bearer = alice_.token, .certificate_names = {"prometheus"}}, "/metrics");
  Outcome(http, {.certificate_names = {"old.example.org"}}, "/metrics");
  EXPECT_EQ(told, (std::vector<std::string>{"mallory TOKEN_REVOKED", "mallory TOKEN_REVOKED", "alice TOKEN_REVOKED",
                                            "old TOKEN_EXPIRED"}));
}

TEST_F(HttpAccessTest, TokensNeverTravelInTheClear) {
  options_.insecure_network = true;
  EXPECT_FALSE(Make().allow_clear);
  options_.principals.clear();
  EXPECT_TRUE(Make().allow_clear);
}

TEST_F(HttpAccessTest, OpenMetricsAskForNothing) {
  options_.tls_dir = folder_ / "tls";
  const auto security = Security::Make(options_);
  ASSERT_TRUE(security.ok()) << security.status();
  EXPECT_FALSE(MetricsSecurityOf(security->get(), false).tls_dir.empty());
  const http::HttpSecurity open = MetricsSecurityOf(security->get(), true);
  EXPECT_TRUE(open.allow_clear);
  EXPECT_EQ(open.tls_dir, "");
  EXPECT_FALSE(open.access);
  EXPECT_FALSE(MetricsSecurityOf(nullptr, false).allow_clear);
}

TEST_F(HttpAccessTest, MetricsSayWhenTheCertificateEnds) {
  const std::string name = "atoll_certificate_end_time_seconds";
  const std::unique_ptr<metrics::Registry> registry = metrics::Registry::Create("test");
  ShowCertificate(nullptr, registry.get())();
  const auto without = Security::Make(options_);
  ASSERT_TRUE(without.ok()) << without.status();
  ShowCertificate(*without, registry.get())();
  EXPECT_EQ(registry->Text().find(name), std::string::npos);

  const absl::Time end = absl::FromUnixSeconds(absl::ToUnixSeconds(absl::Now()) + 7200);
  testing::WriteTlsFolder(folder_ / "tls", authority_.Issue({.common_name = "server", .not_after = end}),
                          authority_.certificate());
  options_.tls_dir = folder_ / "tls";
  const auto security = Security::Make(options_);
  ASSERT_TRUE(security.ok()) << security.status();
  EXPECT_EQ((*security)->certificate_end(), end);
  ShowCertificate(*security, registry.get())();
  EXPECT_NE(registry->Text().find(name), std::string::npos);
}

TEST_F(HttpAccessTest, WithoutPrincipalsTlsIsForThoseWithACertificate) {
  options_.principals.clear();
  EXPECT_FALSE(Make().require_client_certificate);
  options_.tls_dir = folder_ / "tls";
  EXPECT_TRUE(Make().require_client_certificate);
  EXPECT_FALSE(Make().access) << "the certificate is all that is asked for";
  options_.principals = folder_ / "principals.yaml";
  EXPECT_FALSE(Make().require_client_certificate);
}

}  // namespace
}  // namespace atl::rpc
