// A real PostgreSQL server for tests, from the distribution's packages: its own cluster in a temporary folder, reached
// through a Unix socket there.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/multiproc/process.h"

namespace atl::testing_postgres {

// Why no server can be started here, and what to do about it; empty where one can.
std::string MissingPgServer();

// Runs until it is destroyed; its files go with it. Not thread-safe. Steps of the harness that fail end the test
// process, with their reason.
class PgServer {
 public:
  PgServer();
  ~PgServer();
  PgServer(const PgServer&) = delete;
  PgServer& operator=(const PgServer&) = delete;

  // One that the whole test process shares, started when first asked for.
  static PgServer& Shared();

  // A new empty database, as a store's URI. `like`: a copy of that database instead, which nobody may use meanwhile.
  std::string NewDatabase(const std::string& like = "");
  // The name in such a URI.
  static std::string DatabaseOf(const std::string& uri);
  // Runs SQL in the database of the URI, and returns the first column of the last answer's rows.
  std::vector<std::string> Ask(const std::string& uri, const std::string& sql);

  // The whole server hangs, as far as its processes go that are there now; the system goes on to acknowledge what it is
  // sent.
  void Pause();
  void Resume();
  // SIGKILL to the whole server: what was not durable is gone.
  void Kill();
  void Start();

 private:
  std::string UriOf(const std::string& database) const;

  std::string folder_;
  int databases_ = 0;
  std::unique_ptr<testing_cluster::Process> process_;
};

}  // namespace atl::testing_postgres
