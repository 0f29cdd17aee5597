// Measures how a large request delays small ones.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "tests/bench/serving_cases.h"
#include "tests/bench/serving_engine.h"

namespace atl::bench {
namespace {

constexpr int kBigImages = 200;
constexpr int kSmallRequests = 20;

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

}  // namespace

absl::Status RunFairness(const Settings& settings, Published* published) {
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<Serving> serving,
                         Serving::Start(published->store.get(), published->uri, published->digest, kLanes));
  Requests requests(published->model.classes, settings.steps, /*seed=*/2);
  Play(serving->engine(), std::vector{requests.Make(4)});  // warms up
  Figures figures;
  for (int i = 0; i < std::max(settings.rounds / 2, 1); ++i) {
    ATOLL_RETURN_IF_ERROR(RunOneByOne(serving.get(), &requests, &figures));
    ATOLL_RETURN_IF_ERROR(RunAtOnce(serving.get(), &requests, &figures));
  }
  PrintMedians(figures, "ratio",
               {{{"fair-one-by-one", "latency_ratio"}, AtMost(3)},
                {{"fair-one-by-one", "big_throughput"}, AtLeast(0.5)},
                {{"fair-at-once", "latency_ratio"}, AtMost(1.5)}});
  return absl::OkStatus();
}

}  // namespace atl::bench
