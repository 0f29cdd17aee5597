// What a sampler needs to know of a model version, from its index. Pure.
#pragma once

#include "common/storage/model_index.h"
#include "router/policy/request.h"

namespace atl::router {

// `index` has been checked by ParseModelIndex. What its `sampling` leaves open is the router's own.
SamplerInfo InfoOf(const storage::ModelIndex& index);

}  // namespace atl::router
