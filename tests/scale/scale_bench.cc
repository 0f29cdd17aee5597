// Many simulated islands at one coordinator. Measures how long a heartbeat takes beside durable commits, the
// coordinator's memory and processor time, and the effect of its outage on the attempts. The figures have one case per
// phase. "joining" has the calls of islands that all come at once, in the five seconds after the last island's first
// call; "steady" follows. "returning" is like "joining", after the coordinator's return; "after" follows.
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel.h"
#include "fmt/format.h"
#include "grpcpp/security/credentials.h"
#include "tests/bench/figures.h"
#include "tests/pki.h"
#include "tests/scale/attempts.h"
#include "tests/scale/coordinator_under_load.h"
#include "tests/scale/filled_store.h"
#include "tests/scale/simulated_islands.h"

namespace atl::scale {
namespace {

// The time from the last island's first call until the calls of all islands are spread again.
constexpr absl::Duration kSettling = absl::Seconds(5);

struct Flags {
  int islands = 2000;
  int jobs = 0;
  int seconds = 60;
  std::string away;
  bool tls = false;
};

// The settings of both ends for mutual TLS; empty and null without it.
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

std::string CaseOf(const Flags& flags, const std::string& phase) {
  return fmt::format("scale-{}-{}{}-{}", flags.islands, flags.tls ? "tls" : "clear",
                     flags.away.empty() ? "" : "-away-" + flags.away, phase);
}

void Print(const std::string& phase, const Flags& flags, Observed observed, absl::Duration over,
           const CoordinatorUnderLoad& coordinator, absl::Duration processor_before) {
  const std::string name = CaseOf(flags, phase);
  const bool judged = phase == "steady" || phase == "after";
  const auto print = [&](const char* metric, double value, const char* unit,
                         std::optional<bench::Target> target = std::nullopt) {
    bench::PrintFigure(name, metric, value, unit, judged ? target : std::nullopt);
  };
  const auto quantiles = [&](const std::string& metric, std::vector<double>& values,
                             std::optional<bench::Target> target = std::nullopt) {
    print((metric + "_p50").c_str(), 1e3 * Quantile(values, 0.5), "ms");
    print((metric + "_p99").c_str(), 1e3 * Quantile(values, 0.99), "ms", target);
    print((metric + "_worst").c_str(), 1e3 * Quantile(values, 1), "ms");
    print((metric + "s").c_str(), static_cast<double>(values.size()), "count");
  };
  quantiles("heartbeat", observed.heartbeats, bench::AtMost(50));
  quantiles("commit", observed.commits);
  print("unanswered", static_cast<double>(observed.unanswered), "calls");
  print("revoked", static_cast<double>(observed.revoked), "leases");
  print("refused", static_cast<double>(observed.refused), "calls");
  const double unknown = std::nan("");
  const auto resident = coordinator.ResidentBytes();
  const auto processor = coordinator.ProcessorTime();
  print("resident", resident.ok() ? static_cast<double>(*resident) / 1e6 : unknown, "MB", bench::AtMost(500));
  print("cores", processor.ok() ? absl::FDivDuration(*processor - processor_before, over) : unknown, "count",
        bench::AtMost(2));
  print("client_late", 1e3 * observed.worst_lateness, "ms");
  if (!observed.first_refusal.empty()) fmt::print(stderr, "first refusal: {}\n", observed.first_refusal);
}

absl::Status Measure(const char* phase, absl::Duration length, const Flags& flags, SimulatedIslands& islands,
                     const CoordinatorUnderLoad& coordinator) {
  ATOLL_ASSIGN_OR_RETURN(const absl::Duration processor, coordinator.ProcessorTime());
  const absl::Time start = absl::Now();
  absl::SleepFor(length);
  Print(phase, flags, islands.Take(), absl::Now() - start, coordinator, processor);
  return absl::OkStatus();
}

// Waits until every island has had an answer since `since`.
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
  bench::PrintFigure(CaseOf(flags, "joining"), "all_renewed", absl::ToDoubleSeconds(joined) - 1, "s");
  bench::PrintFigure(CaseOf(flags, "joining"), "tasks", TasksOf(shape), "count");
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
    const std::string name = CaseOf(flags, "returning");
    std::optional<bench::Target> first_call_target;
    if (flags.islands <= 1000) first_call_target = bench::AtMost(1);
    bench::PrintFigure(name, "first_call", absl::ToDoubleSeconds(first_call), "s", first_call_target);
    bench::PrintFigure(name, "all_renewed", absl::ToDoubleSeconds(renewed), "s", bench::AtMost(60));
    ATOLL_RETURN_IF_ERROR(Measure("returning", kSettling, flags, islands, coordinator));
    ATOLL_RETURN_IF_ERROR(Measure("after", absl::Seconds(flags.seconds), flags, islands, coordinator));
  }
  ATOLL_ASSIGN_OR_RETURN(const AttemptCounts counts,
                         AttemptsOf(coordinator.address(), trust.credentials,
                                    (flags.islands + shape.experts_per_job - 1) / shape.experts_per_job));
  bench::PrintFigure(CaseOf(flags, "attempts"), "leased", counts.first_attempts, "count",
                     bench::AtLeast(flags.islands));
  bench::PrintFigure(CaseOf(flags, "attempts"), "changed", counts.other_attempts, "count", bench::AtMost(0));
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
  atl::bench::KeepStandardOutputForFigures();
  absl::Status status = atl::scale::RaiseOpenFiles(flags.islands);
  std::string folder = std::filesystem::temp_directory_path() / "atoll_scale_XXXXXX";
  if (status.ok() && mkdtemp(folder.data()) == nullptr) status = absl::ErrnoToStatus(errno, "mkdtemp");
  if (status.ok()) {
    status = atl::scale::Run(folder, flags);
    std::filesystem::remove_all(folder);
  }
  return atl::bench::EndBench("scale_bench", status);
}
