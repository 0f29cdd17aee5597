// The gate of digits_test on sets of images whose quality is known: real ones pass; class means, images half way to
// their class's mean, noise and copies of training images do not.
#include "tests/e2e/digits_gate.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "client/sampling/quality_report.h"
#include "common/base/counter_random.h"
#include "common/dataset/image_codec.h"
#include "common/dataset/import/import.h"
#include "common/storage/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl {
namespace {

using dataset::Sample;
using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr int kClasses = 10;
constexpr size_t kPerClass = 50;
constexpr size_t kHeldOut = 180;
constexpr int kSplits = 8;

class DigitsGateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* prefix = std::getenv("ATOLL_PREFIX");
    const std::string path = std::string(prefix == nullptr ? "" : prefix) + "/data/digits.parquet";
    if (!std::filesystem::exists(path)) GTEST_SKIP() << "no digits at " << path << "; run deploy/setup.sh";
    const auto manifest = dataset::ImportDataset(
        store_.get(), {.name = "all", .format = dataset::SourceFormat::kParquet, .paths = {path}});
    ASSERT_TRUE(manifest.ok()) << manifest.status();
    const auto reader = dataset::SampleReader::Open(store_.get(), manifest->shards).value();
    uint64_t sum = 0;
    for (int64_t i = 0; i < reader->size(); ++i) sum += digits_.emplace_back(reader->Read(i).value()).id;
    ASSERT_EQ(digits_.size(), 1797U);
    // Ids hash pixels and labels: another sum means that deploy/digits_parquet.py writes other images.
    ASSERT_EQ(sum, 16379535061042485792U);
  }

  // Deals the digits anew: 50 of each class as fresh ones, 180 held-out images, and the others to train on.
  void Split(int split) {
    const auto key = [&](const Sample& sample) {
      return CounterRandom(static_cast<uint64_t>(split), RandomPurpose::kSubset, 0, sample.id).Bits64();
    };
    std::sort(digits_.begin(), digits_.end(), [&](const Sample& a, const Sample& b) { return key(a) < key(b); });
    fresh_.clear();
    training_.clear();
    std::map<int32_t, size_t> taken;
    std::vector<Sample> held_out;
    for (const Sample& sample : digits_) {
      if (taken[sample.label]++ < kPerClass) {
        fresh_.push_back(sample);
      } else {
        (held_out.size() < kHeldOut ? held_out : training_).push_back(sample);
      }
    }
    manifest_ = {.name = "digits", .channels = 1, .height = 8, .width = 8, .classes = {}, .shards = {}};
    const std::pair<const char*, const std::vector<Sample>*> parts[] = {{"train", &training_}, {"held_out", &held_out}};
    for (const auto& [name, samples] : parts) {
      auto writer =
          dataset::ShardWriter::Create(store_.get(), store_->UriOf(fmt::format("{}/{}", split, name)), name).value();
      for (const Sample& sample : *samples) ASSERT_TRUE(writer->Add(sample).ok());
      manifest_.shards.push_back(writer->Finish().value());
    }
  }

  // The report's entry for these images.
  nlohmann::json Score(const std::vector<Sample>& images) {
    client::SampleSet set;
    for (const Sample& sample : images) {
      set.images.push_back({.label = sample.label,
                            .channels = 1,
                            .height = 8,
                            .width = 8,
                            .bytes = dataset::EncodePng(sample.image).value()});
    }
    atlpb::job::v1::Job job;
    job.mutable_spec()->set_experts(1);
    auto* task = job.add_tasks();
    task->set_kind(atlpb::job::v1::TASK_KIND_PARTITION);
    auto* output = task->add_outputs();
    output->set_name("partition/0");
    output->set_uri(manifest_.shards[0].uri);
    output->set_rows(manifest_.shards[0].rows);
    output->set_bytes(manifest_.shards[0].bytes);
    output->set_sha256(manifest_.shards[0].sha256);
    std::vector<dataset::SheetRow> sheet;
    const auto report = client::MakeReport(job, manifest_, store_.get(), {set}, 1, &sheet);
    EXPECT_TRUE(report.ok()) << report.status();
    return nlohmann::json::parse(client::ToJson(*report)).at("samples").at(0);
  }

  std::vector<std::string> Problems(const std::vector<Sample>& images) { return GateProblems(Score(images)); }

  // 50 training images of each class.
  std::vector<Sample> Copies() const {
    std::vector<Sample> copies;
    std::map<int32_t, size_t> taken;
    for (const Sample& sample : training_) {
      if (taken[sample.label]++ < kPerClass) copies.push_back(sample);
    }
    return copies;
  }

  // `images`, this far from the mean of their class: 0 is the mean itself.
  std::vector<Sample> FromMeans(std::vector<Sample> images, double distance) const {
    std::vector<std::vector<double>> means(kClasses, std::vector<double>(64, 0));
    std::vector<double> counts(kClasses, 0);
    for (const Sample& sample : training_) {
      ++counts[sample.label];
      for (size_t p = 0; p < 64; ++p) means[sample.label][p] += sample.image.pixels[p];
    }
    for (Sample& sample : images) {
      for (size_t p = 0; p < 64; ++p) {
        const double mean = means[sample.label][p] / counts[sample.label];
        sample.image.pixels[p] = static_cast<uint8_t>(std::lround(mean + distance * (sample.image.pixels[p] - mean)));
      }
    }
    return images;
  }

  storage::TemporaryStore store_;
  std::vector<Sample> digits_;
  std::vector<Sample> training_;
  std::vector<Sample> fresh_;
  dataset::DatasetManifest manifest_;
};

TEST_F(DigitsGateTest, RealImagesPass) {
  for (int split = 0; split < kSplits; ++split) {
    Split(split);
    ASSERT_EQ(fresh_.size(), kPerClass * kClasses);
    const nlohmann::json figures = Score(fresh_);
    EXPECT_THAT(GateProblems(figures), IsEmpty()) << figures.dump();
    std::fprintf(stderr, "split %d: %s\n", split, figures.dump().c_str());
  }
}

TEST_F(DigitsGateTest, CollapsedBlurredNoisyAndCopiedImagesDoNot) {
  Split(0);
  const std::vector<Sample> copies = Copies();
  EXPECT_THAT(Problems(copies), Contains(StartsWith("memorisation")));
  EXPECT_THAT(Problems(FromMeans(copies, 0)), Contains(StartsWith("recall"))) << "ten class means, fifty times each";
  EXPECT_THAT(Problems(FromMeans(copies, 0.5)), Contains(StartsWith("recall"))) << "half way to the class's mean";
  EXPECT_THAT(Problems(FromMeans(fresh_, 0.5)), Contains(StartsWith("recall"))) << "not of training images either";

  std::vector<Sample> noisy = fresh_;
  for (Sample& sample : noisy) {
    std::vector<float> noise(64);
    CounterRandom(1, RandomPurpose::kSubset, 1, sample.id).Normal(noise);
    for (size_t p = 0; p < 64; ++p) {
      const double pixel = sample.image.pixels[p] + 40 * noise[p];
      sample.image.pixels[p] = static_cast<uint8_t>(std::clamp(std::lround(pixel), 0L, 255L));
    }
  }
  EXPECT_THAT(Problems(noisy), Contains(StartsWith("density")));

  std::vector<Sample> mislabelled = fresh_;
  for (size_t i = 0; i < mislabelled.size(); i += 20) mislabelled[i].label = (mislabelled[i].label + 1) % kClasses;
  EXPECT_THAT(Problems(mislabelled), Contains(StartsWith("accuracy")));
}

}  // namespace
}  // namespace atl
