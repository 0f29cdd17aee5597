#include "client/session.h"

#include "common/auth/security.h"
#include "common/base/address.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel.h"
#include "fmt/format.h"

namespace atl::client {
namespace {

absl::StatusOr<std::string> CheckAddress(absl::StatusOr<std::string> address, std::string_view what) {
  if (!address.ok() || IsAddressList(*address)) return address;
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

bool Session::FromClusterFile(const std::string& flag, const std::string& variable) const {
  return flag.empty() && (!cluster_flag.empty() || env(variable).empty());
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> Session::ChannelTo(const std::string& address, bool local) const {
  rpc::SecurityOptions options = security_flags;
  const auto take = [&](std::string* value, const char* variable) {
    if (value->empty()) *value = env(variable);
  };
  if (!local) {
    // A flag for one says how the server is known: the variable for the other is for other servers.
    if (options.tls_dir.empty() && options.ca.empty()) {
      take(&options.tls_dir, "ATOLL_TLS_DIR");
      take(&options.ca, "ATOLL_CA");
    }
    take(&options.token_file, "ATOLL_TOKEN_FILE");
  }
  ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<const rpc::Security> security, rpc::Security::Make(options));
  ATOLL_RETURN_IF_ERROR(security->CheckTarget(address));
  called->push_back({address, options});
  return rpc::MakeChannel(address, security->channel_credentials());
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> Session::CoordinatorChannel() const {
  ATOLL_ASSIGN_OR_RETURN(const std::string address, CoordinatorAddress());
  return ChannelTo(address, FromClusterFile(coordinator_flag, "ATOLL_COORDINATOR"));
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> Session::RouterChannel() const {
  ATOLL_ASSIGN_OR_RETURN(const std::string address, RouterAddress());
  return ChannelTo(address, FromClusterFile(router_flag, "ATOLL_ROUTER"));
}

absl::StatusOr<std::string> Session::BlobStoreUri() const {
  return Find(blob_store_flag, "--blob-store URI", "ATOLL_BLOB_STORE", &ClusterFile::blob_store);
}

}  // namespace atl::client
