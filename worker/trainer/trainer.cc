#include "worker/trainer/trainer.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "common/base/counter_random.h"
#include "common/base/errors.h"
#include "common/base/failpoint.h"
#include "common/base/status_macros.h"
#include "common/model/dit.h"
#include "common/spec/data_cursor.h"
#include "fmt/format.h"
#include "worker/trainer/batch_feed.h"
#include "worker/trainer/learning_rate.h"
#include "worker/trainer/optimizer.h"
#include "worker/trainer/plan_check.h"
#include "worker/trainer/rank_frozen.h"
#include "worker/trainer/stage.h"
#include "worker/trainer/tensor_errors.h"
#include "worker/trainer/trainer_setup.h"
#include "worker/trainer/trainer_state.h"

namespace atl::trainer {
namespace {

class TrainerImpl : public Trainer {
 public:
  TrainerImpl(const TrainerOptions& options, const planner::Plan& plan, int32_t rank,
              std::unique_ptr<RankFrozen> frozen, TrainingData* data, transport::Transport* transport, Clock* clock)
      : options_(options),
        plan_(plan),
        rank_(rank),
        replica_(rank / plan.schedule.rank_count()),
        transport_(transport),
        frozen_(std::move(frozen)),
        feed_(options, plan_, replica_, data, plan.reads_frozen_cache ? options.kept_outputs.get() : frozen_.get()),
        stages_(options, ConfigOf(options, plan.precision), plan, rank, &feed_),
        optimizer_(Parameters(), options.training),
        engine_(plan_, rank, &stages_, transport, clock, EngineOptionsOf(options, frozen_.get(), &stages_)) {}

  absl::Status Load(const storage::CheckpointReader& checkpoint) override {
    ATOLL_RETURN_IF_ERROR(LoadState(checkpoint, Manifest(), &optimizer_));
    step_ = checkpoint.manifest().step;
    samples_consumed_ = checkpoint.manifest().samples_consumed;
    return absl::OkStatus();
  }

  absl::StatusOr<StepResult> Step() override {
    return CatchTensorErrors("step", [this]() -> absl::StatusOr<StepResult> {
      const int64_t first_sample = FirstSample(0);
      ATOLL_RETURN_IF_ERROR(RunFrozenFirst(first_sample));
      // The last step prepares nothing: there is no next one.
      const bool prepares = frozen_ != nullptr && step_ + 1 < options_.training.steps;
      if (prepares) frozen_->Prepare(FirstSample(1));
      feed_.Begin(first_sample);
      stages_.Begin();
      ATOLL_RETURN_IF_ERROR(engine_.RunIteration({.self_conditioned = SelfConditioned(), .frozen = prepares}));
      if (prepares) frozen_->Advance();
      ATOLL_ASSIGN_OR_RETURN(const WholeStep whole, Meet());
      StepResult result;
      ATOLL_ASSIGN_OR_RETURN(result.gradient_norm, GradientNorm(whole));
      result.loss = whole.loss;
      result.learning_rate = LearningRate(options_.training, step_);
      {
        const engine::WorkScope work(options_.activity, "optimizer");
        optimizer_.Step(step_, ClippingScale(result.gradient_norm));
      }
      ++step_;
      samples_consumed_ = first_sample + BatchSize();
      result.step = step_;
      Report(whole, &result);
      return result;
    });
  }

  int64_t step() const override { return step_; }
  int64_t samples_consumed() const override { return samples_consumed_; }
  const std::vector<engine::ActionTiming>& timings() const override { return engine_.timings(); }
  absl::Duration iteration_start() const override { return engine_.started(); }

  absl::StatusOr<std::unique_ptr<Snapshot>> TakeSnapshot() override {
    return CatchTensorErrors("snapshot", [this]() -> absl::StatusOr<std::unique_ptr<Snapshot>> {
      std::vector<StageState> states;
      size_t first = 0;
      // Replicas hold the same state: the first one writes it.
      if (replica_ > 0) return CopyState(optimizer_, states, Manifest());
      for (const RankStages::Stage& stage : stages_.stages()) {
        const size_t end = first + model::NamedParameters(stage.layers).size();
        states.push_back({.file = fmt::format("stage-{}-of-{}.safetensors", stage.index, plan_.stages.size()),
                          .first = first,
                          .end = end});
        first = end;
      }
      return CopyState(optimizer_, states, Manifest());
    });
  }

 private:
  static engine::EngineOptions EngineOptionsOf(const TrainerOptions& options, engine::FrozenCompute* frozen,
                                               engine::SelfConditioningCompute* self_conditioning) {
    return {.timeout = options.timeout,
            .frozen = frozen,
            .self_conditioning = self_conditioning,
            .move_pieces = options.device == "cpu",
            .activity = options.activity};
  }

  // Whether the model sees its own estimate in the step to come: one coin, on every rank the same, after a resume too.
  bool SelfConditioned() const {
    if (!options_.model.self_conditioning) return false;
    const CounterRandom coin(options_.seed, RandomPurpose::kSelfConditioning, static_cast<uint64_t>(step_), 0);
    return coin.Uniform() < options_.training.self_conditioning_rate;
  }

  int64_t BatchSize() const { return int64_t{plan_.replicas} * plan_.micro_batches * plan_.micro_batch_size; }

  // Place in the run's order of the first sample of the step to come, or of one `ahead` steps later.
  int64_t FirstSample(int64_t ahead) const {
    return spec::BatchStart(samples_consumed_, ahead, BatchSize(), options_.skipped);
  }

  // Runs the pieces of the first batch: at the start, and after a resume, no iteration has worked ahead.
  absl::Status RunFrozenFirst(int64_t first_sample) {
    if (frozen_ == nullptr || frozen_->Holds(first_sample)) return absl::OkStatus();
    frozen_->Prepare(first_sample);
    ATOLL_RETURN_IF_ERROR(engine_.RunFrozen());
    frozen_->Advance();
    return absl::OkStatus();
  }

  std::vector<model::NamedTensor> Parameters() const {
    std::vector<model::NamedTensor> all;
    for (const RankStages::Stage& stage : stages_.stages()) {
      for (model::NamedTensor& parameter : model::NamedParameters(stage.layers)) all.push_back(std::move(parameter));
    }
    return all;
  }

  storage::CheckpointManifest Manifest() const {
    storage::CheckpointManifest manifest;
    manifest.step = step_;
    manifest.samples_consumed = samples_consumed_;
    manifest.seed = options_.seed;
    manifest.precision = PrecisionMap(plan_.precision);
    manifest.model_config = ModelConfigJson(options_, plan_.precision);
    return manifest;
  }

  // The values of a step that need the parts of all ranks.
  struct WholeStep {
    double loss = 0;
    double accuracy = 0;  // kCluster
    double gradient_squares = 0;
  };

  // This rank's part: the squares of its gradients by layer of the model, then loss and accuracy as parts of the
  // batch's mean. Replicas hold the same gradients, and the first one counts them. Waits once for a device.
  std::vector<double> OwnPart() const {
    std::vector<at::Tensor> scalars;
    if (replica_ == 0) scalars = optimizer_.GradientNorms();
    scalars.insert(scalars.end(), stages_.losses().begin(), stages_.losses().end());
    scalars.insert(scalars.end(), stages_.correct().begin(), stages_.correct().end());
    const auto layers = static_cast<size_t>(plan_.layer_count());
    std::vector<double> values(layers + 2);
    if (scalars.empty()) return values;
    const at::Tensor read = at::stack(scalars).cpu().to(at::kDouble);
    const double* next = read.const_data_ptr<double>();
    for (const RankStages::Stage& stage : stages_.stages()) {
      auto layer_index = static_cast<size_t>(plan_.stages[static_cast<size_t>(stage.index)].first_layer);
      for (const auto& layer : stage.layers) {
        for (size_t i = 0; i < layer->parameters().size() && replica_ == 0; ++i, ++next) {
          values[layer_index] += *next * *next;
        }
        ++layer_index;
      }
    }
    const int32_t micro_batches = plan_.micro_batches * plan_.replicas;
    for (size_t i = 0; i < stages_.losses().size(); ++i) values[layers] += *next++ / micro_batches;
    for (size_t i = 0; i < stages_.correct().size(); ++i) values[layers + 1] += *next++ / micro_batches;
    return values;
  }

  // Synchronises the ranks before they change their weights. Every rank adds the layers' squares in order, so that the
  // bits do not depend on the ranks that hold the layers.
  absl::StatusOr<WholeStep> Meet() {
    std::vector<double> values;
    {
      // A device comes here to the end of what it was given, which may be most of a step.
      const engine::WaitingScope waiting(options_.activity, "norms and loss");
      values = OwnPart();
    }
    double& loss = values[values.size() - 2];
    if (!Failpoint("trainer.loss").ok()) loss = std::numeric_limits<double>::quiet_NaN();
    if (plan_.rank_count() > 1) {
      ATOLL_RETURN_IF_ERROR(transport_->AllReduceSum(values, options_.timeout));
    }
    return WholeStep{.loss = loss,
                     .accuracy = values.back(),
                     .gradient_squares = std::accumulate(values.begin(), values.end() - 2, 0.0)};
  }

  absl::StatusOr<double> GradientNorm(const WholeStep& whole) const {
    if (!std::isfinite(whole.gradient_squares) || !std::isfinite(whole.loss)) {
      return MakeError(absl::StatusCode::kInternal,
                       std::isfinite(whole.gradient_squares) ? "LOSS_NOT_FINITE" : "GRADIENT_NOT_FINITE",
                       fmt::format("step {}: expected a finite loss and gradient norm; found {} and {}", step_ + 1,
                                   whole.loss, std::sqrt(whole.gradient_squares)));
    }
    return std::sqrt(whole.gradient_squares);
  }

  double ClippingScale(double norm) const {
    const double limit = options_.training.clip_norm;
    return limit > 0 && norm > limit ? limit / norm : 1.0;
  }

  void Report(const WholeStep& whole, StepResult* result) const {
    if (rank_ != engine::RankOf(plan_, /*replica=*/0, plan_.schedule.stages - 1)) return;
    result->has_loss = true;
    if (options_.objective == Objective::kCluster) result->metrics["accuracy"] = whole.accuracy;
  }

  const TrainerOptions options_;
  const planner::Plan plan_;
  const int32_t rank_;     // of the island
  const int32_t replica_;  // that it belongs to
  transport::Transport* const transport_;
  const std::unique_ptr<RankFrozen> frozen_;  // null where nothing frozen is run
  BatchFeed feed_;
  RankStages stages_;
  Optimizer optimizer_;
  engine::Engine engine_;
  int64_t step_ = 0;
  int64_t samples_consumed_ = 0;
};

}  // namespace

std::string ModelConfigJson(const TrainerOptions& options, const spec::PrecisionSpec& precision) {
  return model::ToJson(ConfigOf(options, precision));
}

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const TrainerOptions& options, const planner::Plan& plan,
                                                         int32_t rank, TrainingData* data,
                                                         transport::Transport* transport, Clock* clock) {
  const model::DitConfig config = ConfigOf(options, plan.precision);
  ATOLL_RETURN_IF_ERROR(ValidateOptions(options, *data));
  ATOLL_RETURN_IF_ERROR(ValidatePrecision(plan.precision));
  ATOLL_RETURN_IF_ERROR(model::Validate(config));
  ATOLL_RETURN_IF_ERROR(CheckPlan(plan, model::LayerCount(config), rank, transport != nullptr));
  ATOLL_RETURN_IF_ERROR(
      CheckSelfConditioning(plan, options.model.self_conditioning && options.training.self_conditioning_rate > 0));
  return CatchTensorErrors("create trainer", [&]() -> absl::StatusOr<std::unique_ptr<Trainer>> {
    TuneProcess(options.threads, options.device);
    std::unique_ptr<RankFrozen> frozen;
    if (plan.reads_frozen_cache && options.kept_outputs == nullptr) {
      return MakeError(absl::StatusCode::kInvalidArgument, "PLAN_INVALID",
                       "plan: expected the kept outputs of frozen components, which it reads; found none");
    }
    if (!plan.reads_frozen_cache && (!options.frozen.empty() || !plan.components.empty())) {
      ATOLL_ASSIGN_OR_RETURN(frozen, RankFrozen::Create(options, plan, rank, data));
    }
    TrainerOptions loaded = options;
    loaded.frozen_files.reset();  // nobody reads them again
    return std::make_unique<TrainerImpl>(loaded, plan, rank, std::move(frozen), data, transport, clock);
  });
}

}  // namespace atl::trainer
