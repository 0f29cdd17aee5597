// The stores that the contract covers: one suite for every database.
#pragma once

#include <memory>
#include <string>

#include "coordinator/store/pg_store.h"
#include "coordinator/store/test_support.h"
#include "tests/facility.h"
#include "tests/postgres/pg_server.h"

namespace atl::store {

enum class StoreKind { kSqlite, kPostgres };

inline std::string NameOf(const testing::TestParamInfo<StoreKind>& info) {
  return info.param == StoreKind::kSqlite ? "Sqlite" : "Postgres";
}

// Returns the location of a new store of the kind, for one test.
inline std::string NewStore(StoreKind kind, const TemporaryFolder& folder) {
  return kind == StoreKind::kSqlite ? folder.File("store.db") : testing_postgres::PgServer::Shared().NewDatabase();
}

inline absl::StatusOr<std::unique_ptr<Store>> OpenStore(const std::string& where) {
  if (!IsPgUri(where)) return SqliteStore::Open({.path = where});
  return PgStore::Open({.uri = where, .holder = "contract"});
}

}  // namespace atl::store
