// Roles that may call each RPC and each HTTP route: one table (roles.cc). Pure.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace atl::rpc {

enum class Role : uint8_t { kAdmin, kSubmitter, kSampler, kIsland, kExpert, kRouter, kReader };

class RoleSet {
 public:
  constexpr RoleSet() = default;
  constexpr RoleSet(std::initializer_list<Role> roles) {
    for (const Role role : roles) Add(role);
  }
  static constexpr RoleSet All() {
    return {Role::kAdmin, Role::kSubmitter, Role::kSampler, Role::kIsland, Role::kExpert, Role::kRouter, Role::kReader};
  }

  constexpr void Add(Role role) { bits_ |= 1u << static_cast<unsigned>(role); }
  constexpr bool Has(Role role) const { return (bits_ >> static_cast<unsigned>(role) & 1u) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  // Returns the roles that both sets have.
  constexpr RoleSet operator&(RoleSet other) const {
    RoleSet both;
    both.bits_ = bits_ & other.bits_;
    return both;
  }
  constexpr bool operator==(const RoleSet&) const = default;

 private:
  uint32_t bits_ = 0;
};

// Parses a role's name: "admin", "submitter", …
std::optional<Role> ParseRole(std::string_view name);
// Returns "island, reader"; "no role" for an empty set.
std::string RoleNames(RoleSet roles);

struct Access {
  // "/atoll.job.v1.JobService/SubmitJob"; an HTTP route as "/metrics"; a route that ends with / covers all below it.
  std::string_view method;
  // Roles that may call it. An admin may call every method.
  RoleSet roles;
  // Every caller may call it, even without a credential.
  bool open = false;
  // The call changes something that outlives it, or another caller's work: the audit log records it.
  bool mutating = false;
};

// Every row, sorted by method.
std::span<const Access> AccessTable();

// Returns the method's row, else that of the longest route above it, or null if the table has none.
const Access* FindAccess(std::string_view method);

// OK if a caller with `roles` may call `method`, else PERMISSION_DENIED with reason ROLE_REQUIRED. A method without a
// row is UNIMPLEMENTED with reason METHOD_UNKNOWN, as from a server without that method. `subject` is for the message.
absl::Status CheckAccess(std::string_view method, std::string_view subject, RoleSet roles);

}  // namespace atl::rpc
