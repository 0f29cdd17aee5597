// Files of object stores, through Arrow's filesystem layer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/storage/blob_store.h"

namespace arrow::fs {
class FileSystem;
}
namespace arrow::io {
class OutputStream;
}

namespace atl::storage {

std::string_view WithoutTrailingSlashes(std::string_view text);

// Without credentials and options: what may stand in manifests and logs.
std::string PublicUri(std::string_view uri);

// The filesystem behind an s3:// or gs:// URI, and the path in it. INVALID_ARGUMENT (INVALID_STORE_URI) for options
// that Arrow does not know; UNAVAILABLE when it cannot be set up.
absl::StatusOr<std::shared_ptr<arrow::fs::FileSystem>> OpenRemote(const std::string& root_uri, std::string* path);

// Visible when its stream is closed.
class RemoteWriter : public BlobWriter {
 public:
  RemoteWriter(std::string uri, std::string path, arrow::fs::FileSystem* filesystem,
               std::shared_ptr<arrow::io::OutputStream> stream);
  ~RemoteWriter() override;

  absl::Status Append(std::string_view bytes) override;
  int64_t bytes() const override { return bytes_; }
  absl::StatusOr<WrittenFile> Finish() override;

 private:
  const std::string uri_;
  const std::string path_;
  arrow::fs::FileSystem* const filesystem_;
  const std::shared_ptr<arrow::io::OutputStream> stream_;
  bool finished_ = false;
  int64_t bytes_ = 0;
  Sha256Hasher hasher_;
};

}  // namespace atl::storage
