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
  const std::string layer = "s3://bucket/atoll/inputs/layer.pt";
  const std::string encoder = "s3://bucket/atoll/inputs/encoder.pt";
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
    if (row.has_encoder) grant.spec.features = {.kind = "torchscript", .encoder_uri = encoder};
    const spec::StorageGrant access = StorageAccessOf(grant, kRoot);
    std::vector<std::string> reads = {"s3://bucket/atoll/coordinator/epochs/", "s3://bucket/atoll/datasets/d/",
                                      "s3://bucket/atoll/jobs/j1/"};
    reads.insert(reads.end(), row.files.begin(), row.files.end());
    EXPECT_EQ(access.reads, reads) << spec::ToString(row.kind);
    EXPECT_EQ(access.writes, row.writes) << spec::ToString(row.kind);
    EXPECT_EQ(access.access_key, "");
    EXPECT_EQ(access.expires, absl::InfiniteFuture());
  }
}

TEST(StorageAccessTest, OnlyInputsAreOpened) {
  const auto reads = [](TaskKind kind, const spec::FeatureSpec& features, const std::string& frozen) {
    spec::TaskGrant grant = GrantOf(kind);
    grant.spec.features = features;
    if (!frozen.empty()) grant.spec.frozen = {{.name = "e", .output = "latent", .torchscript = {frozen}}};
    return StorageAccessOf(grant, kRoot).reads.size();
  };
  const size_t featurize = reads(TaskKind::kFeaturize, {}, "");
  const size_t training = reads(TaskKind::kTrainExpert, {}, "");
  for (const char* uri :
       {"s3://bucket/atoll/jobs/j2/t/1-1/stage-0-of-1.safetensors", "s3://bucket/atoll/models/m/v/weights",
        "s3://bucket/atoll/datasets/e/shard", "s3://bucket/atoll/loose", "s3://bucket/atoll/inputs/",
        "s3://bucket/atoll/inputs", "s3://bucket/atoll/inputs/../jobs/j2/x", "s3://bucket/atoll/inputs/a/",
        "s3://bucket/atoll/inputs/*", "s3://bucket/atoll/inputs/${aws:username}",
        "s3://bucket/atoll/inputs/%2e%2e/jobs/j2/x", "s3://bucket/atoll/inputsx/f", "s3://bucket/atollx/inputs/f",
        "s3://elsewhere/inputs/f", "file:///etc/passwd"}) {
    EXPECT_EQ(reads(TaskKind::kFeaturize, {.kind = "torchscript", .encoder_uri = uri}, ""), featurize) << uri;
    EXPECT_EQ(reads(TaskKind::kTrainExpert, {}, uri), training) << uri;
    EXPECT_EQ(reads(TaskKind::kPublish, {}, uri), training) << uri;
  }
  const std::string input = "s3://bucket/atoll/inputs/team/encoder_1.2=a+b-c.pt";
  EXPECT_EQ(reads(TaskKind::kFeaturize, {.kind = "torchscript", .encoder_uri = input}, ""), featurize + 1);
  EXPECT_EQ(reads(TaskKind::kTrainExpert, {}, input), training + 1);
  // Features of these kinds read no encoder.
  for (const char* kind : {"pixels_pca", "column"}) {
    EXPECT_EQ(reads(TaskKind::kFeaturize, {.kind = kind, .encoder_uri = input}, ""), featurize) << kind;
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
