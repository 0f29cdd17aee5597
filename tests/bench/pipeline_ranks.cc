#include "tests/bench/pipeline_ranks.h"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "common/base/status_macros.h"
#include "common/formats/profile_file.h"
#include "common/planner/measured_profile.h"
#include "tests/bench/figures.h"
#include "worker/engine/engine.h"
#include "worker/trainer/profiler.h"

namespace atl::bench {
namespace {

constexpr int kEncoderChannels = 32;

// Where the step of a rank went, in seconds: compute, waiting for inputs, the engine's own work, the rest of the step.
std::string Breakdown(const trainer::Trainer& trainer, const Span& span) {
  absl::Duration compute;
  absl::Duration waiting;
  absl::Duration engine;
  absl::Duration before;
  for (const engine::ActionTiming& timing : trainer.timings()) {
    waiting += timing.ready - before;
    engine += (timing.start - timing.ready) + (timing.passed_on - timing.end);
    compute += timing.end - timing.start;
    before = timing.passed_on;
  }
  return fmt::format("compute {:.4f} waiting {:.4f} engine {:.4f} rest {:.4f}", absl::ToDoubleSeconds(compute),
                     absl::ToDoubleSeconds(waiting), absl::ToDoubleSeconds(engine),
                     span.seconds() - absl::ToDoubleSeconds(before));
}

// Counts the page faults of this process that read no file.
int64_t PageFaults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

std::string OneLine(const planner::Profile& profile) {
  std::string json = storage::ToJson(profile);
  std::replace(json.begin(), json.end(), '\n', ' ');
  return json;
}

}  // namespace

trainer::TrainerOptions OptionsOf(const Work& work) {
  trainer::TrainerOptions options;
  options.model = {
      .patch = work.patch, .width = work.width, .depth = work.depth, .heads = 4, .mlp_ratio = work.mlp_ratio};
  options.model.self_conditioning = work.self_conditioning;
  options.training.self_conditioning_rate = 1;
  options.training.steps = 1'000'000;
  options.training.batch_size = work.batch_size();
  options.channels = work.channels;
  while (options.height / work.patch * (options.height / work.patch) < work.tokens) options.height += work.patch;
  options.width = options.height;
  options.classes = 10;
  options.seed = 1;
  options.threads = 1;
  options.frozen = work.frozen;
  return options;
}

std::vector<spec::FrozenSpec> Encoder(int blocks) {
  spec::FrozenSpec encoder{.name = "encoder", .output = "latent"};
  encoder.layers.push_back({.kind = "convolution", .width = kEncoderChannels, .activation = "silu"});
  for (int i = 0; i < blocks; ++i) encoder.layers.push_back({.kind = "block"});
  encoder.layers.push_back({.kind = "convolution", .width = 1});
  return {encoder};
}

int BlocksFor(double r, const Work& work, const planner::Profile& profile) {
  const double trainable = work.micro_batches * planner::MicroBatchSeconds(profile, work.micro_batch_size);
  const double block = planner::FrozenSeconds(profile.frozen[0].layers[1], work.batch_size());
  return std::max(1, static_cast<int>(std::lround(r * trainable / block)));
}

absl::StatusOr<planner::Profile> ShareProfile(const Work& work, transport::Transport* transport, ParentPipes* parent,
                                              Clock* clock, bool calibration) {
  trainer::ProfilerOptions options{
      .trainer = OptionsOf(work), .micro_batch_sizes = {work.micro_batch_size}, .key = "bench"};
  options.precision = options.trainer.training.precision;
  if (calibration) options = trainer::Calibration(std::move(options));
  ATOLL_ASSIGN_OR_RETURN(const planner::Profile own, trainer::ProfileRank(options, transport, clock));
  ATOLL_RETURN_IF_ERROR(parent->Write(OneLine(own)));
  ATOLL_ASSIGN_OR_RETURN(const std::string merged, parent->Read());
  return storage::ParseProfile(merged, "parent");
}

absl::StatusOr<planner::Profile> MergeAndShare(const Children& ranks) {
  std::vector<planner::Profile> profiles;
  for (const auto& rank : ranks) {
    ATOLL_ASSIGN_OR_RETURN(const std::string json, rank->Receive());
    ATOLL_ASSIGN_OR_RETURN(profiles.emplace_back(), storage::ParseProfile(json, "rank"));
  }
  ATOLL_ASSIGN_OR_RETURN(const planner::Profile merged, planner::MergeProfiles(profiles));
  for (const auto& rank : ranks) ATOLL_RETURN_IF_ERROR(rank->Send(OneLine(merged)));
  return merged;
}

absl::Status StepAndAnswer(trainer::Trainer* trainer, ParentPipes* parent) {
  const int64_t faults_before = PageFaults();
  const double cpu_before = CpuSeconds();
  Span span{.start = MonotonicSeconds()};
  ATOLL_RETURN_IF_ERROR(trainer->Step().status());
  span.end = MonotonicSeconds();
  const double cpu = CpuSeconds() - cpu_before;
  return parent->Write(fmt::format("{:.9f} {:.9f} {:.6f} {} {}", span.start, span.end, cpu,
                                   PageFaults() - faults_before, Breakdown(*trainer, span)));
}

absl::StatusOr<Cost> StepAll(const std::vector<Child*>& children, const std::string& command, bool show) {
  ATOLL_ASSIGN_OR_RETURN(const std::vector<Answer> answers, AskAll(children, command));
  std::vector<Span> spans;
  Cost cost;
  for (const Answer& answer : answers) {
    spans.push_back(answer.span);
    cost.cpu_seconds += answer.cpu_seconds;
    cost.page_faults += std::strtod(answer.rest.c_str(), nullptr);
    if (show) {
      fmt::print(stderr, "  rank {}: {:.4f} s, cpu {:.4f}, page faults {}\n", spans.size() - 1, answer.span.seconds(),
                 answer.cpu_seconds, answer.rest);
    }
  }
  cost.seconds = Union(spans).seconds();
  return cost;
}

std::vector<double> SecondsOf(const std::vector<Cost>& costs) {
  std::vector<double> seconds;
  for (const Cost& cost : costs) seconds.push_back(cost.seconds);
  return seconds;
}

std::vector<double> CpuSecondsOf(const std::vector<Cost>& costs) {
  std::vector<double> seconds;
  for (const Cost& cost : costs) seconds.push_back(cost.cpu_seconds);
  return seconds;
}

std::vector<double> PageFaultsOf(const std::vector<Cost>& costs) {
  std::vector<double> faults;
  for (const Cost& cost : costs) faults.push_back(cost.page_faults);
  return faults;
}

std::vector<double> Ratios(const std::vector<Cost>& a, const std::vector<Cost>& b, double scale) {
  std::vector<double> ratios;
  for (size_t i = 0; i < a.size(); ++i) ratios.push_back(scale * a[i].seconds / b[i].seconds);
  return ratios;
}

}  // namespace atl::bench
