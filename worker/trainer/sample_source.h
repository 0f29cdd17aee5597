// Reads samples of the run as tensors, in its shuffled order; any rank can read any of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/ATen.h>

#include "absl/status/statusor.h"
#include "common/dataset/dataset.h"
#include "worker/trainer/trainer.h"

namespace atl::trainer {

struct Samples {
  at::Tensor images;               // [n, c, h, w] float32 in [-1, 1], flipped if the draw decides so
  at::Tensor classes;              // [n] int64; the null class if there is no label. Class dropout is not applied
  at::Tensor clusters;             // [n] int64 (kCluster)
  std::vector<uint64_t> sequence;  // places in the run
  std::vector<int64_t> positions;  // in the data
  std::vector<bool> flipped;
};

// Not thread-safe.
class SampleSource {
 public:
  // `data` must outlive it and hold at least one sample.
  SampleSource(const TrainerOptions& options, TrainingData* data)
      : options_(options), data_(data), order_(options.seed, data->size()) {}

  // Returns samples [cursor, cursor + n) of the run, on the host. DATA_LOSS for a sample that the data cannot read,
  // FAILED_PRECONDITION for a label or cluster outside the options' range.
  absl::StatusOr<Samples> Read(int64_t cursor, int64_t n) const;
  // Reads one image of the data, mirrored or not, independent of its place in the run.
  absl::StatusOr<TrainingData::Item> ReadImage(int64_t position, bool flipped, std::span<float> pixels) const;

 private:
  const TrainerOptions& options_;
  TrainingData* const data_;
  const dataset::ShuffledOrder order_;
};

}  // namespace atl::trainer
