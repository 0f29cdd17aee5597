// Summary of a finished job and of samples from its model: clusters, training, routing, quality, times.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "atoll/job/v1/job.pb.h"
#include "client/sampling/sample_set.h"
#include "common/dataset/contact_sheet.h"
#include "common/dataset/dataset.h"
#include "common/dataset/quality.h"
#include "common/storage/blob_store.h"

namespace atl::client {

struct ClusterSummary {
  int32_t cluster = 0;
  int64_t samples = 0;
  std::map<int32_t, int64_t> classes;  // by label, of the first 20,000 samples
};

struct NetworkSummary {
  std::string name;  // "expert 2", "router"
  int64_t steps = 0;
  int64_t attempts = 0;
  std::optional<double> loss;  // unset if the coordinator no longer has it
  std::optional<double> accuracy;
};

struct QualitySummary {
  int64_t images = 0;
  // Share of samples whose label is that of most of their five nearest real images. Real images are up to 20,000
  // training and 5,000 held-out ones, evenly spaced in the dataset.
  double nearest_neighbour_accuracy = 0;
  // UnbiasedMmd2 against held-out images, or against training images where fewer than two are held out.
  double mmd = 0;
  // Against held-out images. Unset, as all members below, if fewer than two images are held out; both diversities need
  // six on each side.
  std::optional<dataset::Diversity> diversity;
  // The same figures with training images in place of the samples (for diversity, as many of them): the values that a
  // perfect sampler would get.
  std::optional<double> mmd_of_training;
  std::optional<dataset::Diversity> diversity_of_training;
  // Whether the samples repeat training images.
  std::optional<dataset::Memorisation> memorisation;
};

// One set of samples, scored. `samples` comes without its images.
struct ScoredSamples {
  SampleSet samples;
  QualitySummary quality;
};

struct QualityReport {
  std::string job_id;
  std::string model;
  std::string version;
  std::string dataset;
  int64_t training_samples = 0;
  int64_t held_out_samples = 0;
  std::vector<ClusterSummary> clusters;
  std::vector<NetworkSummary> networks;
  std::vector<ScoredSamples> scored;  // e.g. one per mode
  double job_seconds = 0;
};

// Returns the shards of each cluster, from the outputs of the job's partition tasks. FAILED_PRECONDITION
// (NOT_PARTITIONED) if none of these tasks has an output yet; while some still run, the shards are incomplete.
absl::StatusOr<std::vector<std::vector<dataset::Shard>>> PartitionsOf(const atlpb::job::v1::Job& job);

// Reads the partitions and scores each set of samples; reads real images only if `sets` is not empty. `sheet` gets a
// row per cluster that is not empty: up to `images_per_cluster` images, evenly spaced among its first 20,000. Errors
// of PartitionsOf, of reading, and of the functions of quality.h.
absl::StatusOr<QualityReport> MakeReport(const atlpb::job::v1::Job& job, const dataset::DatasetManifest& manifest,
                                         storage::BlobStore* store, const std::vector<SampleSet>& sets,
                                         int images_per_cluster, std::vector<dataset::SheetRow>* sheet);

// "MODE_TOP_K" -> "top k"; the unset mode, of older sets, is top 1.
std::string ModeText(const std::string& mode);

// For people (Markdown; links clusters.png and samples.png beside it) and for programs.
std::string ToMarkdown(const QualityReport& report);
std::string ToJson(const QualityReport& report);

}  // namespace atl::client
