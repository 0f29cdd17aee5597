#include <gtest/gtest.h>

#include "common/base/errors.h"
#include "common/storage/testing.h"
#include "worker/trainer/trainer.h"

namespace atl::trainer {
namespace {

// A shard of `rows` images 3 x 2 x 2 (channels, height, width) whose bytes count up from `first`.
dataset::Shard WriteShard(storage::BlobStore* store, const std::string& name, int rows, int first) {
  auto writer = dataset::ShardWriter::Create(store, store->UriOf(name), "train");
  EXPECT_TRUE(writer.ok()) << writer.status();
  for (int row = 0; row < rows; ++row) {
    dataset::Sample sample{.id = static_cast<uint64_t>(first + row), .label = row % 3, .path = name};
    sample.image = {.channels = 3, .height = 2, .width = 2};
    for (int i = 0; i < 12; ++i) sample.image.pixels.push_back(static_cast<uint8_t>(first + 12 * row + i));
    EXPECT_TRUE((*writer)->Add(sample).ok());
  }
  auto shard = (*writer)->Finish();
  EXPECT_TRUE(shard.ok()) << shard.status();
  return *shard;
}

TEST(TrainingDataTest, PlanesAreScaledAndPartitionsAreClustersCachedOrNot) {
  storage::TemporaryStore store;
  const dataset::Shard a = WriteShard(store.get(), "a.parquet", 3, 0);
  const dataset::Shard b = WriteShard(store.get(), "b.parquet", 2, 100);
  const dataset::Shard c = WriteShard(store.get(), "c.parquet", 1, 200);
  for (const int64_t cache_bytes : {int64_t{0}, int64_t{1} << 20}) {
    auto data = OpenTrainingData(store.get(), {{a, b}, {c}}, cache_bytes);
    ASSERT_TRUE(data.ok()) << data.status();
    ASSERT_EQ((*data)->size(), 6);
    std::vector<float> pixels(12);
    for (int repeat = 0; repeat < 2; ++repeat) {
      for (int64_t position = 0; position < 6; ++position) {
        auto item = (*data)->Read(position, pixels);
        ASSERT_TRUE(item.ok()) << item.status();
        const int64_t row = position < 3 ? position : position < 5 ? position - 3 : 0;
        EXPECT_EQ(item->cluster, position < 5 ? 0 : 1);
        EXPECT_EQ(item->label, static_cast<int32_t>(row % 3));
        const int64_t first = (position < 3 ? 0 : position < 5 ? 100 : 200) + 12 * row;
        for (int64_t channel = 0; channel < 3; ++channel) {
          for (int64_t i = 0; i < 4; ++i) {
            const auto byte = static_cast<float>(first + 3 * i + channel);
            EXPECT_EQ(pixels[static_cast<size_t>(channel * 4 + i)], byte / 127.5F - 1.0F);
          }
        }
      }
    }
  }
}

TEST(TrainingDataTest, AnImageOfAnotherShapeIsDataLossNamingIt) {
  storage::TemporaryStore store;
  auto data = OpenTrainingData(store.get(), {{WriteShard(store.get(), "a.parquet", 3, 0)}});
  ASSERT_TRUE(data.ok()) << data.status();
  std::vector<float> pixels(16);
  const absl::Status status = (*data)->Read(1, pixels).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ErrorReason(status), "IMAGE_SHAPE_MISMATCH");
  EXPECT_NE(status.message().find("a.parquet"), std::string::npos) << status;
}

TEST(TrainingDataTest, AMissingShardIsNotFound) {
  storage::TemporaryStore store;
  dataset::Shard shard = WriteShard(store.get(), "a.parquet", 1, 0);
  ASSERT_TRUE(store->Delete(shard.uri).ok());
  auto data = OpenTrainingData(store.get(), {{shard}});
  std::vector<float> pixels(12);
  const absl::Status status = data.ok() ? (*data)->Read(0, pixels).status() : data.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
}

}  // namespace
}  // namespace atl::trainer
