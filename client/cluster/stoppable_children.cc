#include "client/cluster/stoppable_children.h"

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"

namespace atl::client {
namespace {

// The data that the handler may touch: the children that are not waited for yet (0: none), and the signal that came.
std::array<std::atomic<pid_t>, StoppableChildren::kMost> running{};
std::atomic<int> stopped_by{0};
static_assert(std::atomic<pid_t>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

void KillRunning() {
  for (const std::atomic<pid_t>& child : running) {
    if (const pid_t pid = child.load(); pid > 0) kill(pid, SIGKILL);
  }
}

void Stop(int signal) {
  const int error = errno;
  stopped_by = signal;
  KillRunning();
  errno = error;
}

}  // namespace

StoppableChildren::StoppableChildren() {
  stopped_by = 0;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before {};
    sigaction(signal, nullptr, &before);
    if (before.sa_handler == SIG_IGN) continue;  // nohup
    struct sigaction stop {};
    stop.sa_handler = Stop;
    stop.sa_flags = SA_RESTART;
    sigaction(signal, &stop, nullptr);
    before_.emplace_back(signal, before);
  }
}

StoppableChildren::~StoppableChildren() {
  Kill();
  while (left_ > 0) AwaitAny();
  for (const auto& [signal, action] : before_) sigaction(signal, &action, nullptr);
}

absl::Status StoppableChildren::Start(const SubprocessOptions& options) {
  ATOLL_RETURN_IF_ERROR(Interrupted());
  if (count_ == kMost) {
    return MakeError(absl::StatusCode::kResourceExhausted, "CANNOT_FORK",
                     fmt::format("expected at most {} children", kMost));
  }
  ATOLL_ASSIGN_OR_RETURN(const pid_t pid, StartSubprocess(options));
  running[count_++] = pid;
  ++left_;
  // A signal in between found no child to end.
  const absl::Status interrupted = Interrupted();
  if (!interrupted.ok()) Kill();
  return interrupted;
}

StoppableChildren::Ended StoppableChildren::AwaitAny() {
  const auto first = running.begin();
  const auto end = first + count_;
  auto child = end;
  while (child == end) {
    siginfo_t ended{};
    while (waitid(P_ALL, 0, &ended, WEXITED | WNOWAIT) < 0 && errno == EINTR) {
    }
    if (ended.si_pid == 0) {
      // Where SIGCHLD is ignored an end leaves no status, and this comes after all of them.
      child = std::find_if(first, end, [](const std::atomic<pid_t>& pid) { return pid > 0; });
    } else if (child = std::find(first, end, ended.si_pid); child == end) {
      waitpid(ended.si_pid, nullptr, 0);  // a child of the program that this one replaced (exec)
    }
  }
  const pid_t pid = *child;
  // Before its number may be another process's.
  *child = 0;
  --left_;
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return {static_cast<size_t>(child - first), status};
}

void StoppableChildren::Kill() const {
  KillRunning();
}

absl::Status StoppableChildren::Interrupted() const {
  if (stopped_by == 0) return absl::OkStatus();
  return MakeError(absl::StatusCode::kCancelled, "INTERRUPTED", "interrupted");
}

}  // namespace atl::client
