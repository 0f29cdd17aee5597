// Measures how other requests in a batch change images that are not reproducible.
#include <memory>
#include <string>

#include <fmt/format.h>

#include "common/base/status_macros.h"
#include "router/engine/testing/company.h"
#include "tests/bench/figures.h"
#include "tests/bench/serving_cases.h"
#include "tests/bench/serving_engine.h"

namespace atl::bench {
namespace {

absl::Status Measure(const std::string& name, router::Engine* engine, const router::CompanyLoad& load) {
  const router::Company company = router::MeasureCompany(engine, load);
  if (company.failed > 0) return absl::InternalError(fmt::format("{}: {} requests failed", name, company.failed));
  fmt::print(stderr, "{}: {}\n", name, Describe(company));
  const auto share = [](int64_t part, int64_t whole) { return static_cast<double>(part) / static_cast<double>(whole); };
  PrintFigure(name, "within_a_grey_level", share(company.within_a_level, company.compared), "share of images",
              AtLeast(0.99));
  PrintFigure(name, "flips", static_cast<double>(company.flips), "requests");
  PrintFigure(name, "unforeseen", static_cast<double>(company.unforeseen), "images and requests");
  PrintFigure(name, "close_calls", share(company.close_calls, company.image_steps), "share of image-steps");
  return absl::OkStatus();
}

}  // namespace

absl::Status RunCompany(const Settings& settings, Published* published) {
  if (settings.model_dir.empty()) {
    ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<Serving> serving,
                           Serving::Start(published->store.get(), published->uri, published->digest, kLanes));
    return Measure("company", serving->engine(),
                   {.images = settings.company_images, .classes = published->model.classes, .steps = settings.steps});
  }
  const std::string uri = "file://" + settings.model_dir;
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<storage::BlobStore> store, storage::BlobStore::Open(uri));
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<Serving> serving,
                         Serving::Start(store.get(), store->root(), "", kLanes));
  ATOLL_ASSIGN_OR_RETURN(const router::SamplerInfo info, serving->engine()->Info(""));
  router::CompanyLoad load{.images = settings.company_images,
                           .classes = info.classes,
                           .steps = info.defaults.steps,
                           .guidance = info.defaults.guidance};
  ATOLL_RETURN_IF_ERROR(Measure("company-top-1", serving->engine(), load));
  load.routing = info.defaults.routing;
  return Measure("company-default", serving->engine(), load);
}

}  // namespace atl::bench
