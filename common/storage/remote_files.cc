#include "common/storage/remote_files.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/random/random.h"
#include "arrow/filesystem/filesystem.h"
#include "arrow/filesystem/s3fs.h"
#include "arrow/io/interfaces.h"
#include "arrow/result.h"
#include "common/base/errors.h"
#include "common/storage/arrow_status.h"
#include "fmt/format.h"

namespace atl::storage {
namespace {

// AWS's CoreErrors::NETWORK_CONNECTION, whose header Arrow does not install.
constexpr int kNetworkConnection = 99;
// Its INTERNAL_FAILURE: for example, the text of an error was longer than the buffer for the file's bytes, so that the
// actual error is unknown.
constexpr int kInternalFailure = 1;

// One call reads no more, so that one that fails costs no more.
constexpr size_t kRangeBytes = size_t{32} << 20;
constexpr size_t kMarkBytes = 32;
constexpr int kRangeTries = 4;

class RetryStrategy : public arrow::fs::S3RetryStrategy {
 public:
  explicit RetryStrategy(const RemoteOptions& options) : options_(options) {}

  bool ShouldRetry(const AWSErrorDetail& error, int64_t retries) override {
    return (error.should_retry || error.error_type == kInternalFailure) && Delay(error, retries).has_value();
  }
  int64_t CalculateDelayBeforeNextRetry(const AWSErrorDetail& error, int64_t retries) override {
    return absl::ToInt64Milliseconds(Delay(error, retries).value_or(absl::ZeroDuration()));
  }

 private:
  std::optional<absl::Duration> Delay(const AWSErrorDetail& error, int64_t retries) const {
    thread_local absl::BitGen random;
    const bool unreachable = error.error_type == kNetworkConnection || error.error_type == kInternalFailure;
    return RetryDelay(options_, unreachable, retries + 1, absl::Uniform(random, 0.0, 1.0));
  }

  const RemoteOptions options_;
};

// The S3 client's threads must end before the process' static objects are destroyed. Arrow makes some of these only for
// the first filesystem, and resets them at the end. So this is called after the first success and after the first
// failure; ending twice is safe.
bool EndS3WithProcess() {
  return std::atexit([] { (void)arrow::fs::EnsureS3Finalized(); }) == 0;
}

arrow::Result<std::shared_ptr<arrow::fs::FileSystem>> OpenS3(const std::string& root_uri, const RemoteOptions& options,
                                                             std::string* path, const GrantedKeys* keys) {
  ARROW_ASSIGN_OR_RAISE(arrow::fs::S3Options s3, arrow::fs::S3Options::FromUri(root_uri, path));
  if (keys != nullptr) s3.ConfigureAccessKey(keys->access_key, keys->secret_key, keys->session_token);
  s3.connect_timeout = absl::ToDoubleSeconds(options.connect_timeout);
  // On Linux the time that a transfer may stand still.
  s3.request_timeout = absl::ToDoubleSeconds(options.stall_timeout);
  s3.retry_strategy = std::make_shared<RetryStrategy>(options);
  // Small files take one call instead of the three of an upload in parts.
  s3.allow_delayed_open = true;
  return arrow::fs::S3FileSystem::Make(s3);
}

}  // namespace

std::string_view WithoutTrailingSlashes(std::string_view text) {
  while (text.size() > 1 && text.back() == '/') text.remove_suffix(1);
  return text;
}

std::string PublicUri(std::string_view uri) {
  const size_t scheme = uri.find("://");
  if (scheme == std::string_view::npos) return std::string(uri);
  std::string result(uri.substr(0, scheme + 3));
  std::string_view rest = uri.substr(scheme + 3);
  rest = rest.substr(0, rest.find('?'));
  const std::string_view authority = rest.substr(0, rest.find('/'));
  size_t at = authority.rfind('@');
  // A secret that was not encoded has slashes of its own; a bucket's name has no colon.
  if (at == std::string_view::npos && authority.find(':') != std::string_view::npos) at = rest.find('@');
  if (at != std::string_view::npos) rest.remove_prefix(at + 1);
  result += WithoutTrailingSlashes(rest);
  return result;
}

std::optional<absl::Duration> RetryDelay(const RemoteOptions& options, bool unreachable, int64_t failures,
                                         double jitter) {
  if (failures >= (unreachable ? options.unreachable_tries : options.tries)) return std::nullopt;
  return BackoffDelay(options.backoff, failures, jitter);
}

absl::StatusOr<std::shared_ptr<arrow::fs::FileSystem>> OpenRemote(const std::string& root_uri,
                                                                  const RemoteOptions& options, std::string* path,
                                                                  const GrantedKeys* keys) {
  const bool s3 = root_uri.starts_with("s3://");
  if (s3) {
    ATOLL_RETURN_IF_ARROW_ERROR(arrow::fs::EnsureS3Initialized(), "cannot start the S3 client");
  }
  auto filesystem = s3 ? OpenS3(root_uri, options, path, keys) : arrow::fs::FileSystemFromUri(root_uri, path);
  if (s3 && filesystem.ok()) {
    static const bool ends = EndS3WithProcess();
    (void)ends;
  } else if (s3) {
    static const bool ends = EndS3WithProcess();
    (void)ends;
  }
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

absl::Status ReadRange(arrow::io::RandomAccessFile& file, int64_t offset, absl::Span<char> out, std::string_view what) {
  absl::BitGen random;
  int tries = 0;
  while (!out.empty()) {
    const absl::Span<char> piece = out.first(std::min(out.size(), kRangeBytes));
    // Bytes that were not read still hold the marker. If a file happens to contain the same bytes, another try with a
    // different marker shows it.
    const absl::Span<char> mark = piece.last(std::min(piece.size(), kMarkBytes));
    for (char& byte : mark) byte = static_cast<char>(absl::Uniform<uint8_t>(random));
    const std::string before(mark.begin(), mark.end());
    ATOLL_ASSIGN_OR_RETURN_ARROW(const int64_t got,
                                 file.ReadAt(offset, static_cast<int64_t>(piece.size()), piece.data()), what);
    if (got != static_cast<int64_t>(piece.size())) {
      return MakeError(absl::StatusCode::kDataLoss, "FILE_CUT_SHORT",
                       fmt::format("{}: expected {} bytes from byte {} on, found {}", what, piece.size(), offset, got));
    }
    if (std::string_view(mark.data(), mark.size()) == before) {
      if (++tries < kRangeTries) continue;
      return MakeError(absl::StatusCode::kUnavailable, "STORE_UNAVAILABLE",
                       fmt::format("{}: the transfer broke off {} times", what, tries));
    }
    tries = 0;
    offset += static_cast<int64_t>(piece.size());
    out.remove_prefix(piece.size());
  }
  return absl::OkStatus();
}

RemoteWriter::RemoteWriter(std::string uri, std::string path, std::shared_ptr<arrow::fs::FileSystem> filesystem,
                           std::shared_ptr<arrow::io::OutputStream> stream)
    : uri_(std::move(uri)), path_(std::move(path)), filesystem_(std::move(filesystem)), stream_(std::move(stream)) {}

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
