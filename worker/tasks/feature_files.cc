#include "worker/tasks/feature_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "absl/cleanup/cleanup.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/storage/safetensors.h"

namespace atl::tasks {

absl::StatusOr<std::unique_ptr<FeatureFiles>> FeatureFiles::Open(storage::BlobStore* store,
                                                                 const std::vector<spec::Artifact>& artifacts,
                                                                 bool normalize) {
  std::unique_ptr<FeatureFiles> files(new FeatureFiles(normalize));
  for (const spec::Artifact& artifact : artifacts) ATOLL_RETURN_IF_ERROR(files->Add(store, artifact));
  return files;
}

FeatureFiles::~FeatureFiles() {
  for (const Mapping& mapping : mappings_) munmap(mapping.address, mapping.bytes);
}

absl::Status FeatureFiles::Add(storage::BlobStore* store, const spec::Artifact& artifact) {
  ATOLL_ASSIGN_OR_RETURN(const std::string path, store->LocalPath(artifact.uri, artifact.sha256));
  const auto system_error = [&](const char* call) {
    return MakeError(absl::StatusCode::kUnavailable, "FILE_MAP",
                     fmt::format("{}: {}: {}", artifact.uri, call, std::strerror(errno)));
  };
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return system_error("open");
  const absl::Cleanup close_file = [file] { close(file); };
  struct stat info {};
  if (fstat(file, &info) != 0) return system_error("fstat");
  Mapping mapping{.bytes = static_cast<size_t>(info.st_size), .first_row = rows_};
  if (mapping.bytes == 0) {
    return MakeError(absl::StatusCode::kDataLoss, "TENSOR_SHAPE",
                     fmt::format("{}: expected a safetensors file, found an empty one", artifact.uri));
  }
  mapping.address = mmap(nullptr, mapping.bytes, PROT_READ, MAP_SHARED, file, 0);
  if (mapping.address == MAP_FAILED) return system_error("mmap");
  mappings_.push_back(mapping);

  const std::string_view bytes(static_cast<const char*>(mapping.address), mapping.bytes);
  ATOLL_ASSIGN_OR_RETURN(const storage::Safetensors parsed, storage::ParseSafetensors(bytes, artifact.uri));
  ATOLL_ASSIGN_OR_RETURN(const storage::TensorView features, parsed.Find("features"));
  const bool first = mappings_.size() == 1;
  if (features.dtype != "F32" || features.shape.size() != 2 || features.shape[1] < 1 ||
      (!first && features.shape[1] != dims_)) {
    return MakeError(absl::StatusCode::kDataLoss, "TENSOR_SHAPE",
                     fmt::format("{}: tensor features: expected F32 [rows, {}], found {} [{}]", artifact.uri,
                                 first ? "d" : std::to_string(dims_), features.dtype, fmt::join(features.shape, ", ")));
  }
  dims_ = static_cast<int32_t>(features.shape[1]);
  rows_ += features.shape[0];
  mappings_.back().values = features.bytes.data();
  return absl::OkStatus();
}

absl::Status FeatureFiles::Read(int64_t row, std::span<float> out) {
  const auto after = std::upper_bound(mappings_.begin(), mappings_.end(), row,
                                      [](int64_t value, const Mapping& mapping) { return value < mapping.first_row; });
  const Mapping& mapping = *std::prev(after);
  const size_t row_bytes = static_cast<size_t>(dims_) * sizeof(float);
  std::memcpy(out.data(), mapping.values + static_cast<size_t>(row - mapping.first_row) * row_bytes, row_bytes);
  double squares = 0;
  for (const float value : out) squares += static_cast<double>(value) * static_cast<double>(value);
  if (!std::isfinite(squares)) {
    return MakeError(absl::StatusCode::kInvalidArgument, "FEATURE_NOT_FINITE",
                     fmt::format("features: row {}: expected finite numbers, found NaN or infinity", row));
  }
  if (normalize_ && squares > 0) {
    const auto scale = static_cast<float>(1 / std::sqrt(squares));
    for (float& value : out) value *= scale;
  }
  return absl::OkStatus();
}

}  // namespace atl::tasks
