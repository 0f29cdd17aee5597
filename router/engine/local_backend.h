// A model version whose router network and experts run in this process.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/weights.h"
#include "router/engine/backend.h"
#include "router/engine/compute_pool.h"

namespace atl::router {

// What a version is made of.
struct Networks {
  std::vector<model::LoadedModel> experts;
  model::LoadedModel router;
};

// `pool` must outlive the backend. DATA_LOSS with reason MODEL_MISMATCH when a network's shape, classes or outputs are
// not those of `info`; DATA_LOSS with reason NON_FINITE_OUTPUT when a network's answer to a probe is not finite.
absl::StatusOr<std::unique_ptr<ModelBackend>> MakeLocalBackend(SamplerInfo info, Networks networks, ComputePool* pool);

}  // namespace atl::router
