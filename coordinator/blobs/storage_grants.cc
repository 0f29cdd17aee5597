#include "coordinator/blobs/storage_grants.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "coordinator/blobs/grant_command.h"
#include "fmt/format.h"

namespace atl::coordinator {
namespace {

// Queue capacity per thread. Requests that wait at the same time are answered within the limit or rejected.
constexpr size_t kWaiting = 64;
constexpr int kThreads = 4;

absl::Status GrantFailed(std::string_view what) {
  return MakeError(absl::StatusCode::kUnavailable, "STORAGE_GRANT_FAILED", what);
}

}  // namespace

absl::StatusOr<std::unique_ptr<StorageGrants>> StorageGrants::Start(StorageGrantOptions options, Clock* clock) {
  const int cancel_fd = eventfd(0, EFD_CLOEXEC);
  if (cancel_fd < 0) return GrantFailed("no descriptor is free");
  return std::unique_ptr<StorageGrants>(new StorageGrants(std::move(options), clock, cancel_fd));
}

StorageGrants::StorageGrants(StorageGrantOptions options, Clock* clock, int cancel_fd)
    : options_(std::move(options)), clock_(clock), cancel_fd_(cancel_fd) {
  for (int i = 0; i < kThreads; ++i) {
    threads_.push_back(std::make_unique<Executor>(clock_, Executor::Options{.capacity = kWaiting}));
  }
}

StorageGrants::~StorageGrants() {
  Stop();
  close(cancel_fd_);
}

void StorageGrants::Stop() {
  const uint64_t one = 1;
  // Cannot fail: the counter is far from full.
  (void)!write(cancel_fd_, &one, sizeof(one));
  for (const std::unique_ptr<Executor>& thread : threads_) thread->Stop();
}

void StorageGrants::Make(const spec::TaskGrant& grant, Done done) {
  const absl::Duration deadline = clock_->Monotonic() + options_.limit;
  const std::unique_ptr<Executor>& thread = threads_[next_++ % threads_.size()];
  const bool posted = thread->Post([this, grant, done, deadline] {
    absl::StatusOr<spec::StorageGrant> made = MakeNow(grant, deadline);
    if (!made.ok()) made = WithContext(made.status(), fmt::format("task {}", grant.token.task_id));
    done(std::move(made));
  });
  if (posted) return;
  done(GrantFailed(fmt::format("task {}: too many storage grants wait, or the coordinator ends", grant.token.task_id)));
}

absl::StatusOr<spec::StorageGrant> StorageGrants::MakeNow(const spec::TaskGrant& grant, absl::Duration deadline) {
  const absl::Duration left = deadline - clock_->Monotonic();
  if (left <= absl::ZeroDuration()) return GrantFailed("too many storage grants were made before it");
  ATOLL_ASSIGN_OR_RETURN(const std::string output,
                         RunCommand({.command = options_.command,
                                     .input = GrantRequestJson(grant, options_.blob_root, options_.lifetime),
                                     .limit = left,
                                     .cancel_fd = cancel_fd_}));
  ATOLL_ASSIGN_OR_RETURN(spec::StorageGrant storage, ParseGrantedKeys(output, clock_->Now()));
  storage.reads = grant.storage.reads;
  storage.writes = grant.storage.writes;
  return storage;
}

}  // namespace atl::coordinator
