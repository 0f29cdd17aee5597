// What two ranks are worth: 1F1B over UCX against one process, the machine's own worth of a second core, and the same
// step in torch.distributed.pipelining. Cases take turns step by step, so that drift of the machine meets all of them.
//
// Two children hold a rank of the pipeline and a whole model each; every command is one training step. One JSON object
// per line on standard output; what people read goes to standard error.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "absl/cleanup/cleanup.h"
#include "common/base/clock.h"
#include "common/base/counter_random.h"
#include "common/base/status_macros.h"
#include "common/planner/plan.h"
#include "tests/bench/bench_process.h"
#include "worker/engine/engine.h"
#include "worker/trainer/trainer.h"
#include "worker/transport/ucx/ucx_transport.h"

namespace atl::bench {
namespace {

constexpr int kRanks = 2;

struct Settings {
  int rounds = 20;
  int pairs = 11;
  int warm_up = 2;
  int depth = 8;
  int width = 256;
  int tokens = 64;  // a square number
  int micro_batches = 8;
  int micro_batch_size = 8;
  std::string peer_python;  // empty: without the comparison with PyTorch
  std::string peer_script;
};

double Seconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double Now() {
  return Seconds(CLOCK_MONOTONIC);
}

// Noise instead of images: what the values are makes no difference to the time.
class NoiseData : public trainer::TrainingData {
 public:
  int64_t size() const override { return 4096; }
  absl::StatusOr<Item> Read(int64_t position, std::span<float> pixels) override {
    CounterRandom(1, RandomPurpose::kSubset, 0, static_cast<uint64_t>(position)).Uniform(pixels);
    return Item{.label = static_cast<int32_t>(position % 10)};
  }
};

trainer::TrainerOptions Options(const Settings& settings) {
  trainer::TrainerOptions options;
  options.model = {.patch = 2, .width = settings.width, .depth = settings.depth, .heads = 4, .mlp_ratio = 4.0};
  options.training.steps = 1'000'000;
  options.training.batch_size = settings.micro_batches * settings.micro_batch_size;
  options.channels = 1;
  while (options.height / 2 * (options.height / 2) < settings.tokens) options.height += 2;
  options.width = options.height;
  options.classes = 10;
  options.seed = 1;
  options.threads = 1;
  return options;
}

absl::StatusOr<planner::Plan> MakePlan(const Settings& settings, int ranks) {
  const trainer::TrainerOptions options = Options(settings);
  planner::PlanRequest request;
  request.pipeline = {.schedule = "1f1b", .stages = ranks, .micro_batches = settings.micro_batches};
  request.batch_size = options.training.batch_size;
  request.ranks = ranks;
  request.profile = planner::CountedProfile(options.model, settings.tokens, options.channels);
  return planner::MakePlan(request);
}

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

// A child's life: connects as a rank of the pipeline, then steps as it is told.
absl::Status RunRank(const Settings& settings, int rank, int read_fd, int write_fd) {
  ATOLL_ASSIGN_OR_RETURN(const planner::Plan pipeline_plan, MakePlan(settings, kRanks));
  ATOLL_ASSIGN_OR_RETURN(const planner::Plan single_plan, MakePlan(settings, 1));
  ATOLL_ASSIGN_OR_RETURN(
      const std::unique_ptr<transport::Transport> transport,
      transport::MakeUcxTransport({}, rank, kRanks, {.incarnation = 1, .attempt = 1, .secret = "b"}));
  std::string buffered;
  // Addresses are bytes; the parent passes them on as hexadecimal digits.
  std::string address;
  for (const char c : transport->Address()) address += fmt::format("{:02x}", static_cast<unsigned char>(c));
  ATOLL_RETURN_IF_ERROR(WriteLine(write_fd, address));
  std::vector<std::string> addresses;
  for (int r = 0; r < kRanks; ++r) {
    ATOLL_ASSIGN_OR_RETURN(const std::string digits, ReadLine(read_fd, &buffered));
    std::string& bytes = addresses.emplace_back();
    for (size_t i = 0; i + 1 < digits.size(); i += 2) {
      bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
    }
  }
  ATOLL_RETURN_IF_ERROR(transport->Connect(addresses, engine::LanesOf(pipeline_plan), absl::Seconds(30)));
  NoiseData data;
  ATOLL_ASSIGN_OR_RETURN(const auto pipeline, trainer::Trainer::Create(Options(settings), pipeline_plan, rank, &data,
                                                                       transport.get(), Clock::Real()));
  ATOLL_ASSIGN_OR_RETURN(const auto single,
                         trainer::Trainer::Create(Options(settings), single_plan, 0, &data, nullptr, Clock::Real()));
  ATOLL_RETURN_IF_ERROR(WriteLine(write_fd, "ready"));
  for (;;) {
    const absl::StatusOr<std::string> command = ReadLine(read_fd, &buffered);
    if (!command.ok()) return absl::OkStatus();  // the parent is done
    trainer::Trainer& trainer = *command == "pipeline" ? *pipeline : *single;
    const double cpu_before = Seconds(CLOCK_PROCESS_CPUTIME_ID);
    Span span{.start = Now()};
    ATOLL_RETURN_IF_ERROR(trainer.Step().status());
    span.end = Now();
    const double cpu = Seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu_before;
    ATOLL_RETURN_IF_ERROR(WriteLine(
        write_fd, fmt::format("{:.9f} {:.9f} {:.6f} {}", span.start, span.end, cpu, Breakdown(trainer, span))));
  }
}

int RankMain(const Settings& settings, int rank, int read_fd, int write_fd) {
  const absl::Status status = RunRank(settings, rank, read_fd, write_fd);
  if (!status.ok()) fmt::print(stderr, "rank {}: {}\n", rank, status.ToString());
  return status.ok() ? 0 : 1;
}

using Children = std::vector<std::unique_ptr<Child>>;

// What a command took: on the clock, and of the processors. The second says what a case costs even on a busy machine.
struct Cost {
  double seconds = 0;
  double cpu_seconds = 0;
};

// One step by every child, at once.
absl::StatusOr<Cost> StepAll(const std::vector<Child*>& children, const std::string& command, bool show = false) {
  for (Child* child : children) ATOLL_RETURN_IF_ERROR(child->Send(command));
  std::vector<Span> spans;
  Cost cost;
  for (size_t i = 0; i < children.size(); ++i) {
    ATOLL_ASSIGN_OR_RETURN(const Answer answer, children[i]->ReceiveAnswer());
    spans.push_back(answer.span);
    cost.cpu_seconds += answer.cpu_seconds;
    if (show) {
      fmt::print(stderr, "  rank {}: {:.4f} s, cpu {:.4f}: {}\n", i, answer.span.seconds(), answer.cpu_seconds,
                 answer.rest);
    }
  }
  cost.seconds = Union(spans).seconds();
  return cost;
}

std::vector<Child*> All(const Children& children) {
  std::vector<Child*> all;
  for (const auto& child : children) all.push_back(child.get());
  return all;
}

void Print(const std::string& name, const std::string& metric, double value, const std::string& unit) {
  fmt::print("{}\n",
             nlohmann::ordered_json{{"case", name}, {"metric", metric}, {"value", value}, {"unit", unit}}.dump());
  std::fflush(stdout);
}

absl::StatusOr<Children> StartRanks(const Settings& settings) {
  Children children;
  for (int rank = 0; rank < kRanks; ++rank) {
    ATOLL_ASSIGN_OR_RETURN(auto child, Child::Fork([&settings, rank](int read_fd, int write_fd) {
                             return RankMain(settings, rank, read_fd, write_fd);
                           }));
    children.push_back(std::move(child));
  }
  std::vector<std::string> addresses;
  for (const auto& child : children) {
    ATOLL_ASSIGN_OR_RETURN(addresses.emplace_back(), child->Receive());
  }
  for (const auto& child : children) {
    for (const std::string& address : addresses) ATOLL_RETURN_IF_ERROR(child->Send(address));
  }
  for (const auto& child : children) ATOLL_RETURN_IF_ERROR(child->Receive().status());
  return children;
}

absl::StatusOr<Children> StartPeers(const Settings& settings, const std::string& rendezvous) {
  Children children;
  for (int rank = 0; rank < kRanks; ++rank) {
    ATOLL_ASSIGN_OR_RETURN(
        auto child,
        Child::Start({settings.peer_python, settings.peer_script, "--rank", std::to_string(rank), "--world",
                      std::to_string(kRanks), "--rendezvous", rendezvous, "--depth", std::to_string(settings.depth),
                      "--width", std::to_string(settings.width), "--tokens", std::to_string(settings.tokens),
                      "--micro-batches", std::to_string(settings.micro_batches), "--micro-batch-size",
                      std::to_string(settings.micro_batch_size)}));
    children.push_back(std::move(child));
  }
  for (const auto& child : children) {
    ATOLL_ASSIGN_OR_RETURN(const std::string ready, child->Receive());
    if (ready != "ready") return absl::InternalError(fmt::format("peer: expected 'ready', found '{}'", ready));
  }
  return children;
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

// scale * a[i] / b[i]
std::vector<double> Ratios(const std::vector<Cost>& a, const std::vector<Cost>& b, double scale = 1) {
  std::vector<double> ratios;
  for (size_t i = 0; i < a.size(); ++i) ratios.push_back(scale * a[i].seconds / b[i].seconds);
  return ratios;
}

absl::Status CompareWithOneProcess(const Settings& settings, const Children& ranks) {
  std::vector<Cost> single;
  std::vector<Cost> both;
  std::vector<Cost> pipeline;
  for (int round = -settings.warm_up; round < settings.rounds; ++round) {
    // Whose turn it is to be alone changes: the two cores need not be equal.
    Child* alone = ranks[static_cast<size_t>(round & 1)].get();
    ATOLL_ASSIGN_OR_RETURN(const Cost one, StepAll({alone}, "single"));
    ATOLL_ASSIGN_OR_RETURN(const Cost two, StepAll(All(ranks), "single"));
    ATOLL_ASSIGN_OR_RETURN(const Cost piped, StepAll(All(ranks), "pipeline", round == settings.rounds - 1));
    fmt::print(stderr, "round {:2}: one process {:.4f} s, two at once {:.4f} s, 1F1B {:.4f} s\n", round, one.seconds,
               two.seconds, piped.seconds);
    if (round < 0) continue;
    single.push_back(one);
    both.push_back(two);
    pipeline.push_back(piped);
  }
  const std::vector<double> sigmas = Ratios(single, both, 2);
  const std::vector<double> gains = Ratios(single, pipeline);
  const double m = settings.micro_batches;
  const double bound = Median(sigmas) * m / (m + kRanks - 1);
  Print("cores", "sigma", Median(sigmas), "ratio");
  Print("cores", "sigma_spread", Spread(sigmas), "ratio");
  Print("1f1b-vs-single", "of_bound", Median(gains) / bound, "ratio");
  Print("1f1b-vs-single", "gain", Median(gains), "ratio");
  Print("1f1b-vs-single", "gain_spread", Spread(gains), "ratio");
  Print("1f1b-vs-single", "single_seconds", Median(SecondsOf(single)), "s");
  Print("1f1b-vs-single", "pipeline_seconds", Median(SecondsOf(pipeline)), "s");
  Print("1f1b-vs-single", "single_cpu_seconds", Median(CpuSecondsOf(single)), "s");
  Print("1f1b-vs-single", "pipeline_cpu_seconds", Median(CpuSecondsOf(pipeline)), "s");
  return absl::OkStatus();
}

absl::Status AlternateWithTorch(const Settings& settings, const Children& ranks, const Children& peers) {
  std::vector<Cost> ours;
  std::vector<Cost> theirs;
  for (int pair = -settings.warm_up; pair < settings.pairs; ++pair) {
    // Who goes first changes as well.
    Cost theirs_now;
    if (pair % 2 != 0) {
      ATOLL_ASSIGN_OR_RETURN(theirs_now, StepAll(All(peers), "step"));
    }
    ATOLL_ASSIGN_OR_RETURN(const Cost ours_now, StepAll(All(ranks), "pipeline"));
    if (pair % 2 == 0) {
      ATOLL_ASSIGN_OR_RETURN(theirs_now, StepAll(All(peers), "step"));
    }
    fmt::print(stderr, "pair {:2}: 1F1B {:.4f} s, torch's {:.4f} s, ratio {:.4f}\n", pair, ours_now.seconds,
               theirs_now.seconds, ours_now.seconds / theirs_now.seconds);
    if (pair < 0) continue;
    ours.push_back(ours_now);
    theirs.push_back(theirs_now);
  }
  const std::vector<double> ratios = Ratios(ours, theirs);
  Print("1f1b-vs-torch", "time_ratio", Median(ratios), "ratio");
  Print("1f1b-vs-torch", "time_ratio_spread", Spread(ratios), "ratio");
  Print("1f1b-vs-torch", "pairs", static_cast<double>(ratios.size()), "count");
  Print("1f1b-vs-torch", "seconds", Median(SecondsOf(ours)), "s");
  Print("1f1b-vs-torch", "torch_seconds", Median(SecondsOf(theirs)), "s");
  Print("1f1b-vs-torch", "cpu_seconds", Median(CpuSecondsOf(ours)), "s");
  Print("1f1b-vs-torch", "torch_cpu_seconds", Median(CpuSecondsOf(theirs)), "s");
  return absl::OkStatus();
}

absl::Status CompareWithTorch(const Settings& settings, const Children& ranks) {
  char folder[] = "/tmp/atoll-bench-XXXXXX";
  if (mkdtemp(folder) == nullptr) return absl::InternalError("mkdtemp failed");
  const absl::Cleanup remove_folder = [&folder] { std::filesystem::remove_all(folder); };
  ATOLL_ASSIGN_OR_RETURN(const Children peers, StartPeers(settings, std::string(folder) + "/rendezvous"));
  return AlternateWithTorch(settings, ranks, peers);
}

absl::Status Run(const Settings& settings) {
  ATOLL_ASSIGN_OR_RETURN(const Children ranks, StartRanks(settings));
  if (settings.rounds > 0) ATOLL_RETURN_IF_ERROR(CompareWithOneProcess(settings, ranks));
  if (settings.peer_python.empty()) return absl::OkStatus();
  return CompareWithTorch(settings, ranks);
}

}  // namespace
}  // namespace atl::bench

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  atl::bench::Settings settings;
  CLI::App app{"1F1B over two ranks against one process and against torch.distributed.pipelining"};
  app.add_option("--rounds", settings.rounds, "alternations against one process")->check(CLI::NonNegativeNumber);
  app.add_option("--pairs", settings.pairs, "alternations against PyTorch")->check(CLI::PositiveNumber);
  app.add_option("--warm-up", settings.warm_up, "alternations before those that count")->check(CLI::NonNegativeNumber);
  app.add_option("--depth", settings.depth, "blocks of the model")->check(CLI::PositiveNumber);
  app.add_option("--width", settings.width, "width of the model")->check(CLI::PositiveNumber);
  app.add_option("--tokens", settings.tokens, "tokens per image, a square number")->check(CLI::PositiveNumber);
  app.add_option("--micro-batches", settings.micro_batches, "per step")->check(CLI::PositiveNumber);
  app.add_option("--micro-batch-size", settings.micro_batch_size, "images")->check(CLI::PositiveNumber);
  app.add_option("--peer-python", settings.peer_python, "python of tests/peers/setup.sh");
  app.add_option("--peer-script", settings.peer_script, "tests/peers/torch_pipeline.py");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = atl::bench::Run(settings);
  if (!status.ok()) fmt::print(stderr, "pipeline_bench: {}\n", status.ToString());
  return status.ok() ? 0 : 1;
}
