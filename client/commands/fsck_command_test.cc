// `atoll fsck`, over a store of the test and what its coordinator knows.
#include <filesystem>
#include <functional>

#include "client/commands/command_line_testing.h"
#include "common/dataset/dataset.h"
#include "common/storage/blob_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace atl::client {
namespace {

using ::testing::HasSubstr;

TEST_F(CommandLineTest, FsckNamesBadFilesAndEndsWithDataLoss) {
  auto store = storage::BlobStore::Open("file://" + folder_ + "/blobs").value();
  dataset::DatasetManifest manifest{.name = "d", .channels = 1, .height = 1, .width = 1, .classes = {"0"}};
  const auto shard = store->Write(store->UriOf("datasets/d/shards-1/train-0.parquet"), "shard");
  ASSERT_TRUE(shard.ok());
  manifest.shards.push_back({.uri = shard->uri, .split = "train", .rows = 1, .bytes = 5, .sha256 = shard->sha256});
  ASSERT_TRUE(store->Write(dataset::DatasetManifestUri(*store, "d"), dataset::ToJson(manifest)).ok());

  Outcome outcome = Run({"fsck", "--offline"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("2 files of "));
  EXPECT_THAT(outcome.out, HasSubstr("checked, 0 bad; nothing names 0 files of 0 bytes"));

  ASSERT_TRUE(store->Write(shard->uri, "Shard").ok());
  outcome = Run({"fsck", "--offline"});
  EXPECT_EQ(outcome.code, 8);
  EXPECT_THAT(outcome.out, HasSubstr("damaged " + shard->uri + ": expected SHA-256 " + shard->sha256));
  EXPECT_THAT(outcome.out, HasSubstr("(named by " + dataset::DatasetManifestUri(*store, "d") + ")\n"));
  EXPECT_THAT(outcome.err, HasSubstr("expected 2 whole files, found 1 bad [STORE_NOT_WHOLE]"));
  const auto json = nlohmann::json::parse(Run({"fsck", "--offline", "--output", "json"}).out);
  EXPECT_EQ(json.at("bad").at(0).at("problem"), "damaged");
  EXPECT_EQ(json.at("bad").at(0).at("uri"), shard->uri);
  EXPECT_EQ(json.at("files"), 2);

  // fsck also asks the coordinator for the files that it knows, and fails if the coordinator does not answer.
  outcome = Run({"fsck", "--below", "datasets/d/manifest.json"});
  EXPECT_EQ(outcome.code, 0) << outcome.err << outcome.out;
  outcome = Run({"fsck", "--offline", "--below", "dataset/"});
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("expected files below 'dataset/', found none [NOTHING_BELOW]"));
  EXPECT_EQ(Run({"fsck", "--coordinator", "127.0.0.1:1"}).code, 6);
  EXPECT_EQ(Run({"fsck", "--threads", "0"}).code, 2);
}

TEST_F(CommandLineTest, FsckDoesNotMakeTheStoreThatItChecks) {
  const std::string blobs = folder_ + "/blobs";
  for (const std::string& uri : {"file://" + blobs, "file://" + blobs + "/"}) {
    const Outcome outcome = Run({"--blob-store", uri, "fsck", "--offline"});
    EXPECT_EQ(outcome.code, 4);
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(outcome.err,
              "atoll: error: expected a blob store, found no folder at " + uri + " [BLOB_STORE_NOT_FOUND]\n");
    EXPECT_FALSE(std::filesystem::exists(blobs));
  }
  EXPECT_EQ(Run({"fsck"}).code, 4);
  EXPECT_FALSE(std::filesystem::exists(blobs));

  std::filesystem::create_directories(blobs);
  const Outcome outcome = Run({"fsck", "--offline"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("0 files of 0 bytes checked, 0 bad"));
  EXPECT_THAT(outcome.out, HasSubstr("0 files of 0 bytes: the store is empty\n"));
}

TEST_F(CommandLineTest, FsckChecksTheFilesThatUnfinishedJobsName) {
  auto store = storage::BlobStore::Open("file://" + folder_ + "/blobs").value();
  const auto encoder = store->Write(store->UriOf("files/e.pt"), "encoder");
  const auto latent = store->Write(store->UriOf("files/l.pt"), "latent");
  ASSERT_TRUE(encoder.ok() && latent.ok());
  const auto tell = [&](const std::function<void(Job*)>& change) {
    absl::MutexLock lock(&jobs_.mutex_);
    change(&jobs_.more_);
  };
  tell([&](Job* job) {
    job->mutable_spec()->mutable_features()->set_kind("torchscript");
    job->mutable_spec()->mutable_features()->set_encoder_uri(encoder->uri);
    job->mutable_spec()->mutable_features()->set_encoder_sha256(encoder->sha256);
    job->mutable_spec()->add_frozen()->add_torchscript(latent->uri);
    job->mutable_spec()->mutable_frozen(0)->add_file_sha256(latent->sha256);
  });
  Outcome outcome = Run({"fsck", "--below", "files/"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("2 files of 13 bytes checked, 0 bad; nothing names 0 files"));

  ASSERT_TRUE(store->Write(encoder->uri, "Encoder").ok());
  ASSERT_TRUE(store->Delete(latent->uri).ok());
  outcome = Run({"fsck", "--below", "files/"});
  EXPECT_EQ(outcome.code, 8);
  EXPECT_THAT(outcome.out, HasSubstr("damaged " + encoder->uri + ": expected SHA-256 " + encoder->sha256));
  EXPECT_THAT(outcome.out, HasSubstr("(named by job j1: features.encoder_uri)"));
  EXPECT_THAT(outcome.out, HasSubstr("missing " + latent->uri));
  EXPECT_THAT(outcome.out, HasSubstr("(named by job j1: frozen[0].torchscript[0])"));
  // A job that is gone when everything has been read misses nothing; it is on both pages of the list.
  {
    absl::MutexLock lock(&jobs_.mutex_);
    jobs_.tells_more_ = 2;
  }
  ASSERT_TRUE(store->Write(encoder->uri, "encoder").ok());
  outcome = Run({"fsck", "--below", "files/"});
  EXPECT_EQ(outcome.code, 0) << outcome.err << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("0 bad"));
  {
    absl::MutexLock lock(&jobs_.mutex_);
    jobs_.tells_more_ = -1;
  }
  EXPECT_EQ(Run({"fsck", "--below", "files/"}).code, 8);
  // They are the user's, and a job that is over needs them no more.
  tell([](Job* job) { job->set_state(Job::STATE_SUCCEEDED); });
  EXPECT_EQ(Run({"fsck", "--below", "files/"}).code, 0);
}

}  // namespace
}  // namespace atl::client
