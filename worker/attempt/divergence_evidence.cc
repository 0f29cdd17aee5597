#include "worker/attempt/divergence_evidence.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/dataset/dataset.h"
#include "common/schedule/action.h"

namespace atl::worker {
namespace {

using nlohmann::json;

constexpr int kFormat = 1;

// JSON has no NaN.
json Number(double value) {
  return std::isfinite(value) ? json(value) : json(nullptr);
}

json StepsOf(const Divergence& divergence) {
  json steps = json::array();
  for (const WatchedStep& step : divergence.steps) {
    steps.push_back({{"step", step.step}, {"loss", Number(step.loss)}, {"gradient_norm", Number(step.gradient_norm)}});
  }
  return steps;
}

// Lists the samples of the untrusted steps, as their ranks read them: shard and row.
json SamplesOf(const TrainingInputs& inputs, const Divergence& divergence, int64_t* left_out) {
  std::vector<const dataset::Shard*> shards;
  std::vector<int64_t> ends;
  int64_t size = 0;
  for (const auto& partition : inputs.partitions) {
    for (const dataset::Shard& shard : partition) {
      shards.push_back(&shard);
      ends.push_back(size += shard.rows);
    }
  }
  json samples = json::array();
  *left_out = 0;
  if (size < 1) return samples;
  const dataset::ShuffledOrder order(inputs.options.seed, size);
  const int64_t batch_size = inputs.options.training.batch_size;
  for (const WatchedStep& step : divergence.steps) {
    if (step.step < divergence.first_bad_step) continue;
    for (int64_t i = 0; i < batch_size; ++i) {
      if (static_cast<int64_t>(samples.size()) == kMaxEvidenceSamples) {
        ++*left_out;
        continue;
      }
      const int64_t position = order.At(step.first_sample + i);
      const auto shard = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), position) - ends.begin());
      samples.push_back({{"step", step.step},
                         {"shard", shards[shard]->uri},
                         {"row", position - (ends[shard] - shards[shard]->rows)}});
    }
  }
  return samples;
}

json PlanOf(const planner::Plan& plan) {
  json stages = json::array();
  for (const planner::StagePlacement& stage : plan.stages) {
    stages.push_back({{"rank", stage.rank}, {"first_layer", stage.first_layer}, {"end_layer", stage.end_layer}});
  }
  return {{"generator", plan.generator},
          {"ranks", plan.rank_count()},
          {"replicas", plan.replicas},
          {"micro_batches", plan.micro_batches},
          {"micro_batch_size", plan.micro_batch_size},
          {"stages", std::move(stages)},
          {"precision",
           {{"params", plan.precision.params},
            {"compute", plan.precision.compute},
            {"reduce", plan.precision.reduce},
            {"ema", plan.precision.ema}}},
          {"schedule", schedule::ToText(plan.schedule)}};
}

}  // namespace

std::string EvidenceUri(std::string_view write_prefix, int64_t step) {
  return fmt::format("{}{}evidence/{:08}.json", write_prefix, write_prefix.ends_with('/') ? "" : "/", step);
}

std::string EvidenceJson(const spec::TaskGrant& grant, const TrainingInputs& inputs, const planner::Plan& plan,
                         std::string_view build, const Divergence& divergence) {
  int64_t left_out = 0;
  json samples = SamplesOf(inputs, divergence, &left_out);
  json skipped = json::array();
  for (const spec::SkippedWindow& window : grant.skipped) {
    skipped.push_back({{"first_step", window.first_step}, {"steps", window.steps}});
  }
  const json evidence = {{"format", kFormat},
                         {"task_id", grant.token.task_id},
                         {"attempt", grant.token.attempt},
                         {"build", build},
                         {"cause", divergence.cause},
                         {"message", divergence.message},
                         {"step", divergence.step},
                         {"first_bad_step", divergence.first_bad_step},
                         {"resumed_from", grant.resume_from ? json(grant.resume_from->manifest_uri) : json(nullptr)},
                         {"seed", inputs.options.seed},
                         {"skipped", std::move(skipped)},
                         {"steps", StepsOf(divergence)},
                         {"samples", std::move(samples)},
                         {"samples_left_out", left_out},
                         {"plan", PlanOf(plan)}};
  return evidence.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace atl::worker
