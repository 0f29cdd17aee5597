#include "common/storage/remote_files.h"

#include <cstdlib>
#include <utility>

#include "arrow/filesystem/filesystem.h"
#include "arrow/filesystem/s3fs.h"
#include "arrow/io/interfaces.h"
#include "arrow/result.h"
#include "common/base/errors.h"
#include "common/storage/arrow_status.h"
#include "fmt/format.h"

namespace atl::storage {

std::string_view WithoutTrailingSlashes(std::string_view text) {
  while (text.size() > 1 && text.back() == '/') text.remove_suffix(1);
  return text;
}

std::string PublicUri(std::string_view uri) {
  const size_t authority = uri.find("://") + 3;
  uri = uri.substr(0, uri.find('?', authority));
  const size_t at = uri.substr(0, uri.find('/', authority)).find('@', authority);
  std::string result(uri.substr(0, authority));
  result += WithoutTrailingSlashes(uri.substr(at == std::string_view::npos ? authority : at + 1));
  return result;
}

absl::StatusOr<std::shared_ptr<arrow::fs::FileSystem>> OpenRemote(const std::string& root_uri, std::string* path) {
  if (root_uri.starts_with("s3://")) {
    ATOLL_RETURN_IF_ARROW_ERROR(arrow::fs::EnsureS3Initialized(), "cannot start the S3 client");
    // The S3 client's threads must end before the process' static objects do.
    static const bool registered = [] { return std::atexit([] { (void)arrow::fs::EnsureS3Finalized(); }) == 0; }();
    (void)registered;
  }
  auto filesystem = arrow::fs::FileSystemFromUri(root_uri, path);
  if (!filesystem.ok()) {
    // Arrow quotes the URI, credentials and all.
    std::string reason = filesystem.status().message();
    if (const size_t at = reason.find(root_uri); at != std::string::npos) reason.replace(at, root_uri.size(), "it");
    const std::string message = fmt::format("{}: {}", PublicUri(root_uri), reason);
    if (filesystem.status().IsInvalid()) {
      return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_STORE_URI", message);
    }
    return MakeError(absl::StatusCode::kUnavailable, "STORE_UNAVAILABLE", message);
  }
  return *filesystem;
}

RemoteWriter::RemoteWriter(std::string uri, std::string path, arrow::fs::FileSystem* filesystem,
                           std::shared_ptr<arrow::io::OutputStream> stream)
    : uri_(std::move(uri)), path_(std::move(path)), filesystem_(filesystem), stream_(std::move(stream)) {}

RemoteWriter::~RemoteWriter() {
  if (finished_) return;
  // S3 drops an aborted upload; others may have made the part that was written visible.
  (void)stream_->Abort();
  if (filesystem_->type_name() != "s3") (void)filesystem_->DeleteFile(path_);
}

absl::Status RemoteWriter::Append(std::string_view bytes) {
  hasher_.Update(bytes);
  bytes_ += static_cast<int64_t>(bytes.size());
  return FromArrow(stream_->Write(bytes.data(), static_cast<int64_t>(bytes.size())), "cannot write " + uri_);
}

absl::StatusOr<WrittenFile> RemoteWriter::Finish() {
  ATOLL_RETURN_IF_ARROW_ERROR(stream_->Close(), "cannot write " + uri_);
  finished_ = true;
  return WrittenFile{uri_, bytes_, hasher_.FinishHex()};
}

}  // namespace atl::storage
