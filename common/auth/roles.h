// Who may call what: one table of every RPC and of every HTTP route (roles.cc). Pure.
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
  // Those that both sets have.
  constexpr RoleSet operator&(RoleSet other) const {
    RoleSet both;
    both.bits_ = bits_ & other.bits_;
    return both;
  }
  constexpr bool operator==(const RoleSet&) const = default;

 private:
  uint32_t bits_ = 0;
};

// The role of a name: "admin", "submitter", …
std::optional<Role> ParseRole(std::string_view name);
// "island, reader"; "no role" for none.
std::string RoleNames(RoleSet roles);

struct Access {
  // "/atoll.job.v1.JobService/SubmitJob"; an HTTP route as "/metrics"; one that ends with / stands for all below it.
  std::string_view method;
  // Who may call it beside an admin, who may call everything.
  RoleSet roles;
  // Anybody may call it, also without a credential.
  bool open = false;
  // It changes something that outlives the call, or somebody else's work: the audit log names it.
  bool mutating = false;
};

// Every row, sorted by method.
std::span<const Access> AccessTable();

// The method's row; else that of the longest route above it; null for what is not in the table.
const Access* FindAccess(std::string_view method);

// Whether a caller with `roles` may call `method`: PERMISSION_DENIED with reason ROLE_REQUIRED; UNIMPLEMENTED with
// reason METHOD_UNKNOWN for what has no row, as a server says it that lacks the method. `subject` is for the message.
absl::Status CheckAccess(std::string_view method, std::string_view subject, RoleSet roles);

}  // namespace atl::rpc
