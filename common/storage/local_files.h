// Durable writes on a local filesystem: temporary file, fsync, rename or link into place, fsync of the folder.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/storage/blob_store.h"

namespace atl::storage {

// Folder below a store's root for files being written. Never listed; files of a dead process are removed a day later.
inline constexpr char kPartsFolder[] = ".parts";

// Returns the status of errno about `what`, with the codes of FromArrow.
absl::Status FromErrno(int error, std::string_view what);

// Creates `folder` and its parents, each synced into its parent.
absl::Status CreateFolders(const std::string& folder);
absl::Status SyncFolder(const std::string& folder);
// Removes a file; OK if it is absent. FAILED_PRECONDITION for a folder.
absl::Status DeleteLocalFile(const std::string& path);
// Removes files of `parts_folder` last changed before `before`. Best effort.
void RemoveStaleParts(const std::string& parts_folder, absl::Time before);

class LocalWriter : public BlobWriter {
 public:
  // `once`: Finish fails with ALREADY_EXISTS if `path` exists. `parts_folder` lies on the same filesystem.
  static absl::StatusOr<std::unique_ptr<LocalWriter>> Create(std::string uri, std::string path,
                                                             const std::string& parts_folder, bool once);
  ~LocalWriter() override;

  absl::Status Append(std::string_view bytes) override;
  int64_t bytes() const override { return bytes_; }
  absl::StatusOr<WrittenFile> Finish() override;

 private:
  LocalWriter(std::string uri, std::string path, std::string part, int descriptor, bool once);
  absl::Status MoveIntoPlace();

  const std::string uri_;
  const std::string path_;
  const std::string part_;
  int descriptor_;
  const bool once_;
  int64_t bytes_ = 0;
  Sha256Hasher hasher_;
};

// Returns sixteen random hex digits, different for every process and call.
std::string RandomSuffix();

}  // namespace atl::storage
