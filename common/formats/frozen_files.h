// Reads the files of frozen components.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/spec/frozen.h"
#include "common/storage/blob_store.h"

namespace atl::storage {

// Returns the bytes of every file, by URI, each read once. DATA_LOSS (HASH_MISMATCH) names the field, the file, its
// hash in the job and the found one. Errors of BlobStore::Read, with the field. Blocks.
absl::StatusOr<std::map<std::string, std::string>> ReadFrozenFiles(BlobStore* store,
                                                                   const std::vector<spec::FrozenFileField>& files);

}  // namespace atl::storage
