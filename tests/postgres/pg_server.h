// A real PostgreSQL server for tests, from the distribution's packages. It has its own cluster in a temporary folder
// and listens on a Unix socket there.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/multiproc/process.h"

namespace atl::testing_postgres {

// Returns why no server can be started here, and how to fix it; empty if one can.
std::string MissingPgServer();

// Runs until it is destroyed, which deletes its files. Not thread-safe. Steps of the harness that fail end the test
// process, with their reason.
class PgServer {
 public:
  PgServer();
  ~PgServer();
  PgServer(const PgServer&) = delete;
  PgServer& operator=(const PgServer&) = delete;

  // Returns a server that the whole test process shares; the first call starts it.
  static PgServer& Shared();

  // Makes a new empty database and returns its URI as a store. `like`: copies that database instead, which must not be
  // in use meanwhile.
  std::string NewDatabase(const std::string& like = "");
  // Returns the database's name in such a URI.
  static std::string DatabaseOf(const std::string& uri);
  // Runs SQL in the database of the URI, and returns the first column of the last result.
  std::vector<std::string> Ask(const std::string& uri, const std::string& sql);

  // Stops all current processes of the server; the system continues to acknowledge data that is sent to it.
  void Pause();
  void Resume();
  // Sends SIGKILL to the whole server: data that was not durable is lost.
  void Kill();
  void Start();

 private:
  std::string UriOf(const std::string& database) const;

  std::string folder_;
  int databases_ = 0;
  std::unique_ptr<testing_cluster::Process> process_;
};

}  // namespace atl::testing_postgres
