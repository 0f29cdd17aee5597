// Frozen work in the bubbles of two real ranks over UCX, against the same work after the flush: a trainer each way per
// rank, taking turns.
#include <signal.h>

#include <algorithm>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/planner/frozen_flow.h"
#include "common/planner/plan.h"
#include "tests/bench/figures.h"
#include "tests/bench/pipeline_ranks.h"
#include "tests/bench/rank_processes.h"
#include "worker/engine/engine.h"
#include "worker/engine/lanes.h"
#include "worker/trainer/profiler.h"
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

Work WorkOf(const RealSettings& settings, int blocks) {
  return {.depth = settings.depth,
          .width = settings.width,
          .tokens = kTokens,
          .micro_batches = settings.micro_batches,
          .micro_batch_size = settings.micro_batch_size,
          .frozen = Encoder(blocks)};
}

// A child that measures with the others, whenever its parent names a number of blocks.
absl::Status MeasureRank(const RealSettings& settings, int rank, ParentPipes* parent) {
  ATOLL_ASSIGN_OR_RETURN(const auto transport, ConnectRank(parent, rank, kRanks, trainer::ProfilerLanes(kRanks)));
  ATOLL_RETURN_IF_ERROR(parent->Write("ready"));
  for (;;) {
    const absl::StatusOr<std::string> blocks = parent->Read();
    if (!blocks.ok()) return absl::OkStatus();  // the parent is done
    ATOLL_RETURN_IF_ERROR(ShareProfile(WorkOf(settings, std::stoi(*blocks)), transport.get(), parent).status());
  }
}

absl::StatusOr<planner::Profile> ProfileAll(const Children& ranks, int blocks) {
  for (const auto& rank : ranks) ATOLL_RETURN_IF_ERROR(rank->Send(std::to_string(blocks)));
  return MergeAndShare(ranks);
}

// The encoder's blocks, and what the job with them costs.
struct Measured {
  int blocks = 0;
  planner::Profile profile;
};

absl::StatusOr<Measured> Measure(const RealSettings& settings) {
  ATOLL_ASSIGN_OR_RETURN(const Children ranks, StartRanks(kRanks, [&](int rank, ParentPipes* parent) {
                           return MeasureRank(settings, rank, parent);
                         }));
  Measured measured;
  ATOLL_ASSIGN_OR_RETURN(const planner::Profile small, ProfileAll(ranks, 1));
  measured.blocks = BlocksFor(settings.r, WorkOf(settings, 1), small);
  ATOLL_ASSIGN_OR_RETURN(measured.profile, ProfileAll(ranks, measured.blocks));
  return measured;
}

struct Plans {
  planner::Plan filled;
  planner::Plan apart;  // the frozen work after the flush, half of the batch on each rank
};

absl::StatusOr<Plans> MakePlans(const RealSettings& settings, const Measured& measured) {
  const Work work = WorkOf(settings, measured.blocks);
  planner::PlanRequest request;
  request.pipeline = {.schedule = "1f1b", .stages = kRanks, .micro_batches = settings.micro_batches};
  request.batch_size = work.batch_size();
  request.ranks = kRanks;
  request.profile = measured.profile;
  request.components = planner::ComponentsOf(work.frozen);
  Plans plans;
  ATOLL_ASSIGN_OR_RETURN(plans.filled, planner::MakePlan(request));
  request.profile.frozen.clear();
  request.components.clear();
  ATOLL_ASSIGN_OR_RETURN(plans.apart, planner::MakePlan(request));
  plans.apart.components = plans.filled.components;
  planner::AppendPieces(&plans.apart);
  return plans;
}

absl::Status RunRank(const Work& work, const Plans& plans, int rank, ParentPipes* parent) {
  // Both plans' trainers share the transport: they take turns.
  std::vector<transport::Lane> lanes = engine::LanesOf(plans.filled);
  for (const transport::Lane& lane : engine::LanesOf(plans.apart)) {
    if (std::find(lanes.begin(), lanes.end(), lane) == lanes.end()) lanes.push_back(lane);
  }
  ATOLL_ASSIGN_OR_RETURN(const auto transport, ConnectRank(parent, rank, kRanks, lanes));
  const trainer::TrainerOptions options = OptionsOf(work);
  trainer::SyntheticData data(options.classes, 0);
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
  ATOLL_ASSIGN_OR_RETURN(const Measured measured, Measure(settings));
  ATOLL_ASSIGN_OR_RETURN(const Plans plans, MakePlans(settings, measured));
  fmt::print(stderr, "{}: {} blocks; filled {:.4f} s planned: {}\n{}", name, measured.blocks,
             plans.filled.predicted.iteration_seconds, plans.filled.reason, schedule::ToText(plans.filled.schedule));
  const Work work = WorkOf(settings, measured.blocks);
  ATOLL_ASSIGN_OR_RETURN(const auto children, StartRanks(kRanks, [&](int rank, ParentPipes* parent) {
                           return RunRank(work, plans, rank, parent);
                         }));
  std::vector<double> ratios;
  std::vector<double> filled_seconds;
  std::vector<double> apart_seconds;
  std::vector<double> shares;
  for (int round = -settings.warm_up; round < settings.rounds; ++round) {
    // The order of the two alternates.
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
  PrintFigure(name, "speedup", Median(ratios), "ratio", AtLeast(1.15));
  PrintFigure(name, "speedup_spread", Spread(ratios), "ratio");
  PrintFigure(name, "expected", (m + kRanks - 1 + r * m) / std::max(m + kRanks - 1, m * (1 + r)), "ratio");
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
  atl::bench::KeepStandardOutputForFigures();
  const absl::Status status = atl::bench::RealCase(settings);
  return atl::bench::EndBench("fill_real_bench", status);
}
