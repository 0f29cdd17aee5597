#include "client/stoppable_children.h"

#include <sys/wait.h>

#include <array>
#include <atomic>
#include <cerrno>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"

namespace atl::client {
namespace {

// What the handler may touch: the children that are not waited for yet (0: none), and the signal that came.
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
  for (size_t child = 0; child < count_; ++child) {
    if (running[child] > 0) Await(child);
  }
  for (const auto& [signal, action] : before_) sigaction(signal, &action, nullptr);
}

absl::Status StoppableChildren::Start(const ChildOptions& options) {
  ATOLL_RETURN_IF_ERROR(Interrupted());
  if (count_ == kMost) {
    return MakeError(absl::StatusCode::kResourceExhausted, "CANNOT_FORK",
                     fmt::format("expected at most {} children", kMost));
  }
  ATOLL_ASSIGN_OR_RETURN(const pid_t pid, StartChild(options));
  running[count_++] = pid;
  // A signal in between found no child to end.
  const absl::Status interrupted = Interrupted();
  if (!interrupted.ok()) Kill();
  return interrupted;
}

int StoppableChildren::Await(size_t child) {
  const pid_t pid = running[child];
  siginfo_t ended{};
  while (waitid(P_PID, static_cast<id_t>(pid), &ended, WEXITED | WNOWAIT) < 0 && errno == EINTR) {
  }
  // Before its number may be another process's.
  running[child] = 0;
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

void StoppableChildren::Kill() const {
  KillRunning();
}

absl::Status StoppableChildren::Interrupted() const {
  if (stopped_by == 0) return absl::OkStatus();
  return MakeError(absl::StatusCode::kCancelled, "INTERRUPTED", "interrupted");
}

}  // namespace atl::client
