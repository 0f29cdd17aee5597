#include "router/engine/testing/company.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "fmt/format.h"

namespace atl::router {
namespace {

// Thread-safe once it is over.
class Drawn : public SampleEvents {
 public:
  explicit Drawn(size_t images) : images_(images) {}

  void OnQueued(int64_t, const std::string&) override {}
  void OnProgress(int32_t, int32_t) override {}
  void OnImage(SampledImage image) override {
    std::vector<float>& pixels = images_[static_cast<size_t>(image.index)];
    pixels.resize(image.data.size() / sizeof(float));
    std::memcpy(pixels.data(), image.data.data(), image.data.size());
  }
  void OnDone(const SampleReport& report) override {
    routing_ = report.routing;
    ok_ = true;
    over_.Notify();
  }
  void OnError(const absl::Status&) override { over_.Notify(); }

  void Await() const { over_.WaitForNotification(); }
  bool ok() const { return ok_; }
  const std::vector<std::vector<float>>& images() const { return images_; }
  const RoutingReport& routing() const { return routing_; }

 private:
  std::vector<std::vector<float>> images_;
  RoutingReport routing_;
  bool ok_ = false;
  absl::Notification over_;
};

struct Running {
  uint64_t first = 0;
  std::shared_ptr<Drawn> drawn;
  std::unique_ptr<SampleTicket> ticket;
};

Running Start(Engine* engine, const CompanyLoad& load, uint64_t first, uint64_t images) {
  SampleRequest request{.seeds = {first}, .routing = load.routing, .steps = load.steps, .guidance = load.guidance};
  request.format = ImageFormat::kRaw;
  for (uint64_t i = first; i < first + images; ++i) {
    request.classes.push_back(static_cast<int32_t>(i % static_cast<uint64_t>(load.classes + 1)) - 1);
  }
  Running running{.first = first, .drawn = std::make_shared<Drawn>(images)};
  auto ticket = engine->Submit(request, absl::InfiniteDuration(), running.drawn);
  if (ticket.ok()) {
    running.ticket = *std::move(ticket);
  } else {
    running.drawn->OnError(ticket.status());
  }
  return running;
}

double Levels(const std::vector<float>& a, const std::vector<float>& b) {
  double farthest = 0;
  for (size_t p = 0; p < a.size(); ++p) farthest = std::max(farthest, 127.5 * std::abs(double{a[p]} - b[p]));
  return farthest;
}

struct Alone {
  std::vector<float> pixels;
  RoutingReport routing;
};

void Compare(const Running& running, const std::vector<Alone>& alone, Company* company) {
  running.drawn->Await();
  ++company->requests;
  if (!running.drawn->ok()) {
    ++company->failed;
    return;
  }
  std::vector<int64_t> chosen(running.drawn->routing().chosen.size());
  int64_t close_calls = 0;
  for (size_t i = 0; i < running.drawn->images().size(); ++i) {
    const Alone& own = alone[running.first + i];
    for (size_t k = 0; k < chosen.size(); ++k) chosen[k] += own.routing.chosen[k];
    close_calls += own.routing.close_calls;
    const double levels = Levels(running.drawn->images()[i], own.pixels);
    ++company->compared;
    if (levels <= 1) {
      ++company->within_a_level;
      company->farthest_within = std::max(company->farthest_within, levels);
    } else if (own.routing.close_calls == 0) {
      ++company->unforeseen;
    }
  }
  if (chosen == running.drawn->routing().chosen) return;
  ++company->flips;
  if (close_calls == 0) ++company->unforeseen;
}

}  // namespace

Company MeasureCompany(Engine* engine, const CompanyLoad& load) {
  Company company;
  std::vector<Alone> alone;
  for (uint64_t i = 0; i < load.images; ++i) {
    const Running running = Start(engine, load, i, 1);
    running.drawn->Await();
    if (!running.drawn->ok()) {
      ++company.failed;
      return company;
    }
    alone.push_back({running.drawn->images()[0], running.drawn->routing()});
    company.image_steps += alone.back().routing.image_steps;
    company.close_calls += alone.back().routing.close_calls;
    company.with_close_calls += alone.back().routing.close_calls > 0 ? 1 : 0;
  }
  for (const uint64_t size : {2, 5, 16}) {
    for (uint64_t first = 0; first < load.images; first += size) {
      Compare(Start(engine, load, first, std::min(size, load.images - first)), alone, &company);
    }
  }
  // Eight are under way, and one more comes as one ends: they are at all steps, and batches are of all sizes.
  std::deque<Running> running;
  for (uint64_t first = 0; first < load.images; ++first) {
    running.push_back(Start(engine, load, first, 1));
    if (running.size() < 8) continue;
    Compare(running.front(), alone, &company);
    running.pop_front();
  }
  for (; !running.empty(); running.pop_front()) Compare(running.front(), alone, &company);
  return company;
}

std::string Describe(const Company& company) {
  return fmt::format(
      "{} of {} images within a grey level of themselves alone, the farthest of these {:.2g} levels away; {} of {} "
      "requests drawn by other experts than alone; close calls in {} of {} image-steps alone, of {} images; {} "
      "unforeseen",
      company.within_a_level, company.compared, company.farthest_within, company.flips, company.requests,
      company.close_calls, company.image_steps, company.with_close_calls, company.unforeseen);
}

}  // namespace atl::router
