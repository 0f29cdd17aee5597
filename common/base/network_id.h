// Names one network of a published model version; the name is the same on every machine. Pure.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace atl {

// NetworkId::expert of the router network.
inline constexpr int32_t kRouterNetwork = -1;

struct NetworkId {
  std::string model;
  std::string version;
  std::string digest;  // of the version's model_index.json; empty where it was never checked
  int32_t expert = kRouterNetwork;
  auto operator<=>(const NetworkId&) const = default;
};

// Returns text for messages: "expert 3 of model 'digits' version 'v2'".
std::string Describe(const NetworkId& id);

}  // namespace atl
