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

// Without credentials and options: what may stand in manifests and logs.
std::string PublicUri(std::string_view uri);

// The filesystem behind an s3:// or gs:// URI, and the path in it. INVALID_ARGUMENT (INVALID_STORE_URI) for options
// that Arrow does not know; UNAVAILABLE when it cannot be set up. `keys`: in place of the URI's and the environment's;
// of S3 alone.
absl::StatusOr<std::shared_ptr<arrow::fs::FileSystem>> OpenRemote(const std::string& root_uri,
                                                                  const RemoteOptions& options, std::string* path,
                                                                  const GrantedKeys* keys = nullptr);

// How long to wait before asking again after `failures` failed calls in a row, or nothing when enough were made: a
// server that is busy is given longer than one that is not there. `jitter` lies in [0, 1).
std::optional<absl::Duration> RetryDelay(const RemoteOptions& options, bool unreachable, int64_t failures,
                                         double jitter);

// Fills `out` from the file's `offset` on. Arrow does not notice that a transfer from S3 broke off before its length
// was known, and says that it read what it did not: that is noticed here, tried again, and UNAVAILABLE in the end. A
// file that ends too early is DATA_LOSS (FILE_CUT_SHORT). `what` names the operation and the file.
absl::Status ReadRange(arrow::io::RandomAccessFile& file, int64_t offset, absl::Span<char> out, std::string_view what);

// Visible when its stream is closed.
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
