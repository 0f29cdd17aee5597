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

// What a file must be, by whom.
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
  int64_t files = 0;  // that were checked
  int64_t bytes = 0;
  int64_t unnamed_files = 0;  // that nothing names: of running attempts, traces, what waits for collection
  int64_t unnamed_bytes = 0;
  std::vector<BadFile> bad;  // by URI, each once
};

struct FsckOptions {
  // What the coordinator knows; without it only what lies in the store is asked: a file that nothing there names, such
  // as a task's features, is not checked.
  std::vector<NamedFile> known;
  // Below which folders of the root to look ("datasets/digits", also with a slash behind it or the root before it), or
  // at which files; empty: everything.
  std::vector<std::string> below;
  int threads = 4;
};

// Reads the whole store, in pieces. Manifests of datasets, checkpoints and models, profiles and plans carry their own
// hashes, and the first three those of the files beside them; kept outputs of frozen components have theirs in their
// names. A file that is deleted meanwhile together with its manifest is not bad. Blocks; an error only where the store
// cannot be listed, or where nothing lies, or is known, below one of the folders: NOT_FOUND (NOTHING_BELOW).
absl::StatusOr<FsckReport> CheckBlobStore(storage::BlobStore* store, const FsckOptions& options);

}  // namespace atl::fsck
