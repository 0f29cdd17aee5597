// Requests to the router, and samples on disk.
#include <cstring>
#include <filesystem>

#include "client/files.h"
#include "client/sample_request.h"
#include "client/sample_set.h"
#include "common/base/errors.h"
#include "common/dataset/image_codec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::client {
namespace {

using atlpb::sample::v1::SampleRequest;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string TemporaryFolder(const std::string& name) {
  const std::string folder = testing::TempDir() + "/" + name + "." + std::to_string(getpid());
  std::filesystem::remove_all(folder);
  return folder;
}

TEST(SampleRequestTest, ClassesAreListsRangesAllOrNone) {
  EXPECT_THAT(*ExpandClasses("3", 2, 10), ElementsAre(3, 3));
  EXPECT_THAT(*ExpandClasses("0-2,9", 1, 10), ElementsAre(0, 1, 2, 9));
  EXPECT_THAT(*ExpandClasses("all", 1, 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(*ExpandClasses("all", 2, 0), ElementsAre(-1, -1));
  EXPECT_THAT(*ExpandClasses("none", 1, 10), ElementsAre(-1));
  for (const char* bad : {"10", "-1", "3-1", "", "a", "1,", "1-", "1.5", "99999999999"}) {
    const auto classes = ExpandClasses(bad, 1, 10);
    EXPECT_EQ(ErrorReason(classes.status()), "UNKNOWN_CLASS") << bad;
    EXPECT_THAT(std::string(classes.status().message()), HasSubstr("classes 0 to 9")) << bad;
  }
}

TEST(SampleRequestTest, SplittingKeepsEverySeed) {
  const SampleFlags flags{.seed = 100};
  const std::vector<int32_t> classes = {0, 0, 1, 1, 2};
  const auto requests = MakeRequests(flags, classes, 2);
  ASSERT_TRUE(requests.ok()) << requests.status();
  ASSERT_EQ(requests->size(), 3u);
  std::vector<uint64_t> seeds;
  std::vector<int32_t> asked;
  for (const SampleRequest& request : *requests) {
    EXPECT_LE(request.classes_size(), 2);
    EXPECT_FALSE(request.has_guidance());
    seeds.insert(seeds.end(), request.seeds().begin(), request.seeds().end());
    asked.insert(asked.end(), request.classes().begin(), request.classes().end());
  }
  EXPECT_THAT(seeds, ElementsAre(100, 101, 102, 103, 104));
  EXPECT_EQ(asked, classes);
}

TEST(SampleRequestTest, ModeFollowsTheFlagsThatImplyIt) {
  const auto mode = [](SampleFlags flags) { return MakeRequests(flags, {0}, 8)->front().mode(); };
  EXPECT_EQ(mode({}), SampleRequest::MODE_UNSPECIFIED);
  EXPECT_EQ(mode({.top_k = 2}), SampleRequest::MODE_TOP_K);
  EXPECT_EQ(mode({.threshold = 0.2}), SampleRequest::MODE_THRESHOLD);
  EXPECT_EQ(mode({.mode = "full"}), SampleRequest::MODE_FULL);
  EXPECT_EQ(mode({.expert = 0}), SampleRequest::MODE_ORACLE);
  EXPECT_EQ(ErrorReason(MakeRequests({.mode = "oracle"}, {0}, 8).status()), "USAGE");
}

SampleSet PngSet() {
  SampleSet set{.model = "digits", .version = "v", .mode = "MODE_FULL", .sample_seconds = 1.5};
  set.routing = {.chosen = {3, 1}, .weight = {3.0, 1.0}, .image_steps = 4, .mean_entropy = 0.5};
  for (int i = 0; i < 2; ++i) {
    const dataset::Image image{.channels = 1, .height = 1, .width = 2, .pixels = {0, static_cast<uint8_t>(255 * i)}};
    set.images.push_back(
        {.label = i - 1, .seed = 7u + i, .channels = 1, .height = 1, .width = 2, .bytes = *dataset::EncodePng(image)});
  }
  return set;
}

TEST(SampleSetTest, PicturesSurviveTheFolder) {
  const std::string folder = TemporaryFolder("sample_set");
  ASSERT_TRUE(WriteSampleSet(folder, PngSet()).ok());
  ASSERT_TRUE(WriteSampleSet(folder, PngSet()).ok()) << "a set may be replaced";
  const auto back = ReadSampleSet(folder);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->images.size(), 2u);
  EXPECT_EQ(back->images[1].label, 0);
  EXPECT_EQ(back->images[1].seed, 8u);
  EXPECT_EQ(back->images[1].bytes, PngSet().images[1].bytes);
  EXPECT_THAT(back->routing.chosen, ElementsAre(3, 1));
  EXPECT_EQ(back->mode, "MODE_FULL");
  EXPECT_THAT(*ScaledPixels(*back), ElementsAre(-1, -1, -1, 1));
  std::filesystem::remove_all(folder);
}

TEST(SampleSetTest, RawTensorsSurviveTheFolderAndBecomeInterleaved) {
  const std::string folder = TemporaryFolder("sample_set_raw");
  const std::vector<float> planes = {0.1f, 0.2f, 0.3f, 0.4f};  // [2][1][2]
  SampleSet set{.raw = true};
  set.images.push_back({.channels = 2, .height = 1, .width = 2});
  set.images[0].bytes.assign(reinterpret_cast<const char*>(planes.data()), sizeof(float) * planes.size());
  ASSERT_TRUE(WriteSampleSet(folder, set).ok());
  const auto back = ReadSampleSet(folder);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_THAT(*ScaledPixels(*back), ElementsAre(0.1f, 0.3f, 0.2f, 0.4f));
  std::filesystem::remove_all(folder);
}

TEST(SampleSetTest, AFolderOfOtherFilesIsLeftAlone) {
  const std::string folder = TemporaryFolder("sample_set_other");
  ASSERT_TRUE(WriteFile(folder + "/precious.txt", "x").ok());
  EXPECT_EQ(ErrorReason(WriteSampleSet(folder, PngSet())), "FOLDER_NOT_EMPTY");
  EXPECT_TRUE(ReadFile(folder + "/precious.txt").ok());
  std::filesystem::remove_all(folder);
}

TEST(SampleSetTest, DamagedSetsAreNamed) {
  const std::string folder = TemporaryFolder("sample_set_bad");
  EXPECT_EQ(ReadSampleSet(folder).status().code(), absl::StatusCode::kNotFound);
  for (const char* text : {"", "{}", "[1]", "{\"model\": 3}"}) {
    ASSERT_TRUE(WriteFile(folder + "/samples.json", text).ok());
    EXPECT_EQ(ErrorReason(ReadSampleSet(folder).status()), "SAMPLES_MALFORMED") << text;
  }
  std::filesystem::remove_all(folder);
}

TEST(RoutingTest, MergingAddsAndWeighsTheEntropy) {
  Routing routing;
  Merge({.chosen = {1, 2}, .weight = {0.5, 2.5}, .image_steps = 3, .mean_entropy = 1.0}, &routing);
  Merge({.chosen = {0, 1}, .weight = {0, 1}, .image_steps = 1, .mean_entropy = 0.2}, &routing);
  EXPECT_THAT(routing.chosen, ElementsAre(1, 3));
  EXPECT_THAT(routing.weight, ElementsAre(0.5, 3.5));
  EXPECT_EQ(routing.image_steps, 4);
  EXPECT_DOUBLE_EQ(routing.mean_entropy, 0.8);
}

}  // namespace
}  // namespace atl::client
