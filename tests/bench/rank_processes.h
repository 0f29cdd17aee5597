// Runs the ranks of an island as child processes over UCX.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/bench/bench_process.h"
#include "worker/transport/transport.h"

namespace atl::bench {

// A child's pipes to its parent.
struct ParentPipes {
  int read_fd = -1;
  int write_fd = -1;
  std::string buffered;

  absl::StatusOr<std::string> Read() { return ReadLine(read_fd, &buffered); }
  absl::Status Write(const std::string& line) const { return WriteLine(write_fd, line); }
};

using Children = std::vector<std::unique_ptr<Child>>;
std::vector<Child*> All(const Children& children);

// A rank's end: returns a connected transport over `lanes`, which are equal on all ranks.
absl::StatusOr<std::unique_ptr<transport::Transport>> ConnectRank(ParentPipes* parent, int rank, int ranks,
                                                                  const std::vector<transport::Lane>& lanes);

// The parent's end: returns a child per rank, each of which has sent its first line after ConnectRank; the line is
// dropped. The result of `run` becomes the child's exit status; an error is printed on standard error.
absl::StatusOr<Children> StartRanks(int ranks, const std::function<absl::Status(int rank, ParentPipes* parent)>& run);

// Sends one command to every child, at once; returns their answers, by rank.
absl::StatusOr<std::vector<Answer>> AskAll(const std::vector<Child*>& children, const std::string& command);

}  // namespace atl::bench
