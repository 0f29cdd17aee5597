// Frozen work in the bubbles of two real ranks over UCX, against the same work after the flush: a trainer each way per
// rank, taking turns.
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/model/frozen.h"
#include "common/planner/fill.h"
#include "common/planner/frozen_flow.h"
#include "common/planner/plan.h"
#include "tests/bench/figures.h"
#include "tests/bench/pipeline_ranks.h"
#include "tests/bench/rank_processes.h"
#include "worker/engine/engine.h"
#include "worker/engine/lanes.h"
#include "worker/trainer/synthetic_data.h"
#include "worker/trainer/trainer.h"

namespace atl::bench {
namespace {

struct RealSettings {
  int rounds = 12;
  int warm_up = 3;
  int depth = 8;
  int width = 256;
  int micro_batches = 4;
  int micro_batch_size = 8;
  double r = 0.25;  // frozen work over trainable
};

constexpr int kRanks = 2;
constexpr int kTokens = 64;
constexpr int kEncoderChannels = 32;
constexpr int kSizes[] = {4, 8, 16, 32};  // samples that a frozen layer is measured with

// Convolutions that keep the image's size: a first, `blocks` residual ones, a last.
std::vector<spec::FrozenSpec> Encoder(int blocks) {
  spec::FrozenSpec encoder{.name = "encoder", .output = "latent"};
  encoder.layers.push_back({.kind = "convolution", .width = kEncoderChannels, .activation = "silu"});
  for (int i = 0; i < blocks; ++i) encoder.layers.push_back({.kind = "block"});
  encoder.layers.push_back({.kind = "convolution", .width = 1});
  return {encoder};
}

trainer::TrainerOptions Options(const RealSettings& settings) {
  return OptionsOf({.depth = settings.depth,
                    .width = settings.width,
                    .tokens = kTokens,
                    .micro_batches = settings.micro_batches,
                    .micro_batch_size = settings.micro_batch_size});
}

absl::StatusOr<planner::Plan> TrainablePlan(const RealSettings& settings, int ranks) {
  const trainer::TrainerOptions options = Options(settings);
  planner::PlanRequest request;
  request.pipeline = {.schedule = "1f1b", .stages = ranks, .micro_batches = settings.micro_batches};
  request.batch_size = options.training.batch_size;
  request.ranks = ranks;
  request.profile = planner::CountedProfile(options.model, kTokens, options.channels);
  return planner::MakePlan(request);
}

// Measured by one process while the other measures too.
struct Measured {
  double forward = 0;         // of the whole model, one micro-batch
  double backward = 0;        // …
  std::vector<double> first;  // by size, the encoder's layers
  std::vector<double> block;
  std::vector<double> last;
};

absl::StatusOr<std::vector<double>> LayerSeconds(const model::FrozenComponent& encoder, int layer, int batch) {
  std::vector<double> medians;
  for (const int size : kSizes) {
    if (size > batch) break;
    const at::Tensor images = at::ones({size, 1, 16, 16});
    ATOLL_ASSIGN_OR_RETURN(const at::Tensor input, encoder.Run(images, 0, layer));
    std::vector<double> seconds;
    for (int i = 0; i < 9; ++i) {
      const double start = MonotonicSeconds();
      ATOLL_RETURN_IF_ERROR(encoder.Run(input, layer, layer + 1).status());
      seconds.push_back(MonotonicSeconds() - start);
    }
    medians.push_back(Median(seconds));
  }
  return medians;
}

// A child that measures once, at its parent's word, and answers with a line of numbers.
absl::Status Measure(const RealSettings& settings, ParentPipes* parent) {
  ATOLL_RETURN_IF_ERROR(parent->Read().status());
  trainer::SyntheticData data(Options(settings).classes, 0);
  ATOLL_ASSIGN_OR_RETURN(const planner::Plan plan, TrainablePlan(settings, 1));
  ATOLL_ASSIGN_OR_RETURN(const auto trainer,
                         trainer::Trainer::Create(Options(settings), plan, 0, &data, nullptr, Clock::Real()));
  std::vector<double> forwards;
  std::vector<double> backwards;
  for (int step = 0; step < 5; ++step) {
    ATOLL_RETURN_IF_ERROR(trainer->Step().status());
    if (step == 0) continue;
    for (const engine::ActionTiming& timing : trainer->timings()) {
      const double seconds = absl::ToDoubleSeconds(timing.end - timing.start);
      (timing.action.kind == schedule::ActionKind::kForward ? forwards : backwards).push_back(seconds);
    }
  }
  ATOLL_ASSIGN_OR_RETURN(const auto components,
                         model::LoadFrozen({.components = Encoder(1), .image = {1, 16, 16}, .seed = 1}));
  std::string line = fmt::format("{:.9f} {:.9f}", Median(forwards), Median(backwards));
  for (int layer = 0; layer < 3; ++layer) {
    ATOLL_ASSIGN_OR_RETURN(const std::vector<double> seconds,
                           LayerSeconds(components[0], layer, Options(settings).training.batch_size));
    for (const double value : seconds) line += fmt::format(" {:.9f}", value);
  }
  return parent->Write(line);
}

// By both processes at once, averaged.
absl::StatusOr<Measured> MeasureAll(const RealSettings& settings) {
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < kRanks; ++i) {
    ATOLL_ASSIGN_OR_RETURN(auto child, Child::Fork([&settings](int read_fd, int write_fd) {
                             ParentPipes parent{.read_fd = read_fd, .write_fd = write_fd};
                             const absl::Status status = Measure(settings, &parent);
                             if (!status.ok()) fmt::print(stderr, "measure: {}\n", status.ToString());
                             return status.ok() ? 0 : 1;
                           }));
    children.push_back(std::move(child));
  }
  for (const auto& child : children) ATOLL_RETURN_IF_ERROR(child->Send("measure"));
  std::vector<double> values;
  for (const auto& child : children) {
    ATOLL_ASSIGN_OR_RETURN(const std::string line, child->Receive());
    std::istringstream words(line);
    double value = 0;
    for (size_t i = 0; words >> value; ++i) {
      if (i == values.size()) values.push_back(0);
      values[i] += value / kRanks;
    }
  }
  if (values.size() < 5 || (values.size() - 2) % 3 != 0) return absl::InternalError("measure: expected numbers");
  const auto sizes = static_cast<ptrdiff_t>((values.size() - 2) / 3);
  const auto of_layer = [&](ptrdiff_t layer) {
    return std::vector<double>(values.begin() + 2 + layer * sizes, values.begin() + 2 + (layer + 1) * sizes);
  };
  return Measured{
      .forward = values[0], .backward = values[1], .first = of_layer(0), .block = of_layer(1), .last = of_layer(2)};
}

planner::FrozenLayerProfile LayerProfile(const std::vector<double>& seconds, int in_channels, int out_channels) {
  planner::FrozenLayerProfile layer{.input_bytes = 1024.0 * in_channels, .output_bytes = 1024.0 * out_channels};
  for (size_t i = 0; i < seconds.size(); ++i) layer.seconds[kSizes[i]] = seconds[i];
  return layer;
}

planner::Profile FrozenProfile(const Measured& measured, int blocks) {
  planner::Profile profile{.transfer_latency_seconds = 1e-4, .transfer_bytes_per_second = 2e9};
  planner::FrozenComponentProfile& encoder = profile.frozen.emplace_back();
  encoder.name = "encoder";
  encoder.layers.push_back(LayerProfile(measured.first, 1, kEncoderChannels));
  for (int i = 0; i < blocks; ++i) {
    encoder.layers.push_back(LayerProfile(measured.block, kEncoderChannels, kEncoderChannels));
  }
  encoder.layers.push_back(LayerProfile(measured.last, kEncoderChannels, 1));
  return profile;
}

struct Plans {
  planner::Plan filled;
  planner::Plan apart;  // the frozen work after the flush, half of the batch on each rank
};

absl::StatusOr<Plans> MakePlans(const RealSettings& settings, const Measured& measured, int blocks) {
  Plans plans;
  ATOLL_ASSIGN_OR_RETURN(plans.apart, TrainablePlan(settings, kRanks));
  plans.apart.components = planner::ComponentsOf(Encoder(blocks));
  plans.filled = plans.apart;
  planner::AppendPieces(&plans.apart);
  const planner::Profile profile = FrozenProfile(measured, blocks);
  planner::FillRequest request{.schedule = plans.filled.schedule,
                               .batch = settings.micro_batches * settings.micro_batch_size};
  request.costs.stages.assign(kRanks, {.forward_seconds = measured.forward / kRanks,
                                       .input_gradient_seconds = measured.backward / kRanks / 2,
                                       .weight_gradient_seconds = measured.backward / kRanks / 2});
  request.costs.transfer_seconds = 2e-4;
  request.readers = {{0, kRanks - 1}};  // latents are read by both ends
  ATOLL_ASSIGN_OR_RETURN(planner::Fill fill, planner::FillBubbles(request, profile));
  plans.filled.schedule = std::move(fill.schedule);
  plans.filled.frozen = std::move(fill.pieces);
  plans.filled.predicted.iteration_seconds = fill.iteration_seconds;
  ATOLL_RETURN_IF_ERROR(planner::FrozenFlowOf(plans.filled).status());
  return plans;
}

absl::Status RunRank(const RealSettings& settings, const Plans& plans, int blocks, int rank, ParentPipes* parent) {
  // Both plans' trainers share the transport: they take turns.
  std::vector<transport::Lane> lanes = engine::LanesOf(plans.filled);
  for (const transport::Lane& lane : engine::LanesOf(plans.apart)) {
    if (std::find(lanes.begin(), lanes.end(), lane) == lanes.end()) lanes.push_back(lane);
  }
  ATOLL_ASSIGN_OR_RETURN(const auto transport, ConnectRank(parent, rank, kRanks, lanes));
  trainer::TrainerOptions options = Options(settings);
  options.frozen = Encoder(blocks);
  trainer::SyntheticData data(Options(settings).classes, 0);
  ATOLL_ASSIGN_OR_RETURN(const auto filled,
                         trainer::Trainer::Create(options, plans.filled, rank, &data, transport.get(), Clock::Real()));
  ATOLL_ASSIGN_OR_RETURN(const auto apart,
                         trainer::Trainer::Create(options, plans.apart, rank, &data, transport.get(), Clock::Real()));
  ATOLL_RETURN_IF_ERROR(parent->Write("ready"));
  for (;;) {
    const absl::StatusOr<std::string> command = parent->Read();
    if (!command.ok()) return absl::OkStatus();  // the parent is done
    trainer::Trainer& trainer = *command == "filled" ? *filled : *apart;
    const double cpu_before = CpuSeconds();
    const double start = MonotonicSeconds();
    ATOLL_RETURN_IF_ERROR(trainer.Step().status());
    const double end = MonotonicSeconds();
    double frozen = 0;
    double trained = 0;
    for (const engine::ActionTiming& timing : trainer.timings()) {
      (timing.action.kind == schedule::ActionKind::kFrozen ? frozen : trained) +=
          absl::ToDoubleSeconds(timing.end - timing.start);
    }
    ATOLL_RETURN_IF_ERROR(parent->Write(
        fmt::format("{:.9f} {:.9f} {:.6f} {:.9f} {:.9f}", start, end, CpuSeconds() - cpu_before, frozen, trained)));
  }
}

struct FilledStep {
  double seconds = 0;
  double frozen = 0;  // of both ranks, as are …
  double trained = 0;
  double cpu_seconds = 0;
};

std::string ToString(const FilledStep& step) {
  return fmt::format("{:.4f} s (frozen {:.4f}, trained {:.4f}, processors {:.4f})", step.seconds, step.frozen,
                     step.trained, step.cpu_seconds);
}

absl::StatusOr<FilledStep> StepBoth(const Children& children, const std::string& command) {
  ATOLL_ASSIGN_OR_RETURN(const std::vector<Answer> answers, AskAll(All(children), command));
  std::vector<Span> spans;
  FilledStep step;
  for (const Answer& answer : answers) {
    spans.push_back(answer.span);
    std::istringstream words(answer.rest);
    double frozen = 0;
    double trained = 0;
    words >> frozen >> trained;
    step.cpu_seconds += answer.cpu_seconds;
    step.frozen += frozen;
    step.trained += trained;
  }
  step.seconds = Union(spans).seconds();
  return step;
}

absl::Status RealCase(const RealSettings& settings) {
  const std::string name = "real-s2";
  ATOLL_ASSIGN_OR_RETURN(const Measured measured, MeasureAll(settings));
  const double work = settings.micro_batches * (measured.forward + measured.backward);
  const int blocks = std::max(1, static_cast<int>(std::lround(settings.r * work / measured.block.back())));
  fmt::print(stderr, "{}: F {:.4f} s, B {:.4f} s, block {:.4f} s: {} blocks\n", name, measured.forward,
             measured.backward, measured.block.back(), blocks);
  ATOLL_ASSIGN_OR_RETURN(const Plans plans, MakePlans(settings, measured, blocks));
  fmt::print(stderr, "{}: planned {:.4f} s\n{}", name, plans.filled.predicted.iteration_seconds,
             schedule::ToText(plans.filled.schedule));
  ATOLL_ASSIGN_OR_RETURN(const auto children, StartRanks(kRanks, [&](int rank, ParentPipes* parent) {
                           return RunRank(settings, plans, blocks, rank, parent);
                         }));
  std::vector<double> ratios;
  std::vector<double> filled_seconds;
  std::vector<double> apart_seconds;
  std::vector<double> shares;
  for (int round = -settings.warm_up; round < settings.rounds; ++round) {
    // Who goes first changes.
    FilledStep filled;
    if (round % 2 == 0) {
      ATOLL_ASSIGN_OR_RETURN(filled, StepBoth(children, "filled"));
    }
    ATOLL_ASSIGN_OR_RETURN(const FilledStep apart, StepBoth(children, "apart"));
    if (round % 2 != 0) {
      ATOLL_ASSIGN_OR_RETURN(filled, StepBoth(children, "filled"));
    }
    fmt::print(stderr, "{}: round {:2}: filled {}, apart {}, r {:.3f}\n", name, round, ToString(filled),
               ToString(apart), apart.frozen / apart.trained);
    if (round < 0) continue;
    ratios.push_back(apart.seconds / filled.seconds);
    filled_seconds.push_back(filled.seconds);
    apart_seconds.push_back(apart.seconds);
    shares.push_back(apart.frozen / apart.trained);
  }
  const double m = settings.micro_batches;
  const double r = Median(shares);
  PrintFigure(name, "speedup", Median(ratios), "ratio");
  PrintFigure(name, "speedup_spread", Spread(ratios), "ratio");
  PrintFigure(name, "bound", (m + kRanks - 1 + r * m) / std::max(m + kRanks - 1, m * (1 + r)), "ratio");
  PrintFigure(name, "r", r, "ratio");
  PrintFigure(name, "filled_seconds", Median(filled_seconds), "s");
  PrintFigure(name, "apart_seconds", Median(apart_seconds), "s");
  return absl::OkStatus();
}

}  // namespace
}  // namespace atl::bench

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  atl::bench::RealSettings settings;
  CLI::App app{"Frozen work in the bubbles of two ranks against the same work after the flush"};
  app.add_option("--rounds", settings.rounds, "alternations")->check(CLI::PositiveNumber);
  app.add_option("--warm-up", settings.warm_up, "alternations before those that count")->check(CLI::NonNegativeNumber);
  app.add_option("--depth", settings.depth, "blocks of the model")->check(CLI::PositiveNumber);
  app.add_option("--width", settings.width, "of the model")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = atl::bench::RealCase(settings);
  if (!status.ok()) fmt::print(stderr, "fill_real_bench: {}\n", status.ToString());
  return status.ok() ? 0 : 1;
}
