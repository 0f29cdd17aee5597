// Processes of a benchmark that take turns. A child does one thing per command and sleeps in a read in between, so that
// the measured process has the machine for itself.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace atl::bench {

// When a child began and ended a command, in seconds of CLOCK_MONOTONIC, which all processes of a machine share.
struct Span {
  double start = 0;
  double end = 0;
  double seconds() const { return end - start; }
};

// A child's answer to a command.
struct Answer {
  Span span;
  double cpu_seconds = 0;
  std::string rest;  // for people
};

// Returns the span from the first start to the last end.
Span Union(const std::vector<Span>& spans);

// Returns the median of values, none of which is NaN; 0 for no values.
double Median(std::vector<double> values);
// Returns the distance between the quartiles as a share of the median.
double Spread(std::vector<double> values);

// One child, which exchanges lines with its parent. Not thread-safe. Ends with its owner.
class Child {
 public:
  // Forks and runs `run(read_fd, write_fd)` in the child, whose exit status is the result. Fork before any thread
  // starts.
  static absl::StatusOr<std::unique_ptr<Child>> Fork(const std::function<int(int read_fd, int write_fd)>& run);
  // Starts a program whose standard input and output are the pipes.
  static absl::StatusOr<std::unique_ptr<Child>> Start(const std::vector<std::string>& command);
  ~Child();

  pid_t pid() const { return pid_; }

  absl::Status Send(const std::string& line);
  // Returns the next line, without its end; UNAVAILABLE if the child has ended.
  absl::StatusOr<std::string> Receive();
  // Returns the next line as an answer to a command: "<start> <end> <cpu> [rest]".
  absl::StatusOr<Answer> ReceiveAnswer();

 private:
  Child(pid_t pid, int to_child, int from_child) : pid_(pid), to_child_(to_child), from_child_(from_child) {}

  const pid_t pid_;
  const int to_child_;
  const int from_child_;
  std::string buffered_;
};

// Returns the command line of a PyTorch peer. It sets the same allocator settings as a trainer of Atoll
// (worker/trainer/trainer_setup.cc), so that both pay for the same page faults.
std::vector<std::string> PeerCommand(const std::string& python, const std::string& script);

// Write and read lines over a pair of descriptors, on a child's own end.
absl::Status WriteLine(int fd, const std::string& line);
absl::StatusOr<std::string> ReadLine(int fd, std::string* buffered);

}  // namespace atl::bench
