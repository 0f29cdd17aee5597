// Members of a tar, in order.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/dataset/import/input_stream.h"

struct archive;

namespace atl::dataset {

// Not thread-safe.
class TarReader {
 public:
  // `file` is for messages. INVALID_ARGUMENT if the bytes are no tar.
  static absl::StatusOr<std::unique_ptr<TarReader>> Open(std::unique_ptr<InputStream> input, std::string file);
  ~TarReader();
  TarReader(const TarReader&) = delete;
  TarReader& operator=(const TarReader&) = delete;

  // Moves to the next regular file; false at the end. INVALID_ARGUMENT if the tar is damaged or truncated.
  absl::StatusOr<bool> Next();
  const std::string& name() const { return name_; }
  int64_t size() const { return size_; }
  // Returns the member's bytes; call at most once. `size()` comes from its header: check it first.
  absl::StatusOr<std::string> ReadContent();

 private:
  TarReader(std::unique_ptr<InputStream> input, std::string file);
  absl::Status Damaged(const char* doing);

  static int64_t ReadBlock(archive* reader, void* self, const void** block);

  const std::unique_ptr<InputStream> input_;
  const std::string file_;
  std::string block_;
  absl::Status input_status_;
  archive* reader_ = nullptr;
  std::string name_;
  int64_t size_ = 0;
  int64_t member_ = 0;
};

}  // namespace atl::dataset
