// Requests to the router, and samples on disk.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "client/sampling/init_images.h"
#include "client/sampling/sample_request.h"
#include "client/sampling/sample_set.h"
#include "common/base/errors.h"
#include "common/base/files.h"
#include "common/dataset/image_codec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::client {
namespace {

using atlpb::sample::v1::GetSamplerInfoResponse;
using atlpb::sample::v1::SampleRequest;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string TemporaryFolder(const std::string& name) {
  const std::string folder = testing::TempDir() + "/" + name + "." + std::to_string(getpid());
  std::filesystem::remove_all(folder);
  return folder;
}

GetSamplerInfoResponse Info(int32_t classes, const std::vector<std::string>& names = {}) {
  GetSamplerInfoResponse info;
  info.set_classes(classes);
  info.mutable_class_names()->Add(names.begin(), names.end());
  return info;
}

TEST(SampleRequestTest, ClassesAreListsRangesAllOrNone) {
  const auto images = [](const char* text, int count, int32_t classes) {
    return FindLabels({.classes = text}, count, Info(classes))->images;
  };
  EXPECT_THAT(images("3", 2, 10), ElementsAre(3, 3));
  EXPECT_THAT(images("0-2,9", 1, 10), ElementsAre(0, 1, 2, 9));
  EXPECT_THAT(images("all", 1, 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(images("all", 2, 0), ElementsAre(-1, -1));
  EXPECT_THAT(images("none", 1, 10), ElementsAre(-1));
  for (const char* bad : {"10", "-1", "3-1", "", "a", "1,", "1-", "1.5", "99999999999"}) {
    const auto labels = FindLabels({.classes = bad}, 1, Info(10));
    EXPECT_EQ(ErrorReason(labels.status()), "UNKNOWN_CLASS") << bad;
    EXPECT_THAT(std::string(labels.status().message()), HasSubstr("--class: expected classes 0 to 9, found '")) << bad;
  }
}

TEST(SampleRequestTest, ARoutersNumberOfClassesTakesNoMemoryBeyondReason) {
  for (const int32_t classes : {-1, 10'000'001, 2'147'483'647}) {
    for (const char* text : {"all", "0-2147483646", "none"}) {
      const absl::Status status = FindLabels({.classes = text}, 1, Info(classes)).status();
      EXPECT_EQ(ErrorReason(status), "CLASSES_OUT_OF_RANGE") << text << " of " << classes;
    }
  }
  EXPECT_EQ(FindLabels({.classes = "all"}, 1'000, Info(10'000))->images.size(), 10'000'000u);
  const absl::Status many = FindLabels({.classes = "all"}, 1'001, Info(10'000)).status();
  EXPECT_EQ(ErrorReason(many), "TOO_MANY_IMAGES");
  EXPECT_EQ(many.message(), "--class: expected at most 10000000 images, found 10000 classes of 1001 images each");
}

TEST(SampleRequestTest, ClassesHaveNamesThatGoBeforeNumbers) {
  const GetSamplerInfoResponse info = Info(5, {"cat", "red-eyed frog", "tench, or tinca", "2", "dog"});
  const auto images = [&](const char* text) { return FindLabels({.classes = text}, 1, info)->images; };
  EXPECT_THAT(images("cat"), ElementsAre(0));
  EXPECT_THAT(images("dog,cat,1"), ElementsAre(4, 0, 1));
  EXPECT_THAT(images("red-eyed frog"), ElementsAre(1));
  EXPECT_THAT(images("tench, or tinca"), ElementsAre(2));
  EXPECT_THAT(images("2"), ElementsAre(3));
  EXPECT_EQ(FindLabels({.negative_class = "dog"}, 1, info)->negative, 4);
  EXPECT_EQ(FindLabels({.negative_class = "0"}, 1, info)->negative, 0);
  EXPECT_EQ(FindLabels({}, 1, info)->negative, std::nullopt);
  EXPECT_EQ(FindLabels({.classes = "cat,dgo"}, 1, info).status().message(),
            "--class: expected classes 0 to 4 or names such as 'cat', found 'dgo'; did you mean 'dog'?");
  EXPECT_EQ(FindLabels({.negative_class = "none"}, 1, info).status().message(),
            "--negative-class: expected classes 0 to 4 or names such as 'cat', found 'none'");
}

TEST(SampleRequestTest, SplittingKeepsEverySeed) {
  const SampleFlags flags{.seed = 100};
  const std::vector<int32_t> classes = {0, 0, 1, 1, 2};
  const auto requests = MakeRequests(flags, {classes}, 2);
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

TEST(SampleRequestTest, TheModeIsTheRoutersToDecide) {
  const auto mode = [](SampleFlags flags) { return MakeRequests(flags, {{0}}, 8)->front().mode(); };
  EXPECT_EQ(mode({}), SampleRequest::MODE_UNSPECIFIED);
  EXPECT_EQ(mode({.top_k = 2}), SampleRequest::MODE_UNSPECIFIED);
  EXPECT_EQ(mode({.mode = "top1"}), SampleRequest::MODE_TOP_1);
  EXPECT_EQ(mode({.mode = "topk"}), SampleRequest::MODE_TOP_K);
  EXPECT_EQ(mode({.mode = "threshold"}), SampleRequest::MODE_THRESHOLD);
  EXPECT_EQ(mode({.mode = "nucleus"}), SampleRequest::MODE_NUCLEUS);
  EXPECT_EQ(mode({.mode = "full"}), SampleRequest::MODE_FULL);
  EXPECT_EQ(mode({.mode = "oracle"}), SampleRequest::MODE_ORACLE);
}

TEST(SampleRequestTest, SettingsAreAsAskedAndElseTheDefaultsOfTheVersion) {
  GetSamplerInfoResponse info = Info(10);
  info.set_version("v1");
  info.mutable_defaults()->set_mode(SampleRequest::MODE_TOP_K);
  info.mutable_defaults()->set_top_k(2);
  info.mutable_defaults()->set_steps(12);
  info.mutable_defaults()->set_guidance(3);
  const auto settings = [&](const SampleFlags& flags) {
    return SettingsOf(MakeRequests(flags, {{1}}, 8, {"a"})->front(), info);
  };
  SampleRequest open = settings({});
  EXPECT_EQ(open.mode(), SampleRequest::MODE_TOP_K);
  EXPECT_EQ(open.top_k(), 2);
  EXPECT_EQ(open.steps(), 12);
  EXPECT_EQ(open.guidance(), 3);
  EXPECT_EQ(open.classes_size() + open.seeds_size() + open.init_images_size(), 0);
  const SampleRequest said = settings({.threshold = 0.5, .times = {1, 0}, .guidance = 0, .strength = 0.25});
  EXPECT_EQ(said.mode(), SampleRequest::MODE_THRESHOLD) << "as the router takes it";
  EXPECT_EQ(said.top_k(), 0);
  EXPECT_EQ(said.steps(), 0);
  EXPECT_EQ(said.guidance(), 0);
  EXPECT_EQ(said.strength(), 0.25);
  const SampleRequest pinned = settings({.version = "v0", .steps = 5});
  EXPECT_EQ(pinned.mode(), SampleRequest::MODE_UNSPECIFIED) << "another version's defaults are not known";
  EXPECT_EQ(pinned.steps(), 5);
}

TEST(SampleRequestTest, RefusalsNameFlags) {
  const auto told = [](const char* field, const char* message) {
    const absl::Status status = InFlags(FieldError(field, "SOME_REASON", message));
    EXPECT_EQ(ErrorReason(status), "SOME_REASON");
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(told("strength", "expected init_images beside a strength of 0.5, found none"),
            "--strength: expected --init beside a strength of 0.5, found none");
  EXPECT_EQ(told("guidance_to", "expected a time from guidance_from, 0.5, to 1, found 0.25"),
            "--guidance-to: expected a time from --guidance-from, 0.5, to 1, found 0.25");
  EXPECT_EQ(told("classes[3]", "expected 0 to 9, found 10"), "--class: expected 0 to 9, found 10");
  EXPECT_EQ(told("oracle_expert", "expected steps or a_thing"), "--expert: expected steps or a_thing");
  EXPECT_EQ(told("version", "x"), "--model-version: x");
  EXPECT_EQ(told("no_field", "x"), "no_field: x");
  const absl::Status other = absl::NotFoundError("top_k: nothing");
  EXPECT_EQ(InFlags(other), other) << "about no field";
  EXPECT_TRUE(InFlags(absl::OkStatus()).ok());
}

TEST(SampleRequestTest, WhatIsNotAskedForStaysUnsetAndTheRestIsSent) {
  const SampleRequest plain = MakeRequests({}, {{0}}, 8)->front();
  EXPECT_EQ(plain.solver(), SampleRequest::SOLVER_UNSPECIFIED);
  EXPECT_FALSE(plain.has_guidance_to());
  EXPECT_FALSE(plain.has_negative_class());
  EXPECT_FALSE(plain.has_strength());
  EXPECT_FALSE(plain.has_priority());
  EXPECT_EQ(plain.preview_every(), 0);
  const SampleRequest full = MakeRequests({.temperature = 0.5,
                                           .solver = "multistep",
                                           .times = {1, 0.5, 0},
                                           .guidance_from = 0.25,
                                           .guidance_to = 0.75,
                                           .strength = 0.5,
                                           .reproducible = true,
                                           .allow_expert_loss = true,
                                           .priority = 0,
                                           .preview = "x.png",
                                           .preview_every = 3},
                                          {{0}, 0}, 8)
                                 ->front();
  EXPECT_EQ(full.temperature(), 0.5);
  EXPECT_EQ(full.solver(), SampleRequest::SOLVER_MULTISTEP);
  EXPECT_THAT(full.times(), ElementsAre(1, 0.5, 0));
  EXPECT_EQ(full.guidance_from(), 0.25);
  EXPECT_EQ(full.guidance_to(), 0.75);
  EXPECT_TRUE(full.has_negative_class());
  EXPECT_EQ(full.strength(), 0.5);
  EXPECT_TRUE(full.reproducible());
  EXPECT_TRUE(full.allow_expert_loss());
  EXPECT_TRUE(full.has_priority());
  EXPECT_EQ(full.preview_every(), 3);
}

TEST(SampleRequestTest, ImagesToStartFromAreOneForAllOrOneEach) {
  const Labels labels{.images = {0, 1, 2}};
  const auto one = MakeRequests({}, labels, 2, {"a"});
  EXPECT_THAT((*one)[0].init_images(), ElementsAre("a"));
  EXPECT_THAT((*one)[1].init_images(), ElementsAre("a"));
  const auto each = MakeRequests({}, labels, 2, {"a", "b", "c"});
  EXPECT_THAT((*each)[0].init_images(), ElementsAre("a", "b"));
  EXPECT_THAT((*each)[1].init_images(), ElementsAre("c"));
  EXPECT_EQ(ErrorReason(MakeRequests({}, labels, 2, {"a", "b"}).status()), "INIT_COUNT");
}

TEST(InitImagesTest, PicturesAreMadeToFitTheModel) {
  const dataset::Image colour{.channels = 3, .height = 2, .width = 4, .pixels = std::vector<uint8_t>(24, 200)};
  const auto fitted = FitImage(colour, {.channels = 1, .height = 4, .width = 4}, "x.png");
  ASSERT_TRUE(fitted.ok()) << fitted.status();
  EXPECT_EQ(fitted->channels, 1);
  EXPECT_EQ(fitted->height, 4);
  EXPECT_THAT(fitted->pixels, ::testing::Each(200));
  const absl::Status oblong = FitImage(colour, {.channels = 3, .height = 4, .width = 2}, "x.png").status();
  EXPECT_EQ(ErrorReason(oblong), "INIT_SHAPE");
  EXPECT_THAT(std::string(oblong.message()), HasSubstr("x.png: expected 3x4x2"));
  EXPECT_EQ(ErrorReason(FitImage(colour, {.channels = 4, .height = 2, .width = 4}, "x.png").status()), "INIT_SHAPE")
      << "latents are no pictures";
}

TEST(InitImagesTest, RawOnesArePlanesAndAFolderIsASetOfSamples) {
  const std::string folder = TemporaryFolder("init_images");
  const dataset::Image picture{.channels = 3, .height = 1, .width = 1, .pixels = {0, 255, 0}};
  ASSERT_TRUE(WriteFile(folder + "/a.png", *dataset::EncodePng(picture)).ok());
  const ImageShape shape{.channels = 3, .height = 1, .width = 1};
  const auto raw = ReadInitImages({folder + "/a.png"}, shape, true);
  ASSERT_TRUE(raw.ok()) << raw.status();
  ASSERT_EQ((*raw)[0].size(), 3 * sizeof(float));
  std::vector<float> values(3);
  std::memcpy(values.data(), (*raw)[0].data(), (*raw)[0].size());
  EXPECT_THAT(values, ElementsAre(-1, 1, -1));

  SampleSet set{.raw = true};
  set.images.push_back({.channels = 3, .height = 1, .width = 1, .bytes = (*raw)[0]});
  ASSERT_TRUE(WriteSampleSet(folder + "/set", set).ok());
  EXPECT_EQ(*ReadInitImages({folder + "/set"}, shape, true), *raw);
  EXPECT_EQ(ErrorReason(ReadInitImages({folder + "/set"}, shape, false).status()), "INIT_SHAPE");
  EXPECT_EQ(ReadInitImages({folder + "/none.png"}, shape, false).status().code(), absl::StatusCode::kNotFound);
  std::filesystem::remove_all(folder);
}

SampleSet PngSet() {
  SampleSet set{.model = "digits", .version = "v", .mode = "MODE_FULL", .sample_seconds = 1.5};
  set.settings.set_mode(SampleRequest::MODE_FULL);
  set.settings.set_steps(12);
  set.init = {"sketch.png"};
  set.first_image_seconds = 0.5;
  set.fingerprint = "cpu";
  set.routing = {.chosen = {3, 1},
                 .weight = {3.0, 1.0},
                 .image_steps = 4,
                 .mean_entropy = 0.5,
                 .switches = 2,
                 .close_calls = 1,
                 .renormalised_image_steps = 3,
                 .lost_experts = {1},
                 .failovers = 5};
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
  EXPECT_EQ(back->routing.switches, 2);
  EXPECT_EQ(back->routing.close_calls, 1);
  EXPECT_EQ(back->routing.renormalised_image_steps, 3);
  EXPECT_THAT(back->routing.lost_experts, ElementsAre(1));
  EXPECT_EQ(back->routing.failovers, 5);
  EXPECT_EQ(back->first_image_seconds, 0.5);
  EXPECT_EQ(back->fingerprint, "cpu");
  EXPECT_EQ(back->mode, "MODE_FULL");
  const std::string index = *ReadFile(folder + "/samples.json");
  EXPECT_THAT(index, HasSubstr("\"steps\": 12"));
  EXPECT_THAT(index, HasSubstr("sketch.png"));
  EXPECT_THAT(index, Not(HasSubstr("top_k"))) << "what is off is left out";
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

TEST(SampleSetTest, OtherFilesBesideASetStayWhenItIsReplaced) {
  const std::string folder = TemporaryFolder("sample_set_beside");
  SampleSet larger = PngSet();
  larger.images.push_back(larger.images[1]);
  ASSERT_TRUE(WriteSampleSet(folder, larger).ok());
  for (const char* name : {"notes.txt", "1.png", "00001-classy.png", "more/00001.png"}) {
    ASSERT_TRUE(WriteFile(folder + "/" + name, "x").ok());
  }
  ASSERT_TRUE(ReadFile(folder + "/00002-class0.png").ok());
  ASSERT_TRUE(WriteSampleSet(folder, PngSet()).ok());
  EXPECT_EQ(ReadSampleSet(folder)->images.size(), 2u);
  EXPECT_FALSE(std::filesystem::exists(folder + "/00002-class0.png")) << "it was of the set before";
  for (const char* name : {"notes.txt", "1.png", "00001-classy.png", "more/00001.png"}) {
    EXPECT_TRUE(std::filesystem::exists(folder + "/" + name)) << name;
  }
  std::filesystem::remove_all(folder);
}

TEST(SampleSetTest, WhatCannotBeWrittenLeavesNothing) {
  const std::string folder = TemporaryFolder("sample_set_full");
  SampleSet set = PngSet();
  set.images[1].bytes.assign(100'000, 'x');
  // As on a disk that is full after the first image.
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 50'000, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const absl::Status status = WriteSampleSet(folder, set);
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot write " + folder + "/00001-class0.png"));
  EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST(FilesTest, APipeIsWrittenToAndNotReplaced) {
  const std::string folder = TemporaryFolder("files_pipe");
  ASSERT_TRUE(MakeFolders(folder).ok());
  const std::string path = folder + "/pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const int pipe = open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(pipe, 0);
  EXPECT_TRUE(WriteFile(path, "written").ok());
  std::string found(100, ' ');
  found.resize(static_cast<size_t>(std::max<ssize_t>(0, read(pipe, found.data(), found.size()))));
  EXPECT_EQ(found, "written");
  EXPECT_TRUE(std::filesystem::is_fifo(path));
  close(pipe);
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
  Merge({.chosen = {1, 2},
         .weight = {0.5, 2.5},
         .image_steps = 3,
         .mean_entropy = 1.0,
         .switches = 2,
         .close_calls = 1,
         .lost_experts = {1, 4}},
        &routing);
  Merge({.chosen = {0, 1},
         .weight = {0, 1},
         .image_steps = 1,
         .mean_entropy = 0.2,
         .switches = 1,
         .renormalised_image_steps = 1,
         .lost_experts = {0, 4},
         .failovers = 5},
        &routing);
  EXPECT_THAT(routing.chosen, ElementsAre(1, 3));
  EXPECT_THAT(routing.weight, ElementsAre(0.5, 3.5));
  EXPECT_EQ(routing.image_steps, 4);
  EXPECT_DOUBLE_EQ(routing.mean_entropy, 0.8);
  EXPECT_EQ(routing.switches, 3);
  EXPECT_EQ(routing.close_calls, 1);
  EXPECT_EQ(routing.renormalised_image_steps, 1);
  EXPECT_EQ(routing.failovers, 5);
  EXPECT_THAT(routing.lost_experts, ElementsAre(0, 1, 4));
}

}  // namespace
}  // namespace atl::client
