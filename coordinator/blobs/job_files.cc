#include "coordinator/blobs/job_files.h"

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/spec/frozen.h"
#include "coordinator/jobs/storage_access.h"
#include "fmt/format.h"

namespace atl::coordinator {
namespace {

// A file, and the fields that name it and its hash.
struct JobFile {
  std::string field;
  std::string uri;
  std::string sha256_field;
};

class FileHashes {
 public:
  FileHashes(storage::BlobStore& blobs, const std::function<bool()>& go_on) : blobs_(blobs), go_on_(go_on) {}

  absl::Status Fill(const JobFile& file, std::string* sha256) {
    ATOLL_ASSIGN_OR_RETURN(const std::string found, HashOf(file));
    if (sha256->empty()) *sha256 = found;
    if (*sha256 == found) return absl::OkStatus();
    return FieldError(file.sha256_field, "JOB_FILE",
                      fmt::format("{}: expected SHA-256 {} as given, found {}", file.uri, *sha256, found));
  }

 private:
  absl::StatusOr<std::string> HashOf(const JobFile& file) {
    const auto known = found_.find(file.uri);
    if (known != found_.end()) return known->second;
    if (!jobs::IsInput(file.uri, blobs_.root())) {
      return FieldError(file.field, "JOB_FILE",
                        fmt::format("expected a file below {}, with letters, digits and ._-=+ in its name; found {}",
                                    jobs::InputsFolder(blobs_.root()), file.uri));
    }
    ATOLL_ASSIGN_OR_RETURN(const bool plain, blobs_.IsPlain(file.uri));
    if (!plain) {
      return FieldError(file.field, "JOB_FILE",
                        fmt::format("expected a plain file, without links on the way to it; found {}", file.uri));
    }
    if (!go_on_()) return absl::CancelledError("the caller does not wait any more");
    const absl::StatusOr<storage::WrittenFile> read = blobs_.Hash(file.uri);
    if (read.ok()) return found_[file.uri] = read->sha256;
    if (absl::IsNotFound(read.status())) {
      return FieldError(file.field, "JOB_FILE", "expected a file, found none at " + file.uri);
    }
    return WithContext(read.status(), file.field);
  }

  storage::BlobStore& blobs_;
  const std::function<bool()>& go_on_;
  std::map<std::string, std::string> found_;  // by URI
};

}  // namespace

absl::Status FillFileHashes(storage::BlobStore& blobs, const std::function<bool()>& go_on, spec::JobSpec* spec) {
  FileHashes hashes(blobs, go_on);
  if (!spec->features.encoder_uri.empty()) {
    ATOLL_RETURN_IF_ERROR(hashes.Fill({"features.encoder_uri", spec->features.encoder_uri, "features.encoder_sha256"},
                                      &spec->features.encoder_sha256));
  }
  const std::vector<spec::FrozenFileField> files = spec::FrozenFileFields(spec->frozen);
  size_t next = 0;
  for (size_t i = 0; i < spec->frozen.size(); ++i) {
    spec::FrozenSpec& component = spec->frozen[i];
    component.file_sha256.resize(spec::FilesOf(component).size());
    for (size_t k = 0; k < component.file_sha256.size(); ++k, ++next) {
      ATOLL_RETURN_IF_ERROR(
          hashes.Fill({files[next].field, files[next].uri, fmt::format("frozen[{}].file_sha256[{}]", i, k)},
                      &component.file_sha256[k]));
    }
  }
  return absl::OkStatus();
}

}  // namespace atl::coordinator
