// Access to HTTP routes: every route, every role, every state of a credential, over TLS. Written out by hand, as in
// entry_test.cc.
#include <map>
#include <set>

#include "common/auth/http_access.h"
#include "common/http/http_security.h"
#include "common/metrics/exposer.h"
#include "fmt/format.h"
#include "gtest/gtest.h"
#include "router/engine/engine.h"
#include "router/rest/rest_server.h"
#include "tests/contract/entry_callers.h"
#include "tests/tls_client.h"

namespace atl::entry {
namespace {

const std::string kAnybody = "anybody";

// By hand. Which of the two servers has a route stands before it.
const std::map<std::string, std::set<std::string>> kExpected = {
    {"metrics /metrics", {"admin", "reader"}},
    {"metrics /healthz", {kAnybody}},
    {"metrics /nothing", {kAnybody}},  // 404
    {"rest /v1/models", {"admin", "sampler"}},
    {"rest /v1/models/digits", {"admin", "sampler"}},
    {"rest /v1/images/generations", {"admin", "sampler"}},
    {"rest /v1/nothing", {"admin", "sampler"}},
    {"rest /healthz", {kAnybody}},
    {"rest /nothing", {kAnybody}},  // 404
};

class EntryHttpTest : public ::testing::Test {
 protected:
  void SetUp() override {
    rpc::SecurityOptions options = callers_.security();
    options.tls_dir = callers_.folder() / "tls";
    testing::WriteTlsFolder(options.tls_dir, authority_.IssueServer("server"), authority_.certificate());
    const auto security = rpc::Security::Make(options);
    ASSERT_TRUE(security.ok()) << security.status();
    const http::HttpSecurity http = rpc::HttpSecurityOf(security->get());
    auto exposer = metrics::Exposer::Start(registry_.get(), "127.0.0.1:0", {}, {}, http);
    ASSERT_TRUE(exposer.ok()) << exposer.status();
    exposer_ = *std::move(exposer);
    router::RestOptions rest;
    rest.security = http;
    auto server = router::RestServer::Start(rest, &engine_, Clock::Real());
    ASSERT_TRUE(server.ok()) << server.status();
    rest_ = *std::move(server);
  }
  void TearDown() override {
    engine_.Stop();
    rest_.reset();
  }

  int CodeOf(const std::string& route, const std::string& bearer) {
    const size_t space = route.find(' ');
    const int port = route.starts_with("rest") ? rest_->port() : exposer_->port();
    const std::string header = bearer.empty() ? "" : "Authorization: Bearer " + bearer + "\r\n";
    const std::string answer =
        testing::Get({.port = port, .authority = authority_.certificate()}, route.substr(space + 1), header);
    int code = 0;
    std::sscanf(answer.c_str(), "HTTP/1.1 %d", &code);
    return code;
  }

  const Callers callers_;
  const testing::CertificateAuthority authority_;
  const std::unique_ptr<metrics::Registry> registry_ = metrics::Registry::Create("test");
  router::Engine engine_{{}, Clock::Real(), nullptr};
  std::unique_ptr<metrics::Exposer> exposer_;
  std::unique_ptr<router::RestServer> rest_;
};

TEST_F(EntryHttpTest, EveryRequestIsLetInOrRefusedAsWrittenHere) {
  for (const auto& [route, roles] : kExpected) {
    for (const Credential& credential : callers_.credentials()) {
      const int code = CodeOf(route, credential.bearer);
      const std::string what = fmt::format("{} by {}", route, credential.name);
      EXPECT_NE(code, 0) << what << ": no answer";
      const bool known = RefusalOf(credential).empty();
      if (roles.contains(kAnybody) || (known && roles.contains(credential.role))) {
        EXPECT_TRUE(code != 401 && code != 403) << what << ": " << code;
      } else {
        EXPECT_EQ(code, known ? 403 : 401) << what;
      }
    }
  }
}

}  // namespace
}  // namespace atl::entry
