#include "client/session.h"

#include "common/base/address.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"

namespace atl::client {
namespace {

absl::StatusOr<std::string> CheckAddress(absl::StatusOr<std::string> address, std::string_view what) {
  if (!address.ok() || IsAddress(*address)) return address;
  return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_ADDRESS",
                   fmt::format("{}: expected HOST:PORT with a port from 1 to 65535, found '{}'", what, *address));
}

}  // namespace

std::string Session::ClusterFolder() const {
  if (!cluster_flag.empty()) return cluster_flag;
  if (std::string folder = env("ATOLL_CLUSTER"); !folder.empty()) return folder;
  std::string state = env("XDG_STATE_HOME");
  if (state.empty()) state = env("HOME") + "/.local/state";
  return state + "/atoll/cluster";
}

absl::StatusOr<std::string> Session::Find(const std::string& flag, const std::string& flag_name,
                                          const std::string& variable, std::string ClusterFile::*member) const {
  if (!flag.empty()) return flag;
  if (cluster_flag.empty()) {
    if (std::string value = env(variable); !value.empty()) return value;
  }
  const std::string folder = ClusterFolder();
  absl::StatusOr<ClusterFile> file = ReadClusterFile(folder);
  if (file.ok() && !((*file).*member).empty()) return (*file).*member;
  if (!file.ok() && (!absl::IsNotFound(file.status()) || !cluster_flag.empty())) return file.status();
  return MakeError(absl::StatusCode::kFailedPrecondition, "NO_ADDRESS",
                   fmt::format("expected {}, {}, or a cluster started by 'atoll up'; found none in {}", flag_name,
                               variable, folder));
}

absl::StatusOr<std::string> Session::CoordinatorAddress() const {
  return CheckAddress(Find(coordinator_flag, "--coordinator HOST:PORT", "ATOLL_COORDINATOR", &ClusterFile::coordinator),
                      "address of the coordinator");
}

absl::StatusOr<std::string> Session::RouterAddress() const {
  return CheckAddress(Find(router_flag, "--router HOST:PORT", "ATOLL_ROUTER", &ClusterFile::router),
                      "address of the router");
}

absl::StatusOr<std::string> Session::BlobStoreUri() const {
  return Find(blob_store_flag, "--blob-store URI", "ATOLL_BLOB_STORE", &ClusterFile::blob_store);
}

}  // namespace atl::client
