#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "common/base/errors.h"
#include "common/formats/checkpoint.h"
#include "common/formats/hashed_bytes.h"
#include "common/formats/model_index.h"
#include "common/storage/json_reader.h"
#include "common/storage/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace atl::storage {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

CheckpointManifest SomeManifest() {
  return {.task_id = "job-1/train_expert-2",
          .attempt = 3,
          .step = 40,
          .samples_consumed = 2560,
          .seed = 0xFFFFFFFFFFFFFFFFULL,
          .build = "atoll 0.1.0",
          .precision = {{"params", "float32"}, {"compute", "bfloat16"}},
          .model_config = R"({"width": 96})",
          .files = {{"stage-0.safetensors", 123, Sha256("a")}, {"stage-1.safetensors", 0, Sha256("b")}}};
}

ModelIndex SomeIndex() {
  return {.name = "digits",
          .version = "job-1",
          .dataset = "digits",
          .channels = 1,
          .height = 8,
          .width = 8,
          .classes = {"0", "1"},
          .cluster_rows = {5, 7},
          .experts = 2,
          .files = {{"expert_0/config.json", 2, Sha256("{}")}}};
}

TEST(CheckpointManifestTest, JsonReadsBackEqual) {
  const CheckpointManifest manifest = SomeManifest();
  const auto parsed = ParseManifest(ToJson(manifest), "manifest.json");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, manifest);
}

TEST(SealTest, AChangedByteIsNoticedAndAHandWrittenManifestPasses) {
  const std::string text = ToJson(SomeManifest());
  EXPECT_TRUE(IsSealed(text)) << text;
  const size_t name = text.rfind("\"sha256\"") + 1;  // what it is called tells nothing of the content
  for (size_t at = 0; at < text.size(); ++at) {
    std::string changed = text;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    EXPECT_FALSE(IsSealed(changed)) << at;
    if (at >= name && at < name + 6) continue;
    const auto parsed = ParseManifest(changed, "m.json");
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kDataLoss) << at << ": " << parsed.status();
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("m.json"));
  }
  const std::string by_hand = json::parse(text).dump();
  EXPECT_FALSE(IsSealed(by_hand));
  EXPECT_EQ(ParseManifest(by_hand, "m.json").value(), SomeManifest());
}

TEST(HashedBytesTest, AreReadBackOrRefused) {
  const std::string content = WithHash("abc");
  EXPECT_EQ(WithoutHash(content, "x").value(), "abc");
  EXPECT_EQ(WithoutHash(WithHash(""), "x").value(), "");
  for (size_t at = 0; at < content.size(); ++at) {
    std::string changed = content;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    const auto bytes = WithoutHash(changed, "x.bin");
    EXPECT_EQ(bytes.status().code(), absl::StatusCode::kDataLoss) << at;
    EXPECT_THAT(std::string(bytes.status().message()), HasSubstr("x.bin"));
  }
  for (const char* other : {"", "abc", "\n"}) EXPECT_FALSE(WithoutHash(other, "x").ok());
}

TEST(ModelIndexTest, JsonReadsBackEqual) {
  const auto parsed = ParseModelIndex(ToJson(SomeIndex()), "model_index.json");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, SomeIndex());
}

TEST(ModelIndexTest, WhatMostModelsLackIsWrittenOnlyWhereItIs) {
  for (bool ModelIndex::*field : {&ModelIndex::latent, &ModelIndex::self_conditioning}) {
    ModelIndex index = SomeIndex();
    const std::string without = ToJson(index);
    index.*field = true;
    EXPECT_NE(ToJson(index), without);
    const auto parsed = ParseModelIndex(ToJson(index), "model_index.json");
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, index);
  }
}

TEST(CheckpointManifestTest, MalformedManifestsAreRefusedByField) {
  struct Case {
    std::function<void(json&)> spoil;
    const char* says;
  };
  const std::vector<Case> cases = {
      {[](json& m) { m.erase("step"); }, "step: expected number, found none"},
      {[](json& m) { m["step"] = -1; }, "step: expected an integer from 0"},
      {[](json& m) { m["step"] = "40"; }, "step: expected number, found \"40\""},
      {[](json& m) { m["step"] = 1.5; }, "step: expected an integer"},
      {[](json& m) { m["seed"] = -1; }, "seed"},
      {[](json& m) { m["files"] = 3; }, "files: expected array, found 3"},
      {[](json& m) { m["files"][1] = 3; }, "files[1]: expected an object"},
      {[](json& m) { m["files"][1].erase("sha256"); }, "files[1].sha256"},
      {[](json& m) { m["files"][1]["sha256"] = "abc"; }, "files[1].sha256: expected 64 lower-case hex digits"},
      {[](json& m) { m["files"][1]["name"] = "../../etc/passwd"; }, "files[1].name: expected a relative name"},
      {[](json& m) { m["files"][1]["name"] = "/etc/passwd"; }, "files[1].name: expected a relative name"},
      {[](json& m) { m["files"][1]["name"] = ""; }, "files[1].name: expected a relative name"},
      {[](json& m) { m["files"][1]["name"] = m["files"][0]["name"]; }, "files[1].name: expected each file once"},
      {[](json& m) { m["precision"]["params"] = 32; }, "precision.params: expected a string"},
  };
  for (const Case& c : cases) {
    json manifest = json::parse(ToJson(SomeManifest()));
    c.spoil(manifest);
    const auto parsed = ParseManifest(manifest.dump(), "m.json");
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kDataLoss) << c.says << parsed.status();
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(std::string("m.json: ") + c.says));
  }
  for (const char* text : {"", "[]", "{", "null", "{\"format\":1,\"format\":1}", "\xff"}) {
    EXPECT_EQ(ParseManifest(text, "m.json").status().code(), absl::StatusCode::kDataLoss) << text;
  }
}

TEST(CheckpointManifestTest, OtherFormatsAreRefusedWithWhatThisBuildReads) {
  for (const int format : {0, 2, 99}) {
    json manifest = json::parse(ToJson(SomeManifest()));
    manifest["format"] = format;
    const auto parsed = ParseManifest(manifest.dump(), "m.json");
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(std::to_string(format)));
  }
}

TEST(ModelIndexTest, HowToSampleAndTheProbeReadBackEqual) {
  ModelIndex index = SomeIndex();
  index.files.push_back({"probe-0123.safetensors", 5, Sha256("probe")});
  index.probe = "probe-0123.safetensors";
  for (const VersionSampling& sampling :
       {VersionSampling{.mode = "full", .measured = {{"top-1", 0.25, 1}, {"full", 0.125, 1.75}}},
        VersionSampling{.mode = "top_k", .top_k = 2, .solver = "multistep", .steps = 20, .guidance = 0.0},
        VersionSampling{.mode = "nucleus", .nucleus_p = 0.9, .temperature = 0.5},
        VersionSampling{.mode = "threshold", .threshold = 0.1}}) {
    index.sampling = sampling;
    const auto parsed = ParseModelIndex(ToJson(index), "i");
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, index);
  }
}

TEST(ModelIndexTest, SamplingThatNoRequestCouldAskForIsRefused) {
  for (const auto& [sampling, found] : std::vector<std::pair<std::string, std::string>>{
           {R"([])", "sampling: expected an object"},
           {R"({})", "sampling.mode: expected string, found none"},
           {R"({"mode": "best"})", "sampling.mode: expected 'full', 'top_k' with top_k"},
           {R"({"mode": "top_k"})", "sampling.mode"},
           {R"({"mode": "top_k", "top_k": 3})", "sampling.top_k: expected at most 2, the experts, found 3"},
           {R"({"mode": "threshold", "threshold": 1.5})", "sampling.threshold: expected above 0 and at most 1"},
           {R"({"mode": "nucleus", "nucleus_p": 0})", "sampling.nucleus_p"},
           {R"({"mode": "full", "temperature": 0.001})", "sampling.temperature: expected at least 0.01"},
           {R"({"mode": "full", "solver": "rk45"})", "sampling.solver"},
           {R"({"mode": "full", "steps": 0})", "sampling.steps"},
           {R"({"mode": "full", "guidance": -1})", "sampling.guidance: expected 0 to 100"},
           {R"({"mode": "full", "measured": [{"mode": "full"}]})", "sampling.measured[0].velocity_error"}}) {
    json index = json::parse(ToJson(SomeIndex()));
    index["sampling"] = json::parse(sampling);
    const absl::Status status = ParseModelIndex(index.dump(), "i").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << sampling;
    EXPECT_THAT(std::string(status.message()), HasSubstr(found));
  }
  json index = json::parse(ToJson(SomeIndex()));
  index["probe"] = "nowhere.safetensors";
  EXPECT_THAT(std::string(ParseModelIndex(index.dump(), "i").status().message()),
              HasSubstr("probe: expected one of files"));
}

TEST(ModelIndexTest, ExpertsAndClusterRowsMustAgree) {
  json index = json::parse(ToJson(SomeIndex()));
  index["experts"] = 3;
  EXPECT_EQ(ParseModelIndex(index.dump(), "i").status().code(), absl::StatusCode::kDataLoss);
  index["experts"] = 0;
  EXPECT_EQ(ParseModelIndex(index.dump(), "i").status().code(), absl::StatusCode::kDataLoss);
}

TEST(CheckpointFolderTest, IsBelowThePrefixWhetherOrNotThatEndsInASlash) {
  EXPECT_EQ(CheckpointFolder("file:///r/t/1-2", 40, "ab"), "file:///r/t/1-2/00000040-ab/");
  EXPECT_EQ(CheckpointFolder("file:///r/t/1-2/", 40, "ab"), "file:///r/t/1-2/00000040-ab/");
}

class CheckpointReaderTest : public ::testing::Test {
 protected:
  // Writes a checkpoint of two files and returns the manifest as written.
  WrittenFile WriteCheckpoint(const std::string& second_name) {
    CheckpointManifest manifest = SomeManifest();
    manifest.files.clear();
    const std::string names[] = {"weights/a", second_name};
    for (int i = 0; i < 2; ++i) {
      const std::string file = SerializeSafetensors({{names[i], "F32", {1}, "1234"}}, {}).value();
      const std::string name = "stage-" + std::to_string(i) + ".safetensors";
      const WrittenFile written = store_->Write(store_->UriOf("t/1-1/" + name), file).value();
      manifest.files.push_back({name, written.bytes, written.sha256});
    }
    return store_->CreateOnce(store_->UriOf("t/1-1/manifest.json"), ToJson(manifest)).value();
  }

  TemporaryStore store_;
};

TEST_F(CheckpointReaderTest, TensorsOfAllFilesAreFoundByName) {
  const WrittenFile manifest = WriteCheckpoint("weights/b");
  const auto reader = CheckpointReader::Open(store_.get(), manifest.uri, manifest.sha256);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->manifest().step, 40);
  EXPECT_EQ(reader->tensors().size(), 2U);
  EXPECT_EQ(reader->tensors().at("weights/b").bytes, "1234");
}

TEST_F(CheckpointReaderTest, ChangedMissingAndRepeatedPartsAreNamed) {
  const WrittenFile manifest = WriteCheckpoint("weights/a");
  const auto repeated = CheckpointReader::Open(store_.get(), manifest.uri, manifest.sha256);
  EXPECT_EQ(repeated.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(repeated.status().message()), HasSubstr("weights/a"));

  const auto other = CheckpointReader::Open(store_.get(), manifest.uri, Sha256("other"));
  EXPECT_EQ(ErrorReason(other.status()), "HASH_MISMATCH");

  std::ofstream(store_.PathOf(store_->UriOf("t/1-1/stage-1.safetensors")), std::ios::app) << "x";
  const auto changed = CheckpointReader::Open(store_.get(), manifest.uri, manifest.sha256);
  EXPECT_EQ(changed.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(changed.status().message()), HasSubstr("stage-1.safetensors"));

  ASSERT_TRUE(store_->Delete(store_->UriOf("t/1-1/stage-0.safetensors")).ok());
  const auto missing = CheckpointReader::Open(store_.get(), manifest.uri, manifest.sha256);
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("stage-0.safetensors"));
}

}  // namespace
}  // namespace atl::storage
