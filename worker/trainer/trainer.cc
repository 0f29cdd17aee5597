#include "worker/trainer/trainer.h"

#include <cmath>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/model/dit.h"
#include "fmt/format.h"
#include "worker/trainer/batch_feed.h"
#include "worker/trainer/learning_rate.h"
#include "worker/trainer/optimizer.h"
#include "worker/trainer/stage.h"
#include "worker/trainer/tensor_errors.h"
#include "worker/trainer/trainer_setup.h"
#include "worker/trainer/trainer_state.h"

namespace atl::trainer {
namespace {

absl::Status ValidatePlan(const planner::Plan& plan, int64_t layers, int32_t rank, bool has_transport) {
  const auto invalid = [](const std::string& message) {
    return MakeError(absl::StatusCode::kInvalidArgument, "PLAN_INVALID", "plan: " + message);
  };
  if (plan.layer_count() != layers) {
    return invalid(fmt::format("expected {} layers; found {}", layers, plan.layer_count()));
  }
  if (rank < 0 || rank >= plan.rank_count()) {
    return invalid(fmt::format("expected a rank below {}; found {}", plan.rank_count(), rank));
  }
  if (plan.micro_batches < 1 || plan.micro_batch_size < 1 || plan.schedule.micro_batches != plan.micro_batches) {
    return invalid(fmt::format("expected {} micro-batches, as in the schedule, of at least one sample; found {} of {}",
                               plan.schedule.micro_batches, plan.micro_batches, plan.micro_batch_size));
  }
  if (plan.schedule.stages != static_cast<int32_t>(plan.stages.size())) {
    return invalid(
        fmt::format("expected {} stages, as in the schedule; found {}", plan.schedule.stages, plan.stages.size()));
  }
  int32_t next = 0;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const planner::StagePlacement& stage = plan.stages[s];
    if (stage.first_layer != next || stage.end_layer <= next || stage.rank != plan.schedule.rank_of_stage[s]) {
      return invalid(fmt::format("stage {}: expected layers from {} on rank {}; found {} to {} on rank {}", s, next,
                                 plan.schedule.rank_of_stage[s], stage.first_layer, stage.end_layer, stage.rank));
    }
    next = stage.end_layer;
  }
  if (plan.rank_count() > 1 && !has_transport)
    return invalid("expected a transport for more than one rank; found none");
  return absl::OkStatus();
}

class TrainerImpl : public Trainer {
 public:
  TrainerImpl(const TrainerOptions& options, const planner::Plan& plan, int32_t rank, TrainingData* data,
              transport::Transport* transport, Clock* clock)
      : options_(options),
        plan_(plan),
        transport_(transport),
        feed_(options, plan.micro_batches, plan.micro_batch_size, data),
        stages_(options, ConfigOf(options, plan.precision), plan, rank, &feed_),
        optimizer_(Parameters(), options.training),
        engine_(plan_.schedule, rank, &stages_, transport, clock, engine::EngineOptions{.timeout = options.timeout}) {}

  absl::Status Load(const storage::CheckpointReader& checkpoint) override {
    ATOLL_RETURN_IF_ERROR(LoadState(checkpoint, Manifest(), &optimizer_));
    step_ = checkpoint.manifest().step;
    samples_consumed_ = checkpoint.manifest().samples_consumed;
    return absl::OkStatus();
  }

  absl::StatusOr<StepResult> Step() override {
    return CatchTensorErrors("step", [this]() -> absl::StatusOr<StepResult> {
      feed_.Begin(samples_consumed_);
      stages_.Begin();
      ATOLL_RETURN_IF_ERROR(engine_.RunIteration());
      StepResult result;
      ATOLL_ASSIGN_OR_RETURN(result.gradient_norm, GradientNorm());
      result.learning_rate = LearningRate(options_.training, step_);
      optimizer_.Step(step_, ClippingScale(result.gradient_norm));
      ++step_;
      samples_consumed_ += int64_t{plan_.micro_batches} * plan_.micro_batch_size;
      result.step = step_;
      ReportLoss(&result);
      return result;
    });
  }

  int64_t step() const override { return step_; }
  int64_t samples_consumed() const override { return samples_consumed_; }
  const std::vector<engine::ActionTiming>& timings() const override { return engine_.timings(); }

  absl::StatusOr<std::unique_ptr<Snapshot>> TakeSnapshot() override {
    return CatchTensorErrors("snapshot", [this]() -> absl::StatusOr<std::unique_ptr<Snapshot>> {
      std::vector<StageState> states;
      size_t first = 0;
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

  // Over all ranks. A layer's parameters are summed in order where it lies, then the layers in order on every rank:
  // the same bits whoever holds them. Also where the ranks meet before they change their weights.
  absl::StatusOr<double> GradientNorm() {
    std::vector<double> by_layer(static_cast<size_t>(plan_.layer_count()), 0.0);
    size_t parameter = 0;
    for (const RankStages::Stage& stage : stages_.stages()) {
      auto layer_index = static_cast<size_t>(plan_.stages[static_cast<size_t>(stage.index)].first_layer);
      for (const auto& layer : stage.layers) {
        for (size_t i = 0; i < layer->parameters().size(); ++i) {
          by_layer[layer_index] += optimizer_.SquaredNorm(parameter++);
        }
        ++layer_index;
      }
    }
    if (plan_.rank_count() > 1) {
      ATOLL_RETURN_IF_ERROR(transport_->AllReduceSum(by_layer, options_.timeout));
    }
    double sum = 0;
    for (const double squares : by_layer) sum += squares;
    if (!std::isfinite(sum)) {
      return MakeError(absl::StatusCode::kInternal, "GRADIENT_NOT_FINITE",
                       fmt::format("step {}: expected a finite gradient norm; found {}", step_ + 1, std::sqrt(sum)));
    }
    return std::sqrt(sum);
  }

  double ClippingScale(double norm) const {
    const double limit = options_.training.clip_norm;
    return limit > 0 && norm > limit ? limit / norm : 1.0;
  }

  void ReportLoss(StepResult* result) const {
    if (!stages_.has_loss()) return;
    const StepLoss loss = stages_.Loss();
    result->has_loss = true;
    result->loss = loss.loss;
    if (options_.objective == Objective::kCluster) result->metrics["accuracy"] = loss.accuracy;
  }

  const TrainerOptions options_;
  const planner::Plan plan_;
  transport::Transport* const transport_;
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
  ATOLL_RETURN_IF_ERROR(ValidatePlan(plan, model::LayerCount(config), rank, transport != nullptr));
  return CatchTensorErrors("create trainer", [&]() -> absl::StatusOr<std::unique_ptr<Trainer>> {
    TuneProcess(options.threads);
    return std::make_unique<TrainerImpl>(options, plan, rank, data, transport, clock);
  });
}

}  // namespace atl::trainer
