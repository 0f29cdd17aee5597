// The schema and the migration of older files. Version N of the schema is the result of the first N migrations; table
// schema_version holds the version. The schema is written once, for SQLite; PostgreSQL's is derived from it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "coordinator/store/sql_database.h"

namespace atl::store {

// Returns the migrations that lead to this build's schema.
absl::Span<const char* const> Migrations();

// Applies the missing migrations, each in its own transaction. FAILED_PRECONDITION (STORE_TOO_NEW) for a file of a
// newer build, which is left unchanged; DATA_LOSS (STORE_CORRUPT) for a database that is not Atoll's.
absl::Status Migrate(Database& database, absl::Span<const char* const> migrations = Migrations());

// Checks that the database is a coordinator's store of this build's schema or an older one; errors as Migrate, and
// STORE_CORRUPT for an empty one. Changes nothing.
absl::Status CheckSchema(Database& database);

// Like CheckSchema, but also OK for an empty database.
absl::Status CheckNotNewer(Database& database);

// Converts a migration to PostgreSQL: types, identities, and SQLite's peculiarities.
std::string PostgresSql(const std::string& sqlite_sql);

}  // namespace atl::store
