// `atoll profile`: the client starts the processes that measure.
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/storage/profile_file.h"
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
    return std::make_unique<Process>(command, folder_ + "/log", std::vector<std::string>{"TMPDIR=" + folder_});
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

TEST_F(ProfileCommandTest, AProcessThatCannotMeasureIsQuoted) {
  const auto [code, said] = Run({"--image", "1x7x7"});
  EXPECT_NE(code, 0);
  EXPECT_THAT(said, HasSubstr("rank 0"));
  EXPECT_THAT(said, HasSubstr("patch"));
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
