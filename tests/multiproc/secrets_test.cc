// Secrets stay where they belong: not in logs, errors, command lines or the coordinator's store, while a whole job runs
// with tokens; and every change of it stands in the audit log.
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "common/auth/principals.h"
#include "common/auth/security.h"
#include "common/rpc/channel.h"
#include "common/wire/status.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/multiproc/cluster.h"

namespace atl::testing_cluster {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class SecretsTest : public ::testing::Test {
 protected:
  SecretsTest() : folder_(std::filesystem::temp_directory_path() / fmt::format("secrets_test.{}", getpid())) {
    std::filesystem::create_directories(folder_);
    std::ofstream principals(folder_ / "principals.yaml");
    principals << "principals:\n";
    const auto add = [&](const std::string& role, const std::string& more) {
      const rpc::NewToken token = rpc::MakeToken();
      principals << fmt::format("- {{subject: the-{}, roles: [{}], token_sha256: {}{}}}\n", role, role, token.sha256,
                                more);
      std::ofstream(folder_ / role) << token.token << "\n";
      secrets_["token of " + role] = token.token;
    };
    add("island", ", islands: [island-*]");
    add("submitter", "");
  }
  ~SecretsTest() override { std::filesystem::remove_all(folder_); }

  // Which secrets stand in `text`.
  std::set<std::string> FoundIn(const std::string& text) const {
    std::set<std::string> found;
    for (const auto& [name, secret] : secrets_) {
      if (text.find(secret) != std::string::npos) found.insert(name);
    }
    return found;
  }

  const std::filesystem::path folder_;
  std::map<std::string, std::string> secrets_;
};

TEST_F(SecretsTest, NoneIsFoundWhereItDoesNotBelong) {
  const std::string audit = folder_ / "audit.log";
  const std::string s3_key = "known-secret-access-key-of-this-test";
  setenv("AWS_SECRET_ACCESS_KEY", s3_key.c_str(), 1);
  secrets_["key of the blob store"] = s3_key;
  const auto security = rpc::Security::Make({.token_file = folder_ / "submitter"});
  ASSERT_TRUE(security.ok()) << security.status();
  Cluster cluster(
      {.islands = 1,
       .ranks = 2,
       .coordinator_flags = {"--principals", folder_ / "principals.yaml", "--audit-log", audit, "--log-level", "debug"},
       .worker_flags = {"--token-file", folder_ / "island", "--log-level", "debug"},
       .credentials = (*security)->channel_credentials()});
  secrets_["secret of the island"] = ReadFile(cluster.folder() + "/secret");
  cluster.WriteDataset();
  const std::string job = cluster.Submit(SmallJob(/*experts=*/1, /*steps=*/8, /*checkpoint_every=*/4));

  // A token that is wrong is not repeated in the error.
  const std::string wrong = "a-wrong-token-" + secrets_["token of submitter"];
  secrets_["wrong token"] = wrong;
  grpc::ClientContext context;
  rpc::SetTimeout(&context, absl::Seconds(20), true);
  context.AddMetadata("authorization", "Bearer " + wrong);
  const auto stub = atlpb::job::v1::JobService::NewStub(rpc::MakeChannel(cluster.coordinator_address()));
  atlpb::job::v1::ListJobsResponse jobs;
  const grpc::Status refused = stub->ListJobs(&context, {}, &jobs);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAUTHENTICATED) << refused.error_message();
  EXPECT_THAT(FoundIn(refused.error_message() + refused.error_details()), IsEmpty());

  ASSERT_TRUE(cluster.AwaitSuccess(job, absl::Minutes(3)));
  for (const pid_t pid : {cluster.coordinator().pid(), cluster.rank(0, 0).pid(), cluster.rank(0, 1).pid()}) {
    const std::string command = ReadFile(fmt::format("/proc/{}/cmdline", pid));
    ASSERT_FALSE(command.empty());
    EXPECT_THAT(FoundIn(command), IsEmpty());
  }
  size_t looked = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(cluster.folder())) {
    if (!entry.is_regular_file() || entry.path() == cluster.folder() + "/secret") continue;
    EXPECT_THAT(FoundIn(ReadFile(entry.path())), IsEmpty()) << entry.path();
    ++looked;
  }
  EXPECT_GT(looked, 5u) << "logs, the store and its log, files of the blob store";
  EXPECT_THAT(FoundIn(ReadFile(audit)), IsEmpty());
  // The search does find what is there.
  EXPECT_THAT(FoundIn(ReadFile(cluster.folder() + "/secret")), Contains("secret of the island"));

  std::set<std::string> seen;
  std::ifstream lines(audit);
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json entry = nlohmann::json::parse(line);
    seen.insert(entry["subject"].get<std::string>() + " " + entry["method"].get<std::string>());
  }
  for (const char* expected : {"the-submitter SubmitJob", "the-island RegisterIsland", "the-island ClaimTask",
                               "the-island CommitCheckpoint", "the-island CompleteTask"}) {
    EXPECT_THAT(seen, Contains(expected));
  }

  std::filesystem::rename(audit, audit + ".1");
  cluster.coordinator().Signal(SIGHUP);
  EXPECT_TRUE(Await(absl::Seconds(20), [&] { return std::filesystem::exists(audit); }));
  EXPECT_TRUE(cluster.coordinator().Running());
}

}  // namespace
}  // namespace atl::testing_cluster
