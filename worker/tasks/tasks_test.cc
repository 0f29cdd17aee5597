// The tasks over a small dataset in a real store: from pixels to partitions, and from checkpoints to a model.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>

#include "common/base/counter_random.h"
#include "common/base/errors.h"
#include "common/dataset/dataset.h"
#include "common/formats/checkpoint.h"
#include "common/formats/model_index.h"
#include "common/model/dit.h"
#include "common/model/testing.h"
#include "common/model/weights_testing.h"
#include "common/storage/safetensors.h"
#include "common/storage/testing.h"
#include "worker/tasks/pixels.h"
#include "worker/tasks/task.h"

namespace atl::tasks {
namespace {

using spec::TaskKind;
using ::testing::HasSubstr;

constexpr int kShards = 2;
constexpr int kRowsPerShard = 60;
constexpr int kSide = 8;

// Class c lights one quadrant; noise makes every image another.
dataset::Sample MakeSample(int shard, int row) {
  dataset::Sample sample;
  sample.label = row % 4;
  sample.image = {1, kSide, kSide, std::vector<uint8_t>(kSide * kSide, 0)};
  const CounterRandom random(3, RandomPurpose::kSubset, shard, row);
  for (int y = 0; y < kSide; ++y) {
    for (int x = 0; x < kSide; ++x) {
      const bool lit = (y >= 4) == (sample.label >= 2) && (x >= 4) == (sample.label % 2 == 1);
      sample.image.pixels[y * kSide + x] = static_cast<uint8_t>((lit ? 180 : 20) + random.Below(40, y * kSide + x));
    }
  }
  sample.id = dataset::SampleId(sample.image, sample.label);
  sample.path = fmt::format("{}-{}.png", shard, row);
  sample.columns = {{static_cast<float>(sample.label), static_cast<float>(row % 2) * 0.1F}};
  return sample;
}

class Tasks : public testing::Test {
 protected:
  void SetUp() override {
    dataset::DatasetManifest manifest;
    manifest.name = "quadrants";
    manifest.channels = 1;
    manifest.height = kSide;
    manifest.width = kSide;
    manifest.classes = {"a", "b", "c", "d"};
    manifest.columns = {"embedding"};
    for (int shard = 0; shard < kShards; ++shard) {
      auto writer = dataset::ShardWriter::Create(
          store_.get(), store_->UriOf(fmt::format("datasets/quadrants/train-{}.parquet", shard)), "train",
          {"embedding"});
      ASSERT_TRUE(writer.ok()) << writer.status();
      for (int row = 0; row < kRowsPerShard; ++row) {
        const absl::Status added = (*writer)->Add(MakeSample(shard, row));
        ASSERT_TRUE(added.ok()) << added;
      }
      auto finished = (*writer)->Finish();
      ASSERT_TRUE(finished.ok()) << finished.status();
      manifest.shards.push_back(*finished);
    }
    manifest_uri_ = dataset::DatasetManifestUri(*store_.get(), manifest.name);
    ASSERT_TRUE(store_->Write(manifest_uri_, dataset::ToJson(manifest)).ok());
    spec_.model_name = "quadrants-model";
    spec_.dataset = "quadrants";
    spec_.experts = 4;
    spec_.seed = 11;
    spec_.features.components = 8;
    spec_.clustering.fine_centroids = 16;
    spec_.clustering.batch_size = 32;
  }

  TaskContext Context(TaskKind kind, int32_t index, std::vector<spec::TaskInput> inputs,
                      const std::string& attempt = "1-1") {
    TaskContext context;
    context.grant.token.task_id = fmt::format("job/{}-{}", spec::ToString(kind), index);
    context.grant.job_id = "job";
    context.grant.kind = kind;
    context.grant.index = index;
    context.grant.spec = spec_;
    context.grant.dataset_manifest_uri = manifest_uri_;
    context.grant.inputs = std::move(inputs);
    context.grant.write_prefix = store_->UriOf(fmt::format("jobs/{}/{}/", context.grant.token.task_id, attempt));
    context.store = store_.get();
    return context;
  }

  static spec::TaskInput Input(TaskKind kind, int32_t index, std::vector<spec::Artifact> artifacts) {
    return {fmt::format("job/{}-{}", spec::ToString(kind), index), kind, index, std::move(artifacts)};
  }

  // Everything up to the partitions; by shard.
  absl::StatusOr<std::vector<std::vector<spec::Artifact>>> PartitionAll(const std::string& attempt = "1-1") {
    std::vector<spec::TaskInput> fitted;
    if (spec_.features.kind == "pixels_pca") {
      auto pca = RunTask(Context(TaskKind::kFitFeatures, 0, {}, attempt));
      if (!pca.ok()) return pca.status();
      fitted.push_back(Input(TaskKind::kFitFeatures, 0, *pca));
    }
    std::vector<spec::TaskInput> featurized;
    for (int shard = 0; shard < kShards; ++shard) {
      auto features = RunTask(Context(TaskKind::kFeaturize, shard, fitted, attempt));
      if (!features.ok()) return features.status();
      featurized.push_back(Input(TaskKind::kFeaturize, shard, *features));
    }
    // Inputs come in any order.
    auto centroids = RunTask(Context(TaskKind::kCluster, 0, {featurized[1], featurized[0]}, attempt));
    if (!centroids.ok()) return centroids.status();
    std::vector<std::vector<spec::Artifact>> partitions;
    for (int shard = 0; shard < kShards; ++shard) {
      auto parts = RunTask(
          Context(TaskKind::kPartition, shard, {featurized[shard], Input(TaskKind::kCluster, 0, *centroids)}, attempt));
      if (!parts.ok()) return parts.status();
      partitions.push_back(*parts);
    }
    return partitions;
  }

  // Samples of a partition artifact.
  std::vector<dataset::Sample> ReadPartition(const spec::Artifact& artifact) {
    auto reader = dataset::SampleReader::Open(
        store_.get(), {{artifact.uri, "train", artifact.rows, artifact.bytes, artifact.sha256}});
    EXPECT_TRUE(reader.ok()) << reader.status();
    std::vector<dataset::Sample> samples;
    for (int64_t i = 0; reader.ok() && i < (*reader)->size(); ++i) samples.push_back(*(*reader)->Read(i));
    return samples;
  }

  // Cluster of every sample, by id; each sample must be in one partition only.
  std::map<uint64_t, std::string> ClusterById(const std::vector<std::vector<spec::Artifact>>& partitions) {
    std::map<uint64_t, std::string> clusters;
    for (const auto& artifacts : partitions) {
      for (const spec::Artifact& artifact : artifacts) {
        int64_t rows = 0;
        for (const dataset::Sample& sample : ReadPartition(artifact)) {
          EXPECT_TRUE(clusters.emplace(sample.id, artifact.name).second) << sample.path;
          ++rows;
        }
        EXPECT_EQ(rows, artifact.rows);
      }
    }
    return clusters;
  }

  // Every class in one cluster and every cluster of one class.
  void ExpectClustersAreClasses(const std::vector<std::vector<spec::Artifact>>& partitions) {
    const auto clusters = ClusterById(partitions);
    ASSERT_EQ(clusters.size(), static_cast<size_t>(kShards * kRowsPerShard));
    std::map<int32_t, std::set<std::string>> clusters_of_class;
    std::set<std::string> all;
    for (int shard = 0; shard < kShards; ++shard) {
      for (int row = 0; row < kRowsPerShard; ++row) {
        const dataset::Sample sample = MakeSample(shard, row);
        clusters_of_class[sample.label].insert(clusters.at(sample.id));
        all.insert(clusters.at(sample.id));
      }
    }
    for (const auto& [label, names] : clusters_of_class) EXPECT_EQ(names.size(), 1u) << label;
    EXPECT_EQ(all.size(), 4u);
  }

  // The job names it with its hash.
  void SaveEncoder(const std::string& forward) {
    torch::jit::Module module("encoder");
    module.define(forward);
    std::ostringstream archive;
    module.save(archive);
    WriteEncoder(archive.str());
  }

  void WriteEncoder(const std::string& bytes) {
    const auto written = store_->Write(store_->UriOf("inputs/encoder.pt"), bytes);
    ASSERT_TRUE(written.ok()) << written.status();
    spec_.features.kind = "torchscript";
    spec_.features.encoder_uri = written->uri;
    spec_.features.encoder_sha256 = written->sha256;
  }

  storage::TemporaryStore store_;
  spec::JobSpec spec_;
  std::string manifest_uri_;
};

TEST_F(Tasks, PixelsAfterAPcaClusterIntoTheQuadrants) {
  const auto partitions = PartitionAll();
  ASSERT_TRUE(partitions.ok()) << partitions.status();
  ExpectClustersAreClasses(*partitions);
}

TEST_F(Tasks, RunningTwiceWritesTheSameBytes) {
  const auto first = PartitionAll("1-1");
  const auto second = PartitionAll("1-2");
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  for (int shard = 0; shard < kShards; ++shard) {
    ASSERT_EQ((*first)[shard].size(), (*second)[shard].size());
    for (size_t i = 0; i < (*first)[shard].size(); ++i) {
      EXPECT_EQ((*first)[shard][i].sha256, (*second)[shard][i].sha256);
      EXPECT_NE((*first)[shard][i].uri, (*second)[shard][i].uri);
    }
  }
}

TEST_F(Tasks, PrincipalComponentsAreOrthonormalWithPositiveLargestEntries) {
  const auto artifacts = RunTask(Context(TaskKind::kFitFeatures, 0, {}));
  ASSERT_TRUE(artifacts.ok()) << artifacts.status();
  EXPECT_EQ((*artifacts)[0].rows, kShards * kRowsPerShard);
  const std::string bytes = *store_->ReadVerified((*artifacts)[0].uri, (*artifacts)[0].sha256);
  const storage::Safetensors file = *storage::ParseSafetensors(bytes, "pca");
  EXPECT_EQ(file.Find("mean")->shape, std::vector<int64_t>{64});
  const storage::TensorView view = *file.Find("components");
  ASSERT_EQ(view.shape, (std::vector<int64_t>{8, 64}));
  std::vector<float> components(8 * 64);
  std::memcpy(components.data(), view.bytes.data(), view.bytes.size());
  for (int a = 0; a < 8; ++a) {
    for (int b = 0; b <= a; ++b) {
      double product = 0;
      for (int i = 0; i < 64; ++i) product += components[a * 64 + i] * components[b * 64 + i];
      EXPECT_NEAR(product, a == b ? 1 : 0, 1e-5);
    }
    const auto largest = std::max_element(components.begin() + a * 64, components.begin() + (a + 1) * 64,
                                          [](float x, float y) { return std::abs(x) < std::abs(y); });
    EXPECT_GT(*largest, 0);
  }
}

TEST_F(Tasks, AColumnOfTheDatasetMayBeTheFeatures) {
  spec_.features.kind = "column";
  spec_.features.column = "embedding";
  const auto partitions = PartitionAll();
  ASSERT_TRUE(partitions.ok()) << partitions.status();
  ExpectClustersAreClasses(*partitions);
  spec_.features.column = "colour";
  const absl::Status unknown = PartitionAll("1-2").status();
  EXPECT_EQ(ErrorField(unknown), "features.column");
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("(embedding), found 'colour'"));
}

TEST_F(Tasks, ATorchScriptFileMayBeTheEncoder) {
  SaveEncoder("def forward(self, x):\n  return x.flatten(1)[:, ::2]\n");
  const auto partitions = PartitionAll();
  ASSERT_TRUE(partitions.ok()) << partitions.status();
  ExpectClustersAreClasses(*partitions);
}

TEST_F(Tasks, AnEncoderThatIsNotTheOneSubmittedIsDataLoss) {
  SaveEncoder("def forward(self, x):\n  return x.flatten(1)\n");
  std::string bytes = *store_->Read(spec_.features.encoder_uri);
  EXPECT_TRUE(RunTask(Context(TaskKind::kFeaturize, 0, {})).ok());
  bytes[bytes.size() / 2] ^= 1;
  ASSERT_TRUE(store_->Write(spec_.features.encoder_uri, bytes).ok());
  const absl::Status status = RunTask(Context(TaskKind::kFeaturize, 0, {})).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(spec_.features.encoder_uri + ": expected SHA-256 " + spec_.features.encoder_sha256));
}

TEST_F(Tasks, EncodersThatAreNoneOrReturnSomethingElseAreRefused) {
  struct Bad {
    const char* forward;
    const char* reason;
    const char* message;
  };
  const Bad cases[] = {
      {"def forward(self, x):\n  return x\n", "ENCODER_OUTPUT",
       "expected floats [60, d] for images [60, 1, 8, 8], found"},
      {"def forward(self, x):\n  return x.flatten(1).long()\n", "ENCODER_OUTPUT", "found Long [60, 64]"},
      {"def forward(self, x):\n  return x.flatten(1)[:3]\n", "ENCODER_OUTPUT", "[3, 64]"},
      {"def forward(self, x):\n  return 1\n", "ENCODER_OUTPUT", "expected a tensor"},
      {"def forward(self, x):\n  return x.view(7)\n", "ENCODER_FAILED", "on images [60, 1, 8, 8]"},
  };
  for (const Bad& bad : cases) {
    SaveEncoder(bad.forward);
    const absl::Status status = RunTask(Context(TaskKind::kFeaturize, 0, {})).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(ErrorReason(status), bad.reason) << status;
    EXPECT_EQ(ErrorField(status), "features.encoder_uri");
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.message));
  }
  WriteEncoder("no archive");
  EXPECT_EQ(ErrorReason(RunTask(Context(TaskKind::kFeaturize, 0, {})).status()), "TORCHSCRIPT_FILE");
}

TEST_F(Tasks, RandomClustersDependOnSeedAndSampleOnly) {
  spec_.clustering.method = "random";
  const auto partitions = PartitionAll();
  ASSERT_TRUE(partitions.ok()) << partitions.status();
  const auto clusters = ClusterById(*partitions);
  EXPECT_EQ(clusters.size(), static_cast<size_t>(kShards * kRowsPerShard));
  std::map<std::string, int> sizes;
  for (const auto& [id, name] : clusters) ++sizes[name];
  EXPECT_EQ(sizes.size(), 4u);
  for (const auto& [name, size] : sizes) EXPECT_GT(size, 15) << name;
  EXPECT_EQ(ClusterById(*PartitionAll("1-2")), clusters);
  spec_.seed = 12;
  EXPECT_NE(ClusterById(*PartitionAll("1-3")), clusters);
}

TEST_F(Tasks, ACancelledTaskEndsWithAborted) {
  TaskContext context = Context(TaskKind::kFitFeatures, 0, {});
  context.cancelled = [] { return true; };
  const absl::Status status = RunTask(context).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(ErrorReason(status), "TASK_CANCELLED");
}

TEST_F(Tasks, MissingInputsAndDamagedFilesAreNamed) {
  EXPECT_EQ(ErrorReason(RunTask(Context(TaskKind::kFeaturize, 0, {})).status()), "TASK_INPUT_MISSING");
  EXPECT_EQ(ErrorReason(RunTask(Context(TaskKind::kTrainExpert, 0, {})).status()), "TASK_KIND");
  auto pca = RunTask(Context(TaskKind::kFitFeatures, 0, {}));
  ASSERT_TRUE(pca.ok()) << pca.status();
  EXPECT_EQ(ErrorReason(RunTask(Context(TaskKind::kFeaturize, 7, {Input(TaskKind::kFitFeatures, 0, *pca)})).status()),
            "SHARD_OUT_OF_RANGE");
  ASSERT_TRUE(store_->Write((*pca)[0].uri, "other bytes").ok());
  const absl::Status damaged =
      RunTask(Context(TaskKind::kFeaturize, 0, {Input(TaskKind::kFitFeatures, 0, *pca)})).status();
  EXPECT_EQ(damaged.code(), absl::StatusCode::kDataLoss) << damaged;
}

class PublishTask : public Tasks {
 protected:
  // A committed checkpoint with one EMA and one raw tensor.
  spec::Artifact MakeCheckpoint(const std::string& name, float value, bool with_ema = true) {
    const std::string folder = store_->UriOf("jobs/job/" + name + "/1-1/00000010-x/");
    const std::vector<float> ema(6, value);
    const std::vector<float> raw(6, -1);
    std::vector<storage::TensorView> tensors{View("weights/embed.weight", raw)};
    if (with_ema) tensors.push_back(View("ema/embed.weight", ema));
    const std::vector<float> classes(15, value);
    if (!spec_.frozen.empty()) tensors.push_back(View("ema/embed.class.weight", classes, {5, 3}));
    const storage::WrittenFile file =
        *store_->Write(folder + "stage-0.safetensors", *storage::SerializeSafetensors(tensors, {}));
    storage::CheckpointManifest manifest;
    manifest.task_id = "job/" + name;
    manifest.step = 10;
    manifest.model_config = "{\"name\": \"" + name + "\"}\n";
    manifest.files = {{"stage-0.safetensors", file.bytes, file.sha256}};
    const storage::WrittenFile written = *store_->Write(folder + "manifest.json", storage::ToJson(manifest));
    return {"checkpoint", written.uri, written.bytes, written.sha256, 0};
  }

  static storage::TensorView View(const std::string& name, const std::vector<float>& values,
                                  std::vector<int64_t> shape = {2, 3}) {
    return {name, "F32", std::move(shape),
            std::string_view(reinterpret_cast<const char*>(values.data()), values.size() * 4)};
  }

  TaskContext PublishContext(bool with_ema = true) {
    std::vector<spec::TaskInput> inputs;
    for (int k = 0; k < 4; ++k) {
      inputs.push_back(Input(TaskKind::kTrainExpert, k,
                             {MakeCheckpoint(fmt::format("train_expert-{}", k), static_cast<float>(k), with_ema)}));
    }
    inputs.push_back(Input(TaskKind::kTrainRouter, 0, {MakeCheckpoint("train_router", 9)}));
    // Shard 1 has no sample of cluster 3.
    inputs.push_back(Input(TaskKind::kPartition, 0, {Part(0, 5), Part(1, 6), Part(2, 7), Part(3, 8)}));
    inputs.push_back(Input(TaskKind::kPartition, 1, {Part(0, 10), Part(1, 20), Part(2, 30)}));
    return Context(TaskKind::kPublish, 0, std::move(inputs));
  }

  static spec::Artifact Part(int cluster, int64_t rows) {
    return {fmt::format("partition/{}", cluster), "file:///unused", 1, "", rows};
  }
};

TEST_F(PublishTask, WritesEmaWeightsUnderCanonicalNamesAndTheIndexLast) {
  const auto artifacts = RunTask(PublishContext());
  ASSERT_TRUE(artifacts.ok()) << artifacts.status();
  ASSERT_EQ(artifacts->size(), 1u);
  EXPECT_EQ((*artifacts)[0].name, "model_index");
  const std::string folder = storage::ModelFolderUri(*store_.get(), "quadrants-model", "job");
  EXPECT_EQ((*artifacts)[0].uri, folder + "/model_index.json");
  const std::string text = *store_->ReadVerified((*artifacts)[0].uri, (*artifacts)[0].sha256);
  const storage::ModelIndex index = *storage::ParseModelIndex(text, "model_index.json");
  EXPECT_EQ(index.experts, 4);
  EXPECT_EQ(index.dataset, "quadrants");
  EXPECT_EQ(index.classes.size(), 4u);
  EXPECT_EQ(index.cluster_rows, (std::vector<int64_t>{15, 26, 37, 8}));
  ASSERT_EQ(index.files.size(), 10u);
  for (const storage::CheckpointFile& file : index.files) {
    EXPECT_TRUE(store_->ReadVerified(folder + "/" + file.name, file.sha256).ok()) << file.name;
  }
  const std::string bytes = *store_->Read(folder + "/expert_2/" + storage::kWeightsFile);
  const storage::Safetensors weights = *storage::ParseSafetensors(bytes, "expert_2");
  ASSERT_EQ(weights.tensors.size(), 1u);
  EXPECT_EQ(weights.tensors[0].name, "embed.weight");
  float value = 0;
  std::memcpy(&value, weights.tensors[0].bytes.data(), sizeof(value));
  EXPECT_EQ(value, 2);
  EXPECT_EQ(*store_->Read(folder + "/router/" + storage::kConfigFile), "{\"name\": \"train_router\"}\n");
}

TEST_F(PublishTask, TheIndexOfASelfConditionedModelSaysSo) {
  spec_.model.self_conditioning = true;
  const auto artifacts = RunTask(PublishContext());
  ASSERT_TRUE(artifacts.ok()) << artifacts.status();
  EXPECT_TRUE(storage::ParseModelIndex(*store_->Read((*artifacts)[0].uri), "model_index.json")->self_conditioning);
}

TEST_F(PublishTask, FrozenComponentsLeaveLatentsAndClassEmbeddingsWithTheirCondition) {
  spec_.frozen = {{.name = "encoder", .output = "latent", .layers = {{.kind = "convolution", .width = 5, .stride = 2}}},
                  {.name = "labels",
                   .input = "label",
                   .output = "condition",
                   .layers = {{.kind = "embedding", .width = 4}, {.kind = "linear", .width = 3}}}};
  const auto artifacts = RunTask(PublishContext());
  ASSERT_TRUE(artifacts.ok()) << artifacts.status();
  const storage::ModelIndex index = *storage::ParseModelIndex(*store_->Read((*artifacts)[0].uri), "model_index.json");
  EXPECT_TRUE(index.latent);
  EXPECT_EQ(index.channels, 5);
  EXPECT_EQ(index.height, (kSide + 1) / 2);
  const std::string folder = storage::ModelFolderUri(*store_.get(), "quadrants-model", "job");
  const auto embedding = [&](const std::string& network) {
    const std::string bytes = *store_->Read(folder + "/" + network + "/" + storage::kWeightsFile);
    const storage::Safetensors weights = *storage::ParseSafetensors(bytes, network);
    std::vector<float> values(15);
    for (const storage::TensorView& tensor : weights.tensors) {
      if (tensor.name == "embed.class.weight") std::memcpy(values.data(), tensor.bytes.data(), 60);
    }
    return values;
  };
  // Every expert gets the same table on top of its own embedding; the router network, which sees no condition, none.
  const std::vector<float> first = embedding("expert_1");
  const std::vector<float> second = embedding("expert_2");
  for (size_t i = 0; i < 15; ++i) EXPECT_FLOAT_EQ(second[i], first[i] + 1);
  EXPECT_NE(first[0], first[3]);  // another class, another condition
  EXPECT_EQ(embedding("router"), std::vector<float>(15, 9));
}

TEST_F(PublishTask, FrozenWeightsThatAreNotTheOnesSubmittedAreDataLoss) {
  const std::string uri = store_->UriOf("labels.safetensors");
  ASSERT_TRUE(store_->Write(uri, "flipped").ok());
  spec_.frozen = {{.name = "labels",
                   .input = "label",
                   .output = "condition",
                   .layers = {{.kind = "embedding", .width = 3}},
                   .weights = uri,
                   .file_sha256 = {storage::Sha256("written")}}};
  const absl::Status status = RunTask(PublishContext()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("frozen[0].weights: " + uri + ": expected SHA-256 " + storage::Sha256("written") + ", found " +
                        storage::Sha256("flipped")));
}

TEST_F(PublishTask, TwiceIsTheSameAsOnce) {
  const auto first = RunTask(PublishContext());
  const auto second = RunTask(PublishContext());
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  EXPECT_EQ(*first, *second);
}

TEST_F(PublishTask, AConditionThatAnotherMachineComputedIsTheSameModel) {
  spec_.frozen = {{.name = "labels",
                   .input = "label",
                   .output = "condition",
                   .layers = {{.kind = "embedding", .width = 4}, {.kind = "linear", .width = 3}}}};
  ASSERT_TRUE(RunTask(PublishContext()).ok());
  const std::string folder = storage::ModelFolderUri(*store_.get(), "quadrants-model", "job");
  const std::string index_uri = folder + "/model_index.json";
  const std::string name = std::string("expert_0/") + storage::kWeightsFile;
  // As if it had been published with its least value changed by this share of the greatest.
  const auto change_embedding = [&](float by) {
    std::string bytes = *store_->Read(folder + "/" + name);
    const storage::TensorView embedding = *storage::ParseSafetensors(bytes, name)->Find("embed.class.weight");
    std::vector<float> values(embedding.bytes.size() / sizeof(float));
    std::memcpy(values.data(), embedding.bytes.data(), embedding.bytes.size());
    const auto smaller = [](float a, float b) { return std::abs(a) < std::abs(b); };
    const float greatest = std::abs(*std::max_element(values.begin(), values.end(), smaller));
    *std::min_element(values.begin(), values.end(), smaller) += by * greatest;
    std::memcpy(bytes.data() + (embedding.bytes.data() - bytes.data()), values.data(), embedding.bytes.size());
    storage::ModelIndex index = *storage::ParseModelIndex(*store_->Read(index_uri), index_uri);
    for (storage::CheckpointFile& file : index.files) {
      if (file.name == name) file.sha256 = store_->Write(folder + "/" + name, bytes)->sha256;
    }
    return store_->Write(index_uri, storage::ToJson(index))->sha256;
  };
  const std::string published = change_embedding(5e-5F);
  const auto again = RunTask(PublishContext());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)[0].sha256, published);
  change_embedding(0.1F);
  EXPECT_EQ(ErrorReason(RunTask(PublishContext()).status()), "MODEL_EXISTS");
}

TEST_F(PublishTask, AnotherModelUnderTheSameVersionIsRefused) {
  ASSERT_TRUE(RunTask(PublishContext()).ok());
  TaskContext other = PublishContext();
  other.grant.inputs[0].artifacts[0] = MakeCheckpoint("train_expert-other", 77);
  const absl::Status status = RunTask(other).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_EQ(ErrorReason(status), "MODEL_EXISTS");
  // The served version is unchanged.
  const std::string folder = storage::ModelFolderUri(*store_.get(), "quadrants-model", "job");
  const std::string text = *store_->Read(folder + "/model_index.json");
  const storage::ModelIndex index = *storage::ParseModelIndex(text, "model_index.json");
  for (const storage::CheckpointFile& file : index.files) {
    EXPECT_TRUE(store_->ReadVerified(folder + "/" + file.name, file.sha256).ok()) << file.name;
  }
}

TEST_F(PublishTask, ACheckpointWithoutEmaOrAMissingExpertIsRefused) {
  EXPECT_EQ(ErrorReason(RunTask(PublishContext(/*with_ema=*/false)).status()), "CHECKPOINT_INCOMPLETE");
  TaskContext few = PublishContext();
  few.grant.inputs.erase(few.grant.inputs.begin() + 3);
  EXPECT_EQ(ErrorReason(RunTask(few).status()), "TASK_INPUT_MISSING");
}

// ---- With held-out samples and networks that run.

std::string FirstLineOf(const std::string& command) {
  std::string line;
  FILE* pipe = popen(command.c_str(), "r");
  for (int c = pipe == nullptr ? EOF : std::fgetc(pipe); c != EOF && c != '\n'; c = std::fgetc(pipe)) {
    line.push_back(static_cast<char>(c));
  }
  if (pipe != nullptr) pclose(pipe);
  return line;
}

class PublishWithHeldOut : public PublishTask {
 protected:
  static constexpr int kHeldOutShard = 7;
  static constexpr int kHeldOutRows = 40;

  int64_t patch_ = 4;
  int64_t width_ = 8;
  int64_t depth_ = 1;
  int64_t heads_ = 1;

  void SetUp() override {
    PublishTask::SetUp();
    dataset::DatasetManifest manifest = *dataset::ReadDatasetManifest(store_.get(), manifest_uri_);
    auto writer = *dataset::ShardWriter::Create(store_.get(), store_->UriOf("datasets/quadrants/held_out.parquet"),
                                                "held_out", {"embedding"});
    for (int row = 0; row < kHeldOutRows; ++row) ASSERT_TRUE(writer->Add(MakeSample(kHeldOutShard, row)).ok());
    manifest.shards.push_back(*writer->Finish());
    ASSERT_TRUE(store_->Write(manifest_uri_, dataset::ToJson(manifest)).ok());
  }

  model::DitConfig Config(int64_t outputs) const {
    return {.height = kSide,
            .width_pixels = kSide,
            .classes = 4,
            .patch = patch_,
            .width = width_,
            .depth = depth_,
            .heads = heads_,
            .outputs = outputs,
            .self_conditioning = spec_.model.self_conditioning && outputs == 0};
  }

  // A network of weights that are `scale` away from fresh ones, which answer zero.
  spec::Artifact MakeNetwork(const std::string& name, int64_t outputs, uint64_t seed, double scale) {
    const model::DitConfig config = Config(outputs);
    const model::LayerList layers = model::BuildLayers(config, seed, 0, model::LayerCount(config));
    at::Generator generator = at::detail::createCPUGenerator(seed);
    for (const auto& layer : layers) {
      for (const model::NamedTensor& parameter : layer->parameters()) {
        const at::NoGradGuard no_grad;
        parameter.tensor.add_(at::randn(parameter.tensor.sizes(), generator, at::kFloat), scale);
      }
    }
    const std::string weights = *model::SerializeParameters(layers);
    std::vector<storage::TensorView> tensors = storage::ParseSafetensors(weights, name)->tensors;
    for (storage::TensorView& tensor : tensors) tensor.name = "ema/" + tensor.name;
    const std::string folder = store_->UriOf("jobs/job/" + name + "/1-1/00000010-x/");
    const storage::WrittenFile file =
        *store_->Write(folder + "stage-0.safetensors", *storage::SerializeSafetensors(tensors, {}));
    storage::CheckpointManifest manifest;
    manifest.task_id = "job/" + name;
    manifest.model_config = model::ToJson(config);
    manifest.files = {{"stage-0.safetensors", file.bytes, file.sha256}};
    const storage::WrittenFile written = *store_->Write(folder + "manifest.json", storage::ToJson(manifest));
    return {"checkpoint", written.uri, written.bytes, written.sha256, 0};
  }

  storage::ModelIndex PublishNetworks(double scale) {
    TaskContext context = PublishContext();
    for (int k = 0; k < 4; ++k) {
      context.grant.inputs[k].artifacts = {MakeNetwork(fmt::format("e{}", k), 0, 20 + k, scale)};
    }
    context.grant.inputs[4].artifacts = {MakeNetwork("r", 4, 30, scale)};
    const auto artifacts = RunTask(context);
    EXPECT_TRUE(artifacts.ok()) << artifacts.status();
    const auto again = RunTask(context);
    EXPECT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(*artifacts, *again);
    return *storage::ParseModelIndex(*store_->Read((*artifacts)[0].uri), "model_index.json");
  }

  // The probe's answers are what the published networks answer at its points.
  void ExpectProbeHolds(const storage::ModelIndex& index) {
    const std::string folder = storage::ModelFolderUri(*store_.get(), "quadrants-model", "job");
    const std::string bytes = *store_->Read(folder + "/" + index.probe);
    const storage::Safetensors probe = *storage::ParseSafetensors(bytes, index.probe);
    const auto tensor = [&](const std::string& name) { return *model::ToTensor(*probe.Find(name)); };
    EXPECT_EQ(tensor("x").sizes(), (at::IntArrayRef{8, 1, kSide, kSide}));
    for (int k = -1; k < 4; ++k) {
      const std::string part = folder + (k < 0 ? std::string("/router/") : fmt::format("/expert_{}/", k));
      const model::LoadedModel network = *model::LoadModel(*store_->Read(part + storage::kConfigFile),
                                                           *store_->Read(part + storage::kWeightsFile), part);
      at::Tensor estimate;
      if (k >= 0 && spec_.model.self_conditioning) estimate = tensor("estimate");
      at::Tensor answer = model::RunModel(network.layers, tensor("x"), tensor("t"), tensor("class"), estimate);
      if (k < 0) answer = at::softmax(answer, -1);
      const at::Tensor expected = tensor(k < 0 ? std::string("posterior") : fmt::format("velocity.{}", k));
      EXPECT_TRUE(model::IsNear(answer, expected)) << part;
      EXPECT_GT(expected.abs().max().item<float>(), 0.01) << part;
    }
  }
};

TEST_F(PublishWithHeldOut, EqualModesLeaveTheCheapestAsTheDefault) {
  const storage::ModelIndex index = PublishNetworks(/*scale=*/0);
  ASSERT_TRUE(index.sampling.has_value());
  EXPECT_EQ(index.sampling->mode, "top_k");
  EXPECT_EQ(index.sampling->top_k, 1);
  ASSERT_EQ(index.sampling->measured.size(), 5u);
  EXPECT_EQ(index.sampling->measured[0].mode, "top-1");
  EXPECT_EQ(index.sampling->measured[0].experts, 1);
  EXPECT_EQ(index.sampling->measured[4].experts, 4);
  // Fresh networks answer zero: the error is that of noise - sample, whatever the mode is.
  EXPECT_NEAR(index.sampling->measured[0].velocity_error, index.sampling->measured[4].velocity_error, 1e-6);
  EXPECT_GT(index.sampling->measured[0].velocity_error, 1.0);
}

TEST_F(PublishWithHeldOut, TheModeIsAsGoodAsTheBestAndTheProbeHoldsWhatNetworksAnswer) {
  for (const bool self_conditioning : {false, true}) {
    spec_.model.self_conditioning = self_conditioning;
    ASSERT_TRUE(store_->DeleteTree(storage::ModelFolderUri(*store_.get(), "quadrants-model", "job")).ok());
    const storage::ModelIndex index = PublishNetworks(/*scale=*/0.3);
    ASSERT_TRUE(index.sampling.has_value());
    double least = 1e9;
    double most = 0;
    for (const storage::MeasuredMode& mode : index.sampling->measured) {
      least = std::min(least, mode.velocity_error);
      most = std::max(most, mode.velocity_error);
    }
    EXPECT_GT(most, least * 1.01) << "random experts blend to different velocities";
    ExpectProbeHolds(index);
  }
}

TEST_F(PublishWithHeldOut, LatentsOfHeldOutImagesAreMadeAFewAtATime) {
  spec_.frozen = {{.name = "encoder", .output = "latent", .layers = {{.kind = "convolution", .width = 1}}}};
  const storage::ModelIndex index = PublishNetworks(/*scale=*/0.3);
  EXPECT_TRUE(index.latent);
  ASSERT_TRUE(index.sampling.has_value());
  ExpectProbeHolds(index);
}

// tests/peers/torch_dit.py, which shares no code with the networks here, on networks of every feature.
TEST_F(PublishWithHeldOut, AnIndependentImplementationInPyTorchAnswersTheSame) {
  const char* source = std::getenv("ATOLL_SOURCE_DIR");
  if (source == nullptr) GTEST_SKIP() << "ATOLL_SOURCE_DIR is not set: run through ctest";
  const std::string peers = fmt::format("{}/tests/peers", source);
  const std::string prefix = FirstLineOf(fmt::format("{}/setup.sh --prefix", peers));
  if (!std::filesystem::exists(prefix + "/complete")) {
    GTEST_SKIP() << "PyTorch is not there: run tests/peers/setup.sh";
  }
  width_ = 64;
  depth_ = 3;
  heads_ = 4;
  patch_ = 2;
  for (const bool self_conditioning : {false, true}) {
    spec_.model.self_conditioning = self_conditioning;
    ASSERT_TRUE(store_->DeleteTree(storage::ModelFolderUri(*store_.get(), "quadrants-model", "job")).ok());
    PublishNetworks(/*scale=*/0.1);
    const std::string folder =
        *store_->LocalPath(storage::ModelFolderUri(*store_.get(), "quadrants-model", "job") + "/model_index.json");
    const std::string command = fmt::format("OMP_NUM_THREADS=1 {}/bin/python {}/torch_dit.py {} --tolerance 1e-5",
                                            prefix, peers, std::filesystem::path(folder).parent_path().string());
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
  }
}

TEST(ReadPixels, AveragesLargeImagesDownAndKeepsSmallOnes) {
  EXPECT_EQ(PixelValues(3, 256, 16), 3 * 32 * 16);
  dataset::Image image{1, 64, 2, std::vector<uint8_t>(128)};
  for (int y = 0; y < 64; ++y) image.pixels[y * 2] = image.pixels[y * 2 + 1] = y < 32 ? 0 : 255;
  std::vector<float> out(PixelValues(1, 64, 2));
  ReadPixels(image, out);
  ASSERT_EQ(out.size(), 64u);
  EXPECT_EQ(out.front(), -1);
  EXPECT_EQ(out.back(), 1);
  dataset::Image planes{2, 1, 2, {0, 255, 255, 0}};
  std::vector<float> full(4);
  ReadPlanes(planes, full);
  EXPECT_EQ(full, (std::vector<float>{-1, 1, 1, -1}));
}

}  // namespace
}  // namespace atl::tasks
