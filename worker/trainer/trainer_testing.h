// For tests: synthetic images, and an island of threads over the loopback transport.
#pragma once

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/counter_random.h"
#include "common/storage/testing.h"
#include "fmt/format.h"
#include "gtest/gtest.h"
#include "worker/trainer/trainer.h"
#include "worker/transport/loopback/loopback_transport.h"

namespace atl::trainer {

// Images like digits: one bright stroke per class, placed and shaded by the sample. Labels repeat in turn; the first
// half of them is cluster 0, the other cluster 1.
class StrokeData : public TrainingData {
 public:
  StrokeData(int64_t size, int32_t side, int32_t classes) : size_(size), side_(side), classes_(classes) {}
  int64_t size() const override { return size_; }
  absl::StatusOr<Item> Read(int64_t position, std::span<float> pixels) override {
    const auto label = static_cast<int32_t>(position % classes_);
    const CounterRandom random(17, RandomPurpose::kSubset, 0, static_cast<uint64_t>(position));
    const double angle = 3.14159265 * label / classes_;
    const double offset = static_cast<double>(random.Uniform(0)) * 2 - 1;
    const float brightness = 0.7F + 0.3F * random.Uniform(1);
    const double middle = (side_ - 1) / 2.0;
    for (size_t i = 0; i < pixels.size(); ++i) {
      const double x = static_cast<double>(i % static_cast<size_t>(side_)) - middle;
      const double y = static_cast<double>(i / static_cast<size_t>(side_) % static_cast<size_t>(side_)) - middle;
      const double distance = x * std::cos(angle) + y * std::sin(angle) - offset;
      pixels[i] = 2 * brightness * static_cast<float>(std::exp(-distance * distance)) - 1;
    }
    return Item{.label = label, .cluster = label * 2 / classes_};
  }

 private:
  const int64_t size_;
  const int32_t side_;
  const int32_t classes_;
};

inline TrainerOptions SmallOptions() {
  TrainerOptions options;
  options.model = {.patch = 2, .width = 32, .depth = 6, .heads = 4, .mlp_ratio = 4.0};
  options.training.steps = 40;
  options.training.batch_size = 16;
  options.training.learning_rate = 1e-3;
  options.training.warmup_steps = 3;
  options.training.learning_rate_schedule = "cosine";
  options.training.weight_decay = 0.01;
  options.training.flip = true;
  options.channels = 1;
  options.height = 8;
  options.width = 8;
  options.classes = 5;
  options.clusters = 2;
  options.seed = 3;
  return options;
}

inline planner::Plan PlanFor(const TrainerOptions& options, int32_t stages, const std::string& schedule = "1f1b",
                             int32_t micro_batches = 4) {
  planner::PlanRequest request;
  request.pipeline = {.schedule = schedule, .stages = stages, .micro_batches = micro_batches};
  request.precision = options.training.precision;
  request.batch_size = options.training.batch_size;
  request.ranks = stages;
  const int32_t tokens = (options.height / options.model.patch) * (options.width / options.model.patch);
  request.profile = planner::CountedProfile(options.model, tokens, options.channels);
  absl::StatusOr<planner::Plan> plan = planner::MakePlan(request);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

// Runs `run(rank, transport)` on a thread per rank, over a connected loopback transport (null for one rank).
inline void OnEveryRank(const planner::Plan& plan, const std::function<void(int32_t, transport::Transport*)>& run) {
  auto transports = transport::MakeLoopbackTransports(plan.rank_count());
  std::vector<std::string> addresses;
  for (const auto& transport : transports) addresses.push_back(transport->Address());
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < plan.rank_count(); ++rank) {
    threads.emplace_back([&, rank] {
      transport::Transport* transport = transports[static_cast<size_t>(rank)].get();
      const absl::Status connected = transport->Connect(addresses, engine::LanesOf(plan), absl::Seconds(20));
      EXPECT_TRUE(connected.ok()) << connected;
      run(rank, plan.rank_count() == 1 ? nullptr : transport);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The results of training on an island: one per step, and the state by canonical name.
struct Trained {
  std::vector<StepResult> results;
  std::map<std::string, std::string> state;  // name -> bytes
  std::string manifest_uri;
  std::string manifest_sha256;
};

// Trains to `until_step` from the start, or from `resume`, and writes a checkpoint as a leader would.
inline Trained Train(const TrainerOptions& options, const planner::Plan& plan, int64_t until_step,
                     storage::TemporaryStore* store, const Trained* resume = nullptr) {
  Trained trained;
  const size_t ranks = static_cast<size_t>(plan.rank_count());
  static std::atomic<int> nonce = 0;
  const std::string folder =
      storage::CheckpointFolder(store->get()->UriOf("task"), until_step, fmt::format("n{}", nonce++));
  std::vector<std::vector<storage::CheckpointFile>> files(ranks);
  std::vector<storage::CheckpointManifest> manifests(ranks);
  OnEveryRank(plan, [&](int32_t rank, transport::Transport* transport) {
    StrokeData data(160, options.height, 5);
    auto trainer = Trainer::Create(options, plan, rank, &data, transport, Clock::Real());
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    if (resume != nullptr) {
      auto reader = storage::CheckpointReader::Open(store->get(), resume->manifest_uri, resume->manifest_sha256);
      ASSERT_TRUE(reader.ok()) << reader.status();
      const absl::Status loaded = (*trainer)->Load(*reader);
      ASSERT_TRUE(loaded.ok()) << loaded;
    }
    while ((*trainer)->step() < until_step) {
      absl::StatusOr<StepResult> result = (*trainer)->Step();
      ASSERT_TRUE(result.ok()) << result.status();
      if (result->has_loss) trained.results.push_back(*result);
    }
    auto snapshot = (*trainer)->TakeSnapshot();
    ASSERT_TRUE(snapshot.ok()) << snapshot.status();
    auto written = (*snapshot)->Write(store->get(), folder);
    ASSERT_TRUE(written.ok()) << written.status();
    files[static_cast<size_t>(rank)] = *written;
    manifests[static_cast<size_t>(rank)] = (*snapshot)->Manifest();
  });
  storage::CheckpointManifest manifest = manifests[0];
  for (const auto& of_rank : files) manifest.files.insert(manifest.files.end(), of_rank.begin(), of_rank.end());
  const std::string json = storage::ToJson(manifest);
  trained.manifest_uri = folder + "manifest.json";
  trained.manifest_sha256 = storage::Sha256(json);
  EXPECT_TRUE(store->get()->CreateOnce(trained.manifest_uri, json).ok());
  auto reader = storage::CheckpointReader::Open(store->get(), trained.manifest_uri, trained.manifest_sha256);
  EXPECT_TRUE(reader.ok()) << reader.status();
  if (reader.ok()) {
    for (const auto& [name, view] : reader->tensors()) trained.state[name] = std::string(view.bytes);
  }
  return trained;
}

inline void ExpectSameState(const Trained& a, const Trained& b) {
  ASSERT_FALSE(a.state.empty());
  ASSERT_EQ(a.state.size(), b.state.size());
  for (const auto& [name, bytes] : a.state) {
    const auto other = b.state.find(name);
    ASSERT_NE(other, b.state.end()) << name;
    EXPECT_TRUE(bytes == other->second) << name << " differs";
  }
}

}  // namespace atl::trainer
