// Whether a blob store is whole: every file that something names is there and has its hash.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/storage/blob_store.h"

namespace atl::fsck {

// A file that must exist with this hash, and the object that names it.
struct NamedFile {
  std::string uri;
  std::string sha256;  // lower-case hex
  std::string named_by;
  bool operator==(const NamedFile&) const = default;
};

struct BadFile {
  enum class Problem : uint8_t { kMissing, kDamaged, kUnreadable };
  std::string uri;
  Problem problem = Problem::kDamaged;
  std::string detail;
  std::string named_by;
};
// "missing", "damaged", "unreadable".
std::string_view ToString(BadFile::Problem problem);

struct FsckReport {
  int64_t files = 0;  // checked
  int64_t bytes = 0;
  int64_t unnamed_files = 0;  // that no manifest or job names: of running attempts, traces, or waiting for collection
  int64_t unnamed_bytes = 0;
  std::vector<BadFile> bad;  // by URI, each once
};

struct FsckOptions {
  // The files that the coordinator names. Without them, fsck checks only files that manifests in the store name: it
  // skips a task's features, for example.
  std::vector<NamedFile> known;
  // Folders or files below the root to check ("datasets/digits", also with a trailing slash or with the root in front);
  // empty: everything.
  std::vector<std::string> below;
  int threads = 4;
};

// Reads the whole store, in pieces. Manifests of datasets, checkpoints and models, profiles and plans contain their own
// hashes. The first three also contain the hashes of the files beside them. Cached outputs of frozen components have
// their hashes in their names. A file that is deleted during the check together with its manifest is not bad. Blocks.
// Returns an error only if the store cannot be listed, or NOT_FOUND (NOTHING_BELOW) if one of the folders in `below`
// has no file and no named file.
absl::StatusOr<FsckReport> CheckBlobStore(storage::BlobStore* store, const FsckOptions& options);

}  // namespace atl::fsck
