// A model version that requests can use, independent of the lanes that host its networks.
#pragma once

#include <string>

#include "common/base/network_id.h"
#include "router/policy/request.h"

namespace atl::router {

struct ServedVersion {
  SamplerInfo info;
  std::string digest;  // of its model_index.json

  NetworkId network(int32_t expert) const {
    return {.model = info.model, .version = info.version, .digest = digest, .expert = expert};
  }
};

}  // namespace atl::router
