// Store in one SQLite file (WAL if the file system supports it, synchronous EXTRA). One process at a time: a lock file
// beside it rejects a second.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "coordinator/store/store.h"

namespace atl::store {

struct SqliteStoreOptions {
  std::string path;
  // How long to wait for another process that holds the database, for example a backup.
  absl::Duration busy_timeout = absl::Seconds(5);
  OnStoreLost on_lost;
};

class SqliteStore : public Store {
 public:
  // Opens, checks and migrates the file; creates it and its folder if missing. FAILED_PRECONDITION (STORE_IN_USE) while
  // another coordinator has it; other errors as Store and Migrate.
  static absl::StatusOr<std::unique_ptr<SqliteStore>> Open(SqliteStoreOptions options);
  ~SqliteStore() override;

 private:
  SqliteStore(const SqliteStoreOptions& options, int lock_descriptor)
      : Store(options.path, options.on_lost), lock_descriptor_(lock_descriptor) {}

  const int lock_descriptor_;
};

}  // namespace atl::store
