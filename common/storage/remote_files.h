// Files of object stores, through Arrow's filesystem layer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/storage/blob_store.h"

namespace arrow::fs {
class FileSystem;
}
namespace arrow::io {
class OutputStream;
class RandomAccessFile;
}  // namespace arrow::io

namespace atl::storage {

std::string_view WithoutTrailingSlashes(std::string_view text);

// Returns the URI without credentials and options, fit for manifests and logs.
std::string PublicUri(std::string_view uri);

// Returns the filesystem behind an s3:// or gs:// URI, and the path in it. INVALID_ARGUMENT (INVALID_STORE_URI) for
// options that Arrow does not know; UNAVAILABLE if it cannot be set up. `keys` replace those of the URI and the
// environment; for S3 only.
absl::StatusOr<std::shared_ptr<arrow::fs::FileSystem>> OpenRemote(const std::string& root_uri,
                                                                  const RemoteOptions& options, std::string* path,
                                                                  const GrantedKeys* keys = nullptr);

// Returns the wait before a retry after `failures` failed calls in a row, or nothing after the last try. A busy server
// gets more tries than an unreachable one. `jitter` lies in [0, 1).
std::optional<absl::Duration> RetryDelay(const RemoteOptions& options, bool unreachable, int64_t failures,
                                         double jitter);

// Fills `out` from the file's `offset` on. If a transfer from S3 breaks before its length is known, Arrow reports bytes
// that it did not read. This function detects that and retries; in the end it is UNAVAILABLE. A file that ends too
// early is DATA_LOSS (FILE_CUT_SHORT). `what` names the operation and the file.
absl::Status ReadRange(arrow::io::RandomAccessFile& file, int64_t offset, absl::Span<char> out, std::string_view what);

// A remote file, which becomes visible when its stream is closed.
class RemoteWriter : public BlobWriter {
 public:
  RemoteWriter(std::string uri, std::string path, std::shared_ptr<arrow::fs::FileSystem> filesystem,
               std::shared_ptr<arrow::io::OutputStream> stream);
  ~RemoteWriter() override;

  absl::Status Append(std::string_view bytes) override;
  int64_t bytes() const override { return bytes_; }
  absl::StatusOr<WrittenFile> Finish() override;

 private:
  const std::string uri_;
  const std::string path_;
  const std::shared_ptr<arrow::fs::FileSystem> filesystem_;
  const std::shared_ptr<arrow::io::OutputStream> stream_;
  bool finished_ = false;
  int64_t bytes_ = 0;
  Sha256Hasher hasher_;
};

}  // namespace atl::storage
