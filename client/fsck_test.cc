#include "client/fsck.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <fmt/format.h>

#include "common/base/errors.h"
#include "common/dataset/dataset.h"
#include "common/formats/checkpoint.h"
#include "common/formats/hashed_bytes.h"
#include "common/formats/model_index.h"
#include "common/storage/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::fsck {
namespace {

using storage::Sha256;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class FsckTest : public ::testing::Test {
 protected:
  // A dataset of one shard, a checkpoint of one file, a model of one, features that a task's row alone names, kept
  // outputs and a plan, and a file that nothing names.
  void SetUp() override {
    dataset::DatasetManifest dataset{.name = "d", .channels = 1, .height = 1, .width = 1, .classes = {"0"}};
    Put("datasets/d/shards-1/train-0.parquet", "shard");
    dataset.shards.push_back({.uri = store_->UriOf("datasets/d/shards-1/train-0.parquet"),
                              .split = "train",
                              .rows = 1,
                              .bytes = 5,
                              .sha256 = Sha256("shard")});
    Put("datasets/d/manifest.json", dataset::ToJson(dataset));
    Put("jobs/j/t/1-1/00000010-a/stage-0.safetensors", "stage");
    storage::CheckpointManifest checkpoint{.task_id = "j/t", .attempt = 1, .step = 10};
    checkpoint.files = {{"stage-0.safetensors", 5, Sha256("stage")}};
    Put("jobs/j/t/1-1/00000010-a/manifest.json", storage::ToJson(checkpoint));
    Put("models/m/v/expert_0/w.safetensors", "weights");
    storage::ModelIndex index{.name = "m",
                              .version = "v",
                              .dataset = "d",
                              .channels = 1,
                              .height = 1,
                              .width = 1,
                              .classes = {"0"},
                              .cluster_rows = {1},
                              .experts = 1};
    index.files = {{"expert_0/w.safetensors", 7, Sha256("weights")}};
    Put("models/m/v/model_index.json", storage::ToJson(index));
    Put("jobs/j/f/1-1/features.bin", "features");
    options_.known = {{store_->UriOf("jobs/j/f/1-1/features.bin"), Sha256("features"), "task j/f: features"}};
    Put(fmt::format("frozen/k/image-0-1-{}.safetensors", Sha256("kept")), "kept");
    Put("plans/p.binpb", storage::WithHash("plan"));
    Put("jobs/j/t/1-1/trace/00000001-rank-0.json", "{}");
  }

  void Put(const std::string& path, std::string_view bytes) {
    // Not durably, which would take most of the time.
    const std::string file = store_.PathOf(store_->UriOf(path));
    std::filesystem::create_directories(file.substr(0, file.rfind('/')));
    std::ofstream(file, std::ios::binary) << bytes;
  }
  FsckReport Check() {
    auto report = CheckBlobStore(store_.get(), options_);
    EXPECT_TRUE(report.ok()) << report.status();
    return *std::move(report);
  }
  // "problem path" of each bad file.
  std::vector<std::string> Bad() {
    std::vector<std::string> bad;
    for (const BadFile& file : Check().bad) {
      bad.push_back(fmt::format("{} {}", ToString(file.problem), file.uri.substr(store_->root().size() + 1)));
    }
    return bad;
  }

  storage::TemporaryStore store_;
  FsckOptions options_;
};

TEST_F(FsckTest, AWholeStoreHasNothingBad) {
  EXPECT_THAT(Bad(), IsEmpty());
  const FsckReport report = Check();
  EXPECT_EQ(report.files, 9);
  EXPECT_EQ(report.unnamed_files, 1);
  EXPECT_EQ(report.unnamed_bytes, 2);
}

TEST_F(FsckTest, AChangedByteAnywhereIsFoundByName) {
  const auto files = store_->List(store_->root());
  ASSERT_TRUE(files.ok());
  for (const storage::FileInfo& file : *files) {
    const std::string path = file.uri.substr(store_->root().size() + 1);
    if (path.find("/trace/") != std::string::npos) continue;
    const std::string whole = store_->Read(file.uri).value();
    for (size_t at = 0; at < whole.size(); at += 11) {
      std::string changed = whole;
      changed[at] = static_cast<char>(changed[at] ^ 1);
      Put(path, changed);
      ASSERT_THAT(Bad(), ::testing::Contains("damaged " + path)) << at;
    }
    Put(path, whole);
  }
  EXPECT_THAT(Bad(), IsEmpty());
}

TEST_F(FsckTest, MissingFilesAreNamedWithWhatNamesThem) {
  ASSERT_TRUE(store_->Delete(store_->UriOf("datasets/d/shards-1/train-0.parquet")).ok());
  ASSERT_TRUE(store_->Delete(store_->UriOf("jobs/j/f/1-1/features.bin")).ok());
  const FsckReport report = Check();
  ASSERT_EQ(report.bad.size(), 2u);
  EXPECT_EQ(report.bad[0].problem, BadFile::Problem::kMissing);
  EXPECT_EQ(report.bad[0].named_by, store_->UriOf("datasets/d/manifest.json"));
  EXPECT_EQ(report.bad[1].named_by, "task j/f: features");
}

TEST_F(FsckTest, FilesThatTheCoordinatorAloneNamesAreNotCheckedWithoutIt) {
  options_.known.clear();
  Put("jobs/j/f/1-1/features.bin", "other");
  const FsckReport report = Check();
  EXPECT_THAT(report.bad, IsEmpty());
  EXPECT_EQ(report.unnamed_files, 2);
}

TEST_F(FsckTest, OnlyTheChosenFoldersAreChecked) {
  Put("models/m/v/expert_0/w.safetensors", "other");
  options_.below = {"datasets/", "frozen/"};
  EXPECT_THAT(Bad(), IsEmpty());
  EXPECT_EQ(Check().files, 3);
  options_.below = {"models/m/"};
  EXPECT_THAT(Bad(), ::testing::ElementsAre("damaged models/m/v/expert_0/w.safetensors"));
  options_.below = {store_->UriOf("models/m/")};
  EXPECT_THAT(Bad(), ::testing::ElementsAre("damaged models/m/v/expert_0/w.safetensors"));
}

TEST_F(FsckTest, AFolderIsChosenByWholePartsOfThePath) {
  Put("models/m-1/v/notes.txt", "nothing names it");
  for (const std::string& folder :
       {std::string("models/m"), std::string("models/m/"), store_->UriOf("models/m"), store_->UriOf("models/m/")}) {
    options_.below = {folder};
    const FsckReport report = Check();
    EXPECT_EQ(report.files, 2) << folder;
    EXPECT_EQ(report.unnamed_files, 0) << folder;
  }
  options_.below = {"models"};
  EXPECT_EQ(Check().unnamed_files, 1);
  options_.below = {"models/m-1/v/notes.txt"};
  EXPECT_EQ(Check().unnamed_files, 1);
  options_.below = {store_->root() + "/"};
  EXPECT_EQ(Check().files, 9);
}

TEST_F(FsckTest, AFolderWithNothingInItIsAnError) {
  for (const std::string& folder : {std::string("modles/"), std::string("model"), store_->UriOf("modles/"),
                                    store_->UriOf("mod"), std::string("s3://b/models/")}) {
    options_.below = {"datasets/", folder};
    const absl::Status status = CheckBlobStore(store_.get(), options_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << folder;
    EXPECT_EQ(ErrorReason(status), "NOTHING_BELOW") << status;
  }
  // A folder whose files are all gone is not empty if a job names files in it.
  options_.known.push_back({store_->UriOf("files/e.pt"), Sha256("e"), "job j: features.encoder_uri"});
  options_.below = {"files/"};
  EXPECT_THAT(Bad(), ::testing::ElementsAre("missing files/e.pt"));
}

TEST_F(FsckTest, AFileThatIsBadToSeveralIsNamedOnce) {
  const std::string uri = store_->UriOf("models/m/v/model_index.json");
  options_.known.push_back({uri, Sha256(store_->Read(uri).value()), "model m: version v"});
  EXPECT_THAT(Bad(), IsEmpty());
  Put("models/m/v/model_index.json", "{}");
  EXPECT_THAT(Bad(), ::testing::ElementsAre("damaged models/m/v/model_index.json"));
}

TEST_F(FsckTest, FilesOfAnotherRootAreSaidToBeUnread) {
  options_.known.push_back({"s3://other/root/x", Sha256("x"), "task j/t"});
  const FsckReport report = Check();
  ASSERT_EQ(report.bad.size(), 1u);
  EXPECT_EQ(report.bad[0].problem, BadFile::Problem::kUnreadable);
  EXPECT_THAT(report.bad[0].detail, HasSubstr("expected a file below " + store_->root()));
}

TEST_F(FsckTest, TwoThatNameAFileDifferentlyAreBothNamed) {
  options_.known.push_back({store_->UriOf("jobs/j/t/1-1/00000010-a/stage-0.safetensors"), Sha256("x"), "task j/t"});
  const FsckReport report = Check();
  ASSERT_FALSE(report.bad.empty());
  EXPECT_THAT(report.bad[0].detail, HasSubstr("manifest.json"));
}

}  // namespace
}  // namespace atl::fsck
