#include "tests/bench/bench_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <sstream>

#include <fmt/format.h>

#include "common/base/status_macros.h"
#include "common/base/subprocess.h"

namespace atl::bench {
namespace {

struct Pipes {
  std::array<int, 2> to_child{-1, -1};
  std::array<int, 2> from_child{-1, -1};
};

// The parent's ends of all pipes so far. A child closes them: an end that a sibling held would keep the other side from
// ever seeing the pipe end.
std::vector<int>& ParentEnds() {
  static auto* const ends = new std::vector<int>;
  return *ends;
}

absl::StatusOr<Pipes> OpenPipes() {
  Pipes pipes;
  if (pipe2(pipes.to_child.data(), O_CLOEXEC) != 0 || pipe2(pipes.from_child.data(), O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(fmt::format("pipe: {}", std::strerror(errno)));
  }
  return pipes;
}

// Forks; in the child, returns 0 with only its own ends open. The child is killed when its parent dies.
absl::StatusOr<pid_t> ForkWith(const Pipes& pipes) {
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return absl::ResourceExhaustedError(fmt::format("fork: {}", std::strerror(errno)));
  if (pid != 0) {
    close(pipes.to_child[0]);
    close(pipes.from_child[1]);
    ParentEnds().insert(ParentEnds().end(), {pipes.to_child[1], pipes.from_child[0]});
    return pid;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  close(pipes.to_child[1]);
  close(pipes.from_child[0]);
  for (const int end : ParentEnds()) close(end);
  return 0;
}

double Quantile(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

Span Union(const std::vector<Span>& spans) {
  Span all = spans.front();
  for (const Span& span : spans) all = {std::min(all.start, span.start), std::max(all.end, span.end)};
  return all;
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return Quantile(values, 0.5);
}

double Spread(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return (Quantile(values, 0.75) - Quantile(values, 0.25)) / Quantile(values, 0.5);
}

absl::StatusOr<std::unique_ptr<Child>> Child::Fork(const std::function<int(int, int)>& run) {
  ATOLL_ASSIGN_OR_RETURN(const Pipes pipes, OpenPipes());
  ATOLL_ASSIGN_OR_RETURN(const pid_t pid, ForkWith(pipes));
  if (pid == 0) _exit(run(pipes.to_child[0], pipes.from_child[1]));
  return std::unique_ptr<Child>(new Child(pid, pipes.to_child[1], pipes.from_child[0]));
}

absl::StatusOr<std::unique_ptr<Child>> Child::Start(const std::vector<std::string>& command) {
  ATOLL_ASSIGN_OR_RETURN(const Pipes pipes, OpenPipes());
  const absl::StatusOr<pid_t> pid =
      StartSubprocess({.command = command, .input = pipes.to_child[0], .output = pipes.from_child[1]});
  close(pipes.to_child[0]);
  close(pipes.from_child[1]);
  if (!pid.ok()) {
    close(pipes.to_child[1]);
    close(pipes.from_child[0]);
    return pid.status();
  }
  ParentEnds().insert(ParentEnds().end(), {pipes.to_child[1], pipes.from_child[0]});
  return std::unique_ptr<Child>(new Child(*pid, pipes.to_child[1], pipes.from_child[0]));
}

// The closed pipe tells the child to end; one that does not is killed.
Child::~Child() {
  for (const int end : {to_child_, from_child_}) {
    std::erase(ParentEnds(), end);
    close(end);
  }
  for (int i = 0; i < 200; ++i) {
    if (waitpid(pid_, nullptr, WNOHANG) != 0) return;
    usleep(10'000);
  }
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

absl::Status Child::Send(const std::string& line) {
  return WriteLine(to_child_, line);
}

absl::StatusOr<std::string> Child::Receive() {
  return ReadLine(from_child_, &buffered_);
}

absl::StatusOr<Answer> Child::ReceiveAnswer() {
  ATOLL_ASSIGN_OR_RETURN(const std::string line, Receive());
  std::istringstream words(line);
  Answer answer;
  if (!(words >> answer.span.start >> answer.span.end >> answer.cpu_seconds)) {
    return absl::InternalError(fmt::format("child: expected start, end and cpu time, found '{}'", line));
  }
  std::getline(words >> std::ws, answer.rest);
  return answer;
}

std::vector<std::string> PeerCommand(const std::string& python, const std::string& script) {
  return {"/usr/bin/env",
          fmt::format("MALLOC_MMAP_THRESHOLD_={}", 32 << 20),
          fmt::format("MALLOC_TRIM_THRESHOLD_={}", std::numeric_limits<int64_t>::max()),
          fmt::format("MALLOC_TOP_PAD_={}", 64 << 20),
          python,
          script};
}

absl::Status WriteLine(int fd, const std::string& line) {
  const std::string bytes = line + "\n";
  for (size_t written = 0; written < bytes.size();) {
    const ssize_t n = write(fd, bytes.data() + written, bytes.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return absl::UnavailableError(fmt::format("pipe: {}", std::strerror(errno)));
    written += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadLine(int fd, std::string* buffered) {
  for (;;) {
    if (const size_t end = buffered->find('\n'); end != std::string::npos) {
      std::string line = buffered->substr(0, end);
      buffered->erase(0, end + 1);
      return line;
    }
    std::array<char, 4096> bytes;
    const ssize_t n = read(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return absl::UnavailableError("pipe: the other side has ended");
    buffered->append(bytes.data(), static_cast<size_t>(n));
  }
}

}  // namespace atl::bench
