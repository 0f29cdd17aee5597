#include "common/formats/frozen_files.h"

#include <utility>

#include "common/base/errors.h"

namespace atl::storage {

absl::StatusOr<std::map<std::string, std::string>> ReadFrozenFiles(BlobStore* store,
                                                                   const std::vector<spec::FrozenFileField>& files) {
  std::map<std::string, std::string> bytes_of;
  for (const spec::FrozenFileField& file : files) {
    if (bytes_of.contains(file.uri)) continue;
    absl::StatusOr<std::string> bytes = store->ReadVerified(file.uri, file.sha256);
    if (!bytes.ok()) return WithContext(bytes.status(), file.field);
    bytes_of[file.uri] = *std::move(bytes);
  }
  return bytes_of;
}

}  // namespace atl::storage
