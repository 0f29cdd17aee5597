// Measures the memory of training, counted by the allocator: against the plan's prediction, and V schedules against
// 1F1B.
//
// error_fraction: four processes over UCX, each with its part of a measured profile; the rank with the largest error.
// of_1f1b: eight ranks as threads over loopback, a tiny model of equal stages; the peak of the rank that holds most,
// beyond weights, gradients and optimizer. Memory needs no quiet machine. One JSON object per line on standard output.
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/planner/plan.h"
#include "common/schedule/generators.h"
#include "tests/bench/bench_process.h"
#include "tests/bench/figures.h"
#include "tests/bench/pipeline_ranks.h"
#include "worker/engine/engine.h"
#include "worker/trainer/memory_meter.h"
#include "worker/trainer/profiler.h"
#include "worker/trainer/synthetic_data.h"
#include "worker/trainer/trainer.h"
#include "worker/transport/loopback/loopback_transport.h"

namespace atl::bench {
namespace {

constexpr int kSteps = 3;

struct Case {
  std::string name;
  std::string schedule;
  int ranks = 4;
  Work work;
};

absl::StatusOr<planner::Plan> PlanFrom(const Case& bench, const planner::Profile& profile) {
  planner::PlanRequest request;
  request.pipeline = {.schedule = bench.schedule, .stages = 0, .micro_batches = bench.work.micro_batches};
  request.batch_size = bench.work.micro_batches * bench.work.micro_batch_size;
  request.ranks = bench.ranks;
  request.profile = profile;
  return planner::MakePlan(request);
}

planner::Profile Counted(const Case& bench) {
  return planner::CountedProfile(OptionsOf(bench.work).model, bench.work.tokens, bench.work.channels);
}

struct Memory {
  double before = 0;  // between two steps: weights, optimizer, EMA
  double peak = 0;    // during a step
};

// The last of some steps: the first allocate what stays.
absl::StatusOr<Memory> MeasureStep(const Case& bench, const planner::Plan& plan, int rank,
                                   transport::Transport* transport) {
  trainer::MemoryMeter meter;
  const trainer::TrainerOptions options = OptionsOf(bench.work);
  trainer::SyntheticData data(options.classes, 0);
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<trainer::Trainer> trainer,
                         trainer::Trainer::Create(options, plan, rank, &data, transport, Clock::Real()));
  Memory memory;
  for (int step = 0; step < kSteps; ++step) {
    memory.before = static_cast<double>(meter.live_bytes());
    meter.ResetPeak();
    ATOLL_RETURN_IF_ERROR(trainer->Step().status());
    memory.peak = static_cast<double>(meter.peak_bytes());
  }
  return memory;
}

// A child's life: profile, then steps under the plan that all profiles together make.
absl::Status RunRank(const Case& bench, int rank, ParentPipes* parent) {
  ATOLL_ASSIGN_OR_RETURN(const planner::Plan counted, PlanFrom(bench, Counted(bench)));
  std::vector<transport::Lane> lanes = engine::LanesOf(counted);
  for (const transport::Lane& lane : trainer::ProfilerLanes(bench.ranks)) lanes.push_back(lane);
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<transport::Transport> transport,
                         ConnectRank(parent, rank, bench.ranks, lanes));
  ATOLL_RETURN_IF_ERROR(parent->Write("ready"));
  ATOLL_ASSIGN_OR_RETURN(const planner::Profile profile, ShareProfile(bench.work, transport.get(), parent));
  ATOLL_ASSIGN_OR_RETURN(const planner::Plan plan, PlanFrom(bench, profile));
  ATOLL_ASSIGN_OR_RETURN(const Memory memory, MeasureStep(bench, plan, rank, transport.get()));
  ATOLL_RETURN_IF_ERROR(parent->Write(fmt::format("{} {}", memory.before, memory.peak)));
  // Until the parent is done: a transport that goes early would end the others' last sends.
  parent->Read().IgnoreError();
  return absl::OkStatus();
}

absl::Status ComparePrediction(const Case& bench) {
  ATOLL_ASSIGN_OR_RETURN(const Children ranks, StartRanks(bench.ranks, [&](int rank, ParentPipes* parent) {
                           return RunRank(bench, rank, parent);
                         }));
  ATOLL_ASSIGN_OR_RETURN(const planner::Profile profile, MergeAndShare(ranks));
  ATOLL_ASSIGN_OR_RETURN(const planner::Plan plan, PlanFrom(bench, profile));
  double largest = 0;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    ATOLL_ASSIGN_OR_RETURN(const std::string line, ranks[rank]->Receive());
    Memory memory;
    std::istringstream(line) >> memory.before >> memory.peak;
    const double predicted = plan.predicted.peak_bytes[rank];
    fmt::print(stderr, "{} rank {}: predicted {:.0f} bytes, measured {:.0f}, of them {:.0f} between steps\n",
               bench.name, rank, predicted, memory.peak, memory.before);
    largest = std::max(largest, std::abs(predicted - memory.peak) / memory.peak);
  }
  PrintFigure(bench.name, "error_fraction", largest, "ratio", AtMost(0.05));
  return absl::OkStatus();
}

// The largest peak of a rank, beyond what it holds throughout and its gradients.
absl::StatusOr<double> PeakActivations(const Case& bench) {
  ATOLL_ASSIGN_OR_RETURN(const planner::Plan plan, PlanFrom(bench, Counted(bench)));
  auto transports = transport::MakeLoopbackTransports(bench.ranks);
  std::vector<std::string> addresses;
  for (const auto& transport : transports) addresses.push_back(transport->Address());
  std::vector<absl::StatusOr<Memory>> memories(static_cast<size_t>(bench.ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < bench.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      transport::Transport* const transport = transports[static_cast<size_t>(rank)].get();
      const absl::Status connected = transport->Connect(addresses, engine::LanesOf(plan), absl::Seconds(30));
      auto& memory = memories[static_cast<size_t>(rank)];
      if (connected.ok()) {
        memory = MeasureStep(bench, plan, rank, transport);
      } else {
        memory = connected;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const planner::Profile counted = Counted(bench);
  std::vector<double> peaks;
  for (size_t rank = 0; rank < memories.size(); ++rank) {
    ATOLL_RETURN_IF_ERROR(memories[rank].status());
    double gradients = 0;
    for (const planner::StagePlacement& stage : plan.stages) {
      if (stage.rank != static_cast<int32_t>(rank)) continue;
      for (int32_t i = stage.first_layer; i < stage.end_layer; ++i) {
        gradients += counted.parameter_bytes[static_cast<size_t>(i)];
      }
    }
    peaks.push_back(memories[rank]->peak - memories[rank]->before - gradients);
  }
  fmt::print(stderr, "{} {}: {:.0f} bytes of activations by rank\n", bench.name, bench.schedule,
             fmt::join(peaks, ", "));
  return *std::max_element(peaks.begin(), peaks.end());
}

// Eight stages of four blocks each, or sixteen of two; embedding and head hold little beside them.
Case Emulated(const std::string& schedule) {
  return {.name = "emulated-p8",
          .schedule = schedule,
          .ranks = 8,
          .work = {.depth = 32, .width = 64, .tokens = 16, .micro_batches = 16, .micro_batch_size = 4}};
}

absl::Status Run(const std::vector<std::string>& schedules) {
  for (const std::string& schedule : schedules) {
    ATOLL_RETURN_IF_ERROR(ComparePrediction(
        {.name = "predicted-" + schedule, .schedule = schedule, .work = {.depth = 16, .micro_batches = 8}}));
  }
  ATOLL_ASSIGN_OR_RETURN(const double of_1f1b, PeakActivations(Emulated("1f1b")));
  // The shares of 1F1B's micro-batches that they hold.
  for (const auto& [schedule, share] : {std::pair("v-half", 0.625), std::pair("v-min", 0.5)}) {
    ATOLL_ASSIGN_OR_RETURN(const double peak, PeakActivations(Emulated(schedule)));
    PrintFigure(schedule, "of_1f1b", peak / of_1f1b, "ratio", AtMost(share));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace atl::bench

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  std::vector<std::string> schedules = {"1f1b", "v-half", "zbv"};
  const std::vector<std::string_view> known = atl::schedule::GeneratorNames();
  CLI::App app{"Memory of training against the plan's prediction, and of V schedules against 1F1B"};
  app.add_option("--schedule", schedules, "schedules whose prediction is checked; repeatable")
      ->allow_extra_args(false)
      ->check(CLI::IsMember(std::vector<std::string>(known.begin(), known.end())));
  CLI11_PARSE(app, argc, argv);
  atl::bench::KeepStandardOutputForFigures();
  const absl::Status status = atl::bench::Run(schedules);
  return atl::bench::EndBench("memory_bench", status);
}
