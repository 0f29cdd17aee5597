#include "tests/bench/serving_engine.h"

#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "router/engine/version_files.h"

namespace atl::bench {

Serving::Serving(const router::EngineOptions& options) : engine_(options, Clock::Real(), nullptr) {}

absl::StatusOr<std::unique_ptr<Serving>> Serving::Start(storage::BlobStore* store, const std::string& folder_uri,
                                                        const std::string& digest, int lanes,
                                                        const router::EngineOptions& options) {
  std::unique_ptr<Serving> serving(new Serving(options));
  ATOLL_ASSIGN_OR_RETURN(serving->experts_, router::LocalExperts::Create({.threads = lanes}, Clock::Real()));
  for (const auto& lane : serving->experts_->lanes()) serving->engine_.AddLane(lane);
  ATOLL_ASSIGN_OR_RETURN(auto files, router::OpenVersion(store, folder_uri, digest));
  ATOLL_ASSIGN_OR_RETURN(auto version, serving->experts_->Host(std::move(files)));
  serving->engine_.Serve(std::move(version));
  serving->engine_.Start();
  return serving;
}

}  // namespace atl::bench
