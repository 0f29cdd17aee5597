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
  // Starts `lanes` of one thread each that share all networks, or, on "cuda", one per device. `store` must outlive it.
  static absl::StatusOr<std::unique_ptr<Serving>> Start(storage::BlobStore* store, const std::string& folder_uri,
                                                        const std::string& digest, int lanes,
                                                        const router::EngineOptions& options = {},
                                                        const std::string& device = "cpu");
  // Starts on devices that each have their own memory.
  static absl::StatusOr<std::unique_ptr<Serving>> StartOn(storage::BlobStore* store, const std::string& folder_uri,
                                                          const std::string& digest,
                                                          const router::LocalExpertsOptions& local_options,
                                                          const router::EngineOptions& options = {});
  // Starts one lane of one thread per list, which hosts these experts and the router network: like expert servers, but
  // in one process.
  static absl::StatusOr<std::unique_ptr<Serving>> StartApart(storage::BlobStore* store, const std::string& folder_uri,
                                                             const std::string& digest,
                                                             const std::vector<std::vector<int32_t>>& experts);
  // Starts on lanes that the caller provides.
  static absl::StatusOr<std::unique_ptr<Serving>> StartOn(std::shared_ptr<const router::ServedVersion> version,
                                                          std::vector<std::shared_ptr<router::ExpertLane>> lanes);

  router::Engine* engine() { return &engine_; }
  // Returns the lanes of this process; for Start only.
  const std::vector<std::shared_ptr<router::ExpertLane>>& lanes() const { return local_.front()->lanes(); }
  // Returns the memory statistics of the first LocalExperts in this process.
  router::NetworkMemoryStats memory() const { return local_.front()->stats(); }

 private:
  explicit Serving(const router::EngineOptions& options);

  std::vector<std::unique_ptr<router::LocalExperts>> local_;
  router::Engine engine_;
};

}  // namespace atl::bench
