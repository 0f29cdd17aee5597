#include "worker/trainer/profiler.h"

#include <thread>

#include "common/base/errors.h"
#include "common/planner/measured_profile.h"
#include "gtest/gtest.h"
#include "worker/trainer/trainer_testing.h"

namespace atl::trainer {
namespace {

ProfilerOptions Small() {
  ProfilerOptions options{.trainer = SmallOptions(), .micro_batch_sizes = {2, 8}, .key = "small", .rounds = 2};
  options.precision = options.trainer.training.precision;
  return options;
}

double Sum(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
}

TEST(ProfilerTest, MeasuresEveryLayerAtEverySize) {
  const auto profile = ProfileRank(Small(), nullptr, Clock::Real());
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_TRUE(planner::CheckProfile(*profile).ok()) << planner::CheckProfile(*profile);
  EXPECT_EQ(profile->key, "small");
  ASSERT_EQ(profile->layers.size(), 2u);
  ASSERT_EQ(profile->layer_count(), 8);
  for (const auto& [size, layers] : profile->layers) {
    for (const planner::LayerProfile& layer : layers) {
      EXPECT_GT(layer.forward_seconds, 0);
      EXPECT_GT(layer.input_gradient_seconds, 0);
      EXPECT_GT(layer.weight_gradient_seconds, 0);
      EXPECT_GT(layer.backward_seconds, 0);
      EXPECT_GT(layer.kept_bytes, 0);
    }
  }
  EXPECT_GT(profile->optimizer_seconds_per_byte, 0);
}

// Memory is counted, not timed: it is the same every time and grows with the micro-batch.
TEST(ProfilerTest, MemoryIsExactAndGrowsWithTheSize) {
  const auto profile = ProfileRank(Small(), nullptr, Clock::Real());
  const auto again = ProfileRank(Small(), nullptr, Clock::Real());
  ASSERT_TRUE(profile.ok() && again.ok());
  constexpr double kTokens = 16;
  constexpr double kWidth = 32;
  for (size_t i = 0; i < 8; ++i) {
    const planner::LayerProfile& at_2 = profile->layers.at(2)[i];
    const planner::LayerProfile& at_8 = profile->layers.at(8)[i];
    EXPECT_EQ(at_8.kept_bytes, again->layers.at(8)[i].kept_bytes) << i;
    EXPECT_EQ(at_8.weight_gradient_bytes, again->layers.at(8)[i].weight_gradient_bytes) << i;
    EXPECT_NEAR(at_8.kept_bytes / at_2.kept_bytes, 4, 0.1) << i;
    EXPECT_LE(at_8.weight_gradient_bytes, at_8.kept_bytes) << i;
    // Tokens and the conditioning; the last layer computes the loss.
    EXPECT_EQ(at_8.output_bytes, i < 7 ? 8 * (kTokens + 1) * kWidth * 4 : 0) << i;
  }
  // A block keeps about twenty times its tokens, and most of it until its weights' gradients are done.
  const planner::LayerProfile& block = profile->layers.at(8)[3];
  const double tokens = 8 * kTokens * kWidth * 4;
  EXPECT_GT(block.kept_bytes, 15 * tokens);
  EXPECT_LT(block.kept_bytes, 30 * tokens);
  EXPECT_GT(block.weight_gradient_bytes, 0.5 * block.kept_bytes);
}

TEST(ProfilerTest, ParametersAreThoseOfTheModel) {
  const auto profile = ProfileRank(Small(), nullptr, Clock::Real());
  ASSERT_TRUE(profile.ok()) << profile.status();
  const double w = 32;
  EXPECT_EQ(profile->parameter_bytes[1], 4 * ((6 + 4 + 8) * w * w + (6 + 4 + 4 + 1) * w));
  EXPECT_GT(Sum(profile->parameter_bytes), 6 * profile->parameter_bytes[1]);
}

TEST(ProfilerTest, BlocksOfADeepModelAreNotAllRun) {
  ProfilerOptions options = Small();
  options.trainer.model.depth = 20;
  options.micro_batch_sizes = {1};
  const auto profile = ProfileRank(options, nullptr, Clock::Real());
  ASSERT_TRUE(profile.ok()) << profile.status();
  ASSERT_EQ(profile->layer_count(), 22);
  EXPECT_EQ(profile->parameter_bytes.size(), 22u);
  EXPECT_EQ(profile->layers.at(1)[20].kept_bytes, profile->layers.at(1)[1].kept_bytes);
  EXPECT_NE(profile->layers.at(1)[21].kept_bytes, profile->layers.at(1)[1].kept_bytes);
}

TEST(ProfilerTest, RanksMeasureTogetherAndTimeTheirTransfers) {
  constexpr int32_t kRanks = 3;
  auto transports = transport::MakeLoopbackTransports(kRanks);
  std::vector<std::string> addresses;
  for (const auto& transport : transports) addresses.push_back(transport->Address());
  std::vector<absl::StatusOr<planner::Profile>> profiles(kRanks);
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      transport::Transport* const transport = transports[rank].get();
      const absl::Status connected = transport->Connect(addresses, ProfilerLanes(kRanks), absl::Seconds(30));
      ASSERT_TRUE(connected.ok()) << connected;
      profiles[rank] = ProfileRank(Small(), transport, Clock::Real());
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<planner::Profile> measured;
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    ASSERT_TRUE(profiles[rank].ok()) << profiles[rank].status();
    EXPECT_EQ(profiles[rank]->transfer_latency_seconds > 0, rank + 1 < kRanks);
    measured.push_back(*profiles[rank]);
  }
  const auto merged = planner::MergeProfiles(measured);
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_EQ(merged->rank_slowdown.size(), 3u);
  EXPECT_GT(merged->transfer_bytes_per_second, 0);
}

TEST(ProfilerTest, AnInterruptionEndsIt) {
  ProfilerOptions options = Small();
  int asked = 0;
  options.interrupted = [&] { return ++asked < 6 ? absl::OkStatus() : absl::CancelledError("enough"); };
  EXPECT_TRUE(absl::IsCancelled(ProfileRank(options, nullptr, Clock::Real()).status()));
  EXPECT_EQ(asked, 6);
}

TEST(ProfilerTest, OptionsThatCannotBeAreNamed) {
  ProfilerOptions options = Small();
  options.micro_batch_sizes = {4, 0};
  EXPECT_EQ(ErrorReason(ProfileRank(options, nullptr, Clock::Real()).status()), "VALUE_OUT_OF_RANGE");
  options.micro_batch_sizes = {};
  EXPECT_EQ(ErrorReason(ProfileRank(options, nullptr, Clock::Real()).status()), "VALUE_OUT_OF_RANGE");
  options = Small();
  options.trainer.device = "abacus";
  EXPECT_EQ(ErrorReason(ProfileRank(options, nullptr, Clock::Real()).status()), "VALUE_UNKNOWN");
}

}  // namespace
}  // namespace atl::trainer
