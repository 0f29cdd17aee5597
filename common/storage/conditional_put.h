// Writes an object only if none exists, in one call, which Arrow does not offer: S3's PutObject with If-None-Match, and
// x-goog-if-generation-match: 0 in the XML API of Google's storage.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/storage/blob_store.h"
#include "common/storage/curl.h"

namespace arrow::fs {
class FileSystem;
class GcsFileSystem;
class S3FileSystem;
}  // namespace arrow::fs

namespace atl::storage {

// Thread-safe; every call blocks on the network and retries as `options` say. Errors are those of FromS3.
class ConditionalPut {
 public:
  // Uses the keys and the endpoint of `filesystem`; null if it is neither S3's nor Google's.
  static std::unique_ptr<ConditionalPut> Over(const std::shared_ptr<arrow::fs::FileSystem>& filesystem,
                                              const RemoteOptions& options);

  // Returns whether this call made the object at `path` ("bucket/key"); false: it existed already. A retry after a lost
  // answer recognises its own object. `what` names the operation and the file.
  absl::StatusOr<bool> PutIfAbsent(const std::string& path, std::string_view bytes, std::string_view what);

  // Returns whether the server honours the condition: tries it on an object at `path`, which stays there.
  absl::StatusOr<bool> Probe(const std::string& path, std::string_view what);

 private:
  ConditionalPut(std::shared_ptr<arrow::fs::S3FileSystem> s3, std::shared_ptr<arrow::fs::GcsFileSystem> gcs,
                 const RemoteOptions& options);

  struct Answer {
    int http_status = 0;  // 0: the connection failed or broke
    std::string code;     // of the error document
    std::string writer;   // that wrote the object, for HEAD
    std::string detail;
  };
  // Sets the authentication of a call with this body; returns the URL.
  absl::StatusOr<std::string> Prepare(const std::string& path, std::string_view body, CURL* curl,
                                      Headers* headers) const;
  Answer Call(const std::string& method, const std::string& path, std::string_view body, const std::string& writer);
  // Calls until an answer is final. `ambiguous`: an earlier try may have been carried out.
  Answer CallPatiently(const std::string& method, const std::string& path, std::string_view body,
                       const std::string& writer, bool* ambiguous);

  // Exactly one of the two is set.
  const std::shared_ptr<arrow::fs::S3FileSystem> s3_;
  const std::shared_ptr<arrow::fs::GcsFileSystem> gcs_;
  const RemoteOptions options_;
};

}  // namespace atl::storage
