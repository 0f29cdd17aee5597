#include "common/dataset/dataset.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "common/base/errors.h"
#include "common/dataset/testing.h"
#include "common/storage/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace atl::dataset {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

DatasetManifest SomeManifest() {
  return {.name = "digits",
          .channels = 1,
          .height = 8,
          .width = 8,
          .classes = {"zero", "one"},
          .columns = {"embedding"},
          .held_out_fraction = 0.1,
          .shards = {{"file:///r/a", "train", 90, 1234, storage::Sha256("a")},
                     {"file:///r/b", "held_out", 10, 123, storage::Sha256("b")}},
          .skipped_count = 1,
          .skipped = {{"x.png", "cut short"}},
          .source = "imagefolder: /data"};
}

TEST(DatasetManifestTest, JsonReadsBackEqualAndCountsRowsBySplit) {
  const auto parsed = ParseDatasetManifest(ToJson(SomeManifest()), "manifest.json");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, SomeManifest());
  EXPECT_EQ(parsed->rows("train"), 90);
  EXPECT_EQ(parsed->rows("held_out"), 10);
  EXPECT_EQ(ShardsOf(*parsed, "train").size(), 1U);
}

TEST(DatasetManifestTest, MalformedManifestsAreRefusedByField) {
  struct Case {
    std::function<void(json&)> spoil;
    const char* says;
  };
  const std::vector<Case> cases = {
      {[](json& m) { m["channels"] = 0; }, "channels: expected an integer from 1"},
      {[](json& m) { m["held_out_fraction"] = 1.0; }, "held_out_fraction: expected a number from 0 to below 1"},
      {[](json& m) { m["held_out_fraction"] = "0.1"; }, "held_out_fraction"},
      {[](json& m) { m["shards"][0]["split"] = "test"; }, "shards[0].split: expected \"train\" or \"held_out\""},
      {[](json& m) { m["shards"][1]["uri"] = m["shards"][0]["uri"]; }, "shards[1].uri: expected each shard once"},
      {[](json& m) { m["shards"][0]["rows"] = 0; }, "shards[0].rows"},
      {[](json& m) { m["shards"][0]["rows"] = m["shards"][1]["rows"] = INT64_MAX; }, "fewer than 2^63 rows"},
      {[](json& m) { m["shards"][0]["sha256"] = "?"; }, "shards[0].sha256"},
      {[](json& m) { m["classes"][1] = 7; }, "classes: expected a list of strings"},
      {[](json& m) { m["skipped"][0].erase("reason"); }, "skipped[0].reason"},
  };
  for (const Case& c : cases) {
    json manifest = json::parse(ToJson(SomeManifest()));
    c.spoil(manifest);
    const auto parsed = ParseDatasetManifest(manifest.dump(), "m.json");
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kDataLoss) << c.says;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(c.says));
  }
  json manifest = json::parse(ToJson(SomeManifest()));
  manifest["format"] = 7;
  EXPECT_EQ(ParseDatasetManifest(manifest.dump(), "m").status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(HeldOutTest, SplitDependsOnPixelsAndLabelOnlyAndMeetsTheFraction) {
  int held_out = 0;
  for (uint32_t seed = 0; seed < 4000; ++seed) {
    const Sample sample = PatternSample(1, seed);
    EXPECT_EQ(SampleId(sample.image, 1), sample.id);
    held_out += IsHeldOut(sample.id, 0.1) ? 1 : 0;
  }
  // Five standard deviations of a binomial around 400.
  EXPECT_NEAR(held_out, 400, 95);
  const Sample sample = PatternSample(1, 5);
  EXPECT_NE(SampleId(sample.image, 2), sample.id);
  EXPECT_FALSE(IsHeldOut(sample.id, 0.0));
  EXPECT_TRUE(IsHeldOut(sample.id, 1.0));
}

class ShardTest : public ::testing::Test {
 protected:
  storage::TemporaryStore store_;
};

TEST_F(ShardTest, SamplesReadBackInOrderFromSeveralShardsAndRowGroups) {
  const std::vector<Shard> shards = {WritePatternShard(store_.get(), "d/0", kRowGroupRows + 7, 0),
                                     WritePatternShard(store_.get(), "d/1", 3, 5000)};
  EXPECT_EQ(shards[0].rows, kRowGroupRows + 7);
  // Two row groups cached, so that reading to and fro evicts.
  const auto reader = SampleReader::Open(store_.get(), shards, 2);
  ASSERT_TRUE(reader.ok()) << reader.status();
  ASSERT_EQ((*reader)->size(), kRowGroupRows + 10);
  for (const int64_t position : {int64_t{0}, kRowGroupRows, kRowGroupRows + 7, int64_t{1}, kRowGroupRows - 1,
                                 kRowGroupRows + 9, kRowGroupRows + 6}) {
    const auto seed =
        static_cast<uint32_t>(position < kRowGroupRows + 7 ? position : position - kRowGroupRows - 7 + 5000);
    const auto sample = (*reader)->Read(position);
    ASSERT_TRUE(sample.ok()) << sample.status();
    const Sample expected = PatternSample(static_cast<int32_t>(seed % 10), seed);
    EXPECT_EQ(sample->image.pixels, expected.image.pixels);
    EXPECT_EQ(sample->label, expected.label);
    EXPECT_EQ(sample->id, expected.id);
    EXPECT_EQ(sample->path, expected.path);
  }
  EXPECT_EQ((*reader)->Read(-1).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ((*reader)->Read((*reader)->size()).status().code(), absl::StatusCode::kOutOfRange);
}

TEST_F(ShardTest, EqualRowsGiveEqualBytes) {
  EXPECT_EQ(WritePatternShard(store_.get(), "d/0", 50).sha256, WritePatternShard(store_.get(), "d/1", 50).sha256);
  EXPECT_NE(WritePatternShard(store_.get(), "d/2", 50, 1).sha256, WritePatternShard(store_.get(), "d/3", 50).sha256);
}

TEST_F(ShardTest, ColumnsReadBackByName) {
  auto writer = ShardWriter::Create(store_.get(), store_->UriOf("c"), "train", {"embedding", "score"}).value();
  for (uint32_t i = 0; i < 5; ++i) {
    Sample sample = PatternSample(0, i);
    sample.columns = {{1.5F * static_cast<float>(i), 2.0F}, {static_cast<float>(i)}};
    ASSERT_TRUE(writer->Add(sample).ok());
  }
  EXPECT_EQ(writer->Add(PatternSample(0, 9)).code(), absl::StatusCode::kInvalidArgument);
  const auto reader = SampleReader::Open(store_.get(), {writer->Finish().value()}).value();
  EXPECT_THAT(reader->ReadColumn(3, "embedding").value(), ::testing::ElementsAre(4.5F, 2.0F));
  EXPECT_THAT(reader->ReadColumn(4, "score").value(), ::testing::ElementsAre(4.0F));
  EXPECT_THAT(reader->ReadColumn(4, "label").value(), ::testing::ElementsAre(0.0F));
  const auto missing = reader->ReadColumn(0, "nothing");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("embedding, score"));
  EXPECT_EQ(reader->ReadColumn(0, "image").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ShardTest, AbandonedWriterLeavesNothing) {
  {
    auto writer = ShardWriter::Create(store_.get(), store_->UriOf("d/half"), "train").value();
    for (uint32_t i = 0; i < 2000; ++i) ASSERT_TRUE(writer->Add(PatternSample(0, i)).ok());
  }
  EXPECT_TRUE(store_->List(store_->UriOf("d")).value().empty());
}

TEST_F(ShardTest, MissingChangedAndMiscountedShardsAreNamed) {
  Shard shard = WritePatternShard(store_.get(), "d/0", 20);
  Shard missing = shard;
  missing.uri = store_->UriOf("d/none");
  const auto opened = SampleReader::Open(store_.get(), {shard, missing});
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(opened.status().message()), HasSubstr("d/none"));

  Shard miscounted = shard;
  miscounted.rows = 21;
  const auto read = SampleReader::Open(store_.get(), {miscounted}).value()->Read(20);
  EXPECT_EQ(read.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(read.status().message()), HasSubstr("expected 21 rows, found 20"));

  std::ofstream(store_.PathOf(shard.uri), std::ios::app) << "x";
  const auto changed = SampleReader::Open(store_.get(), {shard}).value()->Read(0);
  EXPECT_EQ(changed.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ErrorReason(changed.status()), "HASH_MISMATCH");
}

TEST_F(ShardTest, AByteThatFlipsAfterTheHashWasCheckedIsFound) {
  const Shard shard = WritePatternShard(store_.get(), "d/0", kRowGroupRows + 20);
  const auto reader = SampleReader::Open(store_.get(), {shard}, /*cached_row_groups=*/1).value();
  ASSERT_TRUE(reader->Read(0).ok());
  std::fstream file(store_.PathOf(shard.uri), std::ios::in | std::ios::out | std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  // In the pixels of the last image, which lies in the second row group.
  const size_t at = bytes.rfind("IDAT") + 6;
  ASSERT_LT(at, bytes.size());
  file.clear();
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(bytes[at] ^ 0x10));
  file.close();
  const auto read = reader->Read(kRowGroupRows + 1);
  EXPECT_EQ(read.status().code(), absl::StatusCode::kDataLoss) << read.status();
  EXPECT_EQ(ErrorReason(read.status()), "SHARD_MALFORMED");
  EXPECT_THAT(std::string(read.status().message()), HasSubstr("CRC checksum"));
  EXPECT_TRUE(reader->Read(1).ok()) << "what is whole is read still";
}

TEST_F(ShardTest, FilesThatAreNoShardsAreRefused) {
  const storage::WrittenFile text = store_->Write(store_->UriOf("d/text"), std::string(1000, 'x')).value();
  const Shard shard{.uri = text.uri, .split = "train", .rows = 1, .bytes = text.bytes, .sha256 = text.sha256};
  const auto read = SampleReader::Open(store_.get(), {shard}).value()->Read(0);
  EXPECT_EQ(read.status().code(), absl::StatusCode::kDataLoss) << read.status();
  EXPECT_THAT(std::string(read.status().message()), HasSubstr("d/text"));
}

TEST(ShuffledOrderTest, EveryEpochIsAPermutation) {
  for (const int64_t n : {1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 1000, 4096, 4097}) {
    const ShuffledOrder order(7, n);
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::set<int64_t> seen;
      for (int64_t i = 0; i < n; ++i) {
        const int64_t position = order.At(epoch * n + i);
        ASSERT_GE(position, 0);
        ASSERT_LT(position, n);
        seen.insert(position);
      }
      EXPECT_EQ(static_cast<int64_t>(seen.size()), n) << "n " << n << " epoch " << epoch;
    }
  }
}

TEST(ShuffledOrderTest, OrderDependsOnSeedAndEpochOnly) {
  constexpr int64_t kSize = 1000;
  const auto epoch = [](uint64_t seed, int64_t number) {
    const ShuffledOrder order(seed, kSize);
    std::vector<int64_t> positions;
    for (int64_t i = 0; i < kSize; ++i) positions.push_back(order.At(number * kSize + i));
    return positions;
  };
  EXPECT_EQ(epoch(1, 0), epoch(1, 0));
  EXPECT_NE(epoch(1, 0), epoch(2, 0));
  EXPECT_NE(epoch(1, 0), epoch(1, 1));
  // Independent permutations agree at one position on average, and so do a permutation and the identity.
  const std::vector<int64_t> a = epoch(1, 0);
  const std::vector<int64_t> b = epoch(1, 1);
  int agreeing = 0;
  int fixed = 0;
  for (int64_t i = 0; i < kSize; ++i) {
    agreeing += a[i] == b[i] ? 1 : 0;
    fixed += a[i] == i ? 1 : 0;
  }
  EXPECT_LT(agreeing, 10);
  EXPECT_LT(fixed, 10);
}

TEST(ShuffledOrderTest, PositionsOfABatchAreSpreadEvenly) {
  // Chi-square of the first 10,000 of a large set over 100 equal parts: 99 degrees of freedom, far tails.
  const ShuffledOrder order(3, int64_t{1} << 40);
  std::vector<int> counts(100);
  for (int64_t i = 0; i < 10'000; ++i) ++counts[static_cast<size_t>((order.At(i) * 100) >> 40)];
  double chi_square = 0;
  for (const int count : counts) chi_square += (count - 100.0) * (count - 100.0) / 100.0;
  EXPECT_GT(chi_square, 40);
  EXPECT_LT(chi_square, 180);
}

}  // namespace
}  // namespace atl::dataset
