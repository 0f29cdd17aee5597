// Tasks and their messages, as plain structs shared by coordinator and worker. Pure.
//
// The graph of a DDM job:
//   fit_features (pixels_pca only) -> featurize (per training shard) -> cluster -> partition (per training shard)
//   -> train_expert (per cluster) and train_router -> publish
//
// Artifacts by task kind:
//   fit_features  "pca"            safetensors: mean [d], components [c, d]
//   featurize     "features"       safetensors: features [rows, d] float32, in the shard's row order
//   cluster       "centroids"      safetensors: fine [f, d], coarse_of_fine [f] int64; metadata "method"
//   partition     "partition/<k>"  dataset shard (Parquet) of cluster k's samples; absent where it would be empty
//   train_*       "checkpoint"     manifest of the final checkpoint (sha256 of the manifest)
//   publish       "model_index"    model_index.json (sha256 of it is the version's digest)
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/spec/spec.h"

namespace atl::spec {

enum class TaskKind : uint8_t {
  kFitFeatures = 1,
  kFeaturize,
  kCluster,
  kPartition,
  kTrainExpert,
  kTrainRouter,
  kPublish
};

// Returns "fit_features", …
std::string ToString(TaskKind kind);

struct Artifact {
  std::string name;
  std::string uri;
  int64_t bytes = 0;
  std::string sha256;
  int64_t rows = 0;
  bool operator==(const Artifact&) const = default;
};

struct TaskInput {
  std::string task_id;
  TaskKind kind = TaskKind::kFeaturize;
  int32_t index = 0;
  std::vector<Artifact> artifacts;
  bool operator==(const TaskInput&) const = default;
};

struct Progress {
  int64_t step = 0;
  int64_t total_steps = 0;
  double loss = 0;
  double samples_per_second = 0;
  absl::Duration time_left = absl::ZeroDuration();
  std::map<std::string, double> metrics;
};

struct CommittedCheckpoint {
  int64_t step = 0;
  std::string manifest_uri;
  std::string manifest_sha256;
  bool milestone = false;
  bool operator==(const CommittedCheckpoint&) const = default;
};

// Batches that a training task never reads: the ones that it would read in steps [first_step, first_step + steps) if it
// skipped no data.
struct SkippedWindow {
  int64_t first_step = 0;
  int64_t steps = 0;
  bool operator==(const SkippedWindow&) const = default;
};

struct LeaseToken {
  std::string task_id;
  int64_t store_epoch = 0;
  int64_t attempt = 0;
  std::string attempt_secret;
  bool operator==(const LeaseToken&) const = default;
};

// The blob store paths that an attempt may use, with the keys for them. Keys are never stored and never logged.
struct StorageGrant {
  // URIs of folders, which end in '/', and of single files. Paths in `writes` may also be read.
  std::vector<std::string> reads;
  std::vector<std::string> writes;
  // An empty access key means the island's own keys.
  std::string access_key;
  std::string secret_key;
  std::string session_token;
  absl::Time expires = absl::InfiniteFuture();  // of the keys
  bool operator==(const StorageGrant&) const = default;
};

// A task as an island gets it.
struct TaskGrant {
  LeaseToken token;
  std::string job_id;
  TaskKind kind = TaskKind::kFeaturize;
  int32_t index = 0;
  JobSpec spec;
  std::string dataset_manifest_uri;
  std::vector<TaskInput> inputs;
  std::optional<CommittedCheckpoint> resume_from;
  std::vector<SkippedWindow> skipped;
  std::string write_prefix;
  StorageGrant storage;
  absl::Duration lease_duration = absl::Seconds(10);
};

}  // namespace atl::spec
