// Writing an object of S3 only where there is none, in one call (PutObject with If-None-Match), which Arrow does not
// offer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/storage/blob_store.h"

namespace arrow::fs {
class S3FileSystem;
}

namespace atl::storage {

// Thread-safe; every call blocks on the network, with the patience of `options`. Errors are those of FromS3.
class ConditionalPut {
 public:
  ConditionalPut(std::shared_ptr<arrow::fs::S3FileSystem> filesystem, const RemoteOptions& options);

  // Whether the object at `path` ("bucket/key") was made by this call; false: there is one already. A call whose answer
  // was lost and that is made again knows its own object. `what` names the operation and the file.
  absl::StatusOr<bool> PutIfAbsent(const std::string& path, std::string_view bytes, std::string_view what);

  // Whether the server honours the condition: tried on an object at `path`, which is left behind.
  absl::StatusOr<bool> Probe(const std::string& path, std::string_view what);

 private:
  struct Answer {
    int http_status = 0;  // 0: no connection came about, or it broke
    std::string code;     // of S3's error document
    std::string writer;   // that wrote the object, for HEAD
    std::string detail;
  };
  Answer Call(const std::string& method, const std::string& path, std::string_view body, const std::string& writer);
  // Until an answer is final. `ambiguous`: an earlier try may have been carried out.
  Answer CallPatiently(const std::string& method, const std::string& path, std::string_view body,
                       const std::string& writer, bool* ambiguous);

  const std::shared_ptr<arrow::fs::S3FileSystem> filesystem_;
  const RemoteOptions options_;
};

}  // namespace atl::storage
