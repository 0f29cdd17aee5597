// Names one network of a published model version; the name is the same on every machine. Pure.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace atl {

// Takes the place of an expert's number: the network that routes.
inline constexpr int32_t kRouterNetwork = -1;

struct NetworkId {
  std::string model;
  std::string version;
  std::string digest;  // of the version's model_index.json; empty where it was never checked
  int32_t expert = kRouterNetwork;
  auto operator<=>(const NetworkId&) const = default;
};

// For messages: "expert 3 of model 'digits' version 'v2'".
std::string Describe(const NetworkId& id);

}  // namespace atl
