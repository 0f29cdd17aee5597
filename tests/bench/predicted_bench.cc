// How well a measured profile predicts an iteration: profile and measurement take turns, in the same processes.
//
// One or two children hold a rank each. Commands: "profile" measures costs and shares them, "calibrate" measures how
// fast the machine is, "blocks" changes the frozen encoder, "train" plans with the last profile and builds the trainer,
// "step" is one training step. Each profile predicts the steps after it, and so does the first one, scaled by each
// calibration. One JSON object per line on standard output; what people read goes to standard error.
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/planner/frozen_flow.h"
#include "common/planner/measured_profile.h"
#include "common/planner/plan.h"
#include "common/schedule/simulator.h"
#include "tests/bench/bench_process.h"
#include "tests/bench/figures.h"
#include "tests/bench/pipeline_ranks.h"
#include "worker/engine/engine.h"
#include "worker/trainer/profiler.h"
#include "worker/trainer/synthetic_data.h"
#include "worker/trainer/trainer.h"

namespace atl::bench {
namespace {

constexpr std::string_view kBlocks = "blocks ";

struct Settings {
  int rounds = 6;
  int warm_up = 1;
  int steps = 3;
  bool processor_time = false;
  std::vector<std::string> cases;  // empty: all
};

struct Case {
  std::string name;
  int ranks = 1;
  std::string schedule;
  Work work;
  double r = 0;  // frozen work over trainable
};

// A head of twice a block's cost: as many values per patch as make its product twice those of a narrow block.
Work UnevenWork() {
  return {.depth = 5,
          .width = 512,
          .tokens = 64,
          .patch = 4,
          .channels = 336,
          .mlp_ratio = 0.5,
          .micro_batches = 4,
          .micro_batch_size = 4};
}

std::vector<Case> Cases() {
  return {{.name = "predicted-one-rank", .ranks = 1, .schedule = "1f1b", .work = {.micro_batches = 4}},
          {.name = "predicted-1f1b-m4", .ranks = 2, .schedule = "1f1b", .work = {.micro_batches = 4}},
          {.name = "predicted-v-m8", .ranks = 2, .schedule = "zbv", .work = {.micro_batches = 8}},
          {.name = "predicted-fill", .ranks = 2, .schedule = "1f1b", .work = {.micro_batches = 4}, .r = 0.25},
          {.name = "predicted-self-conditioned",
           .ranks = 2,
           .schedule = "1f1b",
           .work = {.micro_batches = 4, .self_conditioning = true}},
          {.name = "predicted-uneven", .ranks = 2, .schedule = "1f1b", .work = UnevenWork()}};
}

absl::StatusOr<planner::Plan> PlanFrom(const Case& bench, const planner::Profile& profile) {
  planner::PlanRequest request;
  request.pipeline = {.schedule = bench.schedule, .stages = 0, .micro_batches = bench.work.micro_batches};
  request.batch_size = bench.work.batch_size();
  request.ranks = bench.ranks;
  request.profile = profile;
  if (bench.work.self_conditioning) request.self_conditioning_rate = 1;
  if (!profile.frozen.empty()) request.components = planner::ComponentsOf(bench.work.frozen);
  return planner::MakePlan(request);
}

absl::StatusOr<planner::Plan> CountedPlan(const Case& bench) {
  return PlanFrom(bench, planner::CountedProfile(OptionsOf(bench.work).model, bench.work.tokens, bench.work.channels));
}

// Returns the schedule that every step runs.
const schedule::Schedule& ScheduleOf(const planner::Plan& plan) {
  return plan.is_self_conditioned() ? plan.self_conditioned : plan.schedule;
}

// Predicts the schedule's makespan plus the update on the rank with the most parameters: the norm makes all ranks meet.
absl::StatusOr<double> PredictIteration(const planner::Plan& plan, const planner::Profile& profile) {
  ATOLL_ASSIGN_OR_RETURN(const schedule::Simulation simulation,
                         schedule::Simulate(ScheduleOf(plan), planner::CostsOf(plan, profile)));
  std::vector<double> bytes(static_cast<size_t>(plan.schedule.rank_count()), 0);
  for (const planner::StagePlacement& stage : plan.stages) {
    for (int32_t layer = stage.first_layer; layer < stage.end_layer; ++layer) {
      bytes[static_cast<size_t>(stage.rank)] += profile.parameter_bytes[static_cast<size_t>(layer)];
    }
  }
  return simulation.makespan_seconds +
         profile.optimizer_seconds_per_byte * *std::max_element(bytes.begin(), bytes.end());
}

// Predicts the computing time of all ranks in one iteration, without waits.
absl::StatusOr<double> PredictWork(const planner::Plan& plan, const planner::Profile& profile) {
  ATOLL_ASSIGN_OR_RETURN(const schedule::Simulation simulation,
                         schedule::Simulate(ScheduleOf(plan), planner::CostsOf(plan, profile)));
  double work = 0;
  for (const auto& rank : simulation.ranks) {
    for (const schedule::SimulatedAction& action : rank) work += action.end_seconds - action.start_seconds;
  }
  for (const double bytes : profile.parameter_bytes) work += profile.optimizer_seconds_per_byte * bytes;
  return work;
}

// Uses the processor time of this process as the time: the cost of a computation on a machine that others use too.
class ProcessorClock : public Clock {
 public:
  absl::Time Now() override { return Clock::Real()->Now(); }
  absl::Duration Monotonic() override { return absl::Seconds(CpuSeconds()); }
  bool AwaitUntil(absl::Mutex* mutex, const absl::Condition& condition, absl::Duration deadline) override {
    return Clock::Real()->AwaitUntil(mutex, condition, deadline);
  }
};

// Returns the lanes for any plan of this case, because frozen pieces may lie on any rank.
absl::StatusOr<std::vector<transport::Lane>> LanesFor(const Case& bench) {
  ATOLL_ASSIGN_OR_RETURN(const planner::Plan counted, CountedPlan(bench));
  std::vector<transport::Lane> lanes = engine::LanesOf(counted);
  for (const transport::Lane& lane : trainer::ProfilerLanes(bench.ranks)) lanes.push_back(lane);
  for (int from = 0; from < bench.ranks && bench.r > 0; ++from) {
    for (int to = 0; to < bench.ranks; ++to) {
      if (from != to) lanes.push_back({from, to, 0, transport::LaneKind::kFrozen});
    }
  }
  return lanes;
}

absl::Status RunRank(const Settings& settings, Case bench, int rank, ParentPipes* parent) {
  ATOLL_ASSIGN_OR_RETURN(const std::vector<transport::Lane> lanes, LanesFor(bench));
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<transport::Transport> connected,
                         ConnectRank(parent, rank, bench.ranks, lanes));
  transport::Transport* const transport = bench.ranks > 1 ? connected.get() : nullptr;
  trainer::SyntheticData data(OptionsOf(bench.work).classes, 0);
  planner::Profile profile;  // the last
  std::unique_ptr<trainer::Trainer> trainer;
  ProcessorClock processor;
  Clock* const clock = settings.processor_time ? &processor : Clock::Real();
  ATOLL_RETURN_IF_ERROR(parent->Write("ready"));
  for (;;) {
    const absl::StatusOr<std::string> command = parent->Read();
    if (!command.ok()) return absl::OkStatus();  // the parent is done
    if (*command == "profile") {
      ATOLL_ASSIGN_OR_RETURN(profile, ShareProfile(bench.work, transport, parent, clock));
    } else if (*command == "calibrate") {
      ATOLL_RETURN_IF_ERROR(ShareProfile(bench.work, transport, parent, clock, /*calibration=*/true).status());
    } else if (command->rfind(kBlocks, 0) == 0) {
      bench.work.frozen = Encoder(std::stoi(command->substr(kBlocks.size())));
    } else if (*command == "train") {
      ATOLL_ASSIGN_OR_RETURN(const planner::Plan plan, PlanFrom(bench, profile));
      ATOLL_ASSIGN_OR_RETURN(
          trainer, trainer::Trainer::Create(OptionsOf(bench.work), plan, rank, &data, transport, Clock::Real()));
      ATOLL_RETURN_IF_ERROR(parent->Write("ready"));
    } else {
      ATOLL_RETURN_IF_ERROR(StepAndAnswer(trainer.get(), parent));
    }
  }
}

absl::Status SendAll(const Children& ranks, const std::string& command) {
  for (const auto& rank : ranks) ATOLL_RETURN_IF_ERROR(rank->Send(command));
  return absl::OkStatus();
}

absl::StatusOr<planner::Profile> ProfileAll(const Children& ranks, const std::string& command = "profile") {
  ATOLL_RETURN_IF_ERROR(SendAll(ranks, command));
  return MergeAndShare(ranks);
}

// The first profile; of a case with frozen work the encoder is sized by another one before it.
absl::StatusOr<planner::Profile> FirstProfile(const Children& ranks, Case* bench) {
  ATOLL_ASSIGN_OR_RETURN(planner::Profile profile, ProfileAll(ranks));
  if (bench->r <= 0) return profile;
  const int blocks = BlocksFor(bench->r, bench->work, profile);
  bench->work.frozen = Encoder(blocks);
  ATOLL_RETURN_IF_ERROR(SendAll(ranks, fmt::format("{}{}", kBlocks, blocks)));
  return ProfileAll(ranks);
}

absl::Status Train(const Children& ranks) {
  ATOLL_RETURN_IF_ERROR(SendAll(ranks, "train"));
  for (const auto& rank : ranks) ATOLL_RETURN_IF_ERROR(rank->Receive().status());
  return absl::OkStatus();
}

absl::StatusOr<double> Predict(const Settings& settings, const planner::Plan& plan, const planner::Profile& profile) {
  return settings.processor_time ? PredictWork(plan, profile) : PredictIteration(plan, profile);
}

// The profile as it is kept, by a calibration of now.
absl::StatusOr<planner::Profile> Rescaled(const Children& ranks, planner::Profile kept) {
  ATOLL_ASSIGN_OR_RETURN(const planner::Profile now, ProfileAll(ranks, "calibrate"));
  planner::AdjustSpeed(now, &kept);
  return kept;
}

absl::Status RunCase(const Settings& settings, Case bench) {
  if (bench.r > 0) bench.work.frozen = Encoder(1);
  ATOLL_ASSIGN_OR_RETURN(const Children ranks, StartRanks(bench.ranks, [&](int rank, ParentPipes* parent) {
                           return RunRank(settings, bench, rank, parent);
                         }));
  ATOLL_ASSIGN_OR_RETURN(const planner::Profile first, FirstProfile(ranks, &bench));
  ATOLL_ASSIGN_OR_RETURN(const planner::Plan plan, PlanFrom(bench, first));
  ATOLL_RETURN_IF_ERROR(Train(ranks));
  fmt::print(stderr, "{}: {}\n", bench.name, plan.reason);
  std::vector<double> ratios;
  std::vector<double> rescaled_ratios;
  std::vector<double> measured;
  for (int round = -settings.warm_up; round < settings.rounds; ++round) {
    ATOLL_ASSIGN_OR_RETURN(const planner::Profile profile, ProfileAll(ranks));
    ATOLL_ASSIGN_OR_RETURN(const double predicted, Predict(settings, plan, profile));
    ATOLL_ASSIGN_OR_RETURN(const planner::Profile rescaled, Rescaled(ranks, first));
    ATOLL_ASSIGN_OR_RETURN(const double by_rescaled, Predict(settings, plan, rescaled));
    std::vector<double> steps;
    for (int step = 0; step < settings.steps; ++step) {
      ATOLL_ASSIGN_OR_RETURN(const Cost cost, StepAll(All(ranks), "step", round == settings.rounds - 1 && step == 0));
      steps.push_back(settings.processor_time ? cost.cpu_seconds : cost.seconds);
    }
    const double seconds = Median(steps);
    fmt::print(stderr,
               "{} round {:2}: predicted {:.4f} s, rescaled {:.4f} s, measured {:.4f} s, ratios {:.4f} {:.4f}\n",
               bench.name, round, predicted, by_rescaled, seconds, predicted / seconds, by_rescaled / seconds);
    if (round < 0) continue;
    measured.push_back(seconds);
    ratios.push_back(predicted / seconds);
    rescaled_ratios.push_back(by_rescaled / seconds);
  }
  PrintFigure(bench.name, "error_fraction", std::abs(Median(ratios) - 1), "ratio", AtMost(0.08));
  PrintFigure(bench.name, "rescaled_error_fraction", std::abs(Median(rescaled_ratios) - 1), "ratio", AtMost(0.08));
  PrintFigure(bench.name, "predicted_over_measured", Median(ratios), "ratio");
  PrintFigure(bench.name, "predicted_over_measured_spread", Spread(ratios), "ratio");
  PrintFigure(bench.name, "seconds", Median(measured), "s");
  return absl::OkStatus();
}

absl::Status Run(const Settings& settings) {
  for (const Case& bench : Cases()) {
    const bool wanted = settings.cases.empty() ||
                        std::find(settings.cases.begin(), settings.cases.end(), bench.name) != settings.cases.end();
    if (wanted) ATOLL_RETURN_IF_ERROR(RunCase(settings, bench));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace atl::bench

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  atl::bench::Settings settings;
  CLI::App app{"Predicted against measured iteration"};
  app.add_option("--rounds", settings.rounds, "profiles that are compared")->check(CLI::PositiveNumber);
  app.add_option("--warm-up", settings.warm_up, "profiles before those that count")->check(CLI::NonNegativeNumber);
  app.add_option("--steps", settings.steps, "steps after each profile; their median counts")
      ->check(CLI::PositiveNumber);
  app.add_flag("--processor-time", settings.processor_time,
               "Compare the ranks' processor time, waits left out: on a machine that others use too");
  std::vector<std::string> names;
  for (const auto& bench : atl::bench::Cases()) names.push_back(bench.name);
  app.add_option("--case", settings.cases, "only these; repeatable")
      ->allow_extra_args(false)
      ->check(CLI::IsMember(names));
  CLI11_PARSE(app, argc, argv);
  atl::bench::KeepStandardOutputForFigures();
  const absl::Status status = atl::bench::Run(settings);
  return atl::bench::EndBench("predicted_bench", status);
}
