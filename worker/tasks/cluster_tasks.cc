#include "worker/tasks/cluster_tasks.h"

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "common/base/counter_random.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/storage/safetensors.h"
#include "worker/tasks/balanced_kmeans.h"
#include "worker/tasks/centroid_distances.h"
#include "worker/tasks/feature_files.h"
#include "worker/tasks/task_files.h"

namespace atl::tasks {
namespace {

// A step of CounterRandom's kCluster that no draw of the k-means uses.
constexpr uint64_t kRandomClusterStep = 1ULL << 40;

storage::TensorView IntegersView(std::string name, const std::vector<int64_t>& values) {
  return {std::move(name),
          "I64",
          {static_cast<int64_t>(values.size())},
          std::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(int64_t))};
}

// The data that decides the cluster of a sample, read back from the "centroids" artifact.
struct Placement {
  std::string method;
  Matrix fine;
  std::vector<int64_t> coarse_of_fine;
};

absl::StatusOr<Placement> ReadPlacement(const TaskContext& context) {
  ATOLL_ASSIGN_OR_RETURN(const spec::Artifact artifact,
                         FindInput(context.grant, spec::TaskKind::kCluster, 0, "centroids"));
  ATOLL_ASSIGN_OR_RETURN(const std::string bytes, context.store->ReadVerified(artifact.uri, artifact.sha256));
  ATOLL_ASSIGN_OR_RETURN(const storage::Safetensors file, storage::ParseSafetensors(bytes, artifact.uri));
  Placement placement;
  const auto method = file.metadata.find("method");
  placement.method = method == file.metadata.end() ? "" : method->second;
  if (placement.method == "random") return placement;
  ATOLL_ASSIGN_OR_RETURN(placement.fine, ReadMatrix(file, "fine", artifact.uri));
  ATOLL_ASSIGN_OR_RETURN(const storage::TensorView coarse, file.Find("coarse_of_fine"));
  placement.coarse_of_fine.resize(coarse.bytes.size() / sizeof(int64_t));
  std::memcpy(placement.coarse_of_fine.data(), coarse.bytes.data(), coarse.bytes.size());
  const bool matching = placement.method == "kmeans" && coarse.dtype == "I64" && placement.fine.rows > 0 &&
                        static_cast<int64_t>(placement.coarse_of_fine.size()) == placement.fine.rows;
  bool in_range = true;
  for (const int64_t cluster : placement.coarse_of_fine) {
    in_range = in_range && cluster >= 0 && cluster < context.grant.spec.experts;
  }
  if (!matching || !in_range) {
    return MakeError(absl::StatusCode::kDataLoss, "TENSOR_SHAPE",
                     fmt::format("{}: expected method kmeans or random, and one cluster below {} for each of {} fine "
                                 "centroids; found method '{}' and {} clusters{}",
                                 artifact.uri, context.grant.spec.experts, placement.fine.rows, placement.method,
                                 placement.coarse_of_fine.size(), in_range ? "" : ", some out of range"));
  }
  return placement;
}

// Shards of the clusters, each opened by its first sample: a cluster without samples leaves no file.
class PartitionWriters {
 public:
  PartitionWriters(const TaskContext& context, std::string split) : context_(context), split_(std::move(split)) {}

  absl::Status Add(int32_t cluster, const dataset::Sample& sample) {
    std::unique_ptr<dataset::ShardWriter>& writer = writers_[cluster];
    if (writer == nullptr) {
      ATOLL_ASSIGN_OR_RETURN(
          writer, dataset::ShardWriter::Create(
                      context_.store, OutputUri(context_, fmt::format("partition-{:05}.parquet", cluster)), split_));
    }
    return writer->Add(sample);
  }

  absl::StatusOr<std::vector<spec::Artifact>> Finish() {
    std::vector<spec::Artifact> artifacts;
    for (const auto& [cluster, writer] : writers_) {
      ATOLL_ASSIGN_OR_RETURN(const dataset::Shard shard, writer->Finish());
      artifacts.push_back({fmt::format("partition/{}", cluster), shard.uri, shard.bytes, shard.sha256, shard.rows});
    }
    return artifacts;
  }

 private:
  const TaskContext& context_;
  const std::string split_;
  std::map<int32_t, std::unique_ptr<dataset::ShardWriter>> writers_;
};

// Opened only where the method needs features.
absl::StatusOr<std::unique_ptr<FeatureFiles>> OpenShardFeatures(const TaskContext& context, int64_t rows,
                                                                const Placement& placement) {
  const spec::TaskGrant& grant = context.grant;
  ATOLL_ASSIGN_OR_RETURN(spec::Artifact artifact,
                         FindInput(grant, spec::TaskKind::kFeaturize, grant.index, "features"));
  const std::string uri = artifact.uri;
  ATOLL_ASSIGN_OR_RETURN(std::unique_ptr<FeatureFiles> features,
                         FeatureFiles::Open(context.store, {std::move(artifact)}, grant.spec.clustering.normalize));
  if (features->rows() != rows || features->dims() != placement.fine.columns) {
    return MakeError(
        absl::StatusCode::kDataLoss, "TENSOR_SHAPE",
        fmt::format("{}: expected features [{}, {}] (the shard's rows, the centroids' size), found [{}, {}]", uri, rows,
                    placement.fine.columns, features->rows(), features->dims()));
  }
  return features;
}

}  // namespace

absl::StatusOr<std::vector<spec::Artifact>> Cluster(const TaskContext& context) {
  const spec::JobSpec& spec = context.grant.spec;
  const std::map<std::string, std::string> metadata = {{"method", spec.clustering.method},
                                                       {"normalize", spec.clustering.normalize ? "true" : "false"}};
  if (spec.clustering.method == "random") {
    ATOLL_ASSIGN_OR_RETURN(
        spec::Artifact artifact,
        WriteTensors(context, "centroids", {MatrixView("fine", 0, 0, {}), IntegersView("coarse_of_fine", {})}, metadata,
                     0));
    return std::vector<spec::Artifact>{std::move(artifact)};
  }
  ATOLL_ASSIGN_OR_RETURN(const std::vector<spec::Artifact> inputs,
                         FindInputs(context.grant, spec::TaskKind::kFeaturize, "features"));
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<FeatureFiles> features,
                         FeatureFiles::Open(context.store, inputs, spec.clustering.normalize));
  constexpr int64_t kProgressSteps = 100;
  const auto poll = [&context](double done) {
    Report(context, static_cast<int64_t>(done * kProgressSteps), kProgressSteps);
    return CheckCancelled(context);
  };
  ATOLL_ASSIGN_OR_RETURN(const Clustering clustering, ClusterFeatures(features.get(), {.clusters = spec.experts,
                                                                                       .spec = spec.clustering,
                                                                                       .seed = spec.seed,
                                                                                       .device = context.device,
                                                                                       .poll = poll}));
  const std::vector<int64_t> coarse_of_fine(clustering.coarse_of_fine.begin(), clustering.coarse_of_fine.end());
  const auto fine = static_cast<int64_t>(coarse_of_fine.size());
  ATOLL_ASSIGN_OR_RETURN(spec::Artifact artifact,
                         WriteTensors(context, "centroids",
                                      {MatrixView("fine", fine, clustering.dims, clustering.fine),
                                       IntegersView("coarse_of_fine", coarse_of_fine)},
                                      metadata, features->rows()));
  return std::vector<spec::Artifact>{std::move(artifact)};
}

absl::StatusOr<std::vector<spec::Artifact>> Partition(const TaskContext& context,
                                                      const dataset::DatasetManifest& manifest) {
  const spec::JobSpec& spec = context.grant.spec;
  ATOLL_ASSIGN_OR_RETURN(const Placement placement, ReadPlacement(context));
  ATOLL_ASSIGN_OR_RETURN(const dataset::Shard shard, TrainingShard(manifest, context.grant.index));
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<dataset::SampleReader> samples,
                         dataset::SampleReader::Open(context.store, {shard}, /*cached_row_groups=*/1));
  std::unique_ptr<FeatureFiles> features;
  std::optional<CentroidDistances> distances;
  std::vector<float> block;
  std::vector<int32_t> nearest;  // of the block's rows
  if (placement.method != "random") {
    ATOLL_ASSIGN_OR_RETURN(features, OpenShardFeatures(context, samples->size(), placement));
    distances.emplace(placement.fine.values, features->dims(), context.device);
  }
  PartitionWriters writers(context, shard.split);
  for (int64_t i = 0; i < samples->size(); ++i) {
    if (i % dataset::kRowGroupRows == 0) {
      ATOLL_RETURN_IF_ERROR(CheckCancelled(context));
      Report(context, i, samples->size());
    }
    ATOLL_ASSIGN_OR_RETURN(const dataset::Sample sample, samples->Read(i));
    int32_t cluster = 0;
    if (features == nullptr) {
      const CounterRandom random(spec.seed, RandomPurpose::kCluster, kRandomClusterStep, sample.id);
      cluster = static_cast<int32_t>(random.Below(spec.experts));
    } else {
      const int64_t in_block = i % CentroidDistances::kBlock;
      if (in_block == 0) {
        ATOLL_RETURN_IF_ERROR(ReadBlock(features.get(), i, &block));
        nearest = distances->Nearest(block);
      }
      cluster = static_cast<int32_t>(placement.coarse_of_fine[nearest[in_block]]);
    }
    ATOLL_RETURN_IF_ERROR(writers.Add(cluster, sample));
  }
  return writers.Finish();
}

}  // namespace atl::tasks
