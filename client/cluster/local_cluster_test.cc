// The local cluster with stand-ins for its programs: shell scripts that listen nowhere and sleep.
#include "client/cluster/local_cluster.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <sstream>

#include "absl/time/clock.h"
#include "common/base/errors.h"
#include "common/base/files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(RestartPolicyTest, PausesGrowToTenSecondsAndShrinkAfterAStableLife) {
  RestartPolicy policy;
  absl::Time now = absl::FromUnixSeconds(1000);
  std::vector<absl::Duration> pauses;
  for (int i = 0; i < 7; ++i) {
    policy.Started(now);
    pauses.push_back(policy.Died(now) - now);
  }
  EXPECT_EQ(pauses[0], absl::Milliseconds(500));
  EXPECT_EQ(pauses[1], absl::Seconds(1));
  EXPECT_EQ(pauses[6], absl::Seconds(10));
  policy.Started(now);
  now += absl::Seconds(31);
  EXPECT_EQ(policy.Died(now) - now, absl::Milliseconds(500));
}

bool Alive(pid_t pid) {
  return kill(pid, 0) == 0;
}

// Waits until `condition` holds, at most 20 s; for what other processes do.
bool Eventually(const std::function<bool()>& condition) {
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (!condition() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(10));
  return condition();
}

class LocalClusterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/local_cluster_test." + std::to_string(getpid());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_ + "/programs");
    // Writes its port to the given file, records its arguments and process, and sleeps until a signal ends it.
    const std::string body =
        "#!/bin/sh\n"
        "echo \"$$ $(basename \"$0\") $*\" >> " +
        folder_ +
        "/started\n"
        "while [ $# -gt 0 ]; do [ \"$1\" = --port-file ] && echo 127.0.0.1:4711 > \"$2\"; shift; done\n"
        "exec sleep 600\n";
    for (const char* name : {"atoll-coordinator", "atoll-worker", "atoll-router"}) Program(name, body);
    options_ = {.folder = folder_ + "/cluster", .programs = folder_ + "/programs", .islands = 2, .ranks = 2};
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void Program(const std::string& name, const std::string& body) {
    const std::string path = folder_ + "/programs/" + name;
    ASSERT_TRUE(WriteFile(path, body).ok());
    chmod(path.c_str(), 0755);
  }

  // Lines of processes that were started: "<pid> <program> <arguments>".
  std::vector<std::string> Started() const {
    std::vector<std::string> lines;
    std::istringstream text(ReadFile(folder_ + "/started").value_or(""));
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    return lines;
  }
  static pid_t PidOf(const std::string& line) { return std::stoi(line); }
  size_t CountStarted(const std::string& part) const {
    size_t count = 0;
    for (const std::string& line : Started()) count += line.find(part) != std::string::npos ? 1 : 0;
    return count;
  }

  std::string folder_;
  ClusterOptions options_;
};

TEST_F(LocalClusterTest, StartsEverythingAndStopsWithoutAProcessLeft) {
  const mode_t before = umask(022);
  auto cluster = LocalCluster::Start(options_, absl::Seconds(20));
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  umask(before);
  ASSERT_TRUE(Eventually([this] { return Started().size() == 6; }));
  for (const char* name : {"/run/island-0.secret", "/run/island-1.secret"}) {
    struct stat secret {};
    ASSERT_EQ(stat((options_.folder + name).c_str(), &secret), 0) << name;
    EXPECT_EQ(secret.st_mode & 0777, 0600u) << name;
    EXPECT_FALSE(std::filesystem::exists(options_.folder + name + std::string(".part")));
  }
  EXPECT_EQ(CountStarted("atoll-worker"), 4u);
  EXPECT_EQ(CountStarted("--island-id island-1 --rank 0 --ranks 2"), 1u);
  EXPECT_EQ(ReadClusterFile(options_.folder)->coordinator, "127.0.0.1:4711");
  EXPECT_EQ(ReadClusterFile(options_.folder)->pid, getpid());
  EXPECT_EQ(ErrorReason(LocalCluster::Start(options_, absl::Seconds(1)).status()), "CLUSTER_RUNNING");
  EXPECT_EQ(RunningCluster(options_.folder)->value_or(0), getpid());
  (*cluster)->Stop();
  for (const std::string& line : Started()) EXPECT_FALSE(Alive(PidOf(line))) << line;
  EXPECT_TRUE(absl::IsNotFound(ReadClusterFile(options_.folder).status()));
  cluster->reset();
  EXPECT_FALSE(RunningCluster(options_.folder)->has_value());
}

TEST_F(LocalClusterTest, WhileItStartsNobodyIsToldOfAClusterThatWasKilled) {
  options_.islands = 0;
  ASSERT_TRUE(WriteClusterFile(options_.folder, {.coordinator = "127.0.0.1:1", .pid = 1}).ok());
  Program("atoll-coordinator",
          "#!/bin/sh\nls " + options_.folder + " > " + folder_ +
              "/seen\n"
              "while [ $# -gt 0 ]; do [ \"$1\" = --port-file ] && echo 127.0.0.1:4711 > \"$2\"; shift; done\n"
              "exec sleep 600\n");
  const auto cluster = LocalCluster::Start(options_, absl::Seconds(20));
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const std::string seen = ReadFile(folder_ + "/seen").value_or("");
  EXPECT_THAT(seen, HasSubstr("lock"));
  EXPECT_THAT(seen, Not(HasSubstr("cluster.json")));
  EXPECT_EQ(ReadClusterFile(options_.folder)->pid, getpid());
}

TEST_F(LocalClusterTest, ExpertServersFollowTheCoordinatorAndTheRouterLeavesExpertsToThem) {
  options_.islands = 0;
  options_.expert_servers = 2;
  auto cluster = LocalCluster::Start(options_, absl::Seconds(20));
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  ASSERT_TRUE(Eventually([this] { return Started().size() == 4; }));
  for (const char* name : {"expert-server-0", "expert-server-1"}) {
    EXPECT_EQ(CountStarted(std::string("atoll-worker --serve --server-id ") + name +
                           " --listen 127.0.0.1:0 --coordinator 127.0.0.1:4711 --blob-store file://" + options_.folder +
                           "/blobs --threads 1"),
              1u);
  }
  EXPECT_EQ(CountStarted("--own-networks router"), 1u);
  (*cluster)->Stop();
  for (const std::string& line : Started()) EXPECT_FALSE(Alive(PidOf(line))) << line;
}

TEST_F(LocalClusterTest, WhatIsMeantForOtherClustersDoesNotReachItsProcesses) {
  options_.islands = 0;
  Program("atoll-coordinator",
          "#!/bin/sh\nenv > " + folder_ +
              "/environment\n"
              "while [ $# -gt 0 ]; do [ \"$1\" = --port-file ] && echo 127.0.0.1:4711 > \"$2\"; shift; done\n"
              "exec sleep 600\n");
  const std::vector<const char*> variables = {"ATOLL_TLS_DIR",    "ATOLL_CA",        "ATOLL_TOKEN_FILE",
                                              "ATOLL_PRINCIPALS", "ATOLL_DENY_LIST", "ATOLL_AUDIT_LOG"};
  for (const char* variable : variables) setenv(variable, "/of/another/cluster", 1);
  const auto cluster = LocalCluster::Start(options_, absl::Seconds(20));
  for (const char* variable : variables) unsetenv(variable);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const std::string environment = ReadFile(folder_ + "/environment").value_or("");
  EXPECT_THAT(environment, HasSubstr("OMP_NUM_THREADS="));
  EXPECT_THAT(environment, Not(HasSubstr("/of/another/cluster")));
}

TEST_F(LocalClusterTest, WhatDiesIsStartedAgainAtTheSameAddress) {
  auto cluster = LocalCluster::Start(options_, absl::Seconds(20));
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  ASSERT_TRUE(Eventually([this] { return Started().size() == 6; }));
  ASSERT_THAT(Started().front(), HasSubstr("atoll-coordinator --listen 127.0.0.1:0"));
  kill(PidOf(Started().front()), SIGKILL);
  ASSERT_TRUE(Eventually([&] {
    (*cluster)->Supervise(absl::Now() + absl::Milliseconds(50));
    return Started().size() == 7;
  }));
  EXPECT_THAT(Started().back(), HasSubstr("atoll-coordinator --listen 127.0.0.1:4711"));
  const auto events = (*cluster)->TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0], "coordinator was ended by signal 9; starting it again in 0.5 s");
}

TEST_F(LocalClusterTest, ASignalEndsTheSupervision) {
  auto cluster = LocalCluster::Start(options_, absl::Seconds(20));
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  kill(getpid(), SIGTERM);
  EXPECT_EQ((*cluster)->Supervise(absl::Now() + absl::Seconds(20)), SIGTERM);
}

TEST_F(LocalClusterTest, AProgramThatFailsAtOnceIsShownWithItsWords) {
  Program("atoll-coordinator", "#!/bin/sh\necho 'no such store' >&2\nexit 3\n");
  const auto cluster = LocalCluster::Start(options_, absl::Seconds(20));
  ASSERT_FALSE(cluster.ok());
  EXPECT_EQ(ErrorReason(cluster.status()), "CLUSTER_NOT_READY");
  EXPECT_THAT(std::string(cluster.status().message()), HasSubstr("exited with code 3"));
  EXPECT_THAT(std::string(cluster.status().message()), HasSubstr("no such store"));
  std::filesystem::remove(folder_ + "/programs/atoll-coordinator");
  EXPECT_EQ(ErrorReason(LocalCluster::Start(options_, absl::Seconds(20)).status()), "PROGRAM_NOT_FOUND");
}

TEST_F(LocalClusterTest, ChildrenDieWithAParentThatIsKilled) {
  const pid_t parent = fork();
  ASSERT_GE(parent, 0);
  if (parent == 0) {
    auto cluster = LocalCluster::Start(options_, absl::Seconds(20));
    if (!cluster.ok()) _exit(1);
    (*cluster)->Supervise(absl::InfiniteFuture());
    _exit(0);
  }
  ASSERT_TRUE(Eventually([this] { return Started().size() == 6; }));
  kill(parent, SIGKILL);
  waitpid(parent, nullptr, 0);
  for (const std::string& line : Started()) {
    EXPECT_TRUE(Eventually([&] { return !Alive(PidOf(line)); })) << line;
  }
}

}  // namespace
}  // namespace atl::client
