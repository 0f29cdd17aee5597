// Batches across requests against a loop of one request at a time, one offline batch and PyTorch.
#include <algorithm>
#include <cstdio>
#include <map>
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

// PyTorch in processes of its own.
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
    std::vector<std::string> command = PeerCommand(settings.peer_python, settings.peer_script);
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

  // Seconds for kImages, shared by the processes, in groups of `group`.
  absl::StatusOr<double> Draw(int group) {
    const int each = kImages / static_cast<int>(children_.size());
    for (const auto& child : children_) ATOLL_RETURN_IF_ERROR(child->Send(fmt::format("draw {} {}", each, group)));
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

// PyTorch, drawing image by image as public samplers do, the images of a request together, or all images together; by
// one process with a thread per lane, or by a process per lane.
class Rivals {
 public:
  static absl::StatusOr<std::unique_ptr<Rivals>> Start(const Settings& settings, const ServingModel& model) {
    auto rivals = std::make_unique<Rivals>();
    ATOLL_ASSIGN_OR_RETURN(rivals->peers_["threads"], Peers::Start(settings, model, 1, kLanes));
    ATOLL_ASSIGN_OR_RETURN(rivals->peers_["processes"], Peers::Start(settings, model, kLanes, 1));
    return rivals;
  }

  // Each draws all images, one rival after the other.
  absl::Status Draw() {
    for (const auto& [group, images] :
         {std::pair("image", 1), std::pair("request", kImagesPerRequest), std::pair("all", kImages)}) {
      for (const auto& [kind, peers] : peers_) {
        ATOLL_ASSIGN_OR_RETURN(const double seconds, peers->Draw(images));
        seconds_[fmt::format("{}_by_{}", group, kind)].push_back(seconds);
      }
    }
    return absl::OkStatus();
  }

  // The times of the strongest rival are the shortest, by their median.
  void AddFigures(const std::vector<double>& ours, Figures* figures) const {
    std::string strongest;
    for (const auto& [rival, seconds] : seconds_) {
      if (strongest.empty() || Median(seconds) < Median(seconds_.at(strongest))) strongest = rival;
    }
    fmt::print(stderr, "the strongest PyTorch rival: {}\n", strongest);
    for (const auto& [rival, seconds] : seconds_) {
      for (size_t i = 0; i < ours.size(); ++i) {
        const double speedup = seconds[i] / ours[i];
        (*figures)[{"batched-vs-python", "speedup_over_" + rival}].push_back(speedup);
        if (rival == strongest) (*figures)[{"batched-vs-python", "speedup_over_strongest"}].push_back(speedup);
      }
    }
  }

 private:
  std::map<std::string, std::unique_ptr<Peers>> peers_;
  std::map<std::string, std::vector<double>> seconds_;  // of each round
};

// Figures of one round of rivals that took turns.
struct Round {
  CostCurve costs;
  double offline = 0;
  double loop = 0;
  double batched = 0;
};

void PrintCosts(const CostCurve& costs) {
  for (size_t i = 0; i < costs.rows.size(); ++i) {
    PrintFigure("cost-curve", fmt::format("expert_rows_{}", costs.rows[i]), 1000 * costs.expert[i], "ms per row");
    PrintFigure("cost-curve", fmt::format("router_rows_{}", costs.rows[i]), 1000 * costs.router[i], "ms per row");
  }
}

}  // namespace

absl::Status RunThroughput(const Settings& settings, Published* published) {
  std::unique_ptr<Rivals> rivals;
  if (!settings.peer_python.empty()) {
    ATOLL_ASSIGN_OR_RETURN(rivals, Rivals::Start(settings, published->model));
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
  std::vector<double> batched;
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
    // The least time that the lanes need for all image-steps, each at the cheapest batch size.
    const double least = kImages * settings.steps * (round.costs.best_expert() + round.costs.best_router()) / lanes;
    figures[{"batched-vs-loop", "gain"}].push_back(round.loop / round.batched);
    figures[{"batched-vs-loop", "ceiling"}].push_back(round.loop / least);
    figures[{"batched-vs-loop", "of_ceiling"}].push_back(least / round.batched);
    figures[{"vs-offline", "fraction"}].push_back(round.offline / round.batched);
    figures[{"vs-offline", "of_ceiling"}].push_back(least / round.offline);
    batched.push_back(round.batched);
    if (rivals != nullptr) ATOLL_RETURN_IF_ERROR(rivals->Draw());
    fmt::print(stderr, "round {}: least {:.2f} s, offline {:.2f}, loop {:.2f}, batched {:.2f}\n", i, least,
               round.offline, round.loop, round.batched);
    curves.push_back(round.costs);
  }
  PrintCosts(MedianOf(curves));
  if (rivals != nullptr) rivals->AddFigures(batched, &figures);
  Targets targets;
  if (settings.device == "cpu") {
    targets = {{{"batched-vs-loop", "of_ceiling"}, AtLeast(0.9)},
               {{"vs-offline", "fraction"}, AtLeast(0.85)},
               {{"batched-vs-python", "speedup_over_strongest"}, AtLeast(1)}};
  }
  PrintMedians(figures, "ratio", targets);
  return absl::OkStatus();
}

}  // namespace atl::bench
