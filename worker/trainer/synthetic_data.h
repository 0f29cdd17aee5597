// Samples for measurements, whose times do not depend on the values.
#pragma once

#include <cstdint>
#include <span>

#include "common/base/counter_random.h"
#include "worker/trainer/trainer.h"

namespace atl::trainer {

// Noise, equal for a position at every read.
class SyntheticData : public TrainingData {
 public:
  SyntheticData(int32_t classes, int32_t clusters) : classes_(classes), clusters_(clusters) {}
  int64_t size() const override { return 4096; }
  absl::StatusOr<Item> Read(int64_t position, std::span<float> pixels) override {
    CounterRandom(1, RandomPurpose::kSubset, 0, static_cast<uint64_t>(position)).Uniform(pixels);
    return Item{.label = classes_ > 0 ? static_cast<int32_t>(position % classes_) : -1,
                .cluster = clusters_ > 0 ? static_cast<int32_t>(position % clusters_) : -1};
  }

 private:
  const int32_t classes_;
  const int32_t clusters_;
};

}  // namespace atl::trainer
