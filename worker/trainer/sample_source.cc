#include "worker/trainer/sample_source.h"

#include <algorithm>
#include <span>

#include "common/base/counter_random.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"
#include "worker/engine/activity.h"

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

absl::StatusOr<TrainingData::Item> SampleSource::ReadImage(int64_t position, bool flipped,
                                                           std::span<float> pixels) const {
  const engine::ReadingScope reading(options_.activity);
  absl::StatusOr<TrainingData::Item> item = data_->Read(position, pixels);
  if (item.ok() && flipped) Flip(pixels, options_.width);
  return item;
}

absl::StatusOr<Samples> SampleSource::Read(int64_t cursor, int64_t n) const {
  const auto host = at::TensorOptions().pinned_memory(at::Device(options_.device).is_cuda());  // see model::Noise
  Samples samples{.images = at::empty({n, options_.channels, options_.height, options_.width}, host.dtype(at::kFloat)),
                  .classes = at::zeros({n}, at::kLong),
                  .clusters = at::zeros({n}, host.dtype(at::kLong)),
                  .sequence = std::vector<uint64_t>(static_cast<size_t>(n)),
                  .positions = std::vector<int64_t>(static_cast<size_t>(n)),
                  .flipped = std::vector<bool>(static_cast<size_t>(n))};
  const auto elements = static_cast<size_t>(samples.images.numel() / n);
  for (int64_t i = 0; i < n; ++i) {
    const auto place = static_cast<uint64_t>(cursor + i);
    const int64_t position = order_.At(cursor + i);
    const std::span<float> pixels(samples.images.data_ptr<float>() + static_cast<size_t>(i) * elements, elements);
    const bool flipped =
        options_.training.flip && CounterRandom(options_.seed, RandomPurpose::kFlip, 0, place).Uniform() < 0.5F;
    ATOLL_ASSIGN_OR_RETURN(const TrainingData::Item item, ReadImage(position, flipped, pixels));
    samples.sequence[static_cast<size_t>(i)] = place;
    samples.positions[static_cast<size_t>(i)] = position;
    samples.flipped[static_cast<size_t>(i)] = flipped;
    if (options_.classes > 0) {
      if (item.label >= options_.classes) return OutOfRange("label", position, options_.classes, item.label);
      samples.classes.data_ptr<int64_t>()[i] = item.label < 0 ? options_.classes : item.label;
    }
    if (options_.objective == Objective::kCluster) {
      if (item.cluster < 0 || item.cluster >= options_.clusters) {
        return OutOfRange("cluster", position, options_.clusters, item.cluster);
      }
      samples.clusters.data_ptr<int64_t>()[i] = item.cluster;
    }
  }
  return samples;
}

}  // namespace atl::trainer
