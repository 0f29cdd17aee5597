// An engine in this process that serves one published model.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/storage/blob_store.h"
#include "router/engine/engine.h"
#include "router/engine/local_experts.h"

namespace atl::bench {

class Serving {
 public:
  // `lanes` of one thread each. `store` must outlive it.
  static absl::StatusOr<std::unique_ptr<Serving>> Start(storage::BlobStore* store, const std::string& folder_uri,
                                                        const std::string& digest, int lanes,
                                                        const router::EngineOptions& options = {});

  router::Engine* engine() { return &engine_; }

 private:
  explicit Serving(const router::EngineOptions& options);

  std::unique_ptr<router::LocalExperts> experts_;
  router::Engine engine_;
};

}  // namespace atl::bench
