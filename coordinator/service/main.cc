// atoll-coordinator: jobs, islands, models and expert servers; durable state in one SQLite file, or in PostgreSQL.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/time/time.h"
#include "common/auth/security.h"
#include "common/auth/security_flags.h"
#include "common/base/errors.h"
#include "common/base/explain.h"
#include "common/base/files.h"
#include "common/base/log.h"
#include "coordinator/service/coordinator.h"
#include "coordinator/store/pg_database.h"
#include "coordinator/store/sqlite_backup.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace {

struct Flags {
  atl::coordinator::CoordinatorOptions options;
  atl::rpc::SecurityOptions security;
  std::string port_file;
  std::string log_level = "info";
  std::string lease = "10s";
  std::string collect_every = "10m";
  std::string collect_age = "24h";
  std::string store_lease = "10s";
  std::string storage_grant_lifetime = "1h";
  std::string backup;
  std::string restore;
};

void AddFlags(CLI::App& app, Flags& flags) {
  app.description(
      "Coordinates jobs, islands, models and expert servers. Durable state lies in one SQLite file, "
      "or in PostgreSQL, where several coordinators take over from each other.");
  app.add_option("--listen", flags.options.listen, "Address to serve gRPC at; port 0 takes a free one")
      ->envname("ATOLL_LISTEN")
      ->capture_default_str();
  app.add_option("--port-file", flags.port_file, "Write the bound HOST:PORT to this file once it serves");
  app.add_option("--store", flags.options.store,
                 "Where the coordinator's state lies: an SQLite file, or postgres://USER@HOST:PORT/DATABASE without a "
                 "password (PGPASSFILE)")
      ->envname("ATOLL_STORE")
      ->required();
  app.add_option("--store-lease", flags.store_lease,
                 "PostgreSQL: how long the store is kept for a coordinator that does not answer, before another takes "
                 "over")
      ->capture_default_str();
  app.add_option("--blob-store", flags.options.blob_store,
                 "Root of the blob store: file:///path, s3://bucket/prefix, …; required but for --backup")
      ->envname("ATOLL_BLOB_STORE");
  CLI::Option* const backup =
      app.add_option("--backup", flags.backup,
                     "Copy the SQLite store to this file and end; a coordinator may run on the store meanwhile");
  app.add_option(
         "--restore", flags.restore,
         "First make the store, which must not exist, from this backup; it takes a higher epoch, and nothing is "
         "deleted until --adopt")
      ->excludes(backup);
  app.add_flag("--restored", flags.options.restored,
               "The store is a copy from the past that was not made by --backup: take a higher epoch");
  app.add_flag("--adopt", flags.options.adopt,
               "After a restore: first take back the checkpoints that are whole in the blob store and newer than the "
               "store, which may take long, and let collection go on");
  app.add_option("--metrics-listen", flags.options.metrics_listen, "Address of /metrics and /healthz; none by default")
      ->envname("ATOLL_METRICS_LISTEN");
  app.add_flag("--metrics-open", flags.options.metrics_open,
               "Serve metrics in the clear and to everybody, wherever it listens");
  atl::rpc::AddSecurityFlags(app, &flags.security, atl::rpc::Side::kServer);
  app.add_option("--audit-log", flags.options.audit_log,
                 "Append a line of JSON to this file for every call that changes something; SIGHUP opens it again")
      ->envname("ATOLL_AUDIT_LOG");
  app.add_option("--storage-grant-command", flags.options.storage_grants.command,
                 "Run this by /bin/sh for each task: it makes keys of the blob store that are good for that task alone "
                 "(docs/security.md). Without it islands use their own keys");
  app.add_option("--storage-grant-lifetime", flags.storage_grant_lifetime,
                 "How long the keys of a task are to be good; they are renewed before")
      ->capture_default_str();
  app.add_option("--lease", flags.lease, "How long a lease lasts without a heartbeat; islands send five in it")
      ->capture_default_str();
  app.add_option("--expert-replicas", flags.options.expert_replicas,
                 "Expert servers that each expert lies on, where their memory allows; hot experts lie on more")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--collect-every", flags.collect_every, "How often unneeded files are deleted")->capture_default_str();
  app.add_option("--collect-age", flags.collect_age, "How old a file without a row must be")->capture_default_str();
  app.add_option("--log-level", flags.log_level, "trace, debug, info, warn, error or off")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "off"}))
      ->envname("ATOLL_LOG_LEVEL")
      ->capture_default_str();
}

// How long running calls get after SIGTERM.
constexpr absl::Duration kStopGrace = absl::Seconds(2);
// Beyond it, and with "inf", deadlines would not fit the clocks that they are kept by.
constexpr absl::Duration kLongest = absl::Hours(876'000);

bool Parse(const char* flag, const std::string& text, absl::Duration* duration) {
  if (absl::ParseDuration(text, duration) && *duration > absl::ZeroDuration() && *duration <= kLongest) return true;
  std::fprintf(stderr, "%s: expected a duration such as 10s or 500ms, of at most a hundred years, found '%s'\n", flag,
               text.c_str());
  return false;
}

bool ParseDurations(Flags& flags) {
  auto& lease = flags.options.lease;
  const bool good =
      Parse("--lease", flags.lease, &lease.lease_duration) &&
      Parse("--collect-every", flags.collect_every, &flags.options.collector.interval) &&
      Parse("--collect-age", flags.collect_age, &flags.options.collector.min_age) &&
      Parse("--storage-grant-lifetime", flags.storage_grant_lifetime, &flags.options.storage_grants.lifetime) &&
      Parse("--store-lease", flags.store_lease, &flags.options.store_lease);
  lease.heartbeat_interval = lease.lease_duration / 5;
  return good;
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "atoll-coordinator: %s\n", atl::Explain(status).c_str());
  return 1;
}

// To --port-file, where one is given.
absl::Status WriteAddress(const Flags& flags, const std::string& address) {
  if (flags.port_file.empty()) return absl::OkStatus();
  return atl::WithContext(atl::WriteFile(flags.port_file, address + "\n"), "--port-file");
}

// SIGTERM, SIGINT and, where an audit log is kept, SIGHUP: blocked in every thread so that only sigwait sees them.
sigset_t BlockStopSignals(bool audits) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  if (audits) sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

void Say(const char* what, const std::string& from, const std::string& to, const atl::store::BackupFacts& facts) {
  std::printf("%s %s to %s: store %s, epoch %lld, %lld jobs, %lld bytes\n", what, from.c_str(), to.c_str(),
              facts.store_id.c_str(), static_cast<long long>(facts.epoch), static_cast<long long>(facts.jobs),
              static_cast<long long>(facts.bytes));
}

// Another coordinator has the store: listens, and waits for `poll` at a time until a signal comes.
void WaitAsStandby(Flags& flags, const sigset_t& stop_signals) {
  flags.options.on_standby = [&flags](const std::string& address) {
    if (const absl::Status written = WriteAddress(flags, address); !written.ok()) Fail(written);
    std::printf("atoll-coordinator waits at %s for the store\n", address.c_str());
    std::fflush(stdout);
  };
  flags.options.keep_waiting = [&stop_signals](absl::Duration poll) {
    const timespec wait = absl::ToTimespec(poll);
    const int signal_number = sigtimedwait(&stop_signals, nullptr, &wait);
    return signal_number < 0 || signal_number == SIGHUP;
  };
}

// After the other flags were checked: with a bad one the same command, mended, would find a store already.
absl::Status Restore(const Flags& flags, const sigset_t& stop_signals) {
  // Both may take long, and no thread waits for signals yet, so a signal must end the process.
  pthread_sigmask(SIG_UNBLOCK, &stop_signals, nullptr);
  const absl::Status good = atl::coordinator::CheckListen(flags.options);
  if (!good.ok()) return good;
  const auto facts = atl::store::RestoreStore(flags.restore, flags.options.store);
  pthread_sigmask(SIG_BLOCK, &stop_signals, nullptr);
  if (!facts.ok()) return facts.status();
  Say("restored", flags.restore, flags.options.store, *facts);
  return absl::OkStatus();
}

// Whether --backup or --restore was given "", as by a variable that is not set; says so.
bool GivenEmpty(const CLI::App& app, const char* flag, const std::string& path) {
  if (app.count(flag) == 0 || !path.empty()) return false;
  std::fprintf(stderr, "%s: expected the path of a backup, found an empty text\n", flag);
  return true;
}

int RefuseCopies(const Flags& flags) {
  std::fprintf(stderr,
               "%s copies SQLite stores; a PostgreSQL store is copied with pg_dump and pg_restore, and a coordinator "
               "that finds itself in a copy takes a higher epoch and deletes nothing until --adopt "
               "(docs/operations.md)\n",
               flags.backup.empty() ? "--restore" : "--backup");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  atl::log::EscapeTexts();
  CLI::App app;
  Flags flags;
  AddFlags(app, flags);
  CLI11_PARSE(app, argc, argv);
  if (!ParseDurations(flags)) return 2;
  if (GivenEmpty(app, "--backup", flags.backup) || GivenEmpty(app, "--restore", flags.restore)) return 2;
  const bool copies = !flags.backup.empty() || !flags.restore.empty();
  if (copies && atl::store::IsPgUri(flags.options.store)) return RefuseCopies(flags);
  if (!flags.backup.empty()) {
    const auto facts = atl::store::BackUpStore(flags.options.store, flags.backup);
    if (!facts.ok()) return Fail(facts.status());
    Say("backed up", flags.options.store, flags.backup, *facts);
    return 0;
  }
  if (flags.options.blob_store.empty()) {
    std::fprintf(stderr, "--blob-store is required\n");
    return 2;
  }
  spdlog::set_default_logger(spdlog::stderr_logger_mt("coordinator"));
  spdlog::set_level(spdlog::level::from_str(flags.log_level));
  signal(SIGPIPE, SIG_IGN);
  const sigset_t stop_signals = BlockStopSignals(!flags.options.audit_log.empty());

  auto security = atl::rpc::Security::Make(flags.security);
  if (!security.ok()) return Fail(security.status());
  flags.options.security = *std::move(security);
  if (const absl::Status grants = atl::coordinator::CheckStorageGrants(flags.options); !grants.ok()) {
    return Fail(grants);
  }
  if (!flags.restore.empty()) {
    const absl::Status restored = Restore(flags, stop_signals);
    if (!restored.ok()) return Fail(restored);
  }
  WaitAsStandby(flags, stop_signals);
  auto coordinator = atl::coordinator::Coordinator::Start(flags.options);
  // Asked to end before it was its turn.
  if (atl::ErrorReason(coordinator.status()) == "COORDINATOR_STOPPING") return 0;
  if (!coordinator.ok()) return Fail(coordinator.status());
  const std::string& address = (*coordinator)->address();
  if (const absl::Status written = WriteAddress(flags, address); !written.ok()) return Fail(written);
  std::printf("atoll-coordinator serves at %s\n", address.c_str());
  if (const std::string metrics = (*coordinator)->metrics_address(); !metrics.empty()) {
    const bool clear = flags.security.tls_dir.empty() || flags.options.metrics_open;
    std::printf("metrics at %s://%s/metrics\n", clear ? "http" : "https", metrics.c_str());
  }
  std::fflush(stdout);

  int signal_number = 0;
  while (sigwait(&stop_signals, &signal_number) == 0 && signal_number == SIGHUP) {
    const absl::Status reopened = (*coordinator)->ReopenAuditLog();
    if (!reopened.ok()) spdlog::error("{}", std::string(reopened.message()));
  }
  spdlog::info("{}: stopping", signal_number == SIGTERM ? "SIGTERM" : "SIGINT");
  (*coordinator)->Stop(kStopGrace);
  return 0;
}
