// A whole cluster over mutual TLS and tokens: a job, a picture, one clear error for every unauthorised caller, and
// certificates and revocations that take effect while everything runs.
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "common/auth/principals.h"
#include "common/auth/security.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/multiproc/cluster.h"
#include "tests/pki.h"

namespace atl::testing_cluster {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class SecureClusterTest : public ::testing::Test {
 protected:
  SecureClusterTest() {
    folder_ = ::testing::TempDir() + "secure_cluster_XXXXXX";
    if (mkdtemp(folder_.data()) == nullptr) std::abort();
    for (const char* program : {"coordinator", "worker", "router"}) {
      WriteTlsFolder(Path(program), authority_.IssueServer(program), authority_.certificate());
    }
    Write("ca.crt", authority_.certificate());
    // The worker is known by its certificate, the others by tokens.
    std::string principals =
        "principals:\n"
        "- {subject: island, roles: [island], islands: ['island-*'], certificate: worker}\n";
    for (const auto& [subject, roles] : std::map<std::string, std::string>{
             {"router", "router"}, {"ann", "submitter, sampler"}, {"bob", "reader"}, {"test", "admin"}}) {
      const rpc::NewToken token = rpc::MakeToken();
      Write(subject + ".token", token.token + "\n");
      principals += fmt::format("- {{subject: {}, roles: [{}], token_sha256: {}}}\n", subject, roles, token.sha256);
    }
    Write("principals.yaml", principals);
    Write("deny", "# nobody yet\n");
  }
  ~SecureClusterTest() override {
    cluster_.reset();
    std::filesystem::remove_all(folder_);
  }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  std::string Write(const std::string& name, const std::string& text) const {
    // As one: a reader never sees half of it.
    std::ofstream(Path(name + ".new")) << text;
    std::filesystem::rename(Path(name + ".new"), Path(name));
    return Path(name);
  }

  void StartCluster() {
    const std::vector<std::string> callers = {"--principals", Path("principals.yaml"), "--deny-list", Path("deny")};
    ClusterOptions options{.islands = 1, .ranks = 2};
    options.coordinator_flags = callers;
    options.coordinator_flags.insert(options.coordinator_flags.end(), {"--tls-dir", Path("coordinator")});
    options.worker_flags = {"--tls-dir", Path("worker")};
    options.router_flags = callers;
    options.router_flags.insert(options.router_flags.end(),
                                {"--tls-dir", Path("router"), "--token-file", Path("router.token")});
    const auto security = rpc::Security::Make({.ca = Path("ca.crt"), .token_file = Path("test.token")});
    ASSERT_TRUE(security.ok()) << security.status();
    options.credentials = (*security)->channel_credentials();
    cluster_ = std::make_unique<Cluster>(options);
    cluster_->WriteDataset();
  }

  struct Ran {
    int code = -1;
    std::string log;
  };
  Ran Run(const std::string& program, const std::vector<std::string>& arguments) {
    std::vector<std::string> command = {std::string(std::getenv("ATOLL_BINARY_DIR")) + "/bin/" + program};
    command.insert(command.end(), arguments.begin(), arguments.end());
    Process process(command, fmt::format("{}/run{}.log", folder_, ++runs_));
    const std::optional<int> code = process.Wait(absl::Seconds(60));
    return {code.value_or(-1), process.Log()};
  }
  // `atoll`, as ann where nothing else is said.
  Ran Atoll(std::vector<std::string> arguments, std::vector<std::string> security = {}) {
    if (security.empty()) security = {"--ca", Path("ca.crt"), "--token-file", Path("ann.token")};
    arguments.insert(arguments.end(), security.begin(), security.end());
    arguments.insert(arguments.end(), {"--coordinator", cluster_->coordinator_address(), "--timeout", "10"});
    return Run("atoll", arguments);
  }

  std::string folder_;
  const testing::CertificateAuthority authority_;
  std::unique_ptr<Cluster> cluster_;
  int runs_ = 0;
};

TEST_F(SecureClusterTest, OnlyWhoMayDoesAJobAndAPicture) {
  StartCluster();
  const std::string job = cluster_->Submit(SmallJob(1, 6, 3));
  ASSERT_TRUE(cluster_->AwaitSuccess(job, absl::Seconds(120)));
  const std::string router = cluster_->StartRouter();
  const std::vector<std::string> sample = {"sample",  "--router", router,  "--class",      "1",
                                           "--steps", "2",        "--out", Path("one.png")};
  // The router has to load the version first.
  Ran drawn;
  for (int i = 0; i < 50 && drawn.code != 0; ++i) {
    drawn = Atoll(sample);
    if (drawn.code != 0) absl::SleepFor(absl::Milliseconds(200));
  }
  ASSERT_EQ(drawn.code, 0) << drawn.log;
  EXPECT_TRUE(std::filesystem::exists(Path("one.png")));

  // Each has one clear error.
  const std::vector<std::string> list = {"models", "list"};
  EXPECT_EQ(Atoll(list).code, 0);
  EXPECT_THAT(Atoll(list, {"--ca", Path("ca.crt")}).log, HasSubstr("[CREDENTIAL_REQUIRED]"));
  EXPECT_THAT(Atoll(list, {"--output", "table"}).log, HasSubstr("speaks TLS: give --tls-dir DIR or --ca FILE"));
  const std::vector<std::string> bob = {"--ca", Path("ca.crt"), "--token-file", Path("bob.token")};
  std::filesystem::remove(Path("one.png"));
  EXPECT_THAT(Atoll(sample, bob).log, HasSubstr("[ROLE_REQUIRED]"));
  EXPECT_THAT(Atoll({"jobs", "cancel", job}, bob).log, HasSubstr("found bob with reader"));
  const std::string wrong = Write("wrong.token", "atoll_wrong");
  EXPECT_THAT(Atoll(list, {"--ca", Path("ca.crt"), "--token-file", wrong}).log, HasSubstr("[TOKEN_UNKNOWN]"));
  const testing::CertificateAuthority other("other");
  EXPECT_THAT(Atoll(list, {"--ca", Write("other.crt", other.certificate())}).log, HasSubstr("[SERVER_NOT_TRUSTED]"));
  WriteTlsFolder(Path("eve"), other.IssueClient("worker"), authority_.certificate());
  EXPECT_THAT(Atoll(list, {"--tls-dir", Path("eve")}).log, HasSubstr("[CERTIFICATE_REFUSED]"));
  WriteTlsFolder(Path("old"), authority_.IssueExpired("worker"), authority_.certificate());
  EXPECT_THAT(Atoll(list, {"--tls-dir", Path("old")}).log, HasSubstr("[CERTIFICATE_EXPIRED]"));

  // An island of another name than its certificate allows, and one without any.
  const std::vector<std::string> island = {"--coordinator", cluster_->coordinator_address(),
                                           "--blob-store",  cluster_->store()->root(),
                                           "--rank",        "0",
                                           "--ranks",       "1",
                                           "--leader",      "127.0.0.1:0",
                                           "--island-id"};
  const auto worker = [&](const std::string& name, const std::vector<std::string>& security) {
    std::vector<std::string> arguments = island;
    arguments.push_back(name);
    arguments.insert(arguments.end(), security.begin(), security.end());
    return Run("atoll-worker", arguments);
  };
  const Ran stranger = worker("mainland", {"--tls-dir", Path("worker")});
  EXPECT_NE(stranger.code, 0);
  EXPECT_THAT(stranger.log, HasSubstr("'island' may act for the islands [island-*], not for 'mainland'"));
  EXPECT_THAT(worker("island-7", {"--ca", Path("ca.crt"), "--token-file", Path("ann.token")}).log,
              HasSubstr("expected a caller with one of the roles admin, island, found ann with sub"));
  EXPECT_THAT(worker("island-7", {"--tls-dir", Path("old")}).log, HasSubstr("the certificate expired at"));

  // Revoked while it runs.
  Write("deny", "subject ann\n");
  Ran revoked;
  for (int i = 0; i < 100 && revoked.log.find("[TOKEN_REVOKED]") == std::string::npos; ++i) revoked = Atoll(list);
  EXPECT_THAT(revoked.log, HasSubstr("'ann' is on the deny list"));
  // Secrets stand in no log.
  for (const char* token : {"ann.token", "router.token", "test.token"}) {
    std::string secret;
    std::ifstream(Path(token)) >> secret;
    for (const auto& entry : std::filesystem::directory_iterator(cluster_->folder() + "/logs")) {
      std::ifstream log(entry.path());
      const std::string text{std::istreambuf_iterator<char>(log), {}};
      EXPECT_THAT(text, Not(HasSubstr(secret))) << entry.path();
    }
  }
}

TEST_F(SecureClusterTest, CertificatesAreReplacedWhileIslandsRun) {
  StartCluster();
  const std::string job = cluster_->Submit(MediumJob(60, 10));
  ASSERT_TRUE(cluster_->AwaitJob(job, absl::Seconds(60), [](const auto& now) {
    return TaskOf(now, atlpb::job::v1::TASK_KIND_TRAIN_EXPERT).progress().step() >= 5;
  }));
  // A second authority signs new certificates of all programs, which trust both.
  const std::string first = Write("first.crt", authority_.certificate());
  const testing::CertificateAuthority next("next");
  const std::string both = authority_.certificate() + next.certificate();
  Write("ca.crt", both);
  for (const char* program : {"coordinator", "worker", "router"}) {
    WriteTlsFolder(Path(program), next.IssueServer(program), both);
  }
  const std::string second = Write("second.crt", next.certificate());
  const std::string token = Path("ann.token");
  Ran asked;
  for (int i = 0; i < 100 && asked.code != 0; ++i) {
    asked = Atoll({"models", "list"}, {"--ca", second, "--token-file", token});
  }
  EXPECT_EQ(asked.code, 0) << asked.log;
  EXPECT_THAT(Atoll({"models", "list"}, {"--ca", first, "--token-file", token}).log, HasSubstr("[SERVER_NOT_TRUSTED]"));
  // A lost rank returns over a new connection, so under the new certificates; the job continues.
  cluster_->StartRank(0, 1);
  ASSERT_TRUE(cluster_->AwaitSuccess(job, absl::Seconds(120)));
}

}  // namespace
}  // namespace atl::testing_cluster
