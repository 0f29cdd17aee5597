#include "tests/bench/serving_engine.h"

#include <algorithm>
#include <utility>

#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "inference/version_files.h"
#include "router/engine/sampler_info.h"

namespace atl::bench {
namespace {

// A lane under another name: lanes of two LocalExperts have the same ones.
class RenamedLane : public router::ExpertLane {
 public:
  RenamedLane(std::string name, std::shared_ptr<router::ExpertLane> lane)
      : name_(std::move(name)), lane_(std::move(lane)) {}

  router::LaneInfo info() const override {
    router::LaneInfo info = lane_->info();
    info.name = name_;
    return info;
  }
  std::shared_ptr<const std::vector<router::HostedNetwork>> hosted() const override { return lane_->hosted(); }
  void Watch(std::function<void()> changed) override { lane_->Watch(std::move(changed)); }
  void Start(std::shared_ptr<const router::Evaluation> evaluation, Done done) override {
    lane_->Start(std::move(evaluation), std::move(done));
  }
  void Cancel(int64_t evaluation) override { lane_->Cancel(evaluation); }

 private:
  const std::string name_;
  const std::shared_ptr<router::ExpertLane> lane_;
};

}  // namespace

Serving::Serving(const router::EngineOptions& options) : engine_(options, Clock::Real(), nullptr) {}

absl::StatusOr<std::unique_ptr<Serving>> Serving::Start(storage::BlobStore* store, const std::string& folder_uri,
                                                        const std::string& digest, int lanes,
                                                        const router::EngineOptions& options,
                                                        const std::string& device) {
  return StartOn(store, folder_uri, digest, {.device = device, .threads = lanes}, options);
}

absl::StatusOr<std::unique_ptr<Serving>> Serving::StartOn(storage::BlobStore* store, const std::string& folder_uri,
                                                          const std::string& digest,
                                                          const router::LocalExpertsOptions& local_options,
                                                          const router::EngineOptions& options) {
  std::unique_ptr<Serving> serving(new Serving(options));
  ATOLL_ASSIGN_OR_RETURN(auto local, router::LocalExperts::Create(local_options, Clock::Real()));
  serving->local_.push_back(std::move(local));
  ATOLL_ASSIGN_OR_RETURN(auto files, router::OpenVersion(store, folder_uri, digest));
  ATOLL_ASSIGN_OR_RETURN(const auto version, serving->local_[0]->Host(std::move(files)));
  for (const auto& lane : serving->local_[0]->lanes()) serving->engine_.AddLane(lane);
  serving->engine_.Serve(router::ServedOf(version));
  serving->engine_.Start();
  return serving;
}

absl::StatusOr<std::unique_ptr<Serving>> Serving::StartApart(storage::BlobStore* store, const std::string& folder_uri,
                                                             const std::string& digest,
                                                             const std::vector<std::vector<int32_t>>& experts) {
  std::unique_ptr<Serving> serving(new Serving({}));
  ATOLL_ASSIGN_OR_RETURN(const auto files, router::OpenVersion(store, folder_uri, digest));
  for (size_t i = 0; i < experts.size(); ++i) {
    ATOLL_ASSIGN_OR_RETURN(auto local, router::LocalExperts::Create({.threads = 1}, Clock::Real()));
    for (const int32_t expert : experts[i]) ATOLL_RETURN_IF_ERROR(local->Load(files, expert));
    ATOLL_RETURN_IF_ERROR(local->Load(files, kRouterNetwork));
    serving->engine_.AddLane(std::make_shared<RenamedLane>(std::to_string(i), local->lanes()[0]));
    serving->local_.push_back(std::move(local));
  }
  serving->engine_.Serve(router::ServedOf(files));
  serving->engine_.Start();
  return serving;
}

absl::StatusOr<std::unique_ptr<Serving>> Serving::StartOn(std::shared_ptr<const router::ServedVersion> version,
                                                          std::vector<std::shared_ptr<router::ExpertLane>> lanes) {
  std::unique_ptr<Serving> serving(new Serving({}));
  for (auto& lane : lanes) serving->engine_.AddLane(std::move(lane));
  serving->engine_.Serve(std::move(version));
  serving->engine_.Start();
  return serving;
}

}  // namespace atl::bench
