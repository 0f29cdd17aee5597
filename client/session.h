// What every command has: where to print, how, and whom to call.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cluster_file.h"
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
  double timeout_seconds = 30;
  bool timeout_given = false;

  // Set by the chosen command; run after all arguments are parsed.
  std::function<absl::Status()> run;

  absl::Duration timeout() const { return absl::Seconds(timeout_seconds); }

  // Flag, then --cluster's file, then ATOLL_COORDINATOR (ATOLL_ROUTER, ATOLL_BLOB_STORE), then the file of
  // ATOLL_CLUSTER or of the default folder. FAILED_PRECONDITION, reason NO_ADDRESS, says how to give one;
  // INVALID_ARGUMENT, reason INVALID_ADDRESS: it is none.
  absl::StatusOr<std::string> CoordinatorAddress() const;
  absl::StatusOr<std::string> RouterAddress() const;
  absl::StatusOr<std::string> BlobStoreUri() const;
  // Folder of the local cluster: --cluster, ATOLL_CLUSTER, or the default.
  std::string ClusterFolder() const;

 private:
  absl::StatusOr<std::string> Find(const std::string& flag, const std::string& flag_name, const std::string& variable,
                                   std::string ClusterFile::*member) const;
};

}  // namespace atl::client
