// Many simulated islands at one coordinator: how long a heartbeat takes beside durable commits, what the coordinator
// needs of memory and processor, and what becomes of the attempts when it is away and comes back. Prints one JSON
// object per phase.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel.h"
#include "fmt/format.h"
#include "grpcpp/security/credentials.h"
#include "tests/pki.h"
#include "tests/scale/attempts.h"
#include "tests/scale/coordinator_under_load.h"
#include "tests/scale/filled_store.h"
#include "tests/scale/simulated_islands.h"

namespace atl::scale {
namespace {

// From when the last island was heard until the calls of all of them are spread again.
constexpr absl::Duration kSettling = absl::Seconds(5);

struct Flags {
  int islands = 2000;
  int jobs = 0;
  int seconds = 60;
  std::string away;
  bool tls = false;
};

// What both ends need for mutual TLS; nothing and null without it.
struct Trust {
  std::vector<std::string> coordinator_flags;
  std::shared_ptr<grpc::ChannelCredentials> credentials;
};

Trust MakeTrust(const std::string& folder, bool tls) {
  Trust trust;
  if (!tls) return trust;
  const testing::CertificateAuthority authority;
  testing::WriteTlsFolder(folder + "/tls", authority.IssueServer("coordinator"), authority.certificate());
  trust.coordinator_flags = {"--tls-dir", folder + "/tls", "--require-client-certificate"};
  const testing::Certificate islands = authority.IssueClient("islands");
  trust.credentials = grpc::SslCredentials({authority.certificate(), islands.key, islands.certificate});
  return trust;
}

absl::Status RaiseOpenFiles(int islands) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return absl::ErrnoToStatus(errno, "getrlimit");
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return absl::ErrnoToStatus(errno, "setrlimit");
  const auto needed = static_cast<rlim_t>(islands) + 200;
  if (limit.rlim_cur >= needed) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("expected that {} files may be open, found {}: see ulimit -n", needed, limit.rlim_cur));
}

void Print(const char* phase, const Flags& flags, Observed observed, absl::Duration over,
           const CoordinatorUnderLoad& coordinator, absl::Duration processor_before) {
  const auto resident = coordinator.ResidentBytes();
  const auto processor = coordinator.ProcessorTime();
  const auto milliseconds = [](std::vector<double>& values, double share) { return 1e3 * Quantile(values, share); };
  fmt::print(
      R"({{"phase":"{}","islands":{},"seconds":{:.1f},"heartbeats":{},"commits":{},"heartbeat_p50_ms":{:.2f},"heartbeat_p99_ms":{:.2f},"heartbeat_worst_ms":{:.1f},"commit_p50_ms":{:.2f},"commit_p99_ms":{:.2f},"unanswered":{},"revoked":{},"refused":{},"resident_mb":{:.1f},"cores_used":{:.2f},"client_late_ms":{:.1f}}})"
      "\n",
      phase, flags.islands, absl::ToDoubleSeconds(over), observed.heartbeats.size(), observed.commits.size(),
      milliseconds(observed.heartbeats, 0.5), milliseconds(observed.heartbeats, 0.99),
      milliseconds(observed.heartbeats, 1.0), milliseconds(observed.commits, 0.5), milliseconds(observed.commits, 0.99),
      observed.unanswered, observed.revoked, observed.refused, resident.ok() ? static_cast<double>(*resident) / 1e6 : 0,
      processor.ok() ? absl::FDivDuration(*processor - processor_before, over) : 0, 1e3 * observed.worst_lateness);
  if (!observed.first_refusal.empty()) fmt::print(stderr, "first refusal: {}\n", observed.first_refusal);
  std::fflush(stdout);
}

absl::Status Measure(const char* phase, absl::Duration length, const Flags& flags, SimulatedIslands& islands,
                     const CoordinatorUnderLoad& coordinator) {
  ATOLL_ASSIGN_OR_RETURN(const absl::Duration processor, coordinator.ProcessorTime());
  const absl::Time start = absl::Now();
  absl::SleepFor(length);
  Print(phase, flags, islands.Take(), absl::Now() - start, coordinator, processor);
  return absl::OkStatus();
}

// Until every island has been heard since `since`.
absl::StatusOr<absl::Duration> AwaitAll(const SimulatedIslands& islands, absl::Time since) {
  const absl::Time deadline = absl::Now() + absl::Minutes(3);
  while (islands.RenewedSince(since) < static_cast<int64_t>(islands.size())) {
    if (absl::Now() > deadline) {
      return absl::DeadlineExceededError(
          fmt::format("{} of {} islands were heard", islands.RenewedSince(since), islands.size()));
    }
    absl::SleepFor(absl::Milliseconds(10));
  }
  return absl::Now() - since;
}

absl::Status Run(const std::string& folder, const Flags& flags) {
  StoreShape shape{.leases = flags.islands};
  shape.jobs = std::max(flags.jobs, (flags.islands + shape.experts_per_job - 1) / shape.experts_per_job);
  ATOLL_ASSIGN_OR_RETURN(const std::vector<spec::LeaseToken> tokens, FillStore(folder, shape));
  const Trust trust = MakeTrust(folder, flags.tls);
  CoordinatorUnderLoad coordinator(folder, trust.coordinator_flags);
  ATOLL_RETURN_IF_ERROR(coordinator.Start());
  SimulatedIslands islands(tokens, {.coordinator = coordinator.address(),
                                    .credentials = trust.credentials,
                                    .blob_root = "file://" + folder + "/blobs"});
  const absl::Time start = absl::Now();
  ATOLL_ASSIGN_OR_RETURN(const absl::Duration joined, AwaitAll(islands, start - absl::Seconds(1)));
  fmt::print(R"({{"phase":"joined","islands":{},"tls":{},"tasks":{},"all_renewed_s":{:.2f}}})"
             "\n",
             flags.islands, flags.tls, TasksOf(shape), absl::ToDoubleSeconds(joined) - 1);
  // The calls of all who came at once belong to their coming, which has figures of its own.
  ATOLL_RETURN_IF_ERROR(Measure("joining", kSettling, flags, islands, coordinator));
  ATOLL_RETURN_IF_ERROR(Measure("steady", absl::Seconds(flags.seconds), flags, islands, coordinator));
  if (!flags.away.empty()) {
    absl::Duration away;
    if (!absl::ParseDuration(flags.away, &away)) return absl::InvalidArgumentError("--away: expected a duration");
    coordinator.Kill();
    absl::SleepFor(away);
    (void)islands.Take();
    const absl::Time restarted = absl::Now();
    ATOLL_RETURN_IF_ERROR(coordinator.Start());
    ATOLL_RETURN_IF_ERROR(AttemptsOf(coordinator.address(), trust.credentials, 1).status());
    const absl::Duration first_call = absl::Now() - restarted;
    ATOLL_ASSIGN_OR_RETURN(const absl::Duration renewed, AwaitAll(islands, restarted));
    fmt::print(
        R"({{"phase":"restarted","islands":{},"tasks":{},"away_s":{:.0f},"first_call_s":{:.3f},"all_renewed_s":{:.2f}}})"
        "\n",
        flags.islands, TasksOf(shape), absl::ToDoubleSeconds(away), absl::ToDoubleSeconds(first_call),
        absl::ToDoubleSeconds(renewed));
    ATOLL_RETURN_IF_ERROR(Measure("returning", kSettling, flags, islands, coordinator));
    ATOLL_RETURN_IF_ERROR(Measure("after", absl::Seconds(flags.seconds), flags, islands, coordinator));
  }
  ATOLL_ASSIGN_OR_RETURN(const AttemptCounts counts,
                         AttemptsOf(coordinator.address(), trust.credentials,
                                    (flags.islands + shape.experts_per_job - 1) / shape.experts_per_job));
  fmt::print(R"({{"phase":"attempts","leased":{},"changed":{}}})"
             "\n",
             counts.first_attempts, counts.other_attempts);
  if (counts.other_attempts > 0 || counts.first_attempts != flags.islands) {
    return absl::InternalError("attempts changed");
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace atl::scale

int main(int argc, char** argv) {
  CLI::App app("Thousands of simulated islands at one coordinator");
  atl::scale::Flags flags;
  app.option_defaults()->take_last();  // a script's own values come first
  app.add_option("--islands", flags.islands, "Islands")->check(CLI::Range(1, 20'000))->capture_default_str();
  app.add_option("--jobs", flags.jobs, "Jobs of 20 tasks in the store, at least; others wait")->capture_default_str();
  app.add_option("--seconds", flags.seconds, "Length of a measured phase")->capture_default_str();
  app.add_option("--away", flags.away, "Kill the coordinator, and start it again after this long, such as 5m");
  app.add_flag("--tls", flags.tls, "Mutual TLS, with certificates made for the run");
  CLI11_PARSE(app, argc, argv);
  absl::Status status = atl::scale::RaiseOpenFiles(flags.islands);
  std::string folder = std::filesystem::temp_directory_path() / "atoll_scale_XXXXXX";
  if (status.ok() && mkdtemp(folder.data()) == nullptr) status = absl::ErrnoToStatus(errno, "mkdtemp");
  if (status.ok()) {
    status = atl::scale::Run(folder, flags);
    std::filesystem::remove_all(folder);
  }
  if (status.ok()) return 0;
  std::fprintf(stderr, "scale_bench: %s\n", status.ToString().c_str());
  return 1;
}
