// Measures the gain of two ranks: 1F1B and the planner's choice over UCX against one process, the machine's own gain
// from a second core, and the same step in torch.distributed.pipelining, 1F1B and ZBV. Cases take turns step by step,
// so that drift of the machine affects all of them.
//
// Two children each hold a rank of the pipelines and a whole model. After they have measured the planner's profile,
// every command is one training step. One JSON object per line on standard output; text for people goes to standard
// error.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "absl/cleanup/cleanup.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/planner/plan.h"
#include "common/schedule/generators.h"
#include "tests/bench/bench_process.h"
#include "tests/bench/figures.h"
#include "tests/bench/pipeline_ranks.h"
#include "worker/engine/engine.h"
#include "worker/trainer/profiler.h"
#include "worker/trainer/synthetic_data.h"
#include "worker/trainer/trainer.h"

namespace atl::bench {
namespace {

constexpr int kRanks = 2;

struct Settings {
  int rounds = 20;
  int pairs = 11;
  int warm_up = 2;
  std::string schedule = "auto";
  Work work;
  std::string peer_python;  // empty: without the comparison with PyTorch
  std::string peer_script;
};

absl::StatusOr<planner::Plan> MakePlan(const Settings& settings, const std::string& schedule, int ranks,
                                       const planner::Profile& profile) {
  planner::PlanRequest request;
  request.pipeline = {.schedule = schedule, .stages = 0, .micro_batches = settings.work.micro_batches};
  request.batch_size = settings.work.micro_batches * settings.work.micro_batch_size;
  request.ranks = ranks;
  request.profile = profile;
  return planner::MakePlan(request);
}

planner::Profile Counted(const Settings& settings) {
  return planner::CountedProfile(OptionsOf(settings.work).model, settings.work.tokens, settings.work.channels);
}

// Lanes of every plan that the planner may choose, and the profiler's.
std::vector<transport::Lane> AllLanes(const Settings& settings) {
  std::set<transport::Lane> lanes;
  for (const schedule::GeneratorInfo& generator : schedule::Generators()) {
    const auto plan = MakePlan(settings, std::string(generator.name), kRanks, Counted(settings));
    if (!plan.ok()) continue;
    for (const transport::Lane& lane : engine::LanesOf(*plan)) lanes.insert(lane);
  }
  for (const transport::Lane& lane : trainer::ProfilerLanes(kRanks)) lanes.insert(lane);
  return {lanes.begin(), lanes.end()};
}

// A child's main function: connects as a rank of the pipelines, measures, then runs one step per command.
absl::Status RunRank(const Settings& settings, int rank, ParentPipes* parent) {
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<transport::Transport> transport,
                         ConnectRank(parent, rank, kRanks, AllLanes(settings)));
  ATOLL_RETURN_IF_ERROR(parent->Write("ready"));
  ATOLL_ASSIGN_OR_RETURN(const planner::Profile profile, ShareProfile(settings.work, transport.get(), parent));
  const trainer::TrainerOptions options = OptionsOf(settings.work);
  trainer::SyntheticData data(options.classes, 0);
  std::map<std::string, std::unique_ptr<trainer::Trainer>> trainers;
  ATOLL_ASSIGN_OR_RETURN(const planner::Plan single, MakePlan(settings, "1f1b", 1, Counted(settings)));
  ATOLL_ASSIGN_OR_RETURN(trainers["single"],
                         trainer::Trainer::Create(options, single, 0, &data, nullptr, Clock::Real()));
  ATOLL_ASSIGN_OR_RETURN(const planner::Plan pipeline, MakePlan(settings, "1f1b", kRanks, Counted(settings)));
  ATOLL_ASSIGN_OR_RETURN(trainers["pipeline"],
                         trainer::Trainer::Create(options, pipeline, rank, &data, transport.get(), Clock::Real()));
  ATOLL_ASSIGN_OR_RETURN(const planner::Plan chosen, MakePlan(settings, settings.schedule, kRanks, profile));
  ATOLL_ASSIGN_OR_RETURN(trainers["auto"],
                         trainer::Trainer::Create(options, chosen, rank, &data, transport.get(), Clock::Real()));
  if (rank == 0) fmt::print(stderr, "the planner's choice: {}\n", chosen.reason);
  for (;;) {
    const absl::StatusOr<std::string> command = parent->Read();
    if (!command.ok()) return absl::OkStatus();  // the parent is done
    const auto trainer = trainers.find(*command);
    if (trainer == trainers.end()) return absl::InternalError("unknown command " + *command);
    ATOLL_RETURN_IF_ERROR(StepAndAnswer(trainer->second.get(), parent));
  }
}

absl::StatusOr<Children> StartPeers(const Settings& settings, const std::string& schedule,
                                    const std::string& rendezvous) {
  Children children;
  for (int rank = 0; rank < kRanks; ++rank) {
    std::vector<std::string> command = PeerCommand(settings.peer_python, settings.peer_script);
    command.insert(command.end(), {"--schedule", schedule, "--rendezvous", rendezvous});
    const std::pair<const char*, int> flags[] = {{"--rank", rank},
                                                 {"--world", kRanks},
                                                 {"--depth", settings.work.depth},
                                                 {"--width", settings.work.width},
                                                 {"--tokens", settings.work.tokens},
                                                 {"--micro-batches", settings.work.micro_batches},
                                                 {"--micro-batch-size", settings.work.micro_batch_size}};
    for (const auto& [flag, value] : flags) command.insert(command.end(), {flag, std::to_string(value)});
    ATOLL_ASSIGN_OR_RETURN(auto child, Child::Start(command));
    children.push_back(std::move(child));
  }
  for (const auto& child : children) {
    ATOLL_ASSIGN_OR_RETURN(const std::string ready, child->Receive());
    if (ready != "ready") return absl::InternalError(fmt::format("peer: expected 'ready', found '{}'", ready));
  }
  return children;
}

void PrintGain(const std::string& name, const std::vector<Cost>& single, const std::vector<Cost>& costs) {
  const std::vector<double> gains = Ratios(single, costs);
  PrintFigure(name, "gain", Median(gains), "ratio");
  PrintFigure(name, "gain_spread", Spread(gains), "ratio");
  PrintFigure(name, "seconds", Median(SecondsOf(costs)), "s");
  PrintFigure(name, "cpu_seconds", Median(CpuSecondsOf(costs)), "s");
}

absl::Status CompareWithOneProcess(const Settings& settings, const Children& ranks) {
  std::vector<Cost> single;
  std::vector<Cost> both;
  std::vector<Cost> pipeline;
  std::vector<Cost> chosen;
  for (int round = -settings.warm_up; round < settings.rounds; ++round) {
    // The ranks take turns to run alone, because the two cores may differ.
    Child* alone = ranks[static_cast<size_t>(round & 1)].get();
    const bool show = round == settings.rounds - 1;
    ATOLL_ASSIGN_OR_RETURN(const Cost one, StepAll({alone}, "single"));
    ATOLL_ASSIGN_OR_RETURN(const Cost two, StepAll(All(ranks), "single"));
    ATOLL_ASSIGN_OR_RETURN(const Cost piped, StepAll(All(ranks), "pipeline", show));
    ATOLL_ASSIGN_OR_RETURN(const Cost planned, StepAll(All(ranks), "auto", show));
    fmt::print(stderr, "round {:2}: one process {:.4f} s, two at once {:.4f} s, 1F1B {:.4f} s, auto {:.4f} s\n", round,
               one.seconds, two.seconds, piped.seconds, planned.seconds);
    if (round < 0) continue;
    single.push_back(one);
    both.push_back(two);
    pipeline.push_back(piped);
    chosen.push_back(planned);
  }
  const std::vector<double> sigmas = Ratios(single, both, 2);
  const double sigma = Median(sigmas);
  const double m = settings.work.micro_batches;
  PrintFigure("cores", "sigma", sigma, "ratio");
  PrintFigure("cores", "sigma_spread", Spread(sigmas), "ratio");
  PrintFigure("single", "seconds", Median(SecondsOf(single)), "s");
  PrintFigure("single", "cpu_seconds", Median(CpuSecondsOf(single)), "s");
  PrintFigure("1f1b-vs-single", "of_bound", Median(Ratios(single, pipeline)) / (sigma * m / (m + kRanks - 1)), "ratio",
              AtLeast(0.93));
  PrintGain("1f1b-vs-single", single, pipeline);
  // No schedule is faster than both cores at work all the time, as they are in the same round with a step each.
  PrintFigure("auto", "bound_fraction", Median(Ratios(both, chosen, 0.5)), "ratio", AtLeast(0.95));
  PrintGain("auto", single, chosen);
  return absl::OkStatus();
}

void PrintAgainst(const std::string& name, const std::vector<Cost>& ours, const std::vector<Cost>& theirs,
                  Target target) {
  const std::vector<double> ratios = Ratios(ours, theirs);
  PrintFigure(name, "time_ratio", Median(ratios), "ratio", target);
  PrintFigure(name, "time_ratio_spread", Spread(ratios), "ratio");
  PrintFigure(name, "pairs", static_cast<double>(ratios.size()), "count");
  PrintFigure(name, "seconds", Median(SecondsOf(ours)), "s");
  PrintFigure(name, "torch_seconds", Median(SecondsOf(theirs)), "s");
  PrintFigure(name, "cpu_seconds", Median(CpuSecondsOf(ours)), "s");
  PrintFigure(name, "torch_cpu_seconds", Median(CpuSecondsOf(theirs)), "s");
  PrintFigure(name, "page_faults", Median(PageFaultsOf(ours)), "per step");
  PrintFigure(name, "torch_page_faults", Median(PageFaultsOf(theirs)), "per step");
}

absl::Status AlternateWithTorch(const Settings& settings, const Children& ranks, const Children& peers,
                                const Children& zbv_peers) {
  struct Turn {
    std::vector<Child*> children;
    std::string command;
    std::vector<Cost> costs;
  };
  std::vector<Turn> turns = {{.children = All(ranks), .command = "pipeline"},
                             {.children = All(peers), .command = "step"},
                             {.children = All(ranks), .command = "auto"},
                             {.children = All(zbv_peers), .command = "step"}};
  for (int pair = -settings.warm_up; pair < settings.pairs; ++pair) {
    std::vector<Cost> now(turns.size());
    for (size_t i = 0; i < turns.size(); ++i) {
      // The order alternates as well.
      const size_t turn = pair % 2 == 0 ? i : turns.size() - 1 - i;
      ATOLL_ASSIGN_OR_RETURN(now[turn], StepAll(turns[turn].children, turns[turn].command));
    }
    fmt::print(stderr, "pair {:2}: 1F1B {:.4f} s, torch's {:.4f} s; auto {:.4f} s, torch's ZBV {:.4f} s\n", pair,
               now[0].seconds, now[1].seconds, now[2].seconds, now[3].seconds);
    for (size_t i = 0; pair >= 0 && i < turns.size(); ++i) turns[i].costs.push_back(now[i]);
  }
  PrintAgainst("1f1b-vs-torch", turns[0].costs, turns[1].costs, AtMost(0.98));
  PrintAgainst("auto-vs-torch", turns[2].costs, turns[1].costs, AtMost(0.90));
  PrintAgainst("auto-vs-torch-zbv", turns[2].costs, turns[3].costs, AtMost(0.93));
  return absl::OkStatus();
}

absl::Status CompareWithTorch(const Settings& settings, const Children& ranks) {
  char folder[] = "/tmp/atoll-bench-XXXXXX";
  if (mkdtemp(folder) == nullptr) return absl::InternalError("mkdtemp failed");
  const absl::Cleanup remove_folder = [&folder] { std::filesystem::remove_all(folder); };
  ATOLL_ASSIGN_OR_RETURN(const Children peers, StartPeers(settings, "1f1b", std::string(folder) + "/1f1b"));
  ATOLL_ASSIGN_OR_RETURN(const Children zbv_peers, StartPeers(settings, "zbv", std::string(folder) + "/zbv"));
  return AlternateWithTorch(settings, ranks, peers, zbv_peers);
}

absl::Status Run(const Settings& settings) {
  ATOLL_ASSIGN_OR_RETURN(const Children ranks, StartRanks(kRanks, [&settings](int rank, ParentPipes* parent) {
                           return RunRank(settings, rank, parent);
                         }));
  ATOLL_RETURN_IF_ERROR(MergeAndShare(ranks).status());
  if (settings.rounds > 0) ATOLL_RETURN_IF_ERROR(CompareWithOneProcess(settings, ranks));
  if (settings.peer_python.empty()) return absl::OkStatus();
  return CompareWithTorch(settings, ranks);
}

}  // namespace
}  // namespace atl::bench

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  atl::bench::Settings settings;
  CLI::App app{"Two ranks against one process and against torch.distributed.pipelining"};
  app.add_option("--rounds", settings.rounds, "alternations against one process")->check(CLI::NonNegativeNumber);
  app.add_option("--pairs", settings.pairs, "alternations against PyTorch")->check(CLI::PositiveNumber);
  app.add_option("--warm-up", settings.warm_up, "alternations before those that count")->check(CLI::NonNegativeNumber);
  app.add_option("--schedule", settings.schedule, "the planner's choice, or another schedule in its place");
  app.add_option("--depth", settings.work.depth, "blocks of the model")->check(CLI::PositiveNumber);
  app.add_option("--width", settings.work.width, "width of the model")->check(CLI::PositiveNumber);
  app.add_option("--tokens", settings.work.tokens, "tokens per image, a square number")->check(CLI::PositiveNumber);
  app.add_option("--micro-batches", settings.work.micro_batches, "per step")->check(CLI::PositiveNumber);
  app.add_option("--micro-batch-size", settings.work.micro_batch_size, "images")->check(CLI::PositiveNumber);
  app.add_option("--peer-python", settings.peer_python, "python of tests/peers/setup.sh");
  app.add_option("--peer-script", settings.peer_script, "tests/peers/torch_pipeline.py");
  CLI11_PARSE(app, argc, argv);
  atl::bench::KeepStandardOutputForFigures();
  const absl::Status status = atl::bench::Run(settings);
  return atl::bench::EndBench("pipeline_bench", status);
}
