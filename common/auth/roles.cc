#include "common/auth/roles.h"

#include <algorithm>
#include <array>

#include "common/base/errors.h"
#include "fmt/format.h"

namespace atl::rpc {
namespace {

using enum Role;

constexpr std::array<std::string_view, 7> kNames = {"admin",  "submitter", "sampler", "island",
                                                    "expert", "router",    "reader"};

constexpr RoleSet kUsers = {kSubmitter, kReader};
constexpr RoleSet kServingUsers = {kSubmitter, kReader, kSampler, kRouter};

// Sorted by method. Heartbeats and reports of progress change nothing durable: `mutating` is false for them.
constexpr auto kTable = std::to_array<Access>({
    {.method = "/atoll.admin.v1.AdminService/DrainIsland", .roles = {}, .mutating = true},
    {"/atoll.admin.v1.AdminService/ListIslands", {kReader}},
    {.method = "/atoll.admin.v1.AdminService/MoveTask", .roles = {}, .mutating = true},
    {.method = "/atoll.admin.v1.AdminService/UndrainIsland", .roles = {}, .mutating = true},

    {"/atoll.expert.v1.ExpertService/Denoise", {kRouter}},
    {"/atoll.expert.v1.ExpertService/ListNetworks", {kRouter, kReader}},

    {.method = "/atoll.island.v1.IslandService/ClaimTask", .roles = {kIsland}, .mutating = true},
    {.method = "/atoll.island.v1.IslandService/CommitCheckpoint", .roles = {kIsland}, .mutating = true},
    {.method = "/atoll.island.v1.IslandService/CompleteTask", .roles = {kIsland}, .mutating = true},
    {.method = "/atoll.island.v1.IslandService/FailTask", .roles = {kIsland}, .mutating = true},
    {"/atoll.island.v1.IslandService/Heartbeat", {kIsland}},
    {.method = "/atoll.island.v1.IslandService/RegisterIsland", .roles = {kIsland}, .mutating = true},
    {.method = "/atoll.island.v1.IslandService/ReleaseTask", .roles = {kIsland}, .mutating = true},
    // Hands out keys: nothing for readers.
    {.method = "/atoll.island.v1.IslandService/RenewStorage", .roles = {kIsland}, .mutating = true},
    {"/atoll.island.v1.IslandService/ReportProgress", {kIsland}},
    {.method = "/atoll.island.v1.IslandService/RollbackTask", .roles = {kIsland}, .mutating = true},
    // The island's secret decides there; the role is also required if the leader has principals.
    {"/atoll.island.v1.RendezvousService/Join", {kIsland}},

    {.method = "/atoll.job.v1.JobService/CancelJob", .roles = {kSubmitter}, .mutating = true},
    {.method = "/atoll.job.v1.JobService/DeleteJob", .roles = {kSubmitter}, .mutating = true},
    {"/atoll.job.v1.JobService/GetJob", kUsers},
    {"/atoll.job.v1.JobService/ListJobs", kUsers},
    {.method = "/atoll.job.v1.JobService/SubmitJob", .roles = {kSubmitter}, .mutating = true},
    {"/atoll.job.v1.JobService/WatchJob", kUsers},

    {"/atoll.model.v1.ModelService/GetModel", kServingUsers},
    {"/atoll.model.v1.ModelService/ListModels", kServingUsers},
    {.method = "/atoll.model.v1.ModelService/SetServingVersion", .roles = {kSubmitter}, .mutating = true},
    {"/atoll.model.v1.ModelService/WatchModel", kServingUsers},

    {"/atoll.sample.v1.SampleService/CancelSample", {kSampler}},
    {"/atoll.sample.v1.SampleService/GetSamplerInfo", {kSampler, kReader}},
    {"/atoll.sample.v1.SampleService/Sample", {kSampler}},

    {"/atoll.serving.v1.ServingService/Heartbeat", {kExpert}},
    {"/atoll.serving.v1.ServingService/ReportRouting", {kRouter}},
    {"/atoll.serving.v1.ServingService/WatchServers", {kRouter, kReader}},

    // Probes have no credential.
    {.method = "/grpc.health.v1.Health/Check", .roles = {}, .open = true},
    {.method = "/grpc.health.v1.Health/Watch", .roles = {}, .open = true},
    {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", {kReader}},

    {.method = "/healthz", .roles = {}, .open = true},
    {"/metrics", {kReader}},
    {"/v1/", {kSampler}},
});

static_assert(std::ranges::is_sorted(kTable, {}, &Access::method));

const Access* Exactly(std::string_view method) {
  const auto row = std::ranges::lower_bound(kTable, method, {}, &Access::method);
  return row != kTable.end() && row->method == method ? &*row : nullptr;
}

}  // namespace

std::optional<Role> ParseRole(std::string_view name) {
  const auto found = std::ranges::find(kNames, name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<Role>(found - kNames.begin());
}

std::string RoleNames(RoleSet roles) {
  std::string names;
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (!roles.Has(static_cast<Role>(i))) continue;
    if (!names.empty()) names += ", ";
    names += kNames[i];
  }
  return names.empty() ? "no role" : names;
}

std::span<const Access> AccessTable() {
  return kTable;
}

const Access* FindAccess(std::string_view method) {
  if (const Access* row = Exactly(method)) return row;
  for (size_t slash = method.rfind('/'); slash != std::string_view::npos && slash > 0;
       slash = method.rfind('/', slash - 1)) {
    if (const Access* row = Exactly(method.substr(0, slash + 1))) return row;
  }
  return nullptr;
}

absl::Status CheckAccess(std::string_view method, std::string_view subject, RoleSet roles) {
  const Access* row = FindAccess(method);
  if (row == nullptr) {
    return MakeError(absl::StatusCode::kUnimplemented, "METHOD_UNKNOWN",
                     fmt::format("this version does not know {}", method.substr(0, 200)));
  }
  if (row->open || roles.Has(Role::kAdmin) || !(roles & row->roles).empty()) return absl::OkStatus();
  return MakeError(absl::StatusCode::kPermissionDenied, "ROLE_REQUIRED",
                   fmt::format("{}: expected a caller with one of the roles admin{}{}, found {} with {}", method,
                               row->roles.empty() ? "" : ", ", row->roles.empty() ? "" : RoleNames(row->roles), subject,
                               RoleNames(roles)));
}

}  // namespace atl::rpc
