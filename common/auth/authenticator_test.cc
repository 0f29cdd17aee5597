#include "common/auth/authenticator.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/time/clock.h"
#include "common/base/errors.h"
#include "common/base/fake_clock.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/pki.h"

namespace atl::rpc {
namespace {

using ::testing::StartsWith;

class AuthenticatorTest : public ::testing::Test {
 protected:
  AuthenticatorTest() {
    const ::testing::TestInfo* const info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = ::testing::TempDir() + "authenticator_test_" + info->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    options_ = {.principals = folder_ + "/principals.yaml", .deny_list = folder_ + "/deny"};
    Write("deny", "");
  }
  ~AuthenticatorTest() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& name, const std::string& text) const { std::ofstream(folder_ + "/" + name) << text; }
  static std::string OneToken(const std::string& token) {
    return fmt::format("principals: [{{subject: ann, roles: [reader], token_sha256: {}}}]\n", TokenHash(token));
  }
  // The thread that reads files may begin to wait only after a step of the clock: one step more wakes it.
  void Step() {
    clock_.Advance(kReloadInterval);
    absl::SleepFor(absl::Milliseconds(1));
  }
  // Steps until `token` is answered with `reason`.
  void Await(const Authenticator& authenticator, const std::string& token, const std::string& reason) {
    for (int i = 0; i < 20'000; ++i) {
      if (ErrorReason(authenticator.Check(token, {}).status()) == reason) return;
      Step();
    }
    ADD_FAILURE() << "never answered with '" << reason << "'";
  }

  std::string folder_;
  AuthenticatorOptions options_;
  FakeClock clock_;
};

TEST_F(AuthenticatorTest, FilesAreReadAgain) {
  Write("principals.yaml", OneToken("one"));
  const auto authenticator = Authenticator::Open(options_, &clock_);
  ASSERT_TRUE(authenticator.ok()) << authenticator.status();
  EXPECT_EQ((*authenticator)->Check("one", {})->subject, "ann");
  EXPECT_EQ(ErrorReason((*authenticator)->Check("two", {}).status()), "TOKEN_UNKNOWN");
  Write("principals.yaml", OneToken("two"));
  Await(**authenticator, "two", "");
  EXPECT_EQ(ErrorReason((*authenticator)->Check("one", {}).status()), "TOKEN_UNKNOWN");
  Write("deny", "subject ann\n");
  Await(**authenticator, "two", "TOKEN_REVOKED");
  Write("deny", "");
  Await(**authenticator, "two", "");
}

TEST_F(AuthenticatorTest, ABrokenFileLeavesWhatWasInForce) {
  Write("principals.yaml", OneToken("one"));
  const auto authenticator = Authenticator::Open(options_, &clock_);
  ASSERT_TRUE(authenticator.ok()) << authenticator.status();
  Write("principals.yaml", "principals: 7\n");
  for (int i = 0; i < 50; ++i) Step();
  EXPECT_TRUE((*authenticator)->Check("one", {}).ok());
  Write("principals.yaml", OneToken("two"));
  Await(**authenticator, "two", "");
}

// While the principals file is half written, or an issuer's keys are missing, revoked callers stay out.
TEST_F(AuthenticatorTest, RevocationsWaitForNoOtherFile) {
  const std::string issuer = "jwt: [{issuer: i, audience: a, roles: [reader], keys: issuer.pem}]\n";
  Write("issuer.pem", testing::MakeEcSigningKey().public_pem);
  Write("principals.yaml", OneToken("one") + issuer);
  std::atomic<int> reloads = 0;
  options_.reloaded = [&reloads](const Authenticator&) { ++reloads; };
  const auto authenticator = Authenticator::Open(options_, &clock_);
  ASSERT_TRUE(authenticator.ok()) << authenticator.status();
  EXPECT_TRUE((*authenticator)->Check("one", {}).ok());
  std::filesystem::remove(folder_ + "/issuer.pem");
  Write("deny", "subject ann\n");
  Await(**authenticator, "one", "TOKEN_REVOKED");
  Write("deny", "");
  Await(**authenticator, "one", "");
  Write("principals.yaml", "principals: 7\n");
  Write("deny", "subject ann\n");
  Await(**authenticator, "one", "TOKEN_REVOKED");
  // The list may be read before it is complete; each reload calls back, so that open streams are checked again.
  for (int i = 0; i < 20'000 && reloads.load() < 3; ++i) Step();
  EXPECT_GE(reloads.load(), 3);
}

TEST_F(AuthenticatorTest, PrincipalsWaitForNoDenyList) {
  Write("principals.yaml", OneToken("one"));
  const auto authenticator = Authenticator::Open(options_, &clock_);
  ASSERT_TRUE(authenticator.ok()) << authenticator.status();
  std::filesystem::remove(options_.deny_list);
  Write("principals.yaml", OneToken("two"));
  Await(**authenticator, "two", "");
  EXPECT_EQ(ErrorReason((*authenticator)->Check("one", {}).status()), "TOKEN_UNKNOWN");
}

TEST_F(AuthenticatorTest, ADenyListThatCouldMatchNobodyLeavesWhatWasInForce) {
  Write("principals.yaml", OneToken("one"));
  const std::string useless = "token " + absl::AsciiStrToUpper(TokenHash("one")) + "\n";
  Write("deny", useless);
  EXPECT_EQ(ErrorReason(Authenticator::Open(options_).status()), "INVALID_DENY_LIST");
  Write("deny", "subject ann\n");
  const auto authenticator = Authenticator::Open(options_, &clock_);
  ASSERT_TRUE(authenticator.ok()) << authenticator.status();
  Write("deny", useless);
  for (int i = 0; i < 50; ++i) Step();
  EXPECT_EQ(ErrorReason((*authenticator)->Check("one", {}).status()), "TOKEN_REVOKED");
  Write("deny", "");
  Await(**authenticator, "one", "");
}

// Opens, and no read of it succeeds.
TEST_F(AuthenticatorTest, AFileThatCannotBeReadIsNoEmptyOne) {
  Write("principals.yaml", OneToken("one"));
  Write("deny", "subject ann\n");
  const auto authenticator = Authenticator::Open(options_, &clock_);
  ASSERT_TRUE(authenticator.ok()) << authenticator.status();
  std::filesystem::remove(options_.deny_list);
  std::filesystem::create_directories(options_.deny_list);
  for (int i = 0; i < 50; ++i) Step();
  EXPECT_EQ(ErrorReason((*authenticator)->Check("one", {}).status()), "TOKEN_REVOKED");
  EXPECT_THAT(std::string(Authenticator::Open(options_).status().message()),
              StartsWith("--deny-list: cannot read " + options_.deny_list));
}

TEST_F(AuthenticatorTest, JwtsThatWereCheckedEndInTimeAndCanBeRevoked) {
  const testing::SigningKey key = testing::MakeEcSigningKey();
  std::filesystem::create_directories(folder_ + "/keys");
  Write("keys/issuer.pem", key.public_pem);
  Write("principals.yaml", "jwt: [{issuer: i, audience: a, roles: [reader], keys: keys/issuer.pem}]\n");
  const int64_t now = absl::ToUnixSeconds(clock_.Now());
  const std::string token = SignJwt(
      key, R"({"alg": "ES256"})",
      fmt::format(R"({{"iss": "i", "aud": "a", "sub": "ann", "jti": "7", "iat": {}, "exp": {}}})", now, now + 3600));
  const auto authenticator = Authenticator::Open(options_, &clock_);
  ASSERT_TRUE(authenticator.ok()) << authenticator.status();
  for (int i = 0; i < 3; ++i) EXPECT_EQ((*authenticator)->Check(token, {})->subject, "ann");
  Write("deny", "jti 7\n");
  Await(**authenticator, token, "TOKEN_REVOKED");
  Write("deny", "");
  Await(**authenticator, token, "");
  const absl::Time began = clock_.Now();
  clock_.Advance(absl::Seconds(3631));
  EXPECT_EQ(ErrorReason((*authenticator)->Check(token, {}).status()), "TOKEN_EXPIRED");
  // A call that goes on, which asks more than once.
  for (int i = 0; i < 3; ++i) EXPECT_EQ((*authenticator)->CheckAsOf(token, {}, began)->subject, "ann");
  EXPECT_EQ(ErrorReason((*authenticator)->Check(token, {}).status()), "TOKEN_EXPIRED") << "whatever is kept of it";
}

TEST_F(AuthenticatorTest, MissingFilesAreNamed) {
  EXPECT_EQ(Authenticator::Open(options_).status().message(),
            "--principals: cannot read " + options_.principals + ": No such file or directory");
  Write("principals.yaml", OneToken("one"));
  options_.deny_list = folder_ + "/none";
  EXPECT_THAT(std::string(Authenticator::Open(options_).status().message()),
              StartsWith("--deny-list: cannot read " + options_.deny_list));
  Write("principals.yaml", "jwt: [{issuer: i, audience: a, roles: [reader], keys: none.pem}]\n");
  EXPECT_THAT(std::string(Authenticator::Open(options_).status().message()),
              StartsWith("jwt[0].keys: keys of the issuer: cannot read " + folder_ + "/none.pem"));
}

}  // namespace
}  // namespace atl::rpc
