// Measures how long a coordinator with a full store is unreachable when it is killed and restarted: from the start of
// its process to the first answer. Prints the worst and the median of its rounds.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/time/clock.h"
#include "atoll/island/v1/island_service.grpc.pb.h"
#include "atoll/job/v1/job_service.grpc.pb.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel.h"
#include "common/wire/status.h"
#include "fmt/format.h"
#include "tests/bench/figures.h"
#include "tests/scale/coordinator_under_load.h"
#include "tests/scale/filled_store.h"
#include "tests/scale/simulated_islands.h"

namespace atl::scale {
namespace {

struct Round {
  absl::Duration listening;
  absl::Duration first_job;
  absl::Duration first_claim;
  absl::Duration processor;
  int64_t resident_bytes = 0;
};

absl::Status GetJob(const std::shared_ptr<grpc::Channel>& channel, const std::string& job_id) {
  atlpb::job::v1::GetJobRequest request;
  request.set_job_id(job_id);
  atlpb::job::v1::GetJobResponse response;
  grpc::ClientContext context;
  rpc::SetTimeout(&context, absl::Seconds(30), /*wait_for_ready=*/true);
  return rpc::FromGrpc(atlpb::job::v1::JobService::NewStub(channel)->GetJob(&context, request, &response));
}

// The claim of an island that holds a lease already, or of a new one that needs every job looked at.
absl::Status Claim(const std::shared_ptr<grpc::Channel>& channel) {
  const auto stub = atlpb::island::v1::IslandService::NewStub(channel);
  atlpb::island::v1::RegisterIslandRequest islander;
  islander.set_island_id("late");
  islander.set_request_id(absl::FormatTime(absl::Now()));
  auto* capabilities = islander.mutable_capabilities();
  capabilities->mutable_protocol()->set_min(1);
  capabilities->mutable_protocol()->set_max(1);
  capabilities->mutable_format()->set_min(1);
  capabilities->mutable_format()->set_max(1);
  capabilities->set_ranks(1);
  capabilities->set_device_kind("cpu");
  atlpb::island::v1::RegisterIslandResponse registered;
  grpc::ClientContext register_context;
  rpc::SetTimeout(&register_context, absl::Seconds(30));
  ATOLL_RETURN_IF_ERROR(rpc::FromGrpc(stub->RegisterIsland(&register_context, islander, &registered)));
  atlpb::island::v1::ClaimTaskRequest request;
  request.set_island_id("late");
  request.set_incarnation(registered.incarnation());
  atlpb::island::v1::ClaimTaskResponse response;
  grpc::ClientContext context;
  rpc::SetTimeout(&context, absl::Seconds(30));
  return rpc::FromGrpc(stub->ClaimTask(&context, request, &response));
}

absl::StatusOr<Round> MeasureOne(CoordinatorUnderLoad& coordinator, const std::string& job_id) {
  Round round;
  const absl::Time start = absl::Now();
  ATOLL_RETURN_IF_ERROR(coordinator.Start());
  round.listening = absl::Now() - start;
  const auto channel = rpc::MakeChannel(coordinator.address());
  ATOLL_RETURN_IF_ERROR(GetJob(channel, job_id));
  round.first_job = absl::Now() - start;
  ATOLL_RETURN_IF_ERROR(Claim(channel));
  round.first_claim = absl::Now() - start;
  ATOLL_ASSIGN_OR_RETURN(round.processor, coordinator.ProcessorTime());
  ATOLL_ASSIGN_OR_RETURN(round.resident_bytes, coordinator.ResidentBytes());
  // As a machine fails, not as an operator stops it.
  coordinator.Kill();
  return round;
}

absl::Status Run(const std::string& folder, const StoreShape& shape, int rounds) {
  ATOLL_RETURN_IF_ERROR(FillStore(folder, shape).status());
  CoordinatorUnderLoad coordinator(folder, {});
  std::map<std::string, std::vector<double>> seconds;
  double resident_bytes = 0;
  for (int i = 0; i < rounds; ++i) {
    ATOLL_ASSIGN_OR_RETURN(const Round round, MeasureOne(coordinator, JobIdAt(shape.jobs - 1)));
    seconds["listening"].push_back(absl::ToDoubleSeconds(round.listening));
    seconds["first_job"].push_back(absl::ToDoubleSeconds(round.first_job));
    seconds["first_claim"].push_back(absl::ToDoubleSeconds(round.first_claim));
    seconds["processor"].push_back(absl::ToDoubleSeconds(round.processor));
    resident_bytes = std::max(resident_bytes, static_cast<double>(round.resident_bytes));
    fmt::print(stderr, "restart {}: first answer after {:.3f} s\n", i, seconds["first_job"].back());
  }
  const std::string name = "restart";
  for (auto& [metric, values] : seconds) {
    std::optional<bench::Target> target;
    if (metric == "first_job") target = bench::AtMost(1);
    bench::PrintFigure(name, metric, Quantile(values, 0.5), "s", target);
    bench::PrintFigure(name, metric + "_worst", Quantile(values, 1), "s", target);
  }
  bench::PrintFigure(name, "resident", resident_bytes / 1e6, "MB");
  bench::PrintFigure(name, "store", static_cast<double>(std::filesystem::file_size(folder + "/store.db")) / 1e6, "MB");
  bench::PrintFigure(name, "tasks", TasksOf(shape), "count");
  return absl::OkStatus();
}

}  // namespace
}  // namespace atl::scale

int main(int argc, char** argv) {
  CLI::App app("Restart of a coordinator with a full store");
  atl::scale::StoreShape shape{.jobs = 5000};
  int rounds = 5;
  app.add_option("--jobs", shape.jobs, "Unfinished jobs")->check(CLI::Range(1, 1'000'000))->capture_default_str();
  app.add_option("--experts", shape.experts_per_job, "Experts of each; 12 further tasks")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_option("--leases", shape.leases, "Experts that islands train")->capture_default_str();
  app.add_option("--rounds", rounds, "Restarts")->check(CLI::Range(1, 1000))->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  atl::bench::KeepStandardOutputForFigures();
  std::string folder = std::filesystem::temp_directory_path() / "atoll_restart_XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return 1;
  const absl::Status status = atl::scale::Run(folder, shape, rounds);
  std::filesystem::remove_all(folder);
  return atl::bench::EndBench("restart_bench", status);
}
