#include "tests/bench/serving_engine.h"

#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "router/engine/load_model.h"

namespace atl::bench {

Serving::Serving(int lanes, const router::EngineOptions& options)
    : pool_(lanes), engine_(options, Clock::Real(), nullptr) {}

absl::StatusOr<std::unique_ptr<Serving>> Serving::Start(storage::BlobStore* store, const std::string& folder_uri,
                                                        const std::string& digest, int lanes,
                                                        const router::EngineOptions& options) {
  std::unique_ptr<Serving> serving(new Serving(lanes, options));
  ATOLL_ASSIGN_OR_RETURN(auto backend, router::LoadPublishedModel(store, folder_uri, digest, &serving->pool_));
  serving->engine_.Serve(std::move(backend));
  serving->engine_.Start();
  return serving;
}

}  // namespace atl::bench
