#include "client/sampling/quality_report.h"

#include <algorithm>
#include <charconv>

#include "client/job_text.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/dataset/image_codec.h"
#include "common/dataset/quality.h"
#include "common/wire/time_wire.h"
#include "fmt/format.h"

namespace atl::client {
namespace {

using atlpb::job::v1::Job;
using atlpb::job::v1::Task;

// Bounds on what is read, so that a report of a large dataset ends: quality is quadratic in the images.
constexpr int64_t kMostReference = 20'000;
constexpr int64_t kMostHeldOut = 5'000;
constexpr int64_t kMostPerCluster = 20'000;

struct RealImages {
  std::vector<float> values;
  std::vector<int32_t> labels;
  int64_t dimension = 0;

  dataset::Points points() const { return {.values = values, .dimension = dimension}; }
};

// At most `most` images of a split, evenly spaced.
absl::StatusOr<RealImages> ReadReal(storage::BlobStore* store, const dataset::DatasetManifest& manifest,
                                    std::string_view split, int64_t most) {
  ATOLL_ASSIGN_OR_RETURN(const auto reader, dataset::SampleReader::Open(store, dataset::ShardsOf(manifest, split)));
  RealImages images{.dimension = int64_t{manifest.channels} * manifest.height * manifest.width};
  const int64_t count = std::min(most, reader->size());
  for (int64_t i = 0; i < count; ++i) {
    ATOLL_ASSIGN_OR_RETURN(const dataset::Sample sample, reader->Read(i * reader->size() / count));
    dataset::AppendScaled(sample.image, &images.values);
    images.labels.push_back(sample.label);
  }
  return images;
}

// The real images with which samples are compared.
struct References {
  RealImages training;
  RealImages held_out;
  RealImages real;  // both
  std::optional<double> mmd_of_training;
};

absl::StatusOr<References> ReadReferences(storage::BlobStore* store, const dataset::DatasetManifest& manifest) {
  References references;
  ATOLL_ASSIGN_OR_RETURN(references.training, ReadReal(store, manifest, "train", kMostReference));
  ATOLL_ASSIGN_OR_RETURN(references.held_out, ReadReal(store, manifest, "held_out", kMostHeldOut));
  const RealImages& held_out = references.held_out;
  references.real = references.training;
  references.real.values.insert(references.real.values.end(), held_out.values.begin(), held_out.values.end());
  references.real.labels.insert(references.real.labels.end(), held_out.labels.begin(), held_out.labels.end());
  if (held_out.labels.size() >= 2) {
    ATOLL_ASSIGN_OR_RETURN(references.mmd_of_training,
                           dataset::UnbiasedMmd2(references.training.points(), held_out.points()));
  }
  return references;
}

// At most `most` rows, evenly spaced.
std::vector<float> SpacedRows(dataset::Points points, int64_t most) {
  std::vector<float> rows;
  const int64_t count = std::min(most, points.size());
  for (int64_t i = 0; i < count; ++i) {
    const auto row = points.row(i * points.size() / count);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return rows;
}

// Returns nothing where there are too few images to measure.
template <typename T>
std::optional<T> IfEnough(const absl::StatusOr<T>& figures) {
  return figures.ok() ? std::optional<T>(*figures) : std::nullopt;
}

absl::StatusOr<QualitySummary> MeasureQuality(const SampleSet& samples, const References& references) {
  ATOLL_ASSIGN_OR_RETURN(const std::vector<float> values, ScaledPixels(samples));
  const dataset::Points drawn{.values = values, .dimension = references.training.dimension};
  std::vector<int32_t> labels;
  for (const DrawnImage& image : samples.images) labels.push_back(image.label);
  QualitySummary quality{.images = static_cast<int64_t>(samples.images.size())};
  ATOLL_ASSIGN_OR_RETURN(
      quality.nearest_neighbour_accuracy,
      dataset::NearestNeighbourAccuracy(drawn, labels, references.real.points(), references.real.labels));
  const bool has_held_out = references.mmd_of_training.has_value();
  const RealImages& other = has_held_out ? references.held_out : references.training;
  ATOLL_ASSIGN_OR_RETURN(quality.mmd, dataset::UnbiasedMmd2(drawn, other.points()));
  quality.mmd_of_training = references.mmd_of_training;
  if (has_held_out) {
    quality.diversity = IfEnough(dataset::MeasureDiversity(drawn, other.points()));
    const std::vector<float> as_many = SpacedRows(references.training.points(), drawn.size());
    quality.diversity_of_training =
        IfEnough(dataset::MeasureDiversity({.values = as_many, .dimension = drawn.dimension}, other.points()));
    quality.memorisation =
        IfEnough(dataset::MeasureMemorisation(drawn, references.training.points(), references.held_out.points()));
  }
  return quality;
}

absl::StatusOr<ClusterSummary> ReadCluster(storage::BlobStore* store, const std::vector<dataset::Shard>& shards,
                                           int32_t cluster, int images, dataset::SheetRow* row) {
  ATOLL_ASSIGN_OR_RETURN(const auto reader, dataset::SampleReader::Open(store, shards));
  ClusterSummary summary{.cluster = cluster, .samples = reader->size()};
  const int64_t read = std::min(reader->size(), kMostPerCluster);
  const int64_t shown = std::min<int64_t>(read, images);
  int64_t next_shown = 0;
  for (int64_t i = 0; i < read; ++i) {
    ATOLL_ASSIGN_OR_RETURN(dataset::Sample sample, reader->Read(i));
    ++summary.classes[sample.label];
    if (next_shown < shown && i == next_shown * read / shown) {
      row->images.push_back(std::move(sample.image));
      ++next_shown;
    }
  }
  row->label = fmt::format("cluster {} ({})", cluster, summary.samples);
  return summary;
}

NetworkSummary Summarise(const Job& job, const Task& task) {
  NetworkSummary network{.name = TaskName(task), .attempts = task.attempt()};
  const bool router = task.kind() == atlpb::job::v1::TASK_KIND_TRAIN_ROUTER;
  network.steps = task.state() == Task::STATE_SUCCEEDED
                      ? (router ? job.spec().router_training().steps() : job.spec().training().steps())
                      : std::max(task.committed_step(), task.progress().step());
  if (task.progress().step() > 0) network.loss = task.progress().loss();
  const auto accuracy = task.progress().metrics().find("accuracy");
  if (accuracy != task.progress().metrics().end()) network.accuracy = accuracy->second;
  return network;
}

}  // namespace

absl::StatusOr<std::vector<std::vector<dataset::Shard>>> PartitionsOf(const Job& job) {
  std::vector<std::vector<dataset::Shard>> partitions(static_cast<size_t>(job.spec().experts()));
  bool any = false;
  for (const Task& task : job.tasks()) {
    if (task.kind() != atlpb::job::v1::TASK_KIND_PARTITION) continue;
    for (const auto& output : task.outputs()) {
      constexpr std::string_view kPrefix = "partition/";
      const std::string& name = output.name();
      size_t cluster = 0;
      if (!name.starts_with(kPrefix)) continue;
      std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), cluster);
      if (cluster >= partitions.size()) continue;
      any = true;
      partitions[cluster].push_back({.uri = output.uri(),
                                     .split = "train",
                                     .rows = output.rows(),
                                     .bytes = output.bytes(),
                                     .sha256 = output.sha256()});
    }
  }
  if (any) return partitions;
  return MakeError(
      absl::StatusCode::kFailedPrecondition, "NOT_PARTITIONED",
      fmt::format("job {}: expected its partitions, found none; it is {}", job.job_id(), StateName(job.state())));
}

absl::StatusOr<QualityReport> MakeReport(const Job& job, const dataset::DatasetManifest& manifest,
                                         storage::BlobStore* store, const std::vector<SampleSet>& sets,
                                         int images_per_cluster, std::vector<dataset::SheetRow>* sheet) {
  QualityReport report{.job_id = job.job_id(),
                       .model = job.spec().model_name(),
                       .version = job.model_version(),
                       .dataset = manifest.name,
                       .training_samples = manifest.rows("train"),
                       .held_out_samples = manifest.rows("held_out")};
  ATOLL_ASSIGN_OR_RETURN(const auto partitions, PartitionsOf(job));
  for (size_t k = 0; k < partitions.size(); ++k) {
    dataset::SheetRow row;
    ATOLL_ASSIGN_OR_RETURN(report.clusters.emplace_back(),
                           ReadCluster(store, partitions[k], static_cast<int32_t>(k), images_per_cluster, &row));
    if (!row.images.empty()) sheet->push_back(std::move(row));
  }
  for (const Task& task : job.tasks()) {
    if (task.kind() == atlpb::job::v1::TASK_KIND_TRAIN_EXPERT ||
        task.kind() == atlpb::job::v1::TASK_KIND_TRAIN_ROUTER) {
      report.networks.push_back(Summarise(job, task));
    }
  }
  if (job.has_end_time()) {
    report.job_seconds = absl::ToDoubleSeconds(wire::FromProto(job.end_time()) - wire::FromProto(job.create_time()));
  }
  if (sets.empty()) return report;
  ATOLL_ASSIGN_OR_RETURN(const References references, ReadReferences(store, manifest));
  for (const SampleSet& set : sets) {
    ScoredSamples& scored = report.scored.emplace_back(ScoredSamples{.samples = set});
    ATOLL_ASSIGN_OR_RETURN(scored.quality, MeasureQuality(set, references));
    scored.samples.images.clear();
  }
  return report;
}

}  // namespace atl::client
