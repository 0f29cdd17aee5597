// Copies of a store: made while a coordinator runs on it, checked, and restored to a store.
//
// A backup is a store in one file, marked as a copy from the past (Store::MarkRestored): a coordinator that opens it
// takes a higher epoch and holds collection. A plain copy of a running store's file is no backup: it lacks the data in
// the log beside it, and has no mark.
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

// Copies the store between two of its transactions, checks every page and key of the copy, and writes it to
// `backup_path`, synced. An earlier file there is replaced by a complete backup or not at all. Uses its own
// connections, may run in any process, and does not block writers. Blocks on the disks. Errors as in store.h, naming
// the file; FAILED_PRECONDITION (STORE_CANNOT_OPEN) if there is no store.
absl::StatusOr<BackupFacts> BackUpStore(const std::string& store_path, const std::string& backup_path);

// Checks a backup and copies it to `store_path`, synced. FAILED_PRECONDITION: STORE_EXISTS if a store exists there,
// which is left unchanged; NOT_A_BACKUP for a store that BackUpStore did not make; STORE_TOO_NEW for a backup of a
// newer build. DATA_LOSS (STORE_CORRUPT) for a damaged one. Only reads the backup.
absl::StatusOr<BackupFacts> RestoreStore(const std::string& backup_path, const std::string& store_path);

}  // namespace atl::store
