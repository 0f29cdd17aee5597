// Derives the sampler's view of a model version from its files. Pure.
#pragma once

#include <memory>

#include "common/formats/model_index.h"
#include "inference/version_files.h"
#include "router/engine/served_version.h"
#include "router/policy/request.h"

namespace atl::router {

// `index` has been checked by ParseModelIndex. The router's own defaults fill the fields that its `sampling` leaves
// open.
SamplerInfo InfoOf(const storage::ModelIndex& index);

// Returns the version in `files`, which live as long as it does.
std::shared_ptr<const ServedVersion> ServedOf(const std::shared_ptr<const VersionFiles>& files);

}  // namespace atl::router
