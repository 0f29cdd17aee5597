// Frozen work in the bubbles on emulated ranks: every action and piece is a timed wait, while the engine, its queues
// and the transport are real. Shows what the runtime makes of a plan when all ranks have a device of their own: how
// close it comes to the bound, and how long ranks stay idle.
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/planner/fill.h"
#include "common/planner/frozen_flow.h"
#include "common/planner/plan.h"
#include "common/schedule/generators.h"
#include "tests/bench/figures.h"
#include "tests/bench/rank_processes.h"
#include "worker/engine/engine.h"
#include "worker/engine/frozen_compute.h"
#include "worker/engine/lanes.h"
#include "worker/engine/stage_compute.h"

namespace atl::bench {
namespace {

constexpr double kActionSeconds = 0.015;    // F, I and W of one micro-batch
constexpr double kSubBatchSeconds = 0.002;  // of every run of a frozen layer, whatever its samples
constexpr int kSamplesPerMicroBatch = 8;
constexpr int64_t kBoundaryBytes = 256 << 10;
constexpr int64_t kFrozenBytesPerSample = 1024;
constexpr double kLayerShares[] = {0.4, 0.25, 0.2, 0.1, 0.05};

// Waits without a processor, to a moment: what came before it does not add up.
void WaitFor(double seconds) {
  timespec until{};
  clock_gettime(CLOCK_MONOTONIC, &until);
  const int64_t nanoseconds = until.tv_nsec + std::llround(seconds * 1e9);
  until.tv_sec += nanoseconds / 1'000'000'000;
  until.tv_nsec = nanoseconds % 1'000'000'000;
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) != 0) {
  }
}

const engine::Boundary& Middle() {
  static const auto* const kBoundary = new engine::Boundary{
      {{.name = "tokens", .shape = {kBoundaryBytes / 4}, .dtype = "float32", .bytes = kBoundaryBytes}}};
  return *kBoundary;
}

// Stages that wait instead of computing.
class TimedStages : public engine::StageCompute {
 public:
  explicit TimedStages(int32_t stages) : stages_(stages) {}
  const engine::Boundary& InputOf(int32_t stage) const override { return stage == 0 ? empty_ : Middle(); }
  const engine::Boundary& OutputOf(int32_t stage) const override { return stage + 1 == stages_ ? empty_ : Middle(); }
  absl::StatusOr<std::vector<std::span<std::byte>>> InputBuffers(int32_t stage, int32_t m) override {
    return Buffer(0, stage, m);
  }
  absl::StatusOr<std::vector<std::span<std::byte>>> OutputGradientBuffers(int32_t stage, int32_t m) override {
    return Buffer(1, stage, m);
  }
  absl::Status Forward(int32_t, int32_t) override { return Wait(1); }
  absl::Status InputGradient(int32_t, int32_t) override { return Wait(1); }
  absl::Status WeightGradient(int32_t, int32_t) override { return Wait(1); }
  absl::Status Backward(int32_t, int32_t) override { return Wait(2); }
  absl::StatusOr<std::vector<std::span<const std::byte>>> Outputs(int32_t stage, int32_t m) override {
    return std::vector<std::span<const std::byte>>{Buffer(2, stage, m).front()};
  }
  absl::StatusOr<std::vector<std::span<const std::byte>>> InputGradients(int32_t stage, int32_t m) override {
    return std::vector<std::span<const std::byte>>{Buffer(3, stage, m).front()};
  }
  absl::Status HandOver(int32_t, int32_t) override { return absl::OkStatus(); }
  absl::Status HandOverGradient(int32_t, int32_t) override { return absl::OkStatus(); }
  void ReleaseOutputs(int32_t, int32_t) override {}
  void ReleaseInputGradients(int32_t, int32_t) override {}
  absl::StatusOr<engine::ReduceBuffers> BeginReduce(int32_t, int32_t, int32_t) override {
    return absl::UnimplementedError("the emulation has no replicas");
  }
  absl::Status SumOwnPart(int32_t) override { return absl::OkStatus(); }
  absl::Status EndReduce(int32_t) override { return absl::OkStatus(); }
  void Release(int32_t, int32_t) override {}

 private:
  static absl::Status Wait(int actions) {
    WaitFor(actions * kActionSeconds);
    return absl::OkStatus();
  }
  // Kept from iteration to iteration, as an allocator would.
  std::vector<std::span<std::byte>> Buffer(int use, int32_t stage, int32_t m) {
    std::vector<std::byte>& bytes = buffers_[{use, stage, m}];
    bytes.resize(kBoundaryBytes);
    return {std::span<std::byte>(bytes)};
  }

  const int32_t stages_;
  const engine::Boundary empty_;
  std::map<std::array<int, 3>, std::vector<std::byte>> buffers_;
};

class TimedPieces : public engine::FrozenCompute {
 public:
  TimedPieces(const planner::Plan& plan, const planner::Profile& profile) {
    for (const planner::FrozenPiece& piece : plan.frozen) {
      double seconds = 0;
      for (int32_t layer = piece.first_layer; layer < piece.end_layer; ++layer) {
        seconds += planner::FrozenSeconds(profile.frozen[piece.component].layers[layer], piece.samples);
      }
      seconds_.push_back(seconds);
      outputs_.emplace_back(static_cast<size_t>(piece.samples * kFrozenBytesPerSample));
    }
  }
  absl::StatusOr<std::span<std::byte>> InputBuffer(int32_t piece) override { return std::span(outputs_[piece]); }
  absl::Status Run(int32_t piece) override {
    WaitFor(seconds_[piece]);
    return absl::OkStatus();
  }
  absl::StatusOr<std::span<const std::byte>> Output(int32_t piece) override { return std::span(outputs_[piece]); }
  void Release(int32_t) override {}

 private:
  std::vector<double> seconds_;
  std::vector<std::vector<std::byte>> outputs_;
};

// Two components; what layers cost beside their fixed cost adds up to r times the trainable work of all stages.
planner::Profile FrozenProfile(int stages, int micro_batches, double r) {
  const int batch = micro_batches * kSamplesPerMicroBatch;
  const double total = r * micro_batches * 3 * kActionSeconds * stages;
  // Shared memory: a message of some KiB is there at once.
  planner::Profile profile{.transfer_latency_seconds = 1e-4, .transfer_bytes_per_second = 1e9, .time_error = 0};
  for (const char* name : {"image", "text"}) {
    planner::FrozenComponentProfile& component = profile.frozen.emplace_back();
    component.name = name;
    for (const double share : kLayerShares) {
      planner::FrozenLayerProfile& layer = component.layers.emplace_back();
      layer.input_bytes = layer.output_bytes = static_cast<double>(kFrozenBytesPerSample);
      for (int samples = 1; samples <= batch; samples *= 2) {
        layer.seconds[samples] = kSubBatchSeconds + total / 2 * share * samples / batch;
      }
    }
  }
  return profile;
}

// 1F1B with the frozen work where the planner puts it.
absl::StatusOr<planner::Plan> FilledPlan(int stages, int micro_batches, const planner::Profile& profile) {
  planner::Plan plan{.micro_batches = micro_batches, .micro_batch_size = kSamplesPerMicroBatch};
  ATOLL_ASSIGN_OR_RETURN(const schedule::Schedule schedule, schedule::Generate1F1B(stages, micro_batches));
  planner::FillRequest request{.schedule = schedule, .batch = micro_batches * kSamplesPerMicroBatch};
  request.costs.stages.assign(static_cast<size_t>(stages), {.forward_seconds = kActionSeconds,
                                                            .input_gradient_seconds = kActionSeconds,
                                                            .weight_gradient_seconds = kActionSeconds});
  request.costs.transfer_seconds = planner::TransferSeconds(profile, kBoundaryBytes);
  request.readers.assign(profile.frozen.size(), {0});  // the rank of the first stage
  ATOLL_ASSIGN_OR_RETURN(planner::Fill fill, planner::FillBubbles(request, profile));
  for (int32_t s = 0; s < stages; ++s) plan.stages.push_back({.rank = s, .first_layer = s, .end_layer = s + 1});
  for (const planner::FrozenComponentProfile& component : profile.frozen) {
    plan.components.push_back({.layers = static_cast<int32_t>(component.layers.size()), .to_first_stage = true});
  }
  plan.schedule = std::move(fill.schedule);
  plan.frozen = std::move(fill.pieces);
  plan.predicted.iteration_seconds = fill.iteration_seconds;
  ATOLL_RETURN_IF_ERROR(planner::FrozenFlowOf(plan).status());
  return plan;
}

absl::Status RunRank(const planner::Plan& plan, const planner::Profile& profile, int rank, ParentPipes* parent) {
  // A device does not wait for this machine's processors: waits end when they say, whoever else runs. Of use only to a
  // process that may; it hardly computes.
  const sched_param first{.sched_priority = 1};
  if (sched_setscheduler(0, SCHED_FIFO, &first) != 0) fmt::print(stderr, "rank {}: no real-time priority\n", rank);
  prctl(PR_SET_TIMERSLACK, 1UL);
  ATOLL_ASSIGN_OR_RETURN(const auto transport, ConnectRank(parent, rank, plan.rank_count(), engine::LanesOf(plan)));
  TimedStages stages(plan.schedule.stages);
  TimedPieces pieces(plan, profile);
  engine::Engine engine(plan, rank, &stages, transport.get(), Clock::Real(), {.frozen = &pieces});
  ATOLL_RETURN_IF_ERROR(parent->Write("ready"));
  for (;;) {
    if (!parent->Read().ok()) return absl::OkStatus();  // the parent is done
    const double cpu_before = CpuSeconds();
    const double start = MonotonicSeconds();
    ATOLL_RETURN_IF_ERROR(engine.RunIteration());
    const double end = MonotonicSeconds();
    absl::Duration busy;
    for (const engine::ActionTiming& timing : engine.timings()) busy += timing.end - timing.start;
    ATOLL_RETURN_IF_ERROR(parent->Write(fmt::format("{:.9f} {:.9f} {:.6f} {:.9f}", start, end,
                                                    CpuSeconds() - cpu_before, absl::ToDoubleSeconds(busy))));
  }
}

// `r` is the frozen work over the trainable.
absl::Status EmulatedCase(const std::string& name, int stages, int micro_batches, double r, int iterations) {
  const planner::Profile profile = FrozenProfile(stages, micro_batches, r);
  ATOLL_ASSIGN_OR_RETURN(const planner::Plan plan, FilledPlan(stages, micro_batches, profile));
  ATOLL_ASSIGN_OR_RETURN(const auto children, StartRanks(stages, [&](int rank, ParentPipes* parent) {
                           return RunRank(plan, profile, rank, parent);
                         }));
  std::vector<double> seconds;
  std::vector<double> idle;
  constexpr int kWarmUp = 3;
  for (int i = -kWarmUp; i < iterations; ++i) {
    ATOLL_ASSIGN_OR_RETURN(const std::vector<Answer> answers, AskAll(All(children), "iterate"));
    std::vector<Span> spans;
    double busy = 0;
    for (const Answer& answer : answers) {
      spans.push_back(answer.span);
      busy += std::stod(answer.rest);
    }
    const double took = Union(spans).seconds();
    fmt::print(stderr, "{}: iteration {:2}: {:.4f} s, idle {:.3f}\n", name, i, took, 1 - busy / (stages * took));
    if (i < 0) continue;
    seconds.push_back(took);
    idle.push_back(1 - busy / (stages * took));
  }
  const double bound = std::max(micro_batches + stages - 1.0, micro_batches * (1 + r)) * 3 * kActionSeconds;
  PrintFigure(name, "bound_fraction", bound / Median(seconds), "ratio", AtLeast(0.95));
  PrintFigure(name, "idle_fraction", Median(idle), "ratio", AtMost(0.05));
  PrintFigure(name, "iteration_seconds", Median(seconds), "s");
  PrintFigure(name, "iteration_spread", Spread(seconds), "ratio");
  PrintFigure(name, "planned_seconds", plan.predicted.iteration_seconds, "s");
  PrintFigure(name, "bound_seconds", bound, "s");
  PrintFigure(name, "pieces", static_cast<double>(plan.frozen.size()), "1");
  return absl::OkStatus();
}

}  // namespace
}  // namespace atl::bench

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  std::string only;
  int iterations = 15;
  CLI::App app{"Frozen work in the bubbles of a pipeline of emulated ranks"};
  app.add_option("--case", only, "emulated-s4 or emulated-s8; both without it")
      ->check(CLI::IsMember({"emulated-s4", "emulated-s8"}));
  app.add_option("--iterations", iterations, "of each case")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  atl::bench::KeepStandardOutputForFigures();
  const auto wanted = [&only](const char* name) { return only.empty() || only == name; };
  absl::Status status;
  if (wanted("emulated-s4")) status = atl::bench::EmulatedCase("emulated-s4", 4, 8, 0.375, iterations);
  if (status.ok() && wanted("emulated-s8")) status = atl::bench::EmulatedCase("emulated-s8", 8, 16, 0.44, iterations);
  return atl::bench::EndBench("fill_emulated_bench", status);
}
