// The whole path over real processes, as a user walks it: a local cluster, real digits, two jobs that differ in their
// seed only, samples of each, and the figures of the report.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/digits_gate.h"

namespace atl {
namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string ReadAll(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Processes whose command line names `folder`.
std::vector<std::string> ProcessesOf(const std::string& folder) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::string command = ReadAll(entry.path().string() + "/cmdline");
    for (char& c : command) c = c == '\0' ? ' ' : c;
    if (command.find("atoll") != std::string::npos && command.find(folder) != std::string::npos)
      found.push_back(command);
  }
  return found;
}

class DigitsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    digits_ = Environment("ATOLL_PREFIX") + "/data/digits.parquet";
    if (!std::filesystem::exists(digits_)) GTEST_SKIP() << "no digits at " << digits_ << "; run deploy/setup.sh";
    folder_ = testing::TempDir() + "/digits_test." + std::to_string(getpid());
    std::filesystem::create_directories(folder_);
    setenv("ATOLL_CLUSTER", (folder_ + "/cluster").c_str(), 1);
    for (const char* name : {"ATOLL_COORDINATOR", "ATOLL_ROUTER", "ATOLL_BLOB_STORE"}) unsetenv(name);
    Atoll("up --detach --islands 2 --ranks 2 --dir " + folder_ + "/cluster");
  }
  void TearDown() override {
    if (folder_.empty()) return;
    Atoll("down");
    EXPECT_EQ(ProcessesOf(folder_), std::vector<std::string>());
    if (HasFailure()) {
      std::fprintf(stderr, "logs: %s/cluster/logs\n", folder_.c_str());
    } else {
      std::filesystem::remove_all(folder_);
    }
  }

  // Runs one command, which must succeed, and returns its standard output.
  static std::string Atoll(const std::string& arguments) {
    const std::string command = Environment("ATOLL_BINARY_DIR") + "/bin/atoll " + arguments;
    std::fprintf(stderr, "$ atoll %s\n", arguments.c_str());
    FILE* pipe = popen(command.c_str(), "r");
    std::string out;
    char buffer[4096];
    for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) out.append(buffer, n);
    const int status = pclose(pipe);
    EXPECT_EQ(WEXITSTATUS(status), 0) << arguments << "\n" << out;
    return out;
  }

  std::string Submit(int seed) {
    std::string id = Atoll("submit " + Environment("ATOLL_SOURCE_DIR") + "/deploy/jobs/digits.yaml --set seed=" +
                           std::to_string(seed) + " --set model_name=digits-" + std::to_string(seed));
    while (!id.empty() && id.back() == '\n') id.pop_back();
    return id;
  }

  // Samples with both modes, and the report's figures.
  nlohmann::json Report(int seed, const std::string& job) {
    const std::string out = folder_ + "/report-" + std::to_string(seed);
    const std::string common = "sample --class all --count 50 --wait 120 --model digits-" + std::to_string(seed) +
                               " --seed " + std::to_string(10'000 * seed);
    Atoll(common + " --mode top1 --out " + out + "/top1");
    Atoll(common + " --mode full --out " + out + "/full --out " + out + "/samples.png");
    Atoll("report --job " + job + " --samples " + out + "/top1 --samples " + out + "/full --out " + out);
    for (const char* file : {"samples.png", "clusters.png", "report.md"}) {
      EXPECT_GT(std::filesystem::file_size(out + "/" + file), 500u) << file;
    }
    return nlohmann::json::parse(ReadAll(out + "/report.json"));
  }

  static void CheckFigures(const nlohmann::json& report) {
    ASSERT_EQ(report.at("samples").size(), 2u);
    for (const auto& samples : report.at("samples")) {
      std::fprintf(stderr, "%s, %s\n", report.at("model").get<std::string>().c_str(), samples.dump().c_str());
      EXPECT_EQ(samples.at("images"), 500);
      EXPECT_THAT(GateProblems(samples), ::testing::IsEmpty());
    }
    int64_t clustered = 0;
    for (const auto& cluster : report.at("clusters")) clustered += cluster.at("samples").get<int64_t>();
    EXPECT_EQ(clustered, report.at("dataset").at("training_samples"));
    ASSERT_EQ(report.at("networks").size(), 5u);
    for (const auto& network : report.at("networks")) {
      EXPECT_EQ(network.at("steps"), 400);
      EXPECT_LT(network.at("loss").get<double>(), 1.0) << network;
    }
  }

  std::string folder_;
  std::string digits_;
};

TEST_F(DigitsTest, SamplesOfTwoSeedsLookLikeDigits) {
  Atoll("dataset import " + digits_ + " --name digits");
  const std::string first = Submit(1);
  const std::string second = Submit(2);
  Atoll("jobs watch " + first);
  Atoll("jobs watch " + second);
  CheckFigures(Report(1, first));
  CheckFigures(Report(2, second));
}

}  // namespace
}  // namespace atl
