// The schema and how older files become it. Version N of the schema is what the first N migrations make; the version
// lies in table schema_version. It is written once, as SQLite's; PostgreSQL's is made from that.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "coordinator/store/sql_database.h"

namespace atl::store {

// Returns the migrations that lead to this build's schema.
absl::Span<const char* const> Migrations();

// Applies the migrations that the database lacks, each in a transaction of its own. FAILED_PRECONDITION (STORE_TOO_NEW)
// for a file of a newer build, which is left untouched; DATA_LOSS (STORE_CORRUPT) for a database that is none of
// Atoll's.
absl::Status Migrate(Database& database, absl::Span<const char* const> migrations = Migrations());

// Whether the database is a coordinator's store of this build's schema or an older one; errors as Migrate, and
// STORE_CORRUPT for an empty one. Changes nothing.
absl::Status CheckSchema(Database& database);

// OK for an empty database too; else as CheckSchema.
absl::Status CheckNotNewer(Database& database);

// A migration's text as PostgreSQL takes it: types, identities, and what SQLite alone needs.
std::string PostgresSql(const std::string& sqlite_sql);

}  // namespace atl::store
