// What every command has: where to print, how, and whom to call.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cluster/cluster_file.h"
#include "common/auth/security_options.h"
#include "grpcpp/channel.h"

namespace atl::client {

enum class OutputFormat { kTable, kJson };

// One run of `atoll`. Not thread-safe; commands run on the main thread.
struct Session {
  std::ostream* out = nullptr;
  std::ostream* err = nullptr;
  // Environment variables; absent ones are unset.
  std::function<std::string(const std::string&)> env;
  // Whether `out` is a terminal, its width, and whether colours are welcome.
  bool terminal = false;
  int width = 80;
  bool colour = false;
  // Whether whoever read `out` has gone (`atoll jobs list | head`); unset: never.
  std::function<bool()> reader_gone;

  // From flags.
  OutputFormat format = OutputFormat::kTable;
  std::string coordinator_flag;
  std::string router_flag;
  std::string blob_store_flag;
  std::string cluster_flag;
  rpc::SecurityOptions security_flags;
  double timeout_seconds = 30;
  bool timeout_given = false;

  // Every channel that was made, for what can be said of one that does not come about.
  struct Called {
    std::string address;
    rpc::SecurityOptions security;
  };
  std::shared_ptr<std::vector<Called>> called = std::make_shared<std::vector<Called>>();

  // Set by the chosen command; run after all arguments are parsed.
  std::function<absl::Status()> run;

  absl::Duration timeout() const { return absl::Seconds(timeout_seconds); }

  // Flag, then --cluster's file, then ATOLL_COORDINATOR (ATOLL_ROUTER, ATOLL_BLOB_STORE), then the file of
  // ATOLL_CLUSTER or of the default folder. FAILED_PRECONDITION, reason NO_ADDRESS, says how to give one;
  // INVALID_ARGUMENT, reason INVALID_ADDRESS: it is none.
  absl::StatusOr<std::string> CoordinatorAddress() const;
  absl::StatusOr<std::string> RouterAddress() const;
  absl::StatusOr<std::string> BlobStoreUri() const;
  // Channels to them. The flags of security count; where the address is not that of a local cluster's file, also
  // ATOLL_TLS_DIR, ATOLL_CA and ATOLL_TOKEN_FILE: what `atoll up` started speaks in the clear, on this machine alone.
  // Errors as in rpc::Security.
  absl::StatusOr<std::shared_ptr<grpc::Channel>> CoordinatorChannel() const;
  absl::StatusOr<std::shared_ptr<grpc::Channel>> RouterChannel() const;
  // Folder of the local cluster: --cluster, ATOLL_CLUSTER, or the default.
  std::string ClusterFolder() const;

 private:
  absl::StatusOr<std::shared_ptr<grpc::Channel>> ChannelTo(const std::string& address, bool local) const;
  // Whether the address comes from a local cluster's file.
  bool FromClusterFile(const std::string& flag, const std::string& variable) const;
  absl::StatusOr<std::string> Find(const std::string& flag, const std::string& flag_name, const std::string& variable,
                                   std::string ClusterFile::*member) const;
};

}  // namespace atl::client
