// cluster.json of a local cluster: where its services listen, for the other commands (docs/formats.md).
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace atl::client {

struct ClusterFile {
  std::string coordinator;  // host:port
  std::string router;
  std::string blob_store;  // URI
  int64_t pid = 0;         // of `atoll up`
  bool operator==(const ClusterFile&) const = default;
};

// "<folder>/cluster.json"
std::string ClusterFilePath(std::string_view folder);

// Replaces the file atomically: a reader sees the old one or the new one.
absl::Status WriteClusterFile(std::string_view folder, const ClusterFile& file);

// NOT_FOUND (CLUSTER_NOT_FOUND) without a file; DATA_LOSS (CLUSTER_FILE_MALFORMED) for text that is not a cluster file.
absl::StatusOr<ClusterFile> ReadClusterFile(std::string_view folder);

}  // namespace atl::client
