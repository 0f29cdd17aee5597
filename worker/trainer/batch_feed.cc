#include "worker/trainer/batch_feed.h"

#include <algorithm>

#include "common/base/counter_random.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"

namespace atl::trainer {
namespace {

// Mirrors an image [c][h][w] left to right.
void Flip(std::span<float> pixels, int32_t width) {
  const auto row = static_cast<size_t>(width);
  for (size_t start = 0; start + row <= pixels.size(); start += row) {
    std::reverse(pixels.begin() + static_cast<ptrdiff_t>(start), pixels.begin() + static_cast<ptrdiff_t>(start + row));
  }
}

absl::Status OutOfRange(const char* what, int64_t position, int64_t count, int64_t found) {
  return MakeError(absl::StatusCode::kFailedPrecondition, "SAMPLE_OUT_OF_RANGE",
                   fmt::format("sample {}: expected a {} below {}; found {}", position, what, count, found));
}

}  // namespace

BatchFeed::BatchFeed(const TrainerOptions& options, const planner::Plan& plan, int32_t replica, TrainingData* data)
    : options_(options),
      micro_batch_size_(plan.micro_batch_size),
      first_sample_(int64_t{replica} * plan.micro_batches * plan.micro_batch_size),
      data_(data),
      order_(options.seed, data->size()),
      built_(static_cast<size_t>(plan.micro_batches)) {}

void BatchFeed::Begin(int64_t cursor) {
  cursor_ = cursor;
  for (std::optional<MicroBatch>& batch : built_) batch.reset();
}

absl::StatusOr<const MicroBatch*> BatchFeed::Get(int32_t m) {
  std::optional<MicroBatch>& batch = built_[static_cast<size_t>(m)];
  if (!batch.has_value()) {
    ATOLL_ASSIGN_OR_RETURN(batch, Build(m));
  }
  return &*batch;
}

absl::StatusOr<MicroBatch> BatchFeed::Build(int32_t m) {
  const int64_t n = micro_batch_size_;
  const at::Device device(options_.device);
  const auto host = at::TensorOptions().pinned_memory(device.is_cuda());  // see model::Noise
  at::Tensor x0 = at::empty({n, options_.channels, options_.height, options_.width}, host.dtype(at::kFloat));
  at::Tensor classes = at::zeros({n}, at::kLong);
  at::Tensor clusters = at::zeros({n}, host.dtype(at::kLong));
  std::vector<uint64_t> sequence(static_cast<size_t>(n));
  const auto elements = static_cast<size_t>(x0.numel() / n);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t cursor = cursor_ + first_sample_ + static_cast<int64_t>(m) * n + i;
    const int64_t position = order_.At(cursor);
    const std::span<float> pixels(x0.data_ptr<float>() + static_cast<size_t>(i) * elements, elements);
    ATOLL_ASSIGN_OR_RETURN(const TrainingData::Item item, data_->Read(position, pixels));
    sequence[static_cast<size_t>(i)] = static_cast<uint64_t>(cursor);
    if (options_.training.flip &&
        CounterRandom(options_.seed, RandomPurpose::kFlip, 0, static_cast<uint64_t>(cursor)).Uniform() < 0.5F) {
      Flip(pixels, options_.width);
    }
    if (options_.classes > 0) {
      if (item.label >= options_.classes) return OutOfRange("label", position, options_.classes, item.label);
      classes.data_ptr<int64_t>()[i] = item.label < 0 ? options_.classes : item.label;  // unlabelled: the null class
    }
    if (options_.objective == Objective::kCluster) {
      if (item.cluster < 0 || item.cluster >= options_.clusters) {
        return OutOfRange("cluster", position, options_.clusters, item.cluster);
      }
      clusters.data_ptr<int64_t>()[i] = item.cluster;
    }
  }
  return MicroBatch{.noised = model::Noise(x0.to(device, /*non_blocking=*/true), classes, sequence, options_.seed,
                                           options_.classes, options_.training.class_dropout),
                    .clusters = clusters.to(device, /*non_blocking=*/true)};
}

}  // namespace atl::trainer
