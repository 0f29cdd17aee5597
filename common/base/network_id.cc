#include "common/base/network_id.h"

#include "fmt/format.h"

namespace atl {

std::string Describe(const NetworkId& id) {
  const std::string network = id.expert == kRouterNetwork ? "the router network" : fmt::format("expert {}", id.expert);
  return fmt::format("{} of model '{}' version '{}'", network, id.model, id.version);
}

}  // namespace atl
