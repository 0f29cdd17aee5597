// The schema and how older files become it. Version N of the schema is what the first N migrations make; the version
// lies in table schema_version. It is written once, as SQLite's; PostgreSQL's is made from that.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "coordinator/store/sql_database.h"

namespace atl::store {

// What this build writes.
int SchemaVersion();

// Brings the database to SchemaVersion(), each step in its own transaction. FAILED_PRECONDITION (STORE_TOO_NEW) for a
// file of a newer build, which is left untouched; DATA_LOSS (STORE_CORRUPT) for a database that is none of Atoll's.
absl::Status Migrate(Database& database);

// Secrets that a store of schema 6 or older held may still lie in pages that are free since, and in SQLite's log:
// rewrites the database without them, once; else does nothing. Returns whether it did. Takes time and room with the
// size of an SQLite file, or of PostgreSQL's table of attempts; after an error the store is as good as before, and the
// next call tries again.
absl::StatusOr<bool> EraseRemains(Database& database);

// Whether the database is a coordinator's store of this build's schema or an older one; errors as Migrate, and
// STORE_CORRUPT for an empty one. Changes nothing.
absl::Status CheckSchema(Database& database);

// OK for an empty database too; else as CheckSchema.
absl::Status CheckNotNewer(Database& database);

// A migration's text as PostgreSQL takes it: types, identities, and what SQLite alone needs.
std::string PostgresSql(const std::string& sqlite_sql);

}  // namespace atl::store
