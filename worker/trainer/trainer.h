// Trains the layers on one rank: stage computation for the engine, then clipping, AdamW and EMA; and checkpoints of its
// stages. Works alike for experts (flow matching) and router networks (cluster classification).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/dataset/dataset.h"
#include "common/formats/checkpoint.h"
#include "common/planner/plan.h"
#include "common/spec/spec.h"
#include "common/spec/task.h"
#include "worker/engine/activity.h"
#include "worker/engine/engine.h"
#include "worker/transport/transport.h"

namespace atl::trainer {

enum class Objective {
  kVelocity,  // an expert
  kCluster,   // a router network: cross-entropy of the sample's cluster, given x_t, t and class
};

// A source of training samples. Positions as in dataset::SampleReader; thread-compatible.
class TrainingData {
 public:
  virtual ~TrainingData() = default;
  virtual int64_t size() const = 0;
  // A sample: pixels scaled to [-1, 1], [channels][height][width], written to `pixels`; the label; and, for kCluster,
  // the cluster.
  struct Item {
    int32_t label = -1;
    int32_t cluster = -1;
  };
  virtual absl::StatusOr<Item> Read(int64_t position, std::span<float> pixels) = 0;
};

// Opens samples of partitions: `partitions[k]` are cluster k's shards. An expert has one partition. If all pixels fit
// into `cache_bytes`, they are decoded once and kept as bytes; otherwise only the reader's own row groups are kept.
absl::StatusOr<std::unique_ptr<TrainingData>> OpenTrainingData(storage::BlobStore* store,
                                                               std::vector<std::vector<dataset::Shard>> partitions,
                                                               int64_t cache_bytes = int64_t{256} << 20);

class FrozenOutputs;

struct TrainerOptions {
  Objective objective = Objective::kVelocity;
  spec::ModelSpec model;
  spec::TrainingSpec training;
  int32_t channels = 0;
  int32_t height = 0;
  int32_t width = 0;
  int32_t classes = 0;
  int32_t clusters = 0;  // kCluster: outputs of the head
  uint64_t seed = 0;
  // Batches of the run's order that are skipped (common/spec/data_cursor.h).
  std::vector<spec::SkippedWindow> skipped;
  int32_t threads = 1;
  std::string device = "cpu";  // or "cuda:1", in a build with CUDA
  // Components that run without training; `channels`, `height` and `width` describe their images. With the bytes of
  // their files by URI, and the job's seed, from which native layers without a file draw their weights.
  std::vector<spec::FrozenSpec> frozen;
  std::shared_ptr<const std::map<std::string, std::string>> frozen_files;
  uint64_t frozen_seed = 0;
  // The outputs of the frozen components, for a plan that reads_frozen_cache.
  std::shared_ptr<const FrozenOutputs> kept_outputs;
  // Longest wait for another rank.
  absl::Duration timeout = absl::Seconds(60);
  // Receives the computations and reads of a step; may be null, otherwise it must outlive the trainer and the kept
  // outputs.
  engine::Activity* activity = nullptr;
};

// Returns the model's config.json, for the checkpoint's manifest and the published model's folder. `precision` is the
// plan's.
std::string ModelConfigJson(const TrainerOptions& options, const spec::PrecisionSpec& precision);

struct StepResult {
  int64_t step = 0;  // 1 for the first
  double loss = 0;   // mean over the batch; the same on every rank
  // True on the first replica's rank of the last stage, which reports for all; for kCluster it also has
  // metrics["accuracy"].
  bool has_loss = false;
  double gradient_norm = 0;
  double learning_rate = 0;
  std::map<std::string, double> metrics;
};

// Not thread-safe: one thread runs it. Unusable after an error; the owner builds a new one.
class Trainer {
 public:
  // `rank` is the rank in the island. `transport` may be null for a plan of one rank; otherwise it is connected, with
  // the plan's lanes (engine::LanesOf). All arguments must outlive the trainer. INVALID_ARGUMENT names the invalid
  // field; FAILED_PRECONDITION for a missing device or data without samples. Sets the number of LibTorch's threads of
  // the process, and tunes its allocator for short-lived tensors.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(const TrainerOptions& options, const planner::Plan& plan,
                                                         int32_t rank, TrainingData* data,
                                                         transport::Transport* transport, Clock* clock);
  virtual ~Trainer() = default;

  // Continues from a checkpoint of any stages. With another number of replicas, and so another order of sums, it
  // continues to float tolerance instead of bit for bit. FAILED_PRECONDITION if model, precision or seed differ.
  virtual absl::Status Load(const storage::CheckpointReader& checkpoint) = 0;

  // Runs one optimizer step over one batch. Every rank of the plan must call it equally often. If the loss or the
  // gradient's norm is not finite, returns INTERNAL with reason LOSS_NOT_FINITE or GRADIENT_NOT_FINITE, on every rank
  // alike and with the weights unchanged.
  virtual absl::StatusOr<StepResult> Step() = 0;
  virtual int64_t step() const = 0;
  // Returns the cursor of the run's order after the last step; all samples before it were read or skipped.
  virtual int64_t samples_consumed() const = 0;

  // A copy of this rank's current state, which can be written while training continues.
  class Snapshot {
   public:
    virtual ~Snapshot() = default;
    virtual int64_t step() const = 0;
    virtual int64_t samples_consumed() const = 0;
    // Returns the manifest without task, attempt, build and files: step, cursor, seed, precision, model.
    virtual storage::CheckpointManifest Manifest() const = 0;
    // Writes and syncs one safetensors file per stage below `folder`, on the first replica's ranks; others write none.
    // Callable on another thread. Names are relative to `folder`.
    virtual absl::StatusOr<std::vector<storage::CheckpointFile>> Write(storage::BlobStore* store,
                                                                       const std::string& folder) = 0;
  };
  virtual absl::StatusOr<std::unique_ptr<Snapshot>> TakeSnapshot() = 0;

  // Timings of the last step; they count from `iteration_start`, a Clock::Monotonic.
  virtual const std::vector<engine::ActionTiming>& timings() const = 0;
  virtual absl::Duration iteration_start() const = 0;
};

}  // namespace atl::trainer
