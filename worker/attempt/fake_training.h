// Training without tensors, for tests of the code around it. A step adds the ranks' numbers over the transport; a
// checkpoint is one small file per rank.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "absl/synchronization/mutex.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/spec/data_cursor.h"
#include "worker/attempt/training_attempt.h"
#include "worker/transport/loopback/loopback_transport.h"

namespace atl::worker {

// Shared by the ranks of one test.
struct FakeTraining {
  std::atomic<int64_t> fail_at_step{0};   // DATA_LOSS on plan rank 0; 0: never
  std::atomic<int64_t> nan_at_step{0};    // the loss is no number, on every rank; 0: never
  std::atomic<int64_t> explode_from{0};   // losses of this step and later ones are a thousand times as large; 0: never
  std::atomic<int64_t> pause_at_step{0};  // every rank waits before it until the number changes; 0: never
  std::atomic<int64_t> hang_at_step{0};   // as pause_at_step, but plan rank `hanging_rank` alone, at work; 0: never
  int32_t hanging_rank = 0;
  // Only tests that set it test hanging; on a busy machine a rank may wait long for its turn.
  engine::ActivityOptions activity{.least = absl::Minutes(10), .first = absl::Minutes(10)};

  std::atomic<bool> fail_profiles{false};
  std::atomic<int32_t> profiles{0};           // measured, by all ranks together
  std::atomic<bool> slow_frozen_pass{false};  // goes on until it is interrupted

  absl::Mutex mutex;
  std::map<std::string, std::vector<std::unique_ptr<transport::Transport>>> transports ABSL_GUARDED_BY(mutex);
  std::vector<int32_t> plan_ranks ABSL_GUARDED_BY(mutex);         // of each attempt's plan, as plan rank 0 saw it
  std::vector<planner::Plan> plans ABSL_GUARDED_BY(mutex);        // that were trained, as plan rank 0 saw them
  std::map<int32_t, std::string> devices ABSL_GUARDED_BY(mutex);  // that trainers were made for, by plan rank
  std::vector<trainer::FrozenCacheOptions> frozen_passes ABSL_GUARDED_BY(mutex);  // of every rank

  // Each rank takes its end of one set of loopback transports per attempt.
  absl::StatusOr<std::unique_ptr<transport::Transport>> MakeTransport(int32_t rank, int32_t ranks,
                                                                      const transport::AttemptIdentity& identity) {
    absl::MutexLock lock(&mutex);
    auto& set = transports[fmt::format("{} {}", identity.attempt, identity.secret)];
    if (set.empty()) set = transport::MakeLoopbackTransports(ranks, identity);
    if (rank == 0) plan_ranks.push_back(ranks);
    return std::move(set[rank]);
  }
};

class FakeTrainer final : public trainer::Trainer {
 public:
  FakeTrainer(FakeTraining* shared, const trainer::TrainerOptions& options, const planner::Plan& plan, int32_t rank,
              transport::Transport* transport)
      : shared_(shared),
        batch_size_(options.training.batch_size),
        skipped_(options.skipped),
        plan_(plan),
        rank_(rank),
        transport_(transport),
        activity_(options.activity) {}

  absl::Status Load(const storage::CheckpointReader& checkpoint) override {
    step_ = checkpoint.manifest().step;
    samples_consumed_ = checkpoint.manifest().samples_consumed;
    return absl::OkStatus();
  }

  absl::StatusOr<trainer::StepResult> Step() override {
    while (shared_->pause_at_step == step_ + 1) absl::SleepFor(absl::Milliseconds(1));
    {
      const engine::WorkScope work(activity_, schedule::Action{.stage = rank_});
      while (rank_ == shared_->hanging_rank && shared_->hang_at_step == step_ + 1)
        absl::SleepFor(absl::Milliseconds(1));
    }
    if (rank_ == 0 && shared_->fail_at_step == step_ + 1) return absl::DataLossError("shard 3 is broken");
    double sum[1] = {1};
    ATOLL_RETURN_IF_ERROR(transport_->AllReduceSum(sum, absl::Seconds(20)));
    if (sum[0] != plan_.rank_count()) return absl::InternalError("a rank is missing from the sum");
    if (shared_->nan_at_step == step_ + 1) {
      return MakeError(absl::StatusCode::kInternal, "LOSS_NOT_FINITE", fmt::format("step {}: found nan", step_ + 1));
    }
    ++step_;
    samples_consumed_ = spec::BatchStart(samples_consumed_, 0, batch_size_, skipped_) + batch_size_;
    iteration_start_ = Clock::Real()->Monotonic();
    timings_ = {{.action = {.stage = rank_}, .end = absl::Microseconds(step_), .passed_on = absl::Microseconds(step_)}};
    trainer::StepResult result{.step = step_, .gradient_norm = 1};
    result.has_loss = rank_ == plan_.stages.back().rank;
    result.loss = 1.0 / static_cast<double>(step_);
    if (shared_->explode_from > 0 && step_ >= shared_->explode_from) result.loss *= 1000;
    return result;
  }
  int64_t step() const override { return step_; }
  int64_t samples_consumed() const override { return samples_consumed_; }

  class FakeSnapshot final : public Snapshot {
   public:
    FakeSnapshot(int64_t step, int64_t samples, int32_t rank) : step_(step), samples_(samples), rank_(rank) {}
    int64_t step() const override { return step_; }
    int64_t samples_consumed() const override { return samples_; }
    storage::CheckpointManifest Manifest() const override {
      return {.step = step_, .samples_consumed = samples_, .model_config = "{}"};
    }
    absl::StatusOr<std::vector<storage::CheckpointFile>> Write(storage::BlobStore* store,
                                                               const std::string& folder) override {
      const std::string name = fmt::format("stage-{}.safetensors", rank_);
      ATOLL_ASSIGN_OR_RETURN(const std::string bytes, storage::SerializeSafetensors({}, {}));
      ATOLL_ASSIGN_OR_RETURN(const storage::WrittenFile file, store->Write(folder + name, bytes));
      return std::vector<storage::CheckpointFile>{{.name = name, .bytes = file.bytes, .sha256 = file.sha256}};
    }

   private:
    const int64_t step_;
    const int64_t samples_;
    const int32_t rank_;
  };
  absl::StatusOr<std::unique_ptr<Snapshot>> TakeSnapshot() override {
    return std::make_unique<FakeSnapshot>(step_, samples_consumed(), rank_);
  }
  const std::vector<engine::ActionTiming>& timings() const override { return timings_; }
  absl::Duration iteration_start() const override { return iteration_start_; }

 private:
  FakeTraining* const shared_;
  const int32_t batch_size_;
  const std::vector<spec::SkippedWindow> skipped_;
  const planner::Plan plan_;
  const int32_t rank_;
  transport::Transport* const transport_;
  engine::Activity* const activity_;
  int64_t step_ = 0;
  int64_t samples_consumed_ = 0;
  std::vector<engine::ActionTiming> timings_;
  absl::Duration iteration_start_;
};

class FakeData final : public trainer::TrainingData {
 public:
  int64_t size() const override { return 1; }
  absl::StatusOr<Item> Read(int64_t, std::span<float>) override { return Item{}; }
};

inline AttemptParts FakeParts(FakeTraining* shared, storage::BlobStore* store, WorkerMetrics* metrics) {
  AttemptParts parts{.store = store, .clock = Clock::Real(), .metrics = metrics};
  parts.report_interval = absl::ZeroDuration();
  parts.kept_traces = 2;
  parts.activity = shared->activity;
  parts.make_transport = [shared](const std::string&, int32_t rank, int32_t ranks,
                                  const transport::AttemptIdentity& identity) {
    return shared->MakeTransport(rank, ranks, identity);
  };
  parts.open_data = [](const TrainingInputs&) -> absl::StatusOr<std::unique_ptr<trainer::TrainingData>> {
    return std::make_unique<FakeData>();
  };
  parts.make_trainer = [shared](const trainer::TrainerOptions& options, const planner::Plan& plan, int32_t rank,
                                trainer::TrainingData*,
                                transport::Transport* transport) -> absl::StatusOr<std::unique_ptr<trainer::Trainer>> {
    {
      absl::MutexLock lock(&shared->mutex);
      if (rank == 0) shared->plans.push_back(plan);
      shared->devices[rank] = options.device;
    }
    return std::make_unique<FakeTrainer>(shared, options, plan, rank, transport);
  };
  parts.obtain_frozen_cache = [shared](trainer::TrainingData*, const trainer::FrozenCacheOptions& options)
      -> absl::StatusOr<std::shared_ptr<const trainer::FrozenOutputs>> {
    {
      absl::MutexLock lock(&shared->mutex);
      shared->frozen_passes.push_back(options);
    }
    while (shared->slow_frozen_pass) {
      ATOLL_RETURN_IF_ERROR(options.interrupted());
      absl::SleepFor(absl::Milliseconds(1));
    }
    ATOLL_RETURN_IF_ERROR(options.meet());
    return nullptr;  // the fake trainer reads nothing
  };
  parts.profile_rank = [shared](const trainer::ProfilerOptions& options,
                                transport::Transport* transport) -> absl::StatusOr<planner::Profile> {
    if (shared->fail_profiles) return absl::InternalError("the clock is broken");
    double sum[1] = {1};
    ATOLL_RETURN_IF_ERROR(transport->AllReduceSum(sum, absl::Seconds(20)));
    ++shared->profiles;
    planner::Profile profile = planner::CountedProfile(options.trainer.model, /*tokens=*/16, options.trainer.channels);
    const std::vector<planner::LayerProfile> layers = profile.layers.begin()->second;
    profile.layers.clear();
    for (const int32_t size : options.micro_batch_sizes) profile.layers[size] = layers;
    profile.key = options.key;
    const trainer::TrainerOptions& trainer = options.trainer;
    if (options.frozen) {
      profile.frozen = planner::CountedFrozen(trainer.frozen, {trainer.channels, trainer.height, trainer.width},
                                              trainer.classes, trainer.training.batch_size);
    }
    return profile;
  };
  return parts;
}

}  // namespace atl::worker
