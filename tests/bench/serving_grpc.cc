// A router as a process, through gRPC: ten times the rate that it sustains, and callers that leave.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "atoll/sample/v1/sample_service.grpc.pb.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel.h"
#include "tests/bench/arrivals.h"
#include "tests/bench/bench_process.h"
#include "tests/bench/figures.h"
#include "tests/bench/open_loop.h"
#include "tests/bench/serving_cases.h"

namespace atl::bench {
namespace {

namespace pb = atlpb::sample::v1;

constexpr int kImagesPerRequest = 4;
constexpr int kSteps = 40;
// A house that fills up within seconds.
constexpr int kImagesInFlight = 128;
constexpr int kQueuedRequests = 64;

class RouterProcess {
 public:
  static absl::StatusOr<std::unique_ptr<RouterProcess>> Start(const Settings& settings, const Published& published) {
    auto router = std::make_unique<RouterProcess>();
    const std::string folder = published.uri.substr(std::string("file://").size());
    const std::string port_file = folder + ".port";
    ATOLL_ASSIGN_OR_RETURN(
        router->process_,
        Child::Start({settings.router, "--model-dir", folder, "--threads", std::to_string(kLanes), "--max-images",
                      std::to_string(kImagesInFlight), "--max-images-in-flight", std::to_string(kImagesInFlight),
                      "--max-queued-requests", std::to_string(kQueuedRequests), "--log-level", "warn", "--listen",
                      "127.0.0.1:0", "--port-file", port_file}));
    const absl::Duration give_up = Clock::Real()->Monotonic() + absl::Seconds(60);
    std::string address;
    while (address.empty()) {
      if (Clock::Real()->Monotonic() > give_up) return absl::DeadlineExceededError("the router did not start");
      WaitUntil(Clock::Real()->Monotonic() + absl::Milliseconds(10));
      std::ifstream(port_file) >> address;
    }
    router->stub_ = pb::SampleService::NewStub(rpc::MakeChannel(address));
    return router;
  }

  pb::SampleService::Stub* stub() { return stub_.get(); }
  double ResidentBytes() const {
    int64_t pages = 0;
    int64_t resident = 0;
    std::ifstream(fmt::format("/proc/{}/statm", process_->pid())) >> pages >> resident;
    return static_cast<double>(resident) * 4096;
  }

 private:
  std::unique_ptr<Child> process_;
  std::unique_ptr<pb::SampleService::Stub> stub_;
};

pb::SampleRequest Request(const ServingModel& model, int images, int steps, uint64_t seed) {
  pb::SampleRequest request;
  for (int i = 0; i < images; ++i) {
    request.add_classes(static_cast<int32_t>((seed + static_cast<uint64_t>(i)) % static_cast<uint64_t>(model.classes)));
  }
  request.add_seeds(seed);
  request.set_steps(steps);
  request.set_guidance(1.0);
  request.set_mode(pb::SampleRequest::MODE_TOP_1);
  request.set_format(pb::SampleRequest::FORMAT_RAW);
  return request;
}

class Load {
 public:
  Load(RouterProcess* router, const ServingModel& model) : router_(router), model_(model) {}

  LoadFigures Arrive(const std::vector<absl::Duration>& arrivals) {
    return Summarise(DriveOpenLoop(
        router_->stub(), arrivals,
        [&](size_t) { return Request(model_, kImagesPerRequest, kSteps, next_seed_ += kImagesPerRequest); }, {},
        [&](int64_t, int64_t) { most_bytes_ = std::max(most_bytes_, router_->ResidentBytes()); }));
  }
  absl::StatusOr<LoadFigures> ArriveAtRandom(double per_second, double seconds) {
    ATOLL_ASSIGN_OR_RETURN(const auto arrivals, PoissonArrivals(per_second, absl::Seconds(seconds), ++arrival_seed_));
    return Arrive(arrivals);
  }
  // Since the last time.
  double TakeMostBytes() { return std::exchange(most_bytes_, 0); }

 private:
  RouterProcess* const router_;
  const ServingModel model_;
  uint64_t next_seed_ = 0;
  uint64_t arrival_seed_ = 0;
  double most_bytes_ = 0;
};

absl::Status Overload(const Settings& settings) {
  ATOLL_ASSIGN_OR_RETURN(
      const std::unique_ptr<Published> small,
      PublishModel({.name = "small", .experts = 4, .side = 8, .width = 64, .depth = 2, .router_depth = 1}));
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<RouterProcess> router, RouterProcess::Start(settings, *small));
  Load load(router.get(), small->model);
  // Measures the sustainable rate: loads that fill the router, again and again.
  const std::vector<absl::Duration> at_once(kImagesInFlight / kImagesPerRequest, absl::ZeroDuration());
  double rate = 0;
  for (int i = 0; i < 5; ++i) rate = std::max(rate, load.Arrive(at_once).images_per_second / kImagesPerRequest);
  ATOLL_ASSIGN_OR_RETURN(const LoadFigures before, load.ArriveAtRandom(kSaturation * rate, 10));
  const double bytes = std::max(load.TakeMostBytes(), router->ResidentBytes());
  ATOLL_ASSIGN_OR_RETURN(const LoadFigures over, load.ArriveAtRandom(10 * rate, settings.overload_seconds));
  const double most_bytes = std::max(load.TakeMostBytes(), router->ResidentBytes());
  const double p99_before = absl::ToDoubleSeconds(before.latency.p99);
  const double p99_over = absl::ToDoubleSeconds(over.latency.p99);
  fmt::print(
      stderr,
      "overload-grpc: {:.0f} requests per second are sustainable; at {} times that {} done, {} refused, p99 {:.3f} s; "
      "at ten times it {} sent (the latest {:.3f} s late), {} done, {} refused ({} with a delay of {:.2f} to "
      "{:.2f} s), {} failed, p99 {:.3f} s; resident {:.0f} MB before, {:.0f} at most\n",
      rate, kSaturation, before.done, before.refused, p99_before, over.requests,
      absl::ToDoubleSeconds(over.latest_sent), over.done, over.refused, over.refused_with_delay,
      absl::ToDoubleSeconds(over.least_retry_delay), absl::ToDoubleSeconds(over.most_retry_delay), over.failed,
      p99_over, bytes / 1e6, most_bytes / 1e6);
  for (const auto& [what, count] : over.failures) fmt::print(stderr, "failed {} times: {}\n", count, what);
  PrintFigure("overload-grpc", "memory_growth", most_bytes / bytes, "ratio", AtMost(kMemoryGrowth));
  PrintFigure("overload-grpc", "p99_over_p99_at_capacity", p99_over / p99_before, "ratio");
  PrintFigure("overload-grpc", "throughput_kept", over.images_per_second / kImagesPerRequest / rate, "ratio");
  PrintFigure("overload-grpc", "refused_with_delay",
              over.refused == 0 ? 0 : static_cast<double>(over.refused_with_delay) / static_cast<double>(over.refused),
              "ratio", AtLeast(1));
  PrintFigure("overload-grpc", "failed", static_cast<double>(over.failed), "requests", AtMost(0));
  return over.failed == 0 ? absl::OkStatus() : absl::InternalError("requests failed otherwise than by a full queue");
}

// Returns how many images are in flight or queued, as reported to a request that arrives now.
absl::StatusOr<int64_t> ImagesAhead(RouterProcess* router, const ServingModel& model, absl::Duration* told) {
  grpc::ClientContext context;
  const auto reader = router->stub()->Sample(&context, Request(model, 1, 1, 1));
  pb::SampleResponse event;
  const bool queued = reader->Read(&event) && event.has_queued();
  *told = Clock::Real()->Monotonic();
  const int64_t ahead = queued ? event.queued().position() : 0;
  while (reader->Read(&event)) {
  }
  if (!reader->Finish().ok() || !queued) return absl::InternalError("the router answers no more");
  return ahead;
}

absl::Status Cancel(const Settings& settings, const Published& published) {
  constexpr int kImages = 32;
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<RouterProcess> router, RouterProcess::Start(settings, published));
  const auto draw = [&](grpc::ClientContext* context, uint64_t seed) {
    return router->stub()->Sample(context, Request(published.model, kImages, settings.steps, seed));
  };
  absl::Duration step;
  {
    grpc::ClientContext context;
    const absl::Duration start = Clock::Real()->Monotonic();
    const auto reader = draw(&context, 0);
    pb::SampleResponse event;
    while (reader->Read(&event)) {
    }
    if (!reader->Finish().ok()) return absl::InternalError("the router does not draw");
    step = (Clock::Real()->Monotonic() - start) / settings.steps;
  }
  const double bytes = router->ResidentBytes();
  Figures figures;
  for (int i = 0; i < settings.rounds; ++i) {
    grpc::ClientContext context;
    const absl::Duration start = Clock::Real()->Monotonic();
    const auto reader = draw(&context, static_cast<uint64_t>(kImages * (i + 1)));
    // In the middle of a step.
    WaitUntil(start + step * (1.5 + 0.1 * i));
    const absl::Duration cancelled = Clock::Real()->Monotonic();
    context.TryCancel();
    absl::Duration told;
    for (int64_t ahead = 1; ahead > 0;) {
      ATOLL_ASSIGN_OR_RETURN(ahead, ImagesAhead(router.get(), published.model, &told));
    }
    figures[{"cancel-grpc", "steps_until_gone"}].push_back(absl::FDivDuration(told - cancelled, step));
    pb::SampleResponse event;
    while (reader->Read(&event)) {
    }
    if (reader->Finish().ok()) return absl::InternalError("a cancelled request went on to its end");
  }
  PrintMedians(figures, "steps", {{{"cancel-grpc", "steps_until_gone"}, AtMost(1)}});
  PrintFigure("cancel-grpc", "memory_growth", router->ResidentBytes() / bytes, "ratio", AtMost(kMemoryGrowth));
  return absl::OkStatus();
}

}  // namespace

absl::Status RunGrpc(const Settings& settings, Published* published) {
  ATOLL_RETURN_IF_ERROR(Cancel(settings, *published));
  return Overload(settings);
}

}  // namespace atl::bench
