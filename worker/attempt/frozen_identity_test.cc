#include "worker/attempt/frozen_identity.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>

namespace atl::worker {
namespace {

TrainingInputs Inputs() {
  TrainingInputs inputs;
  inputs.options.frozen = {
      {.name = "encoder", .output = "latent", .layers = {{.kind = "convolution", .width = 4}}, .weights = "file:///w"}};
  inputs.options.frozen_files = std::make_shared<const std::map<std::string, std::string>>(
      std::map<std::string, std::string>{{"file:///w", "weights"}});
  inputs.options.channels = 1;
  inputs.options.height = inputs.options.width = 8;
  inputs.partitions = {
      {{.uri = "file:///a", .rows = 3, .sha256 = "aa"}, {.uri = "file:///b", .rows = 4, .sha256 = "bb"}}};
  return inputs;
}

TEST(FrozenCacheKey, IsOfWhatComponentsComputeAndOfTheSamplesTheyRead) {
  const std::vector<std::function<void(TrainingInputs*)>> changes = {
      [](auto*) {},
      [](auto* i) { i->options.frozen[0].layers[0].width = 5; },
      [](auto* i) {
        i->options.frozen_files = std::make_shared<const std::map<std::string, std::string>>(
            std::map<std::string, std::string>{{"file:///w", "others"}});
      },
      [](auto* i) { i->options.height = 4; },
      [](auto* i) { i->options.classes = 10; },
      [](auto* i) { i->options.training.flip = true; },
      [](auto* i) { i->options.frozen_seed = 2; },
      [](auto* i) { i->partitions[0][0].sha256 = "cc"; },
      [](auto* i) { std::swap(i->partitions[0][0], i->partitions[0][1]); },
  };
  std::set<std::string> keys;
  for (const auto& change : changes) {
    TrainingInputs inputs = Inputs();
    change(&inputs);
    keys.insert(FrozenCacheKey(inputs));
  }
  EXPECT_EQ(keys.size(), changes.size());
  // The key ignores the location of the shards, the number of steps and the seed.
  TrainingInputs inputs = Inputs();
  inputs.partitions[0][0].uri = "file:///elsewhere";
  inputs.options.training.steps = 7;
  inputs.options.seed = 9;
  EXPECT_TRUE(keys.contains(FrozenCacheKey(inputs)));
}

}  // namespace
}  // namespace atl::worker
