// Writing an object only where there is none, in one call, which Arrow does not offer: S3's PutObject with
// If-None-Match, and in the XML API of Google's storage x-goog-if-generation-match: 0.
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

// Thread-safe; every call blocks on the network, with the patience of `options`. Errors are those of FromS3.
class ConditionalPut {
 public:
  // With the keys and the endpoint of `filesystem`; null where it is another than S3's and Google's.
  static std::unique_ptr<ConditionalPut> Over(const std::shared_ptr<arrow::fs::FileSystem>& filesystem,
                                              const RemoteOptions& options);

  // Whether the object at `path` ("bucket/key") was made by this call; false: there is one already. A call whose answer
  // was lost and that is made again knows its own object. `what` names the operation and the file.
  absl::StatusOr<bool> PutIfAbsent(const std::string& path, std::string_view bytes, std::string_view what);

  // Whether the server honours the condition: tried on an object at `path`, which is left behind.
  absl::StatusOr<bool> Probe(const std::string& path, std::string_view what);

 private:
  ConditionalPut(std::shared_ptr<arrow::fs::S3FileSystem> s3, std::shared_ptr<arrow::fs::GcsFileSystem> gcs,
                 const RemoteOptions& options);

  struct Answer {
    int http_status = 0;  // 0: no connection came about, or it broke
    std::string code;     // of the error document
    std::string writer;   // that wrote the object, for HEAD
    std::string detail;
  };
  // Sets how a call with this body is authenticated; returns the URL.
  absl::StatusOr<std::string> Prepare(const std::string& path, std::string_view body, CURL* curl,
                                      Headers* headers) const;
  Answer Call(const std::string& method, const std::string& path, std::string_view body, const std::string& writer);
  // Until an answer is final. `ambiguous`: an earlier try may have been carried out.
  Answer CallPatiently(const std::string& method, const std::string& path, std::string_view body,
                       const std::string& writer, bool* ambiguous);

  // One of the two.
  const std::shared_ptr<arrow::fs::S3FileSystem> s3_;
  const std::shared_ptr<arrow::fs::GcsFileSystem> gcs_;
  const RemoteOptions options_;
};

}  // namespace atl::storage
