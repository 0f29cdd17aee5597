// Everything large: files by URI, on a local folder or, through Arrow's filesystem layer, s3:// and gs://.
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

// What a finished write was.
struct WrittenFile {
  std::string uri;
  int64_t bytes = 0;
  std::string sha256;  // lower-case hex
};

// A file in the making. Destroyed without Finish, or when the process dies, it leaves nothing a reader can see.
// Not thread-safe.
class BlobWriter {
 public:
  virtual ~BlobWriter() = default;
  virtual absl::Status Append(std::string_view bytes) = 0;
  virtual int64_t bytes() const = 0;
  // Makes the file visible, whole and durable. Call once, last.
  virtual absl::StatusOr<WrittenFile> Finish() = 0;
};

// A file's bytes, mapped rather than read: they take no memory that the system could not have back at once.
struct MappedFile {
  std::string_view bytes;  // as long as `mapping` lives
  std::shared_ptr<const void> mapping;
};

// How an object store is waited for. A call that fails in a way that may pass is made again, after twice the wait each
// time, with jitter.
struct RemoteOptions {
  absl::Duration connect_timeout = absl::Seconds(5);
  // How long a transfer may stand still before it counts as failed.
  absl::Duration stall_timeout = absl::Seconds(15);
  // Calls in all while the server answers that it is busy or broken: about a minute with the waits.
  int64_t tries = 11;
  // Calls in all while no connection comes about or it breaks.
  int64_t unreachable_tries = 5;
  BackoffLimits backoff{.first = absl::Milliseconds(100), .longest = absl::Seconds(10)};
  // What local copies of files (LocalPath, MapVerified) may take together.
  int64_t local_copies_bytes = int64_t{16} << 30;
};

// Keys of an object store that are good for a while.
struct GrantedKeys {
  std::string access_key;
  std::string secret_key;
  std::string session_token;  // empty: there is none
  absl::Time expires = absl::InfiniteFuture();
  bool operator==(const GrantedKeys&) const = default;
};

// Thread-safe; every call may block on the disk or the network. Every path is a full URI below the store's root
// ("file:///data/atoll", "s3://bucket/prefix"); one outside it is INVALID_ARGUMENT, also by "..".
class BlobStore {
 public:
  // Opens (and for file:// creates) the root. INVALID_ARGUMENT for an unknown scheme; UNAVAILABLE when it cannot be
  // reached; NOT_FOUND (BUCKET_NOT_FOUND); PERMISSION_DENIED (STORE_ACCESS_DENIED). `options` are for object stores.
  static absl::StatusOr<std::unique_ptr<BlobStore>> Open(std::string_view root_uri, const RemoteOptions& options = {});
  // A store of s3:// for granted keys alone: nothing is looked at, and until UseKeys every call is FAILED_PRECONDITION
  // (STORAGE_NOT_GRANTED). INVALID_ARGUMENT for other schemes.
  static absl::StatusOr<std::unique_ptr<BlobStore>> OpenForGrants(std::string_view root_uri,
                                                                  const RemoteOptions& options = {});

  // From now on calls use these keys; unset: those that the store was opened with. A file that is open goes on with the
  // keys that it was opened with. Once the keys have expired every call is UNAVAILABLE (STORAGE_GRANT_EXPIRED).
  // FAILED_PRECONDITION (GRANTS_UNSUPPORTED) for a store that was not opened as s3://. Never blocks.
  absl::Status UseKeys(const std::optional<GrantedKeys>& keys);

  const std::string& root() const { return root_uri_; }
  // root + "/" + path.
  std::string UriOf(std::string_view path) const;

  // Writes a whole file durably: a reader sees all of it or nothing, and it survives a power cut once this returned.
  // Overwrites.
  absl::StatusOr<WrittenFile> Write(std::string_view uri, std::string_view bytes);
  // Like Write, but ALREADY_EXISTS when the file is there; of two at once, one wins. A local file is linked into
  // place; an object store is asked to write only where nothing is. Whether it does so is tried by each process with
  // keys of its own, once: FAILED_PRECONDITION (CREATE_ONCE_UNSUPPORTED) where it does not.
  absl::StatusOr<WrittenFile> CreateOnce(std::string_view uri, std::string_view bytes);
  // Like Write, in pieces. Must not outlive the store.
  absl::StatusOr<std::unique_ptr<BlobWriter>> OpenWriter(std::string_view uri);
  // A whole file. NOT_FOUND names it. RESOURCE_EXHAUSTED above `limit` bytes.
  absl::StatusOr<std::string> Read(std::string_view uri, int64_t limit = int64_t{4} << 30);
  // A whole file of any size, since what has this hash was written on purpose; DATA_LOSS naming file, expected and
  // found hash when they differ.
  absl::StatusOr<std::string> ReadVerified(std::string_view uri, std::string_view sha256);
  // Like ReadVerified, for large files. Files of a store are replaced, never changed in place.
  absl::StatusOr<MappedFile> MapVerified(std::string_view uri, std::string_view sha256);
  // Size and hash of what lies there, read in pieces.
  absl::StatusOr<WrittenFile> Hash(std::string_view uri);
  // A local path of the file, to be opened within the next minute: itself for file://, else a copy in a folder that the
  // store owns and keeps small. Verified when `sha256` is not empty; only then is a copy reused.
  absl::StatusOr<std::string> LocalPath(std::string_view uri, std::string_view sha256 = "");

  // All files below a folder, sorted by URI. An absent folder is empty; a file lists itself.
  absl::StatusOr<std::vector<FileInfo>> List(std::string_view uri_prefix);
  // NOT_FOUND is OK: deleting is idempotent.
  absl::Status Delete(std::string_view uri);
  // The folder and all below it. The root itself is INVALID_ARGUMENT.
  absl::Status DeleteTree(std::string_view uri_prefix);
  absl::StatusOr<bool> Exists(std::string_view uri);
  // Returns whether an existing path is a plain file that is reached below the root without links. Object stores have
  // no links and only files.
  absl::StatusOr<bool> IsPlain(std::string_view uri) const;

  ~BlobStore();
  BlobStore(const BlobStore&) = delete;
  BlobStore& operator=(const BlobStore&) = delete;

 private:
  // The way to the files with one set of keys.
  struct Access {
    std::shared_ptr<arrow::fs::FileSystem> filesystem;
    std::unique_ptr<ConditionalPut> conditional_put;  // null for a local folder
  };
  static std::shared_ptr<const Access> AccessOver(std::shared_ptr<arrow::fs::FileSystem> filesystem,
                                                  const RemoteOptions& options);

  // `filesystem`: null until keys are granted.
  BlobStore(std::string root_uri, const std::string& root_path, std::shared_ptr<arrow::fs::FileSystem> filesystem,
            bool local, const RemoteOptions& options);
  // With the keys that count now.
  absl::StatusOr<std::shared_ptr<const Access>> Reach();
  absl::StatusOr<std::string> PathOf(std::string_view uri) const;
  // PathOf, and INVALID_ARGUMENT for the root itself.
  absl::StatusOr<std::string> FilePathOf(std::string_view uri) const;
  absl::Status CheckCreateOnce(const Access& access);
  // Passes on the file's bytes in pieces.
  absl::Status ReadPieces(std::string_view uri, const std::function<absl::Status(std::string_view)>& take);
  absl::StatusOr<std::string> Download(std::string_view uri, std::string_view sha256);

  const std::string root_uri_;
  const std::string root_path_;
  const bool local_;
  const RemoteOptions options_;
  std::string s3_uri_;                          // as it was opened, with its options; empty unless it is s3://
  const std::shared_ptr<const Access> opened_;  // null: for grants alone

  absl::Mutex keys_mutex_;
  std::optional<GrantedKeys> keys_ ABSL_GUARDED_BY(keys_mutex_);
  std::shared_ptr<const Access> granted_ ABSL_GUARDED_BY(keys_mutex_);  // with keys_; null until it is needed

  LocalCopies copies_;
  std::atomic<bool> creates_once_ = false;  // it was tried, and it does
};

}  // namespace atl::storage
