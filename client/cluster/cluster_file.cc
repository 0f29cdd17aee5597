#include "client/cluster/cluster_file.h"

#include "common/base/errors.h"
#include "common/base/files.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace atl::client {
namespace {

constexpr int kClusterFileFormat = 1;

}  // namespace

std::string ClusterFilePath(std::string_view folder) {
  return fmt::format("{}/cluster.json", folder);
}

absl::Status WriteClusterFile(std::string_view folder, const ClusterFile& file) {
  const nlohmann::ordered_json json = {{"format", kClusterFileFormat},
                                       {"coordinator", file.coordinator},
                                       {"router", file.router},
                                       {"blob_store", file.blob_store},
                                       {"pid", file.pid}};
  return WriteFile(ClusterFilePath(folder), json.dump(2) + "\n");
}

absl::StatusOr<ClusterFile> ReadClusterFile(std::string_view folder) {
  const std::string path = ClusterFilePath(folder);
  absl::StatusOr<std::string> text = ReadFile(path);
  if (absl::IsNotFound(text.status())) {
    return MakeError(
        absl::StatusCode::kNotFound, "CLUSTER_NOT_FOUND",
        fmt::format("no cluster in {}: {} does not exist; 'atoll up --dir {}' starts one", folder, path, folder));
  }
  ATOLL_RETURN_IF_ERROR(text.status());
  try {
    const nlohmann::json json = nlohmann::json::parse(*text);
    return ClusterFile{.coordinator = json.at("coordinator"),
                       .router = json.at("router"),
                       .blob_store = json.at("blob_store"),
                       .pid = json.at("pid")};
  } catch (const nlohmann::json::exception& error) {
    return MakeError(absl::StatusCode::kDataLoss, "CLUSTER_FILE_MALFORMED",
                     fmt::format("{}: expected the file of a cluster, found: {}", path, error.what()));
  }
}

}  // namespace atl::client
