// Copies of a store: made while a coordinator runs on it, checked, and turned into a store again.
//
// A backup is a store in one file, marked as a copy from the past (Store::MarkRestored): whoever opens it takes a
// higher epoch and holds collection. A plain copy of a running store's file lacks what lies in the log beside it, and
// does not say what it is; it is no backup.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace atl::store {

struct BackupFacts {
  std::string store_id;  // of the store that was copied
  int64_t epoch = 0;
  int64_t revision = 0;  // of the last transaction that is in it
  int64_t jobs = 0;
  int64_t bytes = 0;
};

// Copies the store between two of its transactions, checks every page and key of the copy, and puts it at
// `backup_path`, synced: what was there before is replaced by a whole backup or not at all. Uses connections of its own
// and may run in any process; writers are not held up. Blocks on the disks. Errors as in store.h, naming the file;
// FAILED_PRECONDITION (STORE_CANNOT_OPEN) where there is no store.
absl::StatusOr<BackupFacts> BackUpStore(const std::string& store_path, const std::string& backup_path);

// Checks a backup and copies it to `store_path`, synced. FAILED_PRECONDITION: STORE_EXISTS where a store lies already,
// which is left as it is; NOT_A_BACKUP for a store that BackUpStore did not make; STORE_TOO_NEW for one of a newer
// build. DATA_LOSS (STORE_CORRUPT) for a damaged one. The backup itself is only read.
absl::StatusOr<BackupFacts> RestoreStore(const std::string& backup_path, const std::string& store_path);

}  // namespace atl::store
