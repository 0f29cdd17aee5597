// Measures overload and cancelling: an engine with more requests than it can serve, and with requests that are
// cancelled.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "router/policy/admission.h"
#include "tests/bench/figures.h"
#include "tests/bench/serving_cases.h"
#include "tests/bench/serving_engine.h"

namespace atl::bench {
namespace {

constexpr int kImagesPerRequest = 4;
constexpr int kSteps = 4;
// A house that fills up within seconds.
constexpr router::AdmissionOptions kAdmission{
    .max_images_in_flight = 128, .max_queued_images = 256, .max_queued_requests = 64};

double ResidentBytes() {
  long long pages = 0;
  long long resident = 0;
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  const int read = std::fscanf(file, "%lld %lld", &pages, &resident);
  std::fclose(file);
  return read == 2 ? static_cast<double>(resident) * 4096 : 0;
}

double Percentile99(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[(values.size() * 99 + 99) / 100 - 1];
}

constexpr double kSampleEvery = 0.02;  // seconds, of resident memory

struct LoadOutcome {
  int64_t sent = 0;
  int64_t refused = 0;
  int64_t refused_with_delay = 0;
  int64_t failed = 0;
  int64_t done = 0;
  double p99 = 0;         // seconds, of accepted requests, from the schedule
  double most_bytes = 0;  // resident, sampled while requests are under way
  double requests_per_second = 0;
};

// Poisson arrivals; results are dropped as they end, so that memory is the engine's.
LoadOutcome Arrive(router::Engine* engine, Requests* requests, double per_second, double seconds, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::exponential_distribution<double> gap(per_second);
  const absl::Duration start = Clock::Real()->Monotonic();
  LoadOutcome outcome;
  std::vector<double> latencies;
  std::vector<std::unique_ptr<Flying>> flying;
  // Finished requests that are kept would block admission, so they are dropped at once.
  const auto collect = [&] {
    std::erase_if(flying, [&](const auto& request) {
      if (!request->ended()) return false;
      const ServedRequest& served = request->Await();
      if (served.status.ok()) {
        latencies.push_back(absl::ToDoubleSeconds(served.latency()));
      } else if (absl::IsResourceExhausted(served.status)) {
        ++outcome.refused;
        outcome.refused_with_delay += router::RetryDelayOf(served.status) > absl::ZeroDuration() ? 1 : 0;
      } else {
        ++outcome.failed;
      }
      return true;
    });
  };
  double sampled_at = 0;
  for (double at = gap(random); at < seconds; at += gap(random)) {
    WaitUntil(start + absl::Seconds(at));
    if (at - sampled_at >= kSampleEvery) {
      outcome.most_bytes = std::max(outcome.most_bytes, ResidentBytes());
      sampled_at = at;
    }
    flying.push_back(std::make_unique<Flying>(engine, requests->Make(kImagesPerRequest, absl::Seconds(at)), start));
    ++outcome.sent;
    collect();
  }
  for (; !flying.empty(); collect()) WaitUntil(Clock::Real()->Monotonic() + absl::Milliseconds(1));
  outcome.done = static_cast<int64_t>(latencies.size());
  outcome.requests_per_second =
      static_cast<double>(outcome.done) / absl::ToDoubleSeconds(Clock::Real()->Monotonic() - start);
  outcome.p99 = Percentile99(std::move(latencies));
  return outcome;
}

}  // namespace

absl::Status RunOverload(const Settings& settings, Published*) {
  ATOLL_ASSIGN_OR_RETURN(
      const std::unique_ptr<Published> small,
      PublishModel({.name = "small", .experts = 4, .side = 8, .width = 64, .depth = 2, .router_depth = 1}));
  router::EngineOptions options;
  options.admission = kAdmission;
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<Serving> serving,
                         Serving::Start(small->store.get(), small->uri, small->digest, kLanes, options));
  Requests requests(small->model.classes, kSteps, /*seed=*/3);
  // Measures the sustainable rate: loads that fill the engine, again and again.
  const int at_once = static_cast<int>(kAdmission.max_images_in_flight) / kImagesPerRequest;
  double rate = 0;
  for (int i = 0; i < 5; ++i) {
    ATOLL_ASSIGN_OR_RETURN(const double seconds,
                           Makespan(Play(serving->engine(), requests.MakeSome(at_once, kImagesPerRequest))));
    rate = std::max(rate, at_once / seconds);
  }
  const LoadOutcome before = Arrive(serving->engine(), &requests, kSaturation * rate, 5, /*seed=*/4);
  const LoadOutcome over = Arrive(serving->engine(), &requests, 10 * rate, settings.overload_seconds, /*seed=*/5);
  fmt::print(
      stderr,
      "overload: {:.0f} requests per second are sustainable; at {} times that {} done, {} refused, p99 {:.3f} s; at "
      "ten "
      "times it {} sent, {} done, {} refused ({} with a delay), {} failed, p99 {:.3f} s, {:.0f} done per second\n",
      rate, kSaturation, before.done, before.refused, before.p99, over.sent, over.done, over.refused,
      over.refused_with_delay, over.failed, over.p99, over.requests_per_second);
  PrintFigure("overload", "memory_growth", over.most_bytes / before.most_bytes, "ratio", AtMost(kMemoryGrowth));
  PrintFigure("overload", "p99_over_p99_at_capacity", over.p99 / before.p99, "ratio");
  PrintFigure("overload", "throughput_kept", over.requests_per_second / rate, "ratio");
  PrintFigure("overload", "refused_with_delay",
              over.refused == 0 ? 0 : static_cast<double>(over.refused_with_delay) / static_cast<double>(over.refused),
              "ratio", AtLeast(1));
  PrintFigure("overload", "failed", static_cast<double>(over.failed), "requests", AtMost(0));
  return over.failed == 0 ? absl::OkStatus() : absl::InternalError("accepted requests failed");
}

// How much is still computed for a request that was cancelled, in steps of it: the processor time that the engine uses
// from then on. Lanes finish the batches that are under way.
absl::Status RunCancel(const Settings& settings, Published* published) {
  constexpr int kImages = 32;
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<Serving> serving,
                         Serving::Start(published->store.get(), published->uri, published->digest, kLanes));
  Requests requests(published->model.classes, settings.steps, /*seed=*/6);
  const double cpu_before = CpuSeconds();
  ATOLL_ASSIGN_OR_RETURN(const double whole, Makespan(Play(serving->engine(), std::vector{requests.Make(kImages)})));
  const double cpu_step = (CpuSeconds() - cpu_before) / settings.steps;
  const absl::Duration step = absl::Seconds(whole / settings.steps);
  Figures figures;
  for (int i = 0; i < settings.rounds; ++i) {
    const absl::Duration start = Clock::Real()->Monotonic();
    auto flying = std::make_unique<Flying>(serving->engine(), requests.Make(kImages), start);
    // In the middle of a step.
    WaitUntil(start + step * (1.5 + 0.1 * i));
    const double cpu = CpuSeconds();
    flying.reset();
    WaitUntil(Clock::Real()->Monotonic() + 3 * step);
    figures[{"cancel", "steps_computed_after"}].push_back((CpuSeconds() - cpu) / cpu_step);
  }
  PrintMedians(figures, "steps", {{{"cancel", "steps_computed_after"}, AtMost(1)}});
  return absl::OkStatus();
}

}  // namespace atl::bench
