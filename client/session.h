// The state that all commands share: output streams, output format, and the addresses of the services.
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
  // Whether the reader of `out` has gone (`atoll jobs list | head`); unset: never.
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

  // Every channel that was made, to explain a connection that fails.
  struct Called {
    std::string address;
    rpc::SecurityOptions security;
  };
  std::shared_ptr<std::vector<Called>> called = std::make_shared<std::vector<Called>>();

  // Set by the chosen command; run after all arguments are parsed.
  std::function<absl::Status()> run;

  absl::Duration timeout() const { return absl::Seconds(timeout_seconds); }

  // Sources in order: the flag, the file of --cluster, ATOLL_COORDINATOR (ATOLL_ROUTER, ATOLL_BLOB_STORE), the file of
  // ATOLL_CLUSTER or of the default folder. FAILED_PRECONDITION (NO_ADDRESS) says how to give one; INVALID_ARGUMENT
  // (INVALID_ADDRESS): the text is not an address.
  absl::StatusOr<std::string> CoordinatorAddress() const;
  absl::StatusOr<std::string> RouterAddress() const;
  absl::StatusOr<std::string> BlobStoreUri() const;
  // Channels to the services. The security flags apply. Unless the address comes from a local cluster's file,
  // ATOLL_TLS_DIR, ATOLL_CA and ATOLL_TOKEN_FILE apply too: services that `atoll up` started use plain text, on this
  // machine only. Errors as in rpc::Security.
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
