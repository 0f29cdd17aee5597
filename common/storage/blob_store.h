// The store of all large data: files by URI, on a local folder or, through Arrow's filesystem layer, s3:// and gs://.
//
// URIs are literal text: nothing is percent-decoded below the root. The root may carry Arrow's options and credentials
// ("s3://key:secret@bucket/prefix?endpoint_override=localhost:9000"); root() and every URI made from it do not.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/backoff.h"
#include "common/storage/local_copies.h"
#include "common/storage/sha256.h"

namespace arrow::fs {
class FileSystem;
}

namespace atl::storage {

class ConditionalPut;

struct FileInfo {
  std::string uri;
  int64_t bytes = 0;
  absl::Time modified;
};

// A finished write.
struct WrittenFile {
  std::string uri;
  int64_t bytes = 0;
  std::string sha256;  // lower-case hex
};

// A file being written. If it is destroyed without Finish, or the process dies, no reader sees anything of it. Not
// thread-safe.
class BlobWriter {
 public:
  virtual ~BlobWriter() = default;
  virtual absl::Status Append(std::string_view bytes) = 0;
  virtual int64_t bytes() const = 0;
  // Makes the file visible, whole and durable. Call once, last.
  virtual absl::StatusOr<WrittenFile> Finish() = 0;
};

// A file's bytes, mapped rather than read: the system can reclaim their memory at any time.
struct MappedFile {
  std::string_view bytes;  // valid while `mapping` lives
  std::shared_ptr<const void> mapping;
};

// Retries and timeouts of an object store. A call with a transient error is retried, with doubled waits and jitter.
struct RemoteOptions {
  absl::Duration connect_timeout = absl::Seconds(5);
  // Longest pause of a transfer before it counts as failed.
  absl::Duration stall_timeout = absl::Seconds(15);
  // Calls in total while the server reports that it is busy or broken: about a minute with the waits.
  int64_t tries = 11;
  // Calls in total while connections fail or break.
  int64_t unreachable_tries = 5;
  BackoffLimits backoff{.first = absl::Milliseconds(100), .longest = absl::Seconds(10)};
  // Limit of all local copies of files (LocalPath, MapVerified) together.
  int64_t local_copies_bytes = int64_t{16} << 30;
};

// Temporary keys of an object store.
struct GrantedKeys {
  std::string access_key;
  std::string secret_key;
  std::string session_token;  // empty: none
  absl::Time expires = absl::InfiniteFuture();
  bool operator==(const GrantedKeys&) const = default;
};

// Thread-safe; every call may block on the disk or the network. Every path is a full URI below the store's root
// ("file:///data/atoll", "s3://bucket/prefix"); a path outside it, also by "..", is INVALID_ARGUMENT.
class BlobStore {
 public:
  // Opens (and for file:// creates) the root. INVALID_ARGUMENT for an unknown scheme; UNAVAILABLE if it cannot be
  // reached; NOT_FOUND (BUCKET_NOT_FOUND); PERMISSION_DENIED (STORE_ACCESS_DENIED). `options` are for object stores.
  static absl::StatusOr<std::unique_ptr<BlobStore>> Open(std::string_view root_uri, const RemoteOptions& options = {});
  // Makes an s3:// store that uses granted keys only. Does not connect; until UseKeys every call is FAILED_PRECONDITION
  // (STORAGE_NOT_GRANTED). INVALID_ARGUMENT for other schemes.
  static absl::StatusOr<std::unique_ptr<BlobStore>> OpenForGrants(std::string_view root_uri,
                                                                  const RemoteOptions& options = {});

  // Sets the keys of later calls; unset: the keys that the store was opened with. An open file keeps the keys that it
  // was opened with. Once the keys have expired, every call is UNAVAILABLE (STORAGE_GRANT_EXPIRED). FAILED_PRECONDITION
  // (GRANTS_UNSUPPORTED) for a store that was not opened as s3://. Never blocks.
  absl::Status UseKeys(const std::optional<GrantedKeys>& keys);

  const std::string& root() const { return root_uri_; }
  // Returns root + "/" + path.
  std::string UriOf(std::string_view path) const;

  // Writes a whole file durably: a reader sees all of it or nothing, and it survives a power cut once this returned.
  // Overwrites.
  absl::StatusOr<WrittenFile> Write(std::string_view uri, std::string_view bytes);
  // Like Write, but ALREADY_EXISTS if the file exists; of two concurrent calls, one wins. A local file is linked into
  // place; an object store gets a conditional write. Each process with its own keys probes once whether the store
  // honours the condition: FAILED_PRECONDITION (CREATE_ONCE_UNSUPPORTED) if not.
  absl::StatusOr<WrittenFile> CreateOnce(std::string_view uri, std::string_view bytes);
  // Like Write, in pieces. Must not outlive the store.
  absl::StatusOr<std::unique_ptr<BlobWriter>> OpenWriter(std::string_view uri);
  // Reads a whole file. NOT_FOUND names it. RESOURCE_EXHAUSTED above `limit` bytes.
  absl::StatusOr<std::string> Read(std::string_view uri, int64_t limit = int64_t{4} << 30);
  // Reads a whole file of any size: a matching hash shows that its size is intended. DATA_LOSS names file, expected and
  // found hash if they differ.
  absl::StatusOr<std::string> ReadVerified(std::string_view uri, std::string_view sha256);
  // Like ReadVerified, for large files. Files of a store are replaced, never changed in place.
  absl::StatusOr<MappedFile> MapVerified(std::string_view uri, std::string_view sha256);
  // Returns size and hash of a stored file, read in pieces.
  absl::StatusOr<WrittenFile> Hash(std::string_view uri);
  // Returns a local path of the file, to be opened within the next minute: the file itself for file://, else a copy in
  // a folder that the store owns and keeps small. Verified if `sha256` is not empty; only then is a copy reused.
  absl::StatusOr<std::string> LocalPath(std::string_view uri, std::string_view sha256 = "");

  // Lists all files below a folder, sorted by URI. An absent folder is empty; a file lists itself.
  absl::StatusOr<std::vector<FileInfo>> List(std::string_view uri_prefix);
  // NOT_FOUND is OK: deleting is idempotent.
  absl::Status Delete(std::string_view uri);
  // Deletes the folder and all below it. The root itself is INVALID_ARGUMENT.
  absl::Status DeleteTree(std::string_view uri_prefix);
  absl::StatusOr<bool> Exists(std::string_view uri);
  // Returns whether an existing path is a plain file that is reached below the root without links. Object stores have
  // no links and only files.
  absl::StatusOr<bool> IsPlain(std::string_view uri) const;

  ~BlobStore();
  BlobStore(const BlobStore&) = delete;
  BlobStore& operator=(const BlobStore&) = delete;

 private:
  // Access to the files with one set of keys.
  struct Access {
    std::shared_ptr<arrow::fs::FileSystem> filesystem;
    std::unique_ptr<ConditionalPut> conditional_put;  // null for a local folder
  };
  static std::shared_ptr<const Access> AccessOver(std::shared_ptr<arrow::fs::FileSystem> filesystem,
                                                  const RemoteOptions& options);

  // `filesystem`: null until keys are granted.
  BlobStore(std::string root_uri, const std::string& root_path, std::shared_ptr<arrow::fs::FileSystem> filesystem,
            bool local, const RemoteOptions& options);
  // Returns the access with the current keys.
  absl::StatusOr<std::shared_ptr<const Access>> Reach();
  absl::StatusOr<std::string> PathOf(std::string_view uri) const;
  // Returns PathOf; INVALID_ARGUMENT for the root itself.
  absl::StatusOr<std::string> FilePathOf(std::string_view uri) const;
  absl::Status CheckCreateOnce(const Access& access);
  // Passes the file's bytes to `take` in pieces.
  absl::Status ReadPieces(std::string_view uri, const std::function<absl::Status(std::string_view)>& take);
  absl::StatusOr<std::string> Download(std::string_view uri, std::string_view sha256);

  const std::string root_uri_;
  const std::string root_path_;
  const bool local_;
  const RemoteOptions options_;
  std::string s3_uri_;                          // as it was opened, with its options; empty unless it is s3://
  const std::shared_ptr<const Access> opened_;  // null: granted keys only

  absl::Mutex keys_mutex_;
  std::optional<GrantedKeys> keys_ ABSL_GUARDED_BY(keys_mutex_);
  std::shared_ptr<const Access> granted_ ABSL_GUARDED_BY(keys_mutex_);  // with keys_; null until it is needed

  LocalCopies copies_;
  std::atomic<bool> creates_once_ = false;  // a probe has shown that it does
};

}  // namespace atl::storage
