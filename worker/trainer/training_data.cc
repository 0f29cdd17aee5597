// Training samples out of partitions' shards.
#include <algorithm>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"
#include "worker/trainer/trainer.h"

namespace atl::trainer {
namespace {

// Interleaved bytes [h][w][c] -> planes [c][h][w] in [-1, 1].
void Scale(const uint8_t* pixels, size_t channels, std::span<float> out) {
  const size_t plane = out.size() / channels;
  for (size_t c = 0; c < channels; ++c) {
    for (size_t i = 0; i < plane; ++i) {
      out[c * plane + i] = static_cast<float>(pixels[i * channels + c]) / 127.5F - 1.0F;
    }
  }
}

class PartitionData : public TrainingData {
 public:
  static absl::StatusOr<std::unique_ptr<PartitionData>> Open(storage::BlobStore* store,
                                                             std::vector<std::vector<dataset::Shard>> partitions,
                                                             int64_t cache_bytes) {
    auto data = std::make_unique<PartitionData>();
    data->cache_bytes_ = cache_bytes;
    for (std::vector<dataset::Shard>& shards : partitions) {
      ATOLL_ASSIGN_OR_RETURN(auto reader, dataset::SampleReader::Open(store, std::move(shards)));
      data->ends_.push_back(data->size() + reader->size());
      data->readers_.push_back(std::move(reader));
    }
    return data;
  }

  int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }

  absl::StatusOr<Item> Read(int64_t position, std::span<float> pixels) override {
    if (position < 0 || position >= size()) {
      return MakeError(absl::StatusCode::kInternal, "POSITION_OUT_OF_RANGE",
                       fmt::format("expected a sample below {}; found {}", size(), position));
    }
    const auto row = static_cast<size_t>(position);
    if (row < cached_.size() && cached_[row]) {
      Scale(&bytes_[row * pixels.size()], channels_, pixels);
      return Item{.label = labels_[row], .cluster = ClusterOf(position)};
    }
    ATOLL_ASSIGN_OR_RETURN(const dataset::Sample sample, Decode(position, pixels.size()));
    Scale(sample.image.pixels.data(), static_cast<size_t>(sample.image.channels), pixels);
    Keep(row, sample);
    return Item{.label = sample.label, .cluster = ClusterOf(position)};
  }

 private:
  int32_t ClusterOf(int64_t position) const {
    return static_cast<int32_t>(std::upper_bound(ends_.begin(), ends_.end(), position) - ends_.begin());
  }

  absl::StatusOr<dataset::Sample> Decode(int64_t position, size_t expected) {
    const auto cluster = static_cast<size_t>(ClusterOf(position));
    const int64_t first = cluster == 0 ? 0 : ends_[cluster - 1];
    ATOLL_ASSIGN_OR_RETURN(dataset::Sample sample, readers_[cluster]->Read(position - first));
    const dataset::Image& image = sample.image;
    const int64_t found = int64_t{image.channels} * image.height * image.width;
    if (image.channels < 1 || found != static_cast<int64_t>(expected) || image.pixels.size() != expected) {
      return MakeError(
          absl::StatusCode::kDataLoss, "IMAGE_SHAPE_MISMATCH",
          fmt::format("sample {} of partition {} ({}): expected {} pixel values; found {} x {} x {} and {} "
                      "bytes",
                      position - first, cluster, sample.path, expected, image.channels, image.height, image.width,
                      image.pixels.size()));
    }
    return sample;
  }

  void Keep(size_t row, const dataset::Sample& sample) {
    const size_t image_bytes = sample.image.pixels.size();
    const auto rows = static_cast<size_t>(size());
    if (static_cast<int64_t>(rows * (image_bytes + sizeof(int32_t) + 1)) > cache_bytes_) return;
    if (cached_.empty()) {
      channels_ = static_cast<size_t>(sample.image.channels);
      cached_.assign(rows, false);
      labels_.resize(rows);
      bytes_.resize(rows * image_bytes);
    }
    // The rows share one layout; an image of another would only be decoded again.
    if (static_cast<size_t>(sample.image.channels) != channels_) return;
    std::copy(sample.image.pixels.begin(), sample.image.pixels.end(),
              bytes_.begin() + static_cast<ptrdiff_t>(row * image_bytes));
    labels_[row] = sample.label;
    cached_[row] = true;
  }

  int64_t cache_bytes_ = 0;
  std::vector<std::unique_ptr<dataset::SampleReader>> readers_;
  std::vector<int64_t> ends_;  // ends_[k]: samples of partitions 0 .. k
  size_t channels_ = 0;
  std::vector<bool> cached_;
  std::vector<int32_t> labels_;
  std::vector<uint8_t> bytes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TrainingData>> OpenTrainingData(storage::BlobStore* store,
                                                               std::vector<std::vector<dataset::Shard>> partitions,
                                                               int64_t cache_bytes) {
  ATOLL_ASSIGN_OR_RETURN(auto data, PartitionData::Open(store, std::move(partitions), cache_bytes));
  return data;
}

}  // namespace atl::trainer
