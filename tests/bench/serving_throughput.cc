// Batches across requests against a loop of one request at a time, one offline batch and PyTorch.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/status_macros.h"
#include "tests/bench/bench_process.h"
#include "tests/bench/figures.h"
#include "tests/bench/serving_cases.h"
#include "tests/bench/serving_costs.h"
#include "tests/bench/serving_engine.h"

namespace atl::bench {
namespace {

constexpr int kRequests = 16;
constexpr int kImagesPerRequest = 4;
constexpr int kImages = kRequests * kImagesPerRequest;

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
    const std::pair<const char*, int> flags[] = {{"--experts", model.experts},
                                                 {"--classes", model.classes},
                                                 {"--channels", model.channels},
                                                 {"--side", model.side},
                                                 {"--width", model.width},
                                                 {"--depth", model.depth},
                                                 {"--heads", model.heads},
                                                 {"--router-width", model.router_width},
                                                 {"--router-depth", model.router_depth},
                                                 {"--steps", settings.steps},
                                                 {"--threads", threads}};
    std::vector<std::string> command = {settings.peer_python, settings.peer_script};
    for (const auto& [flag, value] : flags) {
      command.emplace_back(flag);
      command.push_back(std::to_string(value));
    }
    auto peers = std::make_unique<Peers>();
    for (int i = 0; i < processes; ++i) {
      ATOLL_ASSIGN_OR_RETURN(auto child, Child::Start(command));
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

void PrintCosts(const CostCurve& costs) {
  for (size_t i = 0; i < costs.rows.size(); ++i) {
    PrintFigure("cost-curve", fmt::format("expert_rows_{}", costs.rows[i]), 1000 * costs.expert[i], "ms per row");
    PrintFigure("cost-curve", fmt::format("router_rows_{}", costs.rows[i]), 1000 * costs.router[i], "ms per row");
  }
}

}  // namespace

absl::Status RunThroughput(const Settings& settings, Published* published) {
  std::unique_ptr<Peers> python;
  std::unique_ptr<Peers> python_processes;
  if (!settings.peer_python.empty()) {
    ATOLL_ASSIGN_OR_RETURN(python, Peers::Start(settings, published->model, 1, kLanes));
    ATOLL_ASSIGN_OR_RETURN(python_processes, Peers::Start(settings, published->model, kLanes, 1));
  }
  ATOLL_ASSIGN_OR_RETURN(
      const std::unique_ptr<Serving> serving,
      Serving::Start(published->store.get(), published->uri, published->digest, kLanes, {}, settings.device));
  const auto lanes = static_cast<double>(serving->lanes().size());
  const auto measure_costs = [&]() -> absl::StatusOr<CostCurve> {
    if (settings.device == "cpu") return MeasureCosts(published->networks, kLanes);
    ATOLL_ASSIGN_OR_RETURN(const router::SamplerInfo info, serving->engine()->Info(""));
    return MeasureLaneCosts(serving->lanes(), info);
  };
  Requests requests(published->model.classes, settings.steps, /*seed=*/1);
  Play(serving->engine(), std::vector<TimedRequest>{requests.Make(kImagesPerRequest)});  // warms up
  ATOLL_RETURN_IF_ERROR(measure_costs().status());

  Figures figures;
  std::vector<CostCurve> curves;
  for (int i = 0; i < settings.rounds; ++i) {
    Round round;
    std::vector<TimedRequest> load = requests.MakeSome(kRequests, kImagesPerRequest);
    ATOLL_ASSIGN_OR_RETURN(round.costs, measure_costs());
    ATOLL_ASSIGN_OR_RETURN(round.offline, Makespan(Play(serving->engine(), std::vector{Together(load)})));
    ATOLL_ASSIGN_OR_RETURN(round.loop, Makespan(PlayOneByOne(serving->engine(), load)));
    requests.Scatter(round.offline / 4, &load);
    const std::vector<ServedRequest> served = Play(serving->engine(), load);
    ATOLL_ASSIGN_OR_RETURN(round.batched, Makespan(served));
    if (i == 0) PrintRouting(served);
    // What the lanes need at the least for every image-step, each at the cheapest batch size.
    const double least = kImages * settings.steps * (round.costs.best_expert() + round.costs.best_router()) / lanes;
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

}  // namespace atl::bench
