// The model of the serving benches: random weights, published into a folder as by a job.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/weights.h"
#include "common/storage/blob_store.h"

namespace atl::bench {

struct ServingModel {
  std::string name = "bench";
  int experts = 8;
  int classes = 64;
  int channels = 4;
  int side = 16;  // of the latents, patches of 2
  int width = 256;
  int depth = 8;
  int heads = 4;
  // The router network; the defaults of a job.
  int router_width = 64;
  int router_depth = 4;
};

// Returns expert 0 … experts - 1, then the router network. The expert of a row depends on its class and time.
std::vector<model::LoadedModel> BuildNetworks(const ServingModel& model);

// Writes model_index.json and all files that it names below `folder_uri`; returns the SHA-256 of the index. `probe`
// holds the bytes of its probe; empty: none.
absl::StatusOr<std::string> Publish(const ServingModel& model, const std::vector<model::LoadedModel>& networks,
                                    storage::BlobStore* store, const std::string& folder_uri,
                                    const std::string& probe = "");

}  // namespace atl::bench
