#include "common/dataset/import/tar_reader.h"

#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "fmt/format.h"

namespace atl::dataset {
namespace {

constexpr size_t kBlockBytes = size_t{1} << 17;
// Grown as bytes arrive: a header may claim more than there is.
constexpr size_t kFirstReserve = size_t{1} << 20;

}  // namespace

TarReader::TarReader(std::unique_ptr<InputStream> input, std::string file)
    : input_(std::move(input)), file_(std::move(file)), reader_(archive_read_new()) {}

TarReader::~TarReader() {
  archive_read_free(reader_);
}

int64_t TarReader::ReadBlock(archive* reader, void* self, const void** block) {
  auto* tar = static_cast<TarReader*>(self);
  tar->block_.resize(kBlockBytes);
  const auto got = tar->input_->Read(tar->block_.data(), kBlockBytes);
  if (!got.ok()) {
    tar->input_status_ = got.status();
    archive_set_error(reader, EIO, "input error");
    return -1;
  }
  *block = tar->block_.data();
  return static_cast<int64_t>(*got);
}

absl::Status TarReader::Damaged(const char* doing) {
  if (!input_status_.ok()) return input_status_;
  const char* message = archive_error_string(reader_);
  return MalformedSource(file_, fmt::format("expected a whole tar, found damage {} member {}: {}", doing, member_,
                                            message == nullptr ? "no more is known" : message));
}

absl::StatusOr<std::unique_ptr<TarReader>> TarReader::Open(std::unique_ptr<InputStream> input, std::string file) {
  std::unique_ptr<TarReader> tar(new TarReader(std::move(input), std::move(file)));
  archive_read_support_format_tar(tar->reader_);
  if (archive_read_open(
          tar->reader_, tar.get(), nullptr,
          [](archive* reader, void* self, const void** block) -> la_ssize_t { return ReadBlock(reader, self, block); },
          nullptr) != ARCHIVE_OK) {
    return tar->Damaged("before");
  }
  return tar;
}

absl::StatusOr<bool> TarReader::Next() {
  for (;;) {
    archive_entry* entry = nullptr;
    const int result = archive_read_next_header(reader_, &entry);
    // An input error may look like an early end.
    if (result == ARCHIVE_EOF && input_status_.ok()) return false;
    if (result < ARCHIVE_WARN || result == ARCHIVE_EOF) return Damaged("at");
    ++member_;
    if (archive_entry_filetype(entry) != AE_IFREG) continue;
    const char* name = archive_entry_pathname(entry);
    if (name == nullptr) name = archive_entry_pathname_utf8(entry);
    name_ = name == nullptr ? fmt::format("member-{}", member_) : name;
    size_ = archive_entry_size(entry);
    return true;
  }
}

absl::StatusOr<std::string> TarReader::ReadContent() {
  std::string content;
  content.reserve(std::min<size_t>(static_cast<size_t>(std::max<int64_t>(size_, 0)), kFirstReserve));
  std::string buffer(size_t{1} << 16, '\0');
  for (;;) {
    const la_ssize_t got = archive_read_data(reader_, buffer.data(), buffer.size());
    if (got < 0) return Damaged("in");
    if (got == 0) return content;
    content.append(buffer.data(), static_cast<size_t>(got));
  }
}

}  // namespace atl::dataset
