// What the benchmarks of a pipeline share: the work, ranks as children that are connected over UCX, steps in turns, and
// the lines that they print.
#pragma once

#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/planner/profile.h"
#include "tests/bench/bench_process.h"
#include "worker/trainer/trainer.h"
#include "worker/transport/transport.h"

namespace atl::bench {

// A DiT of `depth` blocks on square images of `tokens` patches.
struct Work {
  int depth = 8;
  int width = 256;
  int tokens = 64;  // a square number
  int patch = 2;
  int channels = 1;
  double mlp_ratio = 4.0;
  int micro_batches = 8;
  int micro_batch_size = 8;
};

trainer::TrainerOptions OptionsOf(const Work& work);

double Seconds(clockid_t clock);
inline double Now() {
  return Seconds(CLOCK_MONOTONIC);
}

using Children = std::vector<std::unique_ptr<Child>>;
std::vector<Child*> All(const Children& children);

// Forks `ranks` children that run `rank_main(rank, read_fd, write_fd)`, of which ConnectRank is the first act; hands
// the addresses round and waits until each has said "ready".
absl::StatusOr<Children> StartRanks(int ranks,
                                    const std::function<absl::Status(int rank, int read_fd, int write_fd)>& rank_main);

// In a child: a transport that is connected with the others' over `lanes`. `buffered` is for further ReadLine calls.
absl::StatusOr<std::unique_ptr<transport::Transport>> ConnectRank(int rank, int ranks,
                                                                  const std::vector<transport::Lane>& lanes,
                                                                  int read_fd, int write_fd, std::string* buffered);

// In a child: measures this work at the same time as the others, hands the parent what it measured, and gets what all
// did.
absl::StatusOr<planner::Profile> ShareProfile(const Work& work, transport::Transport* transport, int read_fd,
                                              int write_fd, std::string* buffered, Clock* clock = Clock::Real());
// The parent's side of it: one profile of all.
absl::StatusOr<planner::Profile> MergeAndShare(const Children& ranks);

// In a child: one step, and the answer to the parent.
absl::Status StepAndAnswer(trainer::Trainer* trainer, int write_fd);

// What a command took: on the clock, and of the processors. The second says what a case costs even on a busy machine.
struct Cost {
  double seconds = 0;
  double cpu_seconds = 0;
};

// One command to every child, at once; with `show`, what they said goes to standard error.
absl::StatusOr<Cost> StepAll(const std::vector<Child*>& children, const std::string& command, bool show = false);

std::vector<double> SecondsOf(const std::vector<Cost>& costs);
std::vector<double> CpuSecondsOf(const std::vector<Cost>& costs);
// scale * a[i] / b[i]
std::vector<double> Ratios(const std::vector<Cost>& a, const std::vector<Cost>& b, double scale = 1);

// One JSON object on standard output.
void Print(const std::string& name, const std::string& metric, double value, const std::string& unit);

}  // namespace atl::bench
