#include "worker/trainer/frozen_profiler.h"

#include <memory>
#include <numeric>

#include "common/base/status_macros.h"
#include "common/planner/frozen_flow.h"
#include "worker/trainer/rank_frozen.h"
#include "worker/trainer/synthetic_data.h"

namespace atl::trainer {
namespace {

constexpr double kLabelBytes = sizeof(int64_t);
constexpr double kPixelBytes = sizeof(float);

// One piece for each size, component and layer, in this order. Those of one size are a whole batch; those of others are
// not run beside them.
planner::Plan OnePiecePerLayer(const std::vector<spec::FrozenSpec>& specs, const std::vector<int32_t>& sizes) {
  planner::Plan plan{.micro_batches = 1, .micro_batch_size = sizes.back()};
  plan.schedule = {.stages = 1, .micro_batches = 1, .ranks = {{}}, .rank_of_stage = {0}};
  plan.components = planner::ComponentsOf(specs);
  for (const int32_t samples : sizes) {
    for (size_t c = 0; c < plan.components.size(); ++c) {
      for (int32_t layer = 0; layer < plan.components[c].layers; ++layer) {
        plan.frozen.push_back(
            {.component = static_cast<int32_t>(c), .first_layer = layer, .end_layer = layer + 1, .samples = samples});
      }
    }
  }
  return plan;
}

class FrozenProfiler {
 public:
  FrozenProfiler(const TrainerOptions& options, const FrozenProfilerOptions& how, const MeasuringRanks& ranks,
                 Clock* clock)
      : options_(options),
        how_(how),
        ranks_(ranks),
        clock_(clock),
        sizes_(planner::FrozenSizes(options.training.batch_size)),
        plan_(OnePiecePerLayer(options.frozen, sizes_)),
        data_(options.classes, options.clusters) {}

  absl::StatusOr<std::vector<planner::FrozenComponentProfile>> Run() {
    ATOLL_ASSIGN_OR_RETURN(frozen_, RankFrozen::Create(options_, plan_, 0, &data_));
    Describe();
    double seconds_per_sample = 0;  // of the last round
    for (size_t size = 0; size < sizes_.size(); ++size) {
      if (seconds_per_sample * sizes_[size] > absl::ToDoubleSeconds(how_.longest)) break;
      ATOLL_ASSIGN_OR_RETURN(const double seconds, MeasureSize(size));
      seconds_per_sample = seconds / sizes_[size];
    }
    return std::move(profiles_);
  }

 private:
  size_t PiecesPerSize() const { return plan_.frozen.size() / sizes_.size(); }

  // All but seconds and output bytes.
  void Describe() {
    for (size_t c = 0; c < options_.frozen.size(); ++c) {
      const spec::FrozenSpec& spec = options_.frozen[c];
      const model::FrozenComponent& component = frozen_->component(static_cast<int32_t>(c));
      planner::FrozenComponentProfile& profile = profiles_.emplace_back();
      profile.name = spec.name;
      double input =
          spec.input == "label" ? kLabelBytes : kPixelBytes * options_.channels * options_.height * options_.width;
      if (const int32_t reads = plan_.components[c].reads; reads >= 0) {
        profile.reads = {reads};
        input = profiles_[static_cast<size_t>(reads)].layers.back().output_bytes;
      }
      for (int32_t layer = 0; layer < component.layer_count(); ++layer) {
        const auto output = static_cast<double>(component.OutputOf(layer).bytes);
        profile.layers.push_back({.input_bytes = input,
                                  .output_bytes = output,
                                  .parameter_bytes = static_cast<double>(component.ParameterBytes(layer))});
        input = output;
      }
    }
  }

  // Seconds of the last round, the ranks' mean.
  absl::StatusOr<double> MeasureSize(size_t size) {
    std::vector<std::vector<double>> seconds(PiecesPerSize());
    const absl::Duration start = clock_->Monotonic();
    double last = 0;
    for (int32_t round = 0; round <= how_.rounds; ++round) {
      ATOLL_RETURN_IF_ERROR(how_.interrupted());
      ATOLL_ASSIGN_OR_RETURN(const double elapsed, ranks_.Mean(absl::ToDoubleSeconds(clock_->Monotonic() - start)));
      if (round > 1 && elapsed > absl::ToDoubleSeconds(how_.longest)) break;
      ATOLL_ASSIGN_OR_RETURN(const std::vector<double> of_round, Round(size));
      last = std::accumulate(of_round.begin(), of_round.end(), 0.0);
      for (size_t i = 0; i < of_round.size() && round > 0; ++i) seconds[i].push_back(of_round[i]);
    }
    for (size_t i = 0; i < seconds.size(); ++i) {
      const planner::FrozenPiece& piece = PieceOf(size, i);
      profiles_[static_cast<size_t>(piece.component)]
          .layers[static_cast<size_t>(piece.first_layer)]
          .seconds[piece.samples] = Median(seconds[i]);
    }
    return ranks_.Mean(last);
  }

  const planner::FrozenPiece& PieceOf(size_t size, size_t i) const { return plan_.frozen[size * PiecesPerSize() + i]; }

  absl::StatusOr<std::vector<double>> Round(size_t size) {
    frozen_->Prepare(0);
    std::vector<double> seconds;
    for (size_t i = 0; i < PiecesPerSize(); ++i) {
      const auto piece = static_cast<int32_t>(size * PiecesPerSize() + i);
      ATOLL_ASSIGN_OR_RETURN(seconds.emplace_back(),
                             TimeAction(options_.device, clock_, [&] { return frozen_->Run(piece); }));
      // Releases the input that the next layer has read; the last layers' outputs are for other components.
      if (PieceOf(size, i).first_layer > 0) frozen_->Release(piece - 1);
    }
    return seconds;
  }

  const TrainerOptions options_;
  const FrozenProfilerOptions& how_;
  const MeasuringRanks& ranks_;
  Clock* const clock_;
  const std::vector<int32_t> sizes_;
  const planner::Plan plan_;
  SyntheticData data_;
  std::unique_ptr<RankFrozen> frozen_;
  std::vector<planner::FrozenComponentProfile> profiles_;
};

}  // namespace

absl::StatusOr<std::vector<planner::FrozenComponentProfile>> MeasureFrozen(const TrainerOptions& options,
                                                                           const FrozenProfilerOptions& how,
                                                                           const MeasuringRanks& ranks, Clock* clock) {
  if (options.frozen.empty()) return std::vector<planner::FrozenComponentProfile>{};
  return FrozenProfiler(options, how, ranks, clock).Run();
}

}  // namespace atl::trainer
