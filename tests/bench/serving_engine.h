// An engine in this process that serves one published model.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/storage/blob_store.h"
#include "inference/local/local_experts.h"
#include "router/engine/engine.h"

namespace atl::bench {

class Serving {
 public:
  // `lanes` of one thread each that share all networks, or, on "cuda", one per device. `store` must outlive it.
  static absl::StatusOr<std::unique_ptr<Serving>> Start(storage::BlobStore* store, const std::string& folder_uri,
                                                        const std::string& digest, int lanes,
                                                        const router::EngineOptions& options = {},
                                                        const std::string& device = "cpu");
  // On devices with a memory each.
  static absl::StatusOr<std::unique_ptr<Serving>> StartOn(storage::BlobStore* store, const std::string& folder_uri,
                                                          const std::string& digest,
                                                          const router::LocalExpertsOptions& local_options,
                                                          const router::EngineOptions& options = {});
  // One lane of one thread per list, which hosts these experts and the router network: as expert servers do, but in
  // process.
  static absl::StatusOr<std::unique_ptr<Serving>> StartApart(storage::BlobStore* store, const std::string& folder_uri,
                                                             const std::string& digest,
                                                             const std::vector<std::vector<int32_t>>& experts);
  // On lanes of elsewhere.
  static absl::StatusOr<std::unique_ptr<Serving>> StartOn(std::shared_ptr<const router::ServedVersion> version,
                                                          std::vector<std::shared_ptr<router::ExpertLane>> lanes);

  router::Engine* engine() { return &engine_; }
  // Of this process, of Start alone.
  const std::vector<std::shared_ptr<router::ExpertLane>>& lanes() const { return local_.front()->lanes(); }
  // Of the first that hosts networks in this process.
  router::NetworkMemoryStats memory() const { return local_.front()->stats(); }

 private:
  explicit Serving(const router::EngineOptions& options);

  std::vector<std::unique_ptr<router::LocalExperts>> local_;
  router::Engine engine_;
};

}  // namespace atl::bench
