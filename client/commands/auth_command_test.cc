// Credentials on the command line: tokens that are made, and flags that use them.
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "client/commands/command_line_testing.h"
#include "client/exit_code.h"
#include "common/auth/principals.h"
#include "common/auth/security.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::client {
namespace {

using ::testing::HasSubstr;

class AuthCommandTest : public CommandLineTest {
 protected:
  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + "/" + name) << text;
    return folder_ + "/" + name;
  }
};

TEST_F(AuthCommandTest, ANewTokenFitsTheEntryBesideIt) {
  const Outcome made = Run({"auth", "new-token", "--subject", "eu: \"north\"", "--role", "island", "--role",
                            "submitter", "--island", "eu-*", "--model", "eu-*"});
  ASSERT_EQ(made.code, kExitOk) << made.err;
  const std::string token = made.out.substr(0, made.out.size() - 1);
  EXPECT_EQ(made.err.find(token), std::string::npos);
  const auto principals = rpc::Principals::Parse("principals:\n" + made.err.substr(made.err.find("- subject")),
                                                 "principals.yaml", [](const std::string&) { return ""; });
  ASSERT_TRUE(principals.ok()) << principals.status() << made.err;
  const auto principal = principals->Check(token, {}, {}, absl::Now());
  ASSERT_TRUE(principal.ok()) << principal.status();
  EXPECT_EQ(principal->subject, "eu: \"north\"");
  EXPECT_EQ(principal->roles, rpc::RoleSet({rpc::Role::kIsland, rpc::Role::kSubmitter}));
  EXPECT_THAT(principal->islands, ::testing::ElementsAre("eu-*"));
  EXPECT_THAT(principal->models, ::testing::ElementsAre("eu-*"));
  EXPECT_THAT(Run({"auth", "new-token", "--subject", "a", "--role", "reader", "--output", "json"}).out,
              HasSubstr("\"token_sha256\": \""));
}

TEST_F(AuthCommandTest, WhatIsMissingIsSaid) {
  EXPECT_EQ(Run({"auth", "new-token", "--subject", "a"}).code, kExitUsage);
  EXPECT_EQ(Run({"auth", "new-token", "--subject", "a", "--role", "root"}).code, kExitUsage);
  EXPECT_THAT(Run({"auth", "new-token", "--subject", "a", "--role", "island"}).err,
              HasSubstr("--island: expected names"));
}

TEST_F(AuthCommandTest, AnEntryThatServersRefuseOrThatLimitsNothingIsNotPrinted) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--subject", "", "--role", "reader"}, "principals[0].subject: expected a text"},
      {{"--subject", "a", "--role", "submitter", "--model", ""}, "principals[0].models: expected a list of texts"},
      {{"--subject", "a", "--role", "sampler", "--model", "m"},
       "--model: expected --role submitter or admin beside it"},
      {{"--subject", "a", "--role", "sampler", "--island", "x"}, "--island: expected --role island beside it"},
  };
  for (const auto& [flags, message] : cases) {
    std::vector<std::string> arguments = {"auth", "new-token"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.code, kExitUsage) << message;
    EXPECT_EQ(outcome.out, "") << message;
    EXPECT_THAT(outcome.err, HasSubstr(message));
  }
  EXPECT_EQ(Run({"auth", "new-token", "--subject", "a", "--role", "admin", "--model", "m"}).code, kExitOk);
}

TEST_F(AuthCommandTest, ATokenIsShownToAServerThatAsksForOne) {
  const std::string hash = rpc::TokenHash("ann's");
  const auto security = rpc::Security::Make(
      {.principals = Write("principals.yaml",
                           fmt::format("principals: [{{subject: ann, roles: [reader], token_sha256: {}}}]", hash))});
  ASSERT_TRUE(security.ok()) << security.status();
  const auto guarded = rpc::Server::Start({.services = {{"jobs", &jobs_}, {"models", &models_}},
                                           .credentials = (*security)->ServerCredentials("127.0.0.1:0").value()});
  ASSERT_TRUE(guarded.ok()) << guarded.status();
  const std::string address = (*guarded)->address();
  const std::string token = Write("token", "ann's");
  const Outcome none = Run({"models", "list", "--coordinator", address});
  EXPECT_NE(none.code, kExitOk);
  EXPECT_THAT(none.err, HasSubstr("[CREDENTIAL_REQUIRED]"));
  EXPECT_EQ(Run({"models", "list", "--coordinator", address, "--token-file", token}).code, kExitOk);
  std::map<std::string, std::string> environment = {
      {"HOME", folder_}, {"ATOLL_COORDINATOR", address}, {"ATOLL_TOKEN_FILE", token}};
  EXPECT_EQ(RunWith({"models", "list"}, environment).code, kExitOk);
  const std::string wrong = Write("wrong", "eve's");
  EXPECT_THAT(Run({"models", "list", "--coordinator", address, "--token-file", wrong}).err,
              HasSubstr("[TOKEN_UNKNOWN]"));
}

TEST_F(AuthCommandTest, ATokenDoesNotLeaveTheMachineInTheClear) {
  const Outcome outcome =
      Run({"models", "list", "--coordinator", "10.0.0.1:1", "--token-file", Write("token", "ann's")});
  EXPECT_THAT(outcome.err, HasSubstr("would go to 10.0.0.1:1 in the clear: give --ca FILE or --tls-dir DIR"));
  EXPECT_THAT(Run({"models", "list", "--tls-dir", folder_}).err, HasSubstr("tls.crt: No such file or directory"));
}

}  // namespace
}  // namespace atl::client
