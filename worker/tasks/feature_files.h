// The feature matrices of all shards as one list of rows. Files are memory-mapped: accessed pages are in the page
// cache, and memory holds nothing else.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/spec/task.h"
#include "common/storage/blob_store.h"
#include "worker/tasks/balanced_kmeans.h"

namespace atl::tasks {

// Not thread-safe.
class FeatureFiles : public FeatureRows {
 public:
  // Opens one file per artifact, in that order, verified by their hashes. With `normalize`, rows are scaled to length 1
  // when read (rows of zeros stay). DATA_LOSS names the file whose shape differs from the first one's.
  static absl::StatusOr<std::unique_ptr<FeatureFiles>> Open(storage::BlobStore* store,
                                                            const std::vector<spec::Artifact>& artifacts,
                                                            bool normalize);
  ~FeatureFiles() override;

  int64_t rows() const override { return rows_; }
  int32_t dims() const override { return dims_; }
  absl::Status Read(int64_t row, std::span<float> out) override;

 private:
  struct Mapping {
    void* address = nullptr;
    size_t bytes = 0;
    const char* values = nullptr;  // of "features", unaligned
    int64_t first_row = 0;
  };
  explicit FeatureFiles(bool normalize) : normalize_(normalize) {}
  absl::Status Add(storage::BlobStore* store, const spec::Artifact& artifact);

  const bool normalize_;
  std::vector<Mapping> mappings_;
  int64_t rows_ = 0;
  int32_t dims_ = 0;
};

}  // namespace atl::tasks
