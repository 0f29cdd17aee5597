// Trains the layers that lie on one rank: stage computation for the engine, then clipping, AdamW and EMA; checkpoints
// of its stages. Serves experts (flow matching) and router networks (cluster classification) alike.
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

// Where training samples come from. Positions as in dataset::SampleReader; thread-compatible.
class TrainingData {
 public:
  virtual ~TrainingData() = default;
  virtual int64_t size() const = 0;
  // Pixels scaled to [-1, 1], [channels][height][width], written to `pixels`; label; and, for kCluster, the cluster.
  struct Item {
    int32_t label = -1;
    int32_t cluster = -1;
  };
  virtual absl::StatusOr<Item> Read(int64_t position, std::span<float> pixels) = 0;
};

// Samples of partitions: `partitions[k]` are cluster k's shards. For an expert, one partition. Pixels are decoded once
// and kept as bytes when all of them fit into `cache_bytes`; otherwise the reader's own row groups are all that is
// kept.
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
  // Batches of the run's order that are left out (common/spec/data_cursor.h).
  std::vector<spec::SkippedWindow> skipped;
  int32_t threads = 1;
  std::string device = "cpu";  // or "cuda:1", in a build with CUDA
  // What is run and not trained; `channels`, `height` and `width` are of the images that it reads. Its files' bytes by
  // URI, and the seed of the job, from which native layers without a file draw their weights.
  std::vector<spec::FrozenSpec> frozen;
  std::shared_ptr<const std::map<std::string, std::string>> frozen_files;
  uint64_t frozen_seed = 0;
  // Their outputs, for a plan that reads_frozen_cache.
  std::shared_ptr<const FrozenOutputs> kept_outputs;
  // Longest wait for another rank.
  absl::Duration timeout = absl::Seconds(60);
  // Told of what a step computes and reads; may be null, else it must outlive the trainer and the kept outputs.
  engine::Activity* activity = nullptr;
};

// The model's config.json: in the checkpoint's manifest and in the published model's folder. `precision` is the plan's.
std::string ModelConfigJson(const TrainerOptions& options, const spec::PrecisionSpec& precision);

struct StepResult {
  int64_t step = 0;  // 1 for the first
  double loss = 0;   // mean over the batch; the same on every rank
  // On the first replica's rank of the last stage, which reports for all; for kCluster it also has metrics["accuracy"].
  bool has_loss = false;
  double gradient_norm = 0;
  double learning_rate = 0;
  std::map<std::string, double> metrics;
};

// Not thread-safe: one thread runs it. Errors leave it unusable; the owner builds a new one.
class Trainer {
 public:
  // `rank` is the island's. `transport` may be null for a plan of one rank; otherwise it is connected, with the plan's
  // lanes (engine::LanesOf). Everything that is passed must outlive the trainer. INVALID_ARGUMENT names the field that
  // cannot be; FAILED_PRECONDITION for a device that is not there or data without samples. Sets the number of
  // LibTorch's threads of the process, and tunes its allocator for tensors that come and go.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(const TrainerOptions& options, const planner::Plan& plan,
                                                         int32_t rank, TrainingData* data,
                                                         transport::Transport* transport, Clock* clock);
  virtual ~Trainer() = default;

  // Continues from a checkpoint, whatever its stages were; with another number of replicas, and so another order of
  // sums, to float tolerance instead of bit for bit. FAILED_PRECONDITION when model, precision or seed differ.
  virtual absl::Status Load(const storage::CheckpointReader& checkpoint) = 0;

  // One optimizer step over one batch. Every rank of the plan must call it as often. INTERNAL with reason
  // LOSS_NOT_FINITE or GRADIENT_NOT_FINITE, on every rank alike and with the weights unchanged, when the loss or the
  // gradient's norm is no number.
  virtual absl::StatusOr<StepResult> Step() = 0;
  virtual int64_t step() const = 0;
  // The cursor of the run's order after the last step: what is before it was read or left out.
  virtual int64_t samples_consumed() const = 0;

  // A copy of this rank's state, taken now, to be written while training goes on.
  class Snapshot {
   public:
    virtual ~Snapshot() = default;
    virtual int64_t step() const = 0;
    virtual int64_t samples_consumed() const = 0;
    // What the leader's manifest says beside task, attempt, build and files: step, cursor, seed, precision, model.
    virtual storage::CheckpointManifest Manifest() const = 0;
    // Writes and syncs one safetensors file per stage below `folder`, of the first replica's ranks; others write none.
    // May run on another thread. Names are relative to `folder`.
    virtual absl::StatusOr<std::vector<storage::CheckpointFile>> Write(storage::BlobStore* store,
                                                                       const std::string& folder) = 0;
  };
  virtual absl::StatusOr<std::unique_ptr<Snapshot>> TakeSnapshot() = 0;

  // Of the last step; they count from `iteration_start`, a Clock::Monotonic.
  virtual const std::vector<engine::ActionTiming>& timings() const = 0;
  virtual absl::Duration iteration_start() const = 0;
};

}  // namespace atl::trainer
