#include "tests/bench/pipeline_ranks.h"

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/status_macros.h"
#include "common/planner/measured_profile.h"
#include "common/storage/profile_file.h"
#include "worker/engine/engine.h"
#include "worker/trainer/profiler.h"
#include "worker/transport/ucx/ucx_transport.h"

namespace atl::bench {
namespace {

// Where the step of a rank went, in seconds: compute, waiting for inputs, the engine's own work, the rest of the step.
std::string Breakdown(const trainer::Trainer& trainer, const Span& span) {
  absl::Duration compute;
  absl::Duration waiting;
  absl::Duration engine;
  absl::Duration before;
  for (const engine::ActionTiming& timing : trainer.timings()) {
    waiting += timing.ready - before;
    engine += (timing.start - timing.ready) + (timing.passed_on - timing.end);
    compute += timing.end - timing.start;
    before = timing.passed_on;
  }
  return fmt::format("compute {:.4f} waiting {:.4f} engine {:.4f} rest {:.4f}", absl::ToDoubleSeconds(compute),
                     absl::ToDoubleSeconds(waiting), absl::ToDoubleSeconds(engine),
                     span.seconds() - absl::ToDoubleSeconds(before));
}

std::string OneLine(const planner::Profile& profile) {
  std::string json = storage::ToJson(profile);
  std::replace(json.begin(), json.end(), '\n', ' ');
  return json;
}

}  // namespace

trainer::TrainerOptions OptionsOf(const Work& work) {
  trainer::TrainerOptions options;
  options.model = {
      .patch = work.patch, .width = work.width, .depth = work.depth, .heads = 4, .mlp_ratio = work.mlp_ratio};
  options.training.steps = 1'000'000;
  options.training.batch_size = work.micro_batches * work.micro_batch_size;
  options.channels = work.channels;
  while (options.height / work.patch * (options.height / work.patch) < work.tokens) options.height += work.patch;
  options.width = options.height;
  options.classes = 10;
  options.seed = 1;
  options.threads = 1;
  return options;
}

double Seconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::vector<Child*> All(const Children& children) {
  std::vector<Child*> all;
  for (const auto& child : children) all.push_back(child.get());
  return all;
}

absl::StatusOr<Children> StartRanks(int ranks,
                                    const std::function<absl::Status(int rank, int read_fd, int write_fd)>& rank_main) {
  Children children;
  for (int rank = 0; rank < ranks; ++rank) {
    ATOLL_ASSIGN_OR_RETURN(auto child, Child::Fork([&rank_main, rank](int read_fd, int write_fd) {
                             const absl::Status status = rank_main(rank, read_fd, write_fd);
                             if (!status.ok()) fmt::print(stderr, "rank {}: {}\n", rank, status.ToString());
                             return status.ok() ? 0 : 1;
                           }));
    children.push_back(std::move(child));
  }
  std::vector<std::string> addresses;
  for (const auto& child : children) {
    ATOLL_ASSIGN_OR_RETURN(addresses.emplace_back(), child->Receive());
  }
  for (const auto& child : children) {
    for (const std::string& address : addresses) ATOLL_RETURN_IF_ERROR(child->Send(address));
  }
  for (const auto& child : children) ATOLL_RETURN_IF_ERROR(child->Receive().status());
  return children;
}

absl::StatusOr<std::unique_ptr<transport::Transport>> ConnectRank(int rank, int ranks,
                                                                  const std::vector<transport::Lane>& lanes,
                                                                  int read_fd, int write_fd, std::string* buffered) {
  ATOLL_ASSIGN_OR_RETURN(std::unique_ptr<transport::Transport> transport,
                         transport::MakeUcxTransport({}, rank, ranks, {.incarnation = 1, .attempt = 1, .secret = "b"}));
  // Addresses are bytes; the parent passes them on as hexadecimal digits.
  std::string address;
  for (const char c : transport->Address()) address += fmt::format("{:02x}", static_cast<unsigned char>(c));
  ATOLL_RETURN_IF_ERROR(WriteLine(write_fd, address));
  std::vector<std::string> addresses;
  for (int r = 0; r < ranks; ++r) {
    ATOLL_ASSIGN_OR_RETURN(const std::string digits, ReadLine(read_fd, buffered));
    std::string& bytes = addresses.emplace_back();
    for (size_t i = 0; i + 1 < digits.size(); i += 2) {
      bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
    }
  }
  ATOLL_RETURN_IF_ERROR(transport->Connect(addresses, lanes, absl::Seconds(30)));
  return transport;
}

absl::StatusOr<planner::Profile> ShareProfile(const Work& work, transport::Transport* transport, int read_fd,
                                              int write_fd, std::string* buffered, Clock* clock) {
  const trainer::TrainerOptions options = OptionsOf(work);
  ATOLL_ASSIGN_OR_RETURN(const planner::Profile own, trainer::ProfileRank({.trainer = options,
                                                                           .precision = options.training.precision,
                                                                           .micro_batch_sizes = {work.micro_batch_size},
                                                                           .key = "bench"},
                                                                          transport, clock));
  ATOLL_RETURN_IF_ERROR(WriteLine(write_fd, OneLine(own)));
  ATOLL_ASSIGN_OR_RETURN(const std::string merged, ReadLine(read_fd, buffered));
  return storage::ParseProfile(merged, "parent");
}

absl::StatusOr<planner::Profile> MergeAndShare(const Children& ranks) {
  std::vector<planner::Profile> profiles;
  for (const auto& rank : ranks) {
    ATOLL_ASSIGN_OR_RETURN(const std::string json, rank->Receive());
    ATOLL_ASSIGN_OR_RETURN(profiles.emplace_back(), storage::ParseProfile(json, "rank"));
  }
  ATOLL_ASSIGN_OR_RETURN(const planner::Profile merged, planner::MergeProfiles(profiles));
  for (const auto& rank : ranks) ATOLL_RETURN_IF_ERROR(rank->Send(OneLine(merged)));
  return merged;
}

absl::Status StepAndAnswer(trainer::Trainer* trainer, int write_fd) {
  const double cpu_before = Seconds(CLOCK_PROCESS_CPUTIME_ID);
  Span span{.start = Now()};
  ATOLL_RETURN_IF_ERROR(trainer->Step().status());
  span.end = Now();
  const double cpu = Seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu_before;
  return WriteLine(write_fd,
                   fmt::format("{:.9f} {:.9f} {:.6f} {}", span.start, span.end, cpu, Breakdown(*trainer, span)));
}

absl::StatusOr<Cost> StepAll(const std::vector<Child*>& children, const std::string& command, bool show) {
  for (Child* child : children) ATOLL_RETURN_IF_ERROR(child->Send(command));
  std::vector<Span> spans;
  Cost cost;
  for (size_t i = 0; i < children.size(); ++i) {
    ATOLL_ASSIGN_OR_RETURN(const Answer answer, children[i]->ReceiveAnswer());
    spans.push_back(answer.span);
    cost.cpu_seconds += answer.cpu_seconds;
    if (show) {
      fmt::print(stderr, "  rank {}: {:.4f} s, cpu {:.4f}: {}\n", i, answer.span.seconds(), answer.cpu_seconds,
                 answer.rest);
    }
  }
  cost.seconds = Union(spans).seconds();
  return cost;
}

std::vector<double> SecondsOf(const std::vector<Cost>& costs) {
  std::vector<double> seconds;
  for (const Cost& cost : costs) seconds.push_back(cost.seconds);
  return seconds;
}

std::vector<double> CpuSecondsOf(const std::vector<Cost>& costs) {
  std::vector<double> seconds;
  for (const Cost& cost : costs) seconds.push_back(cost.cpu_seconds);
  return seconds;
}

std::vector<double> Ratios(const std::vector<Cost>& a, const std::vector<Cost>& b, double scale) {
  std::vector<double> ratios;
  for (size_t i = 0; i < a.size(); ++i) ratios.push_back(scale * a[i].seconds / b[i].seconds);
  return ratios;
}

void Print(const std::string& name, const std::string& metric, double value, const std::string& unit) {
  fmt::print("{}\n",
             nlohmann::ordered_json{{"case", name}, {"metric", metric}, {"value", value}, {"unit", unit}}.dump());
  std::fflush(stdout);
}

}  // namespace atl::bench
