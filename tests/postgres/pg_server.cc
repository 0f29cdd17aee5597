#include "tests/postgres/pg_server.h"

#include <libpq-fe.h>
#include <pwd.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "absl/time/time.h"

namespace atl::testing_postgres {
namespace {

namespace fs = std::filesystem;
using testing_cluster::Await;
using testing_cluster::Process;

constexpr absl::Duration kPatience = absl::Seconds(60);

// The newest version's programs; empty where the package is not installed.
std::string ProgramFolder() {
  std::vector<int> versions;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator("/usr/lib/postgresql", error)) {
    if (fs::exists(entry.path() / "bin" / "initdb")) versions.push_back(std::atoi(entry.path().filename().c_str()));
  }
  if (versions.empty()) return "";
  return "/usr/lib/postgresql/" + std::to_string(*std::max_element(versions.begin(), versions.end())) + "/bin";
}

// The server refuses to run as root. It ends with this process, in any case.
std::vector<std::string> AsServerUser(std::vector<std::string> command) {
  if (geteuid() != 0) return command;
  const std::vector<std::string> before = {"/usr/bin/setpriv", "--reuid=postgres",    "--regid=postgres",
                                           "--init-groups",    "--pdeathsig=SIGQUIT", "--"};
  command.insert(command.begin(), before.begin(), before.end());
  return command;
}

std::vector<pid_t> ChildrenOf(pid_t parent) {
  const std::string wanted = "PPid:\t" + std::to_string(parent);
  std::vector<pid_t> children;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc", error)) {
    std::ifstream status(entry.path() / "status");
    for (std::string line; std::getline(status, line);) {
      if (line == wanted) children.push_back(std::atoi(entry.path().filename().c_str()));
    }
  }
  return children;
}

[[noreturn]] void Die(const std::string& why) {
  std::fprintf(stderr, "PostgreSQL server of the tests: %s\n", why.c_str());
  std::abort();
}

}  // namespace

std::string MissingPgServer() {
  if (ProgramFolder().empty()) return "a PostgreSQL server: install the package postgresql";
  if (geteuid() == 0 && getpwnam("postgres") == nullptr) return "a user postgres, as whom the server runs";
  return "";
}

PgServer::PgServer() {
  // Short: the path of a Unix socket has at most 107 characters.
  char folder[] = "/tmp/atoll_pg_XXXXXX";
  if (mkdtemp(folder) == nullptr) Die("no folder in /tmp");
  folder_ = folder;
  if (geteuid() == 0) {
    const passwd* user = getpwnam("postgres");
    if (chown(folder_.c_str(), user->pw_uid, user->pw_gid) != 0) Die("cannot give " + folder_ + " to user postgres");
  }
  Process make(AsServerUser({ProgramFolder() + "/initdb", "-D", folder_ + "/db", "-A", "trust", "-U", "atoll", "-E",
                             "UTF8", "--locale=C.UTF-8", "--no-sync"}),
               folder_ + "/log");
  if (make.Wait(kPatience) != 0) Die(make.Log());
  Start();
}

void PgServer::Start() {
  const auto start = [this] {
    process_ = std::make_unique<Process>(
        AsServerUser({ProgramFolder() + "/postgres", "-D", folder_ + "/db", "-k", folder_, "-c",
                      "listen_addresses=", "-c", "shared_buffers=16MB", "-c", "max_connections=60"}),
        folder_ + "/log");
  };
  start();
  const std::string uri = UriOf("postgres");
  const bool serves = Await(kPatience, [&] {
    // It refuses while processes of one that was killed have not ended yet.
    if (!process_->Running()) start();
    return PQping(uri.c_str()) == PQPING_OK;
  });
  if (!serves) Die(process_->Log());
}

void PgServer::Pause() {
  // First the one that makes the others.
  process_->Signal(SIGSTOP);
  for (const pid_t child : ChildrenOf(process_->pid())) kill(child, SIGSTOP);
}

void PgServer::Resume() {
  for (const pid_t child : ChildrenOf(process_->pid())) kill(child, SIGCONT);
  process_->Signal(SIGCONT);
}

void PgServer::Kill() {
  // The processes of its connections notice that it is gone, and end.
  process_->Kill();
  const std::string uri = UriOf("postgres");
  if (!Await(kPatience, [&] { return PQping(uri.c_str()) == PQPING_NO_RESPONSE; })) Die("it answers after its end");
}

PgServer::~PgServer() {
  Resume();                   // where a test ended early
  process_->Signal(SIGQUIT);  // at once: what it has is deleted
  if (!process_->Wait(kPatience).has_value()) process_->Kill();
  std::error_code error;
  fs::remove_all(folder_, error);
}

PgServer& PgServer::Shared() {
  static PgServer server;
  return server;
}

std::string PgServer::UriOf(const std::string& database) const {
  return "postgres://atoll@/" + database + "?host=" + folder_;
}

std::string PgServer::DatabaseOf(const std::string& uri) {
  const size_t start = uri.find("@/") + 2;
  return uri.substr(start, uri.find('?') - start);
}

std::string PgServer::NewDatabase(const std::string& like) {
  const std::string name = "store" + std::to_string(++databases_);
  Ask(UriOf("postgres"), "CREATE DATABASE " + name + (like.empty() ? "" : " TEMPLATE " + like));
  return UriOf(name);
}

std::vector<std::string> PgServer::Ask(const std::string& uri, const std::string& sql) {
  PGconn* const connection = PQconnectdb(uri.c_str());
  PGresult* const result = PQexec(connection, sql.c_str());
  const ExecStatusType status = PQresultStatus(result);
  if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK) Die(sql + ": " + PQerrorMessage(connection));
  std::vector<std::string> column;
  for (int row = 0; row < PQntuples(result); ++row) column.emplace_back(PQgetvalue(result, row, 0));
  PQclear(result);
  PQfinish(connection);
  return column;
}

}  // namespace atl::testing_postgres
