#include "common/dataset/import/input_stream.h"

#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "common/base/errors.h"
#include "fmt/format.h"

namespace atl::dataset {
namespace {

absl::Status CannotOpen(const std::string& path, int error) {
  return MakeError(absl::StatusCode::kNotFound, "SOURCE_NOT_FOUND",
                   fmt::format("{}: cannot open: {}", path, std::generic_category().message(error)));
}

// zlib passes plain files through as they are.
class GzipInput : public InputStream {
 public:
  GzipInput(std::string path, gzFile file) : path_(std::move(path)), file_(file) {}
  ~GzipInput() override { gzclose(file_); }

  absl::StatusOr<size_t> Read(char* buffer, size_t size) override {
    size_t total = 0;
    while (total < size) {
      const auto ask = static_cast<unsigned>(std::min<size_t>(size - total, size_t{1} << 30));
      const int got = gzread(file_, buffer + total, ask);
      int error = Z_OK;
      const char* message = gzerror(file_, &error);
      // A stream that stops half-way yields what it holds and Z_BUF_ERROR.
      if (got < 0 || error == Z_BUF_ERROR || error == Z_DATA_ERROR) {
        return MalformedSource(path_, fmt::format("expected whole gzip data, found damage after {} bytes: {}",
                                                  offset_ + total + std::max(got, 0), message));
      }
      if (got == 0) break;
      total += static_cast<size_t>(got);
    }
    offset_ += total;
    return total;
  }

 private:
  const std::string path_;
  const gzFile file_;
  size_t offset_ = 0;
};

}  // namespace

absl::Status MalformedSource(std::string_view file, std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, "SOURCE_MALFORMED", fmt::format("{}: {}", file, message));
}

absl::StatusOr<std::unique_ptr<InputStream>> OpenInputFile(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return CannotOpen(path, errno);
  if (S_ISDIR(info.st_mode)) return CannotOpen(path, EISDIR);
  errno = 0;
  const gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) return CannotOpen(path, errno == 0 ? ENOMEM : errno);
  gzbuffer(file, 1 << 17);
  return std::make_unique<GzipInput>(path, file);
}

}  // namespace atl::dataset
