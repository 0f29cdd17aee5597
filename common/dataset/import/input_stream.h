// Bytes of a file to import, in order; gzip is decompressed.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace atl::dataset {

// Not thread-safe.
class InputStream {
 public:
  virtual ~InputStream() = default;
  // Fills `buffer`; fewer bytes than requested mean the end. INVALID_ARGUMENT names the file and the offset if its gzip
  // is damaged or truncated.
  virtual absl::StatusOr<size_t> Read(char* buffer, size_t size) = 0;
};

// NOT_FOUND (SOURCE_NOT_FOUND) names the file.
absl::StatusOr<std::unique_ptr<InputStream>> OpenInputFile(const std::string& path);

// Opens one of a source's files by name, so that sources do not depend on the origin of bytes.
using InputOpener = std::function<absl::StatusOr<std::unique_ptr<InputStream>>(const std::string& name)>;

// INVALID_ARGUMENT (SOURCE_MALFORMED): "file: message".
absl::Status MalformedSource(std::string_view file, std::string_view message);

}  // namespace atl::dataset
