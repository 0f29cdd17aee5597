#include "worker/trainer/profiler.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"
#include "worker/trainer/batch_feed.h"
#include "worker/trainer/frozen_profiler.h"
#include "worker/trainer/memory_meter.h"
#include "worker/trainer/optimizer.h"
#include "worker/trainer/rank_measuring.h"
#include "worker/trainer/stage.h"
#include "worker/trainer/synthetic_data.h"
#include "worker/trainer/tensor_errors.h"
#include "worker/trainer/trainer_setup.h"

namespace atl::trainer {
namespace {

using planner::LayerProfile;

// More blocks than this would measure the same again: their weights are past every cache.
constexpr int32_t kMostBlocks = 8;
constexpr int32_t kOptimizerRounds = 3;

// Measurements of one action on one layer, over the rounds.
struct PassTimes {
  std::vector<double> seconds;
  double freed_bytes = 0;      // of the last round
  double added_bytes = 0;      // of the last round
  double transient_bytes = 0;  // on top of the larger of before and after, for a forward; of before, for a gradient
};

struct LayerSamples {
  PassTimes forward;
  PassTimes input_gradient;
  PassTimes weight_gradient;
  PassTimes backward;
};

// Every layer a stage of its own, all on this rank, one micro-batch.
planner::Plan OneLayerStages(const planner::Profile& profile, int32_t micro_batch_size) {
  planner::Plan plan{.micro_batches = 1, .micro_batch_size = micro_batch_size};
  const auto layers = static_cast<int32_t>(profile.parameter_bytes.size());
  for (int32_t i = 0; i < layers; ++i) plan.stages.push_back({.rank = 0, .first_layer = i, .end_layer = i + 1});
  plan.schedule = {.stages = layers,
                   .micro_batches = 1,
                   .ranks = {{}},
                   .rank_of_stage = std::vector<int32_t>(static_cast<size_t>(layers), 0)};
  return plan;
}

// Runs rounds over all layers of a model with one micro-batch of one size.
class LayerRounds {
 public:
  LayerRounds(const ProfilerOptions& options, const planner::Plan& plan, MemoryMeter* meter, Clock* clock)
      : options_(options.trainer),
        meter_(meter),
        clock_(clock),
        data_(options_.classes, options_.clusters),
        feed_(options_, plan, /*replica=*/0, &data_),
        stages_(options_, ConfigOf(options_, options.precision), plan, 0, &feed_),
        samples_(plan.stages.size()) {}

  const RankStages& stages() const { return stages_; }
  const std::vector<LayerSamples>& samples() const { return samples_; }
  void Forget() { samples_.assign(samples_.size(), {}); }

  // Forward, then both gradients in one pass.
  absl::Status RunWhole() {
    ATOLL_RETURN_IF_ERROR(Forwards());
    for (int32_t s = Last(); s >= 0; --s) {
      ATOLL_RETURN_IF_ERROR(Measure(&At(s).backward, [&] { return stages_.Backward(s, 0); }));
      ATOLL_RETURN_IF_ERROR(PassBack(s));
    }
    return absl::OkStatus();
  }

  // Forward, then the gradients apart.
  absl::Status RunSplit() {
    ATOLL_RETURN_IF_ERROR(Forwards());
    for (int32_t s = Last(); s >= 0; --s) {
      ATOLL_RETURN_IF_ERROR(Measure(&At(s).input_gradient, [&] { return stages_.InputGradient(s, 0); }));
      ATOLL_RETURN_IF_ERROR(Measure(&At(s).weight_gradient, [&] { return stages_.WeightGradient(s, 0); }));
      ATOLL_RETURN_IF_ERROR(PassBack(s));
    }
    return absl::OkStatus();
  }

 private:
  int32_t Last() const { return static_cast<int32_t>(samples_.size()) - 1; }
  LayerSamples& At(int32_t stage) { return samples_[static_cast<size_t>(stage)]; }

  absl::Status Forwards() {
    stages_.Begin();
    feed_.Begin(0);
    for (int32_t s = 0; s <= Last(); ++s) {
      // On a pipeline the ranks of the first and of the last stage each build the micro-batch.
      if (s == Last()) feed_.Begin(0);
      ATOLL_RETURN_IF_ERROR(Measure(&At(s).forward, [&] { return stages_.Forward(s, 0); }));
      if (s < Last()) ATOLL_RETURN_IF_ERROR(stages_.HandOver(s, 0));
    }
    return absl::OkStatus();
  }

  absl::Status PassBack(int32_t stage) {
    if (stage > 0) ATOLL_RETURN_IF_ERROR(stages_.HandOverGradient(stage, 0));
    stages_.Release(stage, 0);
    return absl::OkStatus();
  }

  absl::Status Measure(PassTimes* samples, const std::function<absl::Status()>& action) {
    const auto before = static_cast<double>(meter_->live_bytes());
    meter_->ResetPeak();
    ATOLL_ASSIGN_OR_RETURN(samples->seconds.emplace_back(), TimeAction(options_.device, clock_, action));
    const auto after = static_cast<double>(meter_->live_bytes());
    samples->added_bytes = std::max(0.0, after - before);
    samples->freed_bytes = std::max(0.0, before - after);
    samples->transient_bytes = static_cast<double>(meter_->peak_bytes()) - std::max(before, after);
    return absl::OkStatus();
  }

  const TrainerOptions options_;
  MemoryMeter* const meter_;
  Clock* const clock_;
  SyntheticData data_;
  BatchFeed feed_;
  RankStages stages_;
  std::vector<LayerSamples> samples_;
};

LayerProfile ProfileOf(const LayerSamples& samples, double output_bytes) {
  LayerProfile layer{.forward_seconds = Median(samples.forward.seconds),
                     .input_gradient_seconds = Median(samples.input_gradient.seconds),
                     .weight_gradient_seconds = Median(samples.weight_gradient.seconds),
                     .backward_seconds = Median(samples.backward.seconds),
                     .kept_bytes = samples.forward.added_bytes,
                     .forward_transient_bytes = samples.forward.transient_bytes,
                     .output_bytes = output_bytes};
  // Memory that W frees was kept for it. The gradients that W adds meanwhile count as transient.
  layer.weight_gradient_bytes = std::min(samples.weight_gradient.freed_bytes, layer.kept_bytes);
  for (const PassTimes* gradient : {&samples.input_gradient, &samples.weight_gradient, &samples.backward}) {
    layer.backward_transient_bytes =
        std::max(layer.backward_transient_bytes, gradient->transient_bytes + gradient->added_bytes);
  }
  return layer;
}

// Blocks are alike: each is taken at the median of all that were run.
void SmoothBlocks(std::vector<LayerProfile>* layers) {
  const auto first = layers->begin() + 1;
  const auto end = layers->end() - 1;
  for (double LayerProfile::*field : {&LayerProfile::forward_seconds, &LayerProfile::input_gradient_seconds,
                                      &LayerProfile::weight_gradient_seconds, &LayerProfile::backward_seconds}) {
    std::vector<double> values;
    for (auto layer = first; layer != end; ++layer) values.push_back((*layer).*field);
    const double median = Median(values);
    for (auto layer = first; layer != end; ++layer) (*layer).*field = median;
  }
}

// Puts back the blocks that were not run.
template <typename T>
void RepeatBlocks(int32_t depth, std::vector<T>* by_layer) {
  const auto run = static_cast<int32_t>(by_layer->size()) - 2;
  if (depth > run) by_layer->insert(by_layer->end() - 1, static_cast<size_t>(depth - run), (*by_layer)[1]);
}

// Without frozen components: latents in the place of images.
ProfilerOptions OfWhatIsLearnt(ProfilerOptions options) {
  const model::DitConfig config = ConfigOf(options.trainer, options.precision);
  options.trainer.channels = static_cast<int32_t>(config.channels);
  options.trainer.height = static_cast<int32_t>(config.height);
  options.trainer.width = static_cast<int32_t>(config.width_pixels);
  options.trainer.frozen.clear();
  return options;
}

class Profiler {
 public:
  Profiler(const ProfilerOptions& options, transport::Transport* transport, Clock* clock)
      : options_(Shortened(OfWhatIsLearnt(options))),
        of_job_(options),
        depth_(options.trainer.model.depth),
        ranks_(transport, options.trainer.timeout),
        clock_(clock) {
    profile_.key = options.key;
    const model::DitConfig config = ConfigOf(options_.trainer, options_.precision);
    for (const auto& layer : model::BuildLayers(config, options_.trainer.seed, 0, model::LayerCount(config))) {
      double bytes = 0;
      for (const model::NamedTensor& parameter : layer->parameters()) {
        bytes += static_cast<double>(parameter.tensor.nbytes());
      }
      profile_.parameter_bytes.push_back(bytes);
    }
  }

  absl::StatusOr<planner::Profile> Run() {
    ATOLL_RETURN_IF_ERROR(MeasureOptimizer());
    for (const int32_t size : options_.micro_batch_sizes) ATOLL_RETURN_IF_ERROR(MeasureLayers(size));
    if (options_.frozen) {
      ATOLL_ASSIGN_OR_RETURN(
          profile_.frozen,
          MeasureFrozen(of_job_.trainer,
                        {.rounds = options_.rounds, .longest = options_.longest, .interrupted = options_.interrupted},
                        ranks_, clock_));
    }
    ATOLL_RETURN_IF_ERROR(MeasureTransfers());
    RepeatBlocks(depth_, &profile_.parameter_bytes);
    for (auto& [size, layers] : profile_.layers) RepeatBlocks(depth_, &layers);
    return profile_;
  }

 private:
  static ProfilerOptions Shortened(ProfilerOptions options) {
    options.trainer.model.depth = std::min(options.trainer.model.depth, kMostBlocks);
    return options;
  }

  absl::Status MeasureOptimizer() {
    LayerRounds rounds(options_, OneLayerStages(profile_, Smallest()), &meter_, clock_);
    std::vector<model::NamedTensor> parameters;
    for (const RankStages::Stage& stage : rounds.stages().stages()) {
      for (model::NamedTensor& parameter : model::NamedParameters(stage.layers)) {
        parameters.push_back(std::move(parameter));
      }
    }
    Optimizer optimizer(std::move(parameters), options_.trainer.training);
    std::vector<double> seconds;
    for (int32_t round = 0; round <= kOptimizerRounds; ++round) {
      ATOLL_RETURN_IF_ERROR(options_.interrupted());
      ATOLL_RETURN_IF_ERROR(rounds.RunWhole());
      ATOLL_RETURN_IF_ERROR(ranks_.Mean(0).status());
      const absl::Duration start = clock_->Monotonic();
      // As a step that clips does; what it clips to is no matter.
      const double norm = at::stack(optimizer.GradientNorms()).norm().item<double>();
      optimizer.Step(round, 1 / (1 + norm));
      if (round > 0) seconds.push_back(absl::ToDoubleSeconds(clock_->Monotonic() - start));
    }
    double bytes = 0;
    for (const double layer : profile_.parameter_bytes) bytes += layer;
    profile_.optimizer_seconds_per_byte = bytes > 0 ? Median(seconds) / bytes : 0;
    return absl::OkStatus();
  }

  absl::Status MeasureLayers(int32_t size) {
    LayerRounds rounds(options_, OneLayerStages(profile_, size), &meter_, clock_);
    absl::Duration start = clock_->Monotonic();
    for (int32_t round = 0; round <= options_.rounds; ++round) {
      ATOLL_RETURN_IF_ERROR(options_.interrupted());
      ATOLL_ASSIGN_OR_RETURN(const double elapsed, ranks_.Mean(absl::ToDoubleSeconds(clock_->Monotonic() - start)));
      if (round > 1 && elapsed > absl::ToDoubleSeconds(options_.longest)) break;
      ATOLL_RETURN_IF_ERROR(rounds.RunWhole());
      ATOLL_RETURN_IF_ERROR(rounds.RunSplit());
      if (round == 0) rounds.Forget();
    }
    std::vector<LayerProfile>& layers = profile_.layers[size];
    for (size_t i = 0; i < rounds.samples().size(); ++i) {
      const engine::Boundary& output = rounds.stages().OutputOf(static_cast<int32_t>(i));
      layers.push_back(ProfileOf(rounds.samples()[i], static_cast<double>(output.bytes())));
    }
    // The last stage of a self-conditioned model sends its estimate back to the first stage.
    if (options_.trainer.model.self_conditioning) {
      layers.back().output_bytes = static_cast<double>(rounds.stages().EstimateInputOf(0).bytes());
    }
    SmoothBlocks(&layers);
    return absl::OkStatus();
  }

  // Neighbours in turn; of a boundary's size, and of next to nothing.
  absl::Status MeasureTransfers() {
    if (ranks_.count() == 1) return absl::OkStatus();
    const double boundary = profile_.layers.rbegin()->second.front().output_bytes;
    const at::Tensor buffer = at::zeros({std::max<int64_t>(static_cast<int64_t>(boundary), 1)},
                                        at::TensorOptions().dtype(at::kByte).device(options_.trainer.device));
    auto* const data = static_cast<std::byte*>(buffer.mutable_data_ptr());
    for (int32_t first = 0; first + 1 < ranks_.count(); ++first) {
      ATOLL_RETURN_IF_ERROR(ranks_.Mean(0).status());
      ATOLL_ASSIGN_OR_RETURN(const double small, ranks_.PingPong(first, {data, 1}, clock_));
      ATOLL_ASSIGN_OR_RETURN(const double large, ranks_.PingPong(first, {data, buffer.nbytes()}, clock_));
      if (ranks_.rank() != first) continue;
      profile_.transfer_latency_seconds = small;
      profile_.transfer_bytes_per_second = boundary / std::max(large - small, 1e-9);
    }
    return absl::OkStatus();
  }

  int32_t Smallest() const {
    return *std::min_element(options_.micro_batch_sizes.begin(), options_.micro_batch_sizes.end());
  }

  const ProfilerOptions options_;  // of what is learnt
  const ProfilerOptions of_job_;   // with its frozen components
  const int32_t depth_;
  const MeasuringRanks ranks_;
  Clock* const clock_;
  MemoryMeter meter_;
  planner::Profile profile_;
};

absl::Status ValidateProfiler(const ProfilerOptions& options) {
  const SyntheticData data(options.trainer.classes, options.trainer.clusters);
  ATOLL_RETURN_IF_ERROR(ValidateOptions(options.trainer, data));
  ATOLL_RETURN_IF_ERROR(ValidatePrecision(options.precision));
  ATOLL_RETURN_IF_ERROR(model::Validate(ConfigOf(options.trainer, options.precision)));
  for (const int32_t size : options.micro_batch_sizes) {
    if (size >= 1) continue;
    return FieldError("micro_batch_sizes", "VALUE_OUT_OF_RANGE", fmt::format("expected at least 1; found {}", size));
  }
  if (!options.micro_batch_sizes.empty()) return absl::OkStatus();
  return FieldError("micro_batch_sizes", "VALUE_OUT_OF_RANGE", "expected at least one size; found none");
}

}  // namespace

absl::StatusOr<planner::Profile> ProfileRank(const ProfilerOptions& options, transport::Transport* transport,
                                             Clock* clock) {
  ATOLL_RETURN_IF_ERROR(ValidateProfiler(options));
  return CatchTensorErrors("profile", [&]() -> absl::StatusOr<planner::Profile> {
    TuneProcess(options.trainer.threads, options.trainer.device);
    return Profiler(options, transport, clock).Run();
  });
}

}  // namespace atl::trainer
