#include "coordinator/jobs/storage_access.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::jobs {
namespace {

using spec::TaskKind;

constexpr char kRoot[] = "s3://bucket/atoll";

spec::TaskGrant GrantOf(TaskKind kind) {
  spec::TaskGrant grant;
  grant.job_id = "j1";
  grant.kind = kind;
  grant.spec.model_name = "digits";
  grant.dataset_manifest_uri = "s3://bucket/atoll/datasets/d/manifest.json";
  grant.write_prefix = "s3://bucket/atoll/jobs/j1/task/1-2";
  return grant;
}

TEST(StorageAccessTest, EveryKindOfTaskHasItsPrefixes) {
  const std::vector<std::string> own = {"s3://bucket/atoll/jobs/j1/task/1-2/"};
  const std::vector<std::string> training = {own[0], "s3://bucket/atoll/profiles/"};
  const std::vector<std::string> frozen = {own[0], training[1], "s3://bucket/atoll/plans/",
                                           "s3://bucket/atoll/frozen/"};
  const std::vector<std::string> publish = {own[0], "s3://bucket/atoll/models/digits/j1/"};
  const std::string layer = "s3://bucket/atoll/layer.pt";
  const std::string encoder = "s3://bucket/atoll/encoder.pt";
  struct Row {
    TaskKind kind;
    bool has_frozen = false;
    bool has_encoder = false;
    std::vector<std::string> writes;
    std::vector<std::string> files;  // read besides the job's and the dataset's folders
  };
  const std::vector<Row> rows = {
      {.kind = TaskKind::kFitFeatures, .writes = own},
      {.kind = TaskKind::kFeaturize, .writes = own},
      {.kind = TaskKind::kFeaturize, .has_frozen = true, .has_encoder = true, .writes = own, .files = {encoder}},
      {.kind = TaskKind::kCluster, .has_frozen = true, .has_encoder = true, .writes = own},
      {.kind = TaskKind::kPartition, .has_frozen = true, .has_encoder = true, .writes = own},
      {.kind = TaskKind::kTrainExpert, .writes = training},
      {.kind = TaskKind::kTrainExpert, .has_frozen = true, .has_encoder = true, .writes = frozen, .files = {layer}},
      {.kind = TaskKind::kTrainRouter, .writes = training},
      {.kind = TaskKind::kTrainRouter, .has_frozen = true, .writes = frozen, .files = {layer}},
      {.kind = TaskKind::kPublish, .writes = publish},
      {.kind = TaskKind::kPublish, .has_frozen = true, .writes = publish, .files = {layer}},
  };
  for (const Row& row : rows) {
    spec::TaskGrant grant = GrantOf(row.kind);
    if (row.has_frozen) grant.spec.frozen = {{.name = "e", .output = "latent", .torchscript = {layer}}};
    if (row.has_encoder) grant.spec.features.encoder_uri = encoder;
    const spec::StorageGrant access = StorageAccessOf(grant, kRoot);
    std::vector<std::string> reads = {"s3://bucket/atoll/.atoll/", "s3://bucket/atoll/coordinator/epochs/",
                                      "s3://bucket/atoll/datasets/d/", "s3://bucket/atoll/jobs/j1/"};
    reads.insert(reads.end(), row.files.begin(), row.files.end());
    EXPECT_EQ(access.reads, reads) << spec::ToString(row.kind);
    EXPECT_EQ(access.writes, row.writes) << spec::ToString(row.kind);
    EXPECT_EQ(access.access_key, "");
    EXPECT_EQ(access.expires, absl::InfiniteFuture());
  }
}

TEST(StorageAccessTest, AJobThatNamesAFolderOrAnotherStoreAsItsFileGetsNone) {
  const size_t without = StorageAccessOf(GrantOf(TaskKind::kFeaturize), kRoot).reads.size();
  for (const char* uri : {"s3://bucket/atoll/jobs/", "s3://bucket/atoll/", "s3://bucket/atoll", "s3://bucket/atollx/f",
                          "s3://elsewhere/f", "file:///etc/passwd"}) {
    spec::TaskGrant grant = GrantOf(TaskKind::kFeaturize);
    grant.spec.features.encoder_uri = uri;
    EXPECT_EQ(StorageAccessOf(grant, kRoot).reads.size(), without) << uri;
  }
}

// A name that begins like another one's is another one.
TEST(StorageAccessTest, FoldersEndInASlash) {
  for (int kind = 1; kind <= 7; ++kind) {
    const spec::StorageGrant access = StorageAccessOf(GrantOf(static_cast<TaskKind>(kind)), kRoot);
    for (const auto* uris : {&access.reads, &access.writes}) {
      for (const std::string& uri : *uris) EXPECT_EQ(uri.back(), '/') << uri;
    }
  }
}

}  // namespace
}  // namespace atl::jobs
