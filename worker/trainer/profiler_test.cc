#include "worker/trainer/profiler.h"

#include <torch/csrc/jit/api/module.h>

#include <algorithm>
#include <sstream>
#include <thread>

#include "common/base/errors.h"
#include "common/planner/frozen_flow.h"
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

TEST(ProfilerTest, TheLastLayerOfASelfConditionedModelGivesItsEstimateBack) {
  ProfilerOptions options = Small();
  options.trainer.model.self_conditioning = true;
  const auto profile = ProfileRank(options, nullptr, Clock::Real());
  ASSERT_TRUE(profile.ok()) << profile.status();
  const TrainerOptions& trainer = options.trainer;
  EXPECT_EQ(profile->layers.at(8).back().output_bytes, 8.0 * trainer.channels * trainer.height * trainer.width * 4);
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

// Returns the profiles that `ranks` ranks, run as threads, measure at the same time.
std::vector<planner::Profile> MeasureOnRanks(const ProfilerOptions& options, int32_t ranks) {
  auto transports = transport::MakeLoopbackTransports(ranks);
  std::vector<std::string> addresses;
  for (const auto& transport : transports) addresses.push_back(transport->Address());
  std::vector<absl::StatusOr<planner::Profile>> profiles(ranks);
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      transport::Transport* const transport = transports[rank].get();
      const absl::Status connected = transport->Connect(addresses, ProfilerLanes(ranks), absl::Seconds(30));
      ASSERT_TRUE(connected.ok()) << connected;
      profiles[rank] = ProfileRank(options, transport, Clock::Real());
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<planner::Profile> measured;
  for (const auto& profile : profiles) {
    EXPECT_TRUE(profile.ok()) << profile.status();
    if (profile.ok()) measured.push_back(*profile);
  }
  return measured;
}

TEST(ProfilerTest, RanksMeasureTogetherAndTimeTheirTransfers) {
  const std::vector<planner::Profile> measured = MeasureOnRanks(Small(), 3);
  ASSERT_EQ(measured.size(), 3u);
  for (size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(measured[rank].transfer_latency_seconds > 0, rank + 1 < 3) << rank;
  const auto merged = planner::MergeProfiles(measured);
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_EQ(merged->rank_slowdown.size(), 3u);
  EXPECT_GT(merged->transfer_bytes_per_second, 0);
}

// Images of 8 x 8 become latents of 2 x 4 x 4, one layer a TorchScript file; labels a condition.
ProfilerOptions WithFrozenComponents() {
  ProfilerOptions options = Small();
  torch::jit::Module module("layer");
  module.register_parameter("scale", at::full({1}, 0.5), /*is_buffer=*/false);
  module.define("def forward(self, x):\n  return x * self.scale\n");
  std::ostringstream file;
  module.save(file);
  options.trainer.frozen = {
      {.name = "stem", .layers = {{.kind = "convolution", .width = 6}, {.kind = "block"}}},
      {.name = "encoder",
       .input = "stem",
       .output = "latent",
       .layers = {{.kind = "convolution", .width = 2, .stride = 2}}},
      {.name = "embedding", .input = "label", .layers = {{.kind = "embedding", .width = 32}}},
      {.name = "scaled", .input = "embedding", .output = "condition", .torchscript = {"file:///s.pt"}, .shape = {32}}};
  options.trainer.frozen_files = std::make_shared<const std::map<std::string, std::string>>(
      std::map<std::string, std::string>{{"file:///s.pt", file.str()}});
  return options;
}

TEST(ProfilerTest, MeasuresEveryFrozenLayerOverTheBatchAndPartsOfIt) {
  const ProfilerOptions options = WithFrozenComponents();
  const std::vector<planner::Profile> measured = MeasureOnRanks(options, 2);
  ASSERT_EQ(measured.size(), 2u);
  const auto merged = planner::MergeProfiles(measured);
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_TRUE(planner::CheckProfile(*merged).ok()) << planner::CheckProfile(*merged);
  // The trained layers are measured as without frozen components, except for their shape.
  EXPECT_EQ(merged->layer_count(), 8);
  ASSERT_EQ(merged->frozen.size(), 4u);
  EXPECT_EQ(merged->frozen[0].name, "stem");
  EXPECT_EQ(merged->frozen[1].reads, std::vector<int32_t>{0});
  EXPECT_EQ(merged->frozen[3].reads, std::vector<int32_t>{2});
  for (const planner::FrozenComponentProfile& component : merged->frozen) {
    for (const planner::FrozenLayerProfile& layer : component.layers) {
      std::vector<int32_t> sizes;
      for (const auto& [samples, seconds] : layer.seconds) {
        sizes.push_back(samples);
        EXPECT_GT(seconds, 0);
      }
      EXPECT_EQ(sizes, planner::FrozenSizes(16));
    }
  }
  const auto expect_bytes = [&](size_t component, size_t layer, double input, double output, double parameters) {
    const planner::FrozenLayerProfile& found = merged->frozen[component].layers[layer];
    EXPECT_EQ(found.input_bytes, input) << component << " " << layer;
    EXPECT_EQ(found.output_bytes, output) << component << " " << layer;
    EXPECT_EQ(found.parameter_bytes, parameters) << component << " " << layer;
  };
  expect_bytes(0, 0, 4 * 64, 4 * 6 * 64, 4 * (6 * 9 + 6));
  expect_bytes(0, 1, 4 * 6 * 64, 4 * 6 * 64, 4 * 2 * (6 * 6 * 9 + 6));
  expect_bytes(1, 0, 4 * 6 * 64, 4 * 2 * 16, 4 * (2 * 6 * 9 + 2));
  expect_bytes(2, 0, 8, 4 * 32, 4 * 6 * 32);
  expect_bytes(3, 0, 4 * 32, 4 * 32, 4);
}

// A clock that each reading moves on: every action takes as long as one reading.
class SlowClock : public Clock {
 public:
  explicit SlowClock(absl::Duration step) : step_(step) {}
  absl::Time Now() override { return Clock::Real()->Now(); }
  absl::Duration Monotonic() override { return now_ += step_; }
  bool AwaitUntil(absl::Mutex* mutex, const absl::Condition& condition, absl::Duration deadline) override {
    return Clock::Real()->AwaitUntil(mutex, condition, deadline);
  }

 private:
  const absl::Duration step_;
  absl::Duration now_;
};

TEST(ProfilerTest, FrozenSizesThatWouldTakeTooLongAreLeftOut) {
  ProfilerOptions options = WithFrozenComponents();
  options.longest = absl::Seconds(9);
  // Five layers of a second each: 5 s for one sample foretell 10 for two.
  SlowClock clock(absl::Seconds(1));
  const auto profile = ProfileRank(options, nullptr, &clock);
  ASSERT_TRUE(profile.ok()) << profile.status();
  for (const planner::FrozenComponentProfile& component : profile->frozen) {
    for (const planner::FrozenLayerProfile& layer : component.layers) {
      EXPECT_EQ(layer.seconds, (std::map<int32_t, double>{{1, 1.0}}));
    }
  }
}

TEST(ProfilerTest, ACalibrationMeasuresTheFirstSizeAlone) {
  const auto profile = ProfileRank(Calibration(WithFrozenComponents()), nullptr, Clock::Real());
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_TRUE(profile->frozen.empty());
  ASSERT_EQ(profile->layers.size(), 1u);
  EXPECT_GT(planner::MicroBatchSeconds(*profile, 2), 0);
}

// A job's plan from what its ranks measured: they wait for milliseconds, and frozen layers take a fraction of one.
TEST(ProfilerTest, AMeasuredPlanFillsItsBubblesAndTrains) {
  ProfilerOptions options = WithFrozenComponents();
  options.trainer.model = {.patch = 1, .width = 128, .depth = 6, .heads = 4, .mlp_ratio = 4.0};
  options.trainer.frozen.resize(2);  // the condition would be of another width
  options.micro_batch_sizes = {4};
  const auto profile = planner::MergeProfiles(MeasureOnRanks(options, 2));
  ASSERT_TRUE(profile.ok()) << profile.status();
  planner::PlanRequest request{.pipeline = {.schedule = "1f1b", .micro_batches = 4},
                               .precision = options.precision,
                               .batch_size = 16,
                               .ranks = 2,
                               .profile = *profile,
                               .components = planner::ComponentsOf(options.trainer.frozen)};
  const auto plan = planner::MakePlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto frozen = [](const schedule::Action& action) { return action.kind == schedule::ActionKind::kFrozen; };
  int64_t in_bubbles = 0;
  for (const auto& rank : plan->schedule.ranks) {
    in_bubbles += std::count_if(std::find_if_not(rank.rbegin(), rank.rend(), frozen), rank.rend(), frozen);
  }
  EXPECT_GT(in_bubbles, 0) << schedule::ToText(plan->schedule);
  EXPECT_EQ(plan->reason.find(" 0 % of it in bubbles"), std::string::npos) << plan->reason;
  storage::TemporaryStore store;
  const Trained trained = Train(options.trainer, *plan, 3, &store);
  EXPECT_EQ(trained.results.size(), 3u);
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
