// Two devices that have room for more than every expert once: copies of the hot ones against none.
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "common/base/status_macros.h"
#include "inference/version_files.h"
#include "tests/bench/serving_cases.h"
#include "tests/bench/serving_engine.h"

namespace atl::bench {
namespace {

constexpr int kRequests = 16;
constexpr int kImagesPerRequest = 4;

// Every other request asks for expert 0, the rest for the others in turn: what the router network would choose is left
// out, so that the skew is known.
std::vector<TimedRequest> SkewedLoad(int experts, Requests* requests) {
  std::vector<TimedRequest> load = requests->MakeSome(kRequests, kImagesPerRequest);
  int32_t other = 0;
  for (size_t i = 0; i < load.size(); ++i) {
    const bool hot = i % 2 == 0;
    if (!hot) other = other % (experts - 1) + 1;
    load[i].request.routing = {.mode = router::RoutingMode::kOracle, .oracle_expert = hot ? 0 : other};
  }
  return load;
}

absl::StatusOr<std::unique_ptr<Serving>> OnTwo(Published* published, int64_t budget, bool replicate) {
  return Serving::StartOn(
      published->store.get(), published->uri, published->digest,
      {.device = "cpu:0,cpu:1", .threads = kLanes, .memory_budget_bytes = budget, .placer = {.replicate = replicate}});
}

}  // namespace

absl::Status RunDevices(const Settings& settings, Published* published) {
  const int experts = published->model.experts;
  ATOLL_ASSIGN_OR_RETURN(const auto files,
                         router::OpenVersion(published->store.get(), published->uri, published->digest));
  ATOLL_ASSIGN_OR_RETURN(const int64_t expert_bytes, router::WeightBytes(*files, 0));
  ATOLL_ASSIGN_OR_RETURN(const int64_t router_bytes, router::WeightBytes(*files, kRouterNetwork));
  const int64_t budget = (experts * 5 + 7) / 8 * expert_bytes + router_bytes;  // five of eight
  std::map<std::string, std::unique_ptr<Serving>> rivals;
  ATOLL_ASSIGN_OR_RETURN(rivals["once"], OnTwo(published, budget, /*replicate=*/false));
  ATOLL_ASSIGN_OR_RETURN(rivals["copies"], OnTwo(published, budget, /*replicate=*/true));
  ATOLL_ASSIGN_OR_RETURN(rivals["one memory"],
                         Serving::Start(published->store.get(), published->uri, published->digest, kLanes));
  Requests requests(published->model.classes, settings.steps, /*seed=*/11);
  for (const auto& [name, serving] : rivals) {  // warms up, and shows the placer what is hot
    ATOLL_RETURN_IF_ERROR(Makespan(Play(serving->engine(), SkewedLoad(experts, &requests))).status());
  }
  Figures figures;
  for (int i = 0; i < settings.rounds; ++i) {
    const std::vector<TimedRequest> load = SkewedLoad(experts, &requests);
    std::map<std::string, double> seconds;
    for (const auto& [name, serving] : rivals) {
      ATOLL_ASSIGN_OR_RETURN(seconds[name], Makespan(Play(serving->engine(), load)));
    }
    figures[{"hot-expert", "gain"}].push_back(seconds["once"] / seconds["copies"]);
    figures[{"hot-expert", "of_one_memory"}].push_back(seconds["one memory"] / seconds["copies"]);
    fmt::print(stderr, "round {}: once {:.2f} s, copies {:.2f}, one memory for both lanes {:.2f}\n", i, seconds["once"],
               seconds["copies"], seconds["one memory"]);
  }
  for (const auto& [name, serving] : rivals) {
    const router::NetworkMemoryStats stats = serving->memory();
    fmt::print(stderr, "{}: {} networks, {} in memory, {} of them on both, {} loads, {} of them ahead\n", name,
               stats.networks, stats.resident, stats.replicated, stats.loads, stats.loads_ahead);
  }
  PrintMedians(figures, "ratio");
  return absl::OkStatus();
}

}  // namespace atl::bench
