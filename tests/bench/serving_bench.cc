// What step-level batching is worth: an engine with two lanes of one thread against a loop that serves one request at a
// time on the same lanes, against a PyTorch loop, against one offline batch; and what small requests pay beside a large
// one. Rivals take turns. One JSON object per line on standard output.
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/storage/testing.h"
#include "tests/bench/bench_process.h"
#include "tests/bench/figures.h"
#include "tests/bench/serving_costs.h"
#include "tests/bench/serving_engine.h"
#include "tests/bench/serving_load.h"
#include "tests/bench/serving_model.h"

namespace atl::bench {
namespace {

constexpr int kLanes = 2;
constexpr int kRequests = 16;
constexpr int kImagesPerRequest = 4;
constexpr int kImages = kRequests * kImagesPerRequest;
constexpr int kBigImages = 200;
constexpr int kSmallRequests = 20;

struct Settings {
  std::vector<std::string> cases;
  int rounds = 7;
  int steps = 10;
  std::string peer_python;  // empty: without the comparison with PyTorch
  std::string peer_script;
};

// A model in a temporary store.
struct Published {
  ServingModel model;
  std::vector<model::LoadedModel> networks;
  storage::TemporaryStore store;
  std::string uri;
  std::string digest;
};

absl::StatusOr<std::unique_ptr<Published>> PublishModel(const ServingModel& model) {
  auto published = std::make_unique<Published>();
  published->model = model;
  published->networks = BuildNetworks(model);
  published->uri = published->store->UriOf("models/" + model.name + "/v1");
  ATOLL_ASSIGN_OR_RETURN(published->digest,
                         Publish(model, published->networks, published->store.get(), published->uri));
  return published;
}

// Images of random classes, each with a seed of its own, top-1, no guidance: one row per image and step.
class Requests {
 public:
  Requests(int classes, int steps, uint64_t seed) : classes_(classes), steps_(steps), random_(seed) {}

  TimedRequest Make(int images, absl::Duration at = absl::ZeroDuration()) {
    router::SampleRequest request{.routing = {.mode = router::RoutingMode::kTopK, .top_k = 1},
                                  .steps = steps_,
                                  .guidance = 1.0,
                                  .format = router::ImageFormat::kRaw};
    for (int i = 0; i < images; ++i) {
      request.classes.push_back(std::uniform_int_distribution<int32_t>(0, classes_ - 1)(random_));
      request.seeds.push_back(next_seed_++);
    }
    return {.at = at, .request = std::move(request)};
  }
  std::vector<TimedRequest> MakeSome(int requests, int images) {
    std::vector<TimedRequest> made;
    for (int i = 0; i < requests; ++i) made.push_back(Make(images));
    return made;
  }
  // At random within `seconds`, the first one at once.
  void Scatter(double seconds, std::vector<TimedRequest>* requests) {
    std::vector<double> times;
    for (size_t i = 0; i < requests->size(); ++i) {
      times.push_back(i == 0 ? 0 : std::uniform_real_distribution<double>(0, seconds)(random_));
    }
    std::sort(times.begin(), times.end());
    for (size_t i = 0; i < times.size(); ++i) (*requests)[i].at = absl::Seconds(times[i]);
  }

 private:
  const int classes_;
  const int steps_;
  std::mt19937_64 random_;
  uint64_t next_seed_ = 0;
};

// The requests' images as one request.
TimedRequest Together(const std::vector<TimedRequest>& requests) {
  TimedRequest all = requests.front();
  for (size_t i = 1; i < requests.size(); ++i) {
    const router::SampleRequest& more = requests[i].request;
    all.request.classes.insert(all.request.classes.end(), more.classes.begin(), more.classes.end());
    all.request.seeds.insert(all.request.seeds.end(), more.seeds.begin(), more.seeds.end());
  }
  return all;
}

void PrintRouting(const std::vector<ServedRequest>& served) {
  std::vector<int64_t> chosen;
  for (const ServedRequest& request : served) {
    chosen.resize(std::max(chosen.size(), request.routing.chosen.size()));
    for (size_t k = 0; k < request.routing.chosen.size(); ++k) chosen[k] += request.routing.chosen[k];
  }
  fmt::print(stderr, "image-steps by expert: {}\n", fmt::join(chosen, " "));
}

// A PyTorch loop in processes of its own.
class Peers {
 public:
  static absl::StatusOr<std::unique_ptr<Peers>> Start(const Settings& settings, const ServingModel& model,
                                                      int processes, int threads) {
    auto peers = std::make_unique<Peers>();
    for (int i = 0; i < processes; ++i) {
      ATOLL_ASSIGN_OR_RETURN(auto child, Child::Start({settings.peer_python,
                                                       settings.peer_script,
                                                       "--experts",
                                                       std::to_string(model.experts),
                                                       "--classes",
                                                       std::to_string(model.classes),
                                                       "--channels",
                                                       std::to_string(model.channels),
                                                       "--side",
                                                       std::to_string(model.side),
                                                       "--width",
                                                       std::to_string(model.width),
                                                       "--depth",
                                                       std::to_string(model.depth),
                                                       "--heads",
                                                       std::to_string(model.heads),
                                                       "--router-width",
                                                       std::to_string(model.router_width),
                                                       "--router-depth",
                                                       std::to_string(model.router_depth),
                                                       "--steps",
                                                       std::to_string(settings.steps),
                                                       "--threads",
                                                       std::to_string(threads)}));
      peers->children_.push_back(std::move(child));
    }
    for (const auto& child : peers->children_) {
      ATOLL_ASSIGN_OR_RETURN(const std::string ready, child->Receive());
      if (ready != "ready") return absl::InternalError(fmt::format("peer: expected 'ready', found '{}'", ready));
    }
    return peers;
  }

  // Seconds for `images`, shared by the processes.
  absl::StatusOr<double> Draw(int images) {
    const int each = images / static_cast<int>(children_.size());
    for (const auto& child : children_) ATOLL_RETURN_IF_ERROR(child->Send(fmt::format("draw {}", each)));
    std::vector<Span> spans;
    for (const auto& child : children_) {
      ATOLL_ASSIGN_OR_RETURN(const Answer answer, child->ReceiveAnswer());
      spans.push_back(answer.span);
    }
    return Union(spans).seconds();
  }

 private:
  std::vector<std::unique_ptr<Child>> children_;
};

// Figures of one round of rivals that took turns.
struct Round {
  CostCurve costs;
  double offline = 0;
  double loop = 0;
  double batched = 0;
  double python = 0;
  double python_processes = 0;
};

using Figures = std::map<std::pair<std::string, std::string>, std::vector<double>>;

void PrintMedians(const Figures& figures, const std::string& unit) {
  for (const auto& [name, values] : figures) {
    PrintFigure(name.first, name.second, Median(values), unit);
    if (values.size() > 2) PrintFigure(name.first, name.second + "_spread", Spread(values), "ratio");
  }
}

void PrintCosts(const CostCurve& costs) {
  for (size_t i = 0; i < costs.rows.size(); ++i) {
    PrintFigure("cost-curve", fmt::format("expert_rows_{}", costs.rows[i]), 1000 * costs.expert[i], "ms per row");
    PrintFigure("cost-curve", fmt::format("router_rows_{}", costs.rows[i]), 1000 * costs.router[i], "ms per row");
  }
}

absl::Status RunThroughput(const Settings& settings, Published* published) {
  std::unique_ptr<Peers> python;
  std::unique_ptr<Peers> python_processes;
  if (!settings.peer_python.empty()) {
    ATOLL_ASSIGN_OR_RETURN(python, Peers::Start(settings, published->model, 1, kLanes));
    ATOLL_ASSIGN_OR_RETURN(python_processes, Peers::Start(settings, published->model, kLanes, 1));
  }
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<Serving> serving,
                         Serving::Start(published->store.get(), published->uri, published->digest, kLanes));
  Requests requests(published->model.classes, settings.steps, /*seed=*/1);
  Play(serving->engine(), std::vector<TimedRequest>{requests.Make(kImagesPerRequest)});  // warms up
  MeasureCosts(published->networks, kLanes);

  Figures figures;
  std::vector<CostCurve> curves;
  for (int i = 0; i < settings.rounds; ++i) {
    Round round;
    std::vector<TimedRequest> load = requests.MakeSome(kRequests, kImagesPerRequest);
    round.costs = MeasureCosts(published->networks, kLanes);
    ATOLL_ASSIGN_OR_RETURN(round.offline, Makespan(Play(serving->engine(), std::vector{Together(load)})));
    ATOLL_ASSIGN_OR_RETURN(round.loop, Makespan(PlayOneByOne(serving->engine(), load)));
    requests.Scatter(round.offline / 4, &load);
    const std::vector<ServedRequest> served = Play(serving->engine(), load);
    ATOLL_ASSIGN_OR_RETURN(round.batched, Makespan(served));
    if (i == 0) PrintRouting(served);
    // What both lanes need at the least for every image-step, each at the cheapest batch size.
    const double least = kImages * settings.steps * (round.costs.best_expert() + round.costs.best_router()) / kLanes;
    figures[{"batched-vs-loop", "gain"}].push_back(round.loop / round.batched);
    figures[{"batched-vs-loop", "ceiling"}].push_back(round.loop / least);
    figures[{"batched-vs-loop", "of_ceiling"}].push_back(least / round.batched);
    figures[{"vs-offline", "fraction"}].push_back(round.offline / round.batched);
    figures[{"vs-offline", "of_ceiling"}].push_back(least / round.offline);
    if (python != nullptr) {
      constexpr int kPeerImages = kImages / 4;
      ATOLL_ASSIGN_OR_RETURN(round.python, python->Draw(kPeerImages));
      ATOLL_ASSIGN_OR_RETURN(round.python_processes, python_processes->Draw(kPeerImages));
      const double share = static_cast<double>(kImages) / kPeerImages;
      figures[{"batched-vs-python", "speedup"}].push_back(round.python * share / round.batched);
      figures[{"batched-vs-python", "speedup_over_two_processes"}].push_back(round.python_processes * share /
                                                                             round.batched);
    }
    fmt::print(
        stderr,
        "round {}: least {:.2f} s, offline {:.2f}, loop {:.2f}, batched {:.2f}; a quarter in PyTorch {:.2f}, in two "
        "processes {:.2f}\n",
        i, least, round.offline, round.loop, round.batched, round.python, round.python_processes);
    curves.push_back(round.costs);
  }
  PrintCosts(MedianOf(curves));
  PrintMedians(figures, "ratio");
  return absl::OkStatus();
}

double MeanLatency(const std::vector<ServedRequest>& served) {
  double sum = 0;
  for (const ServedRequest& request : served) sum += absl::ToDoubleSeconds(request.latency());
  return sum / static_cast<double>(served.size());
}

absl::Status FirstError(const std::vector<ServedRequest>& served) {
  return Makespan(served).status();
}

// Single images one after another, behind a large request and alone. They go on until the large one is done, so that
// its own time is all theirs too.
absl::Status RunOneByOne(Serving* serving, Requests* requests, Figures* figures) {
  const std::vector<TimedRequest> small = requests->MakeSome(kSmallRequests, 1);
  const std::vector<ServedRequest> alone = PlayOneByOne(serving->engine(), small);
  ATOLL_RETURN_IF_ERROR(FirstError(alone));
  const TimedRequest big = requests->Make(kBigImages);
  ATOLL_ASSIGN_OR_RETURN(const double big_alone, Makespan(Play(serving->engine(), std::vector{big})));

  const absl::Duration start = Clock::Real()->Monotonic();
  Flying flying(serving->engine(), big, start);
  std::vector<ServedRequest> beside;
  while (!flying.ended()) {
    beside.push_back(PlayOneByOne(serving->engine(), std::vector{small[beside.size() % small.size()]}).front());
  }
  ATOLL_RETURN_IF_ERROR(flying.Await().status);
  ATOLL_RETURN_IF_ERROR(FirstError(beside));
  const double big_beside = absl::ToDoubleSeconds(flying.Await().latency());
  fmt::print(stderr,
             "one by one: {} beside the large one; {:.3f} s each, {:.3f} s alone; the large one {:.2f} s, {:.2f}\n",
             beside.size(), MeanLatency(beside), MeanLatency(alone), big_beside, big_alone);
  (*figures)[{"fair-one-by-one", "latency_ratio"}].push_back(MeanLatency(beside) / MeanLatency(alone));
  (*figures)[{"fair-one-by-one", "big_throughput"}].push_back(big_alone / big_beside);
  return absl::OkStatus();
}

// All small requests at once, beside a large one and without it.
absl::Status RunAtOnce(Serving* serving, Requests* requests, Figures* figures) {
  const std::vector<TimedRequest> small = requests->MakeSome(kSmallRequests, 1);
  const std::vector<ServedRequest> alone = Play(serving->engine(), small);
  ATOLL_RETURN_IF_ERROR(FirstError(alone));
  const absl::Duration start = Clock::Real()->Monotonic();
  Flying big(serving->engine(), requests->Make(kBigImages), start);
  // Once the large one is in full swing.
  std::vector<TimedRequest> later = small;
  for (TimedRequest& request : later) request.at = absl::Seconds(MeanLatency(alone));
  const std::vector<ServedRequest> beside = Play(serving->engine(), later);
  ATOLL_RETURN_IF_ERROR(FirstError(beside));
  ATOLL_RETURN_IF_ERROR(big.Await().status);
  fmt::print(stderr, "at once: {:.3f} s beside the large one, {:.3f} s alone\n", MeanLatency(beside),
             MeanLatency(alone));
  (*figures)[{"fair-at-once", "latency_ratio"}].push_back(MeanLatency(beside) / MeanLatency(alone));
  return absl::OkStatus();
}

absl::Status RunFairness(const Settings& settings, Published* published) {
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<Serving> serving,
                         Serving::Start(published->store.get(), published->uri, published->digest, kLanes));
  Requests requests(published->model.classes, settings.steps, /*seed=*/2);
  Play(serving->engine(), std::vector{requests.Make(kImagesPerRequest)});  // warms up
  Figures figures;
  for (int i = 0; i < std::max(settings.rounds / 2, 1); ++i) {
    ATOLL_RETURN_IF_ERROR(RunOneByOne(serving.get(), &requests, &figures));
    ATOLL_RETURN_IF_ERROR(RunAtOnce(serving.get(), &requests, &figures));
  }
  PrintMedians(figures, "ratio");
  return absl::OkStatus();
}

const std::map<std::string, absl::Status (*)(const Settings&, Published*)>& Cases() {
  static const auto* const cases = new std::map<std::string, absl::Status (*)(const Settings&, Published*)>{
      {"throughput", &RunThroughput}, {"fairness", &RunFairness}};
  return *cases;
}

absl::Status Run(const Settings& settings) {
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<Published> published, PublishModel(ServingModel{}));
  for (const std::string& name : settings.cases) {
    ATOLL_RETURN_IF_ERROR(Cases().at(name)(settings, published.get()));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace atl::bench

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  atl::bench::Settings settings;
  settings.cases = {"throughput", "fairness"};
  CLI::App app{"Step-level batching against loops, an offline batch and PyTorch; fairness between requests"};
  app.add_option(
         "--case", settings.cases,
         "throughput (batched-vs-loop, vs-offline, batched-vs-python) or fairness (fair-one-by-one, fair-at-once); "
         "repeatable")
      ->allow_extra_args(false)
      ->check(CLI::IsMember({"throughput", "fairness"}));
  app.add_option("--rounds", settings.rounds, "in which rivals take turns")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--steps", settings.steps, "solver steps of an image")
      ->check(CLI::Range(1, 250))
      ->capture_default_str();
  app.add_option("--peer-python", settings.peer_python, "python of tests/peers/setup.sh");
  app.add_option("--peer-script", settings.peer_script, "tests/peers/torch_serving.py");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = atl::bench::Run(settings);
  if (!status.ok()) fmt::print(stderr, "serving_bench: {}\n", status.ToString());
  return status.ok() ? 0 : 1;
}
