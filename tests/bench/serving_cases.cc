#include "tests/bench/serving_cases.h"

#include <algorithm>
#include <optional>

#include "common/base/status_macros.h"
#include "tests/bench/bench_process.h"
#include "tests/bench/figures.h"

namespace atl::bench {

absl::StatusOr<std::unique_ptr<Published>> PublishModel(const ServingModel& model) {
  auto published = std::make_unique<Published>();
  published->model = model;
  published->networks = BuildNetworks(model);
  published->uri = published->store->UriOf("models/" + model.name + "/v1");
  ATOLL_ASSIGN_OR_RETURN(published->digest,
                         Publish(model, published->networks, published->store.get(), published->uri));
  return published;
}

TimedRequest Requests::Make(int images, absl::Duration at) {
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

std::vector<TimedRequest> Requests::MakeSome(int requests, int images) {
  std::vector<TimedRequest> made;
  for (int i = 0; i < requests; ++i) made.push_back(Make(images));
  return made;
}

void Requests::Scatter(double seconds, std::vector<TimedRequest>* requests) {
  std::vector<double> times;
  for (size_t i = 0; i < requests->size(); ++i) {
    times.push_back(i == 0 ? 0 : std::uniform_real_distribution<double>(0, seconds)(random_));
  }
  std::sort(times.begin(), times.end());
  for (size_t i = 0; i < times.size(); ++i) (*requests)[i].at = absl::Seconds(times[i]);
}

TimedRequest Together(const std::vector<TimedRequest>& requests) {
  TimedRequest all = requests.front();
  for (size_t i = 1; i < requests.size(); ++i) {
    const router::SampleRequest& more = requests[i].request;
    all.request.classes.insert(all.request.classes.end(), more.classes.begin(), more.classes.end());
    all.request.seeds.insert(all.request.seeds.end(), more.seeds.begin(), more.seeds.end());
  }
  return all;
}

void PrintMedians(const Figures& figures, const std::string& unit, const Targets& targets) {
  for (const auto& [name, values] : figures) {
    const auto target = targets.find(name);
    PrintFigure(name.first, name.second, Median(values), unit,
                target == targets.end() ? std::nullopt : std::optional(target->second));
    if (values.size() > 2) PrintFigure(name.first, name.second + "_spread", Spread(values), "ratio");
  }
}

}  // namespace atl::bench
