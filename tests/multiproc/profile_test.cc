// `atoll profile`: the client starts the processes that measure.
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/formats/profile_file.h"
#include "tests/multiproc/process.h"

namespace atl::testing_cluster {
namespace {

using ::testing::HasSubstr;

constexpr char kJob[] = R"(
model_name: tiny
dataset: dots
experts: 1
model: {patch: 2, width: 32, depth: 2, heads: 4}
training: {steps: 10, batch_size: 8}
pipeline: {schedule: 1f1b, micro_batches: 2}
)";

std::string ReadAll(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class ProfileCommandTest : public testing::Test {
 protected:
  ProfileCommandTest() {
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    std::ofstream(folder_ + "/job.yaml") << kJob;
  }
  ~ProfileCommandTest() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<Process> Start(const std::vector<std::string>& arguments) {
    std::vector<std::string> command = {std::string(std::getenv("ATOLL_BINARY_DIR")) + "/bin/atoll", "profile",
                                        folder_ + "/job.yaml"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    // Without a GPU, on a machine that has one too.
    const std::vector<std::string> environment = {"TMPDIR=" + folder_, "CUDA_VISIBLE_DEVICES="};
    return std::make_unique<Process>(command, folder_ + "/log", environment);
  }

  // Its exit code and all that it said.
  std::pair<int, std::string> Run(const std::vector<std::string>& arguments) {
    const std::unique_ptr<Process> process = Start(arguments);
    const std::optional<int> code = process->Wait(absl::Seconds(120));
    return {code.value_or(-1000), process->Log()};
  }

  // The folders that processes meet in; none when the command has ended.
  std::vector<std::string> Meetings() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      if (entry.path().filename().string().starts_with("atoll-profile-")) found.push_back(entry.path());
    }
    return found;
  }

  // Returns the process id of a measuring rank; unset while there is none.
  std::optional<pid_t> PidOfRank(int rank) const {
    const std::vector<std::string> meetings = Meetings();
    if (meetings.empty()) return std::nullopt;
    const std::string flag = std::string("--profile\0", 10) + meetings.front() + '\0' + std::string("--rank\0", 7) +
                             std::to_string(rank) + '\0';
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const pid_t pid = std::atoi(entry.path().filename().c_str());
      if (pid > 0 && ReadAll(entry.path() / "cmdline").find(flag) != std::string::npos) return pid;
    }
    return std::nullopt;
  }

  std::string folder_ = testing::TempDir() + "atoll_profile_XXXXXX";
};

TEST_F(ProfileCommandTest, TwoRanksMeasureAndTheFileHoldsWhatTheTableShows) {
  const auto [code, said] = Run({"--ranks", "2", "--image", "1x8x8", "--out", folder_ + "/profile.json"});
  ASSERT_EQ(code, 0) << said;
  EXPECT_THAT(said, HasSubstr("Micro-batches of 4"));
  EXPECT_THAT(said, HasSubstr("block 1"));
  EXPECT_THAT(said, HasSubstr("transfers"));
  const auto profile = storage::ParseProfile(ReadAll(folder_ + "/profile.json"), "profile.json");
  ASSERT_TRUE(profile.ok()) << profile.status();
  ASSERT_EQ(profile->layers.size(), 2u) << "2 micro-batches of 8 samples, on one replica and on two";
  EXPECT_EQ(profile->layers.count(4), 1u);
  EXPECT_EQ(profile->layers.at(2).size(), 4u);
  EXPECT_EQ(profile->rank_slowdown.size(), 2u);
  EXPECT_GT(profile->layers.at(2)[1].forward_seconds, 0);
  EXPECT_GT(profile->transfer_bytes_per_second, 0);
  EXPECT_THAT(Meetings(), testing::IsEmpty());
}

TEST_F(ProfileCommandTest, FrozenComponentsAreMeasuredToo) {
  std::ofstream(folder_ + "/job.yaml", std::ios::app) << "frozen: [{name: encoder, output: latent, layers: [{kind: "
                                                         "convolution, width: 2, stride: 2}, {kind: block}]}]\n";
  const auto [code, said] = Run({"--ranks", "2", "--image", "1x8x8", "--out", folder_ + "/profile.json"});
  ASSERT_EQ(code, 0) << said;
  EXPECT_THAT(said, HasSubstr("Frozen component encoder: milliseconds by number of samples"));
  const auto profile = storage::ParseProfile(ReadAll(folder_ + "/profile.json"), "profile.json");
  ASSERT_TRUE(profile.ok()) << profile.status();
  ASSERT_EQ(profile->frozen.size(), 1u);
  ASSERT_EQ(profile->frozen[0].layers.size(), 2u);
  EXPECT_EQ(profile->frozen[0].layers[1].seconds.size(), 4u);  // of a batch of 8
  EXPECT_EQ(profile->frozen[0].layers[1].output_bytes, 4 * 2 * 4 * 4);
}

TEST_F(ProfileCommandTest, AProcessThatCannotMeasureIsQuoted) {
  const auto [code, said] = Run({"--image", "1x8x8", "--device", "cuda"});
  EXPECT_NE(code, 0);
  EXPECT_THAT(said, HasSubstr("rank 0"));
  EXPECT_THAT(said, HasSubstr("cuda"));
  EXPECT_THAT(Meetings(), testing::IsEmpty());
}

TEST_F(ProfileCommandTest, TheProcessThatFailedIsNamedNotThoseThatWaitForIt) {
  const std::unique_ptr<Process> process = Start({"--ranks", "2", "--image", "1x8x8", "--micro-batch-sizes", "512"});
  std::optional<pid_t> first;
  std::optional<pid_t> second;
  ASSERT_TRUE(Await(absl::Seconds(60), [&] { return (first = PidOfRank(0)) && (second = PidOfRank(1)); }));
  // It cannot fail before the other does, nor end by itself.
  ASSERT_EQ(kill(*first, SIGSTOP), 0);
  ASSERT_EQ(kill(*second, SIGKILL), 0);
  EXPECT_EQ(process->Wait(absl::Seconds(60)), 5) << process->Log();
  EXPECT_THAT(process->Log(), HasSubstr("the process that measures as rank 1 was ended by signal 9"));
  EXPECT_EQ(kill(*first, 0), -1) << "it is left behind";
  EXPECT_THAT(Meetings(), testing::IsEmpty());
}

TEST_F(ProfileCommandTest, AnInterruptEndsItWithoutATrace) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const std::unique_ptr<Process> process = Start({"--ranks", "2", "--image", "1x8x8", "--micro-batch-sizes", "512"});
    // As early as it comes: whatever the processes have got to.
    ASSERT_TRUE(Await(absl::Seconds(60), [&] { return !Meetings().empty(); })) << process->Log();
    process->Signal(signal);
    EXPECT_EQ(process->Wait(absl::Seconds(60)), 130) << process->Log();
    EXPECT_THAT(process->Log(), HasSubstr("interrupted"));
    EXPECT_THAT(Meetings(), testing::IsEmpty());
  }
}

TEST_F(ProfileCommandTest, AnInterruptWhileRanksMeasureEndsThem) {
  const std::unique_ptr<Process> process = Start({"--ranks", "2", "--image", "1x8x8", "--micro-batch-sizes", "512"});
  const auto measuring = [&] {
    const std::vector<std::string> meetings = Meetings();
    return !meetings.empty() && std::filesystem::exists(meetings.front() + "/address-1");
  };
  ASSERT_TRUE(Await(absl::Seconds(60), measuring)) << process->Log();
  process->Signal(SIGINT);
  EXPECT_EQ(process->Wait(absl::Seconds(60)), 130) << process->Log();
  EXPECT_THAT(Meetings(), testing::IsEmpty());
}

}  // namespace
}  // namespace atl::testing_cluster
