// Watches a process's certificate, its key and its authorities while it runs.
#pragma once

#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace atl::rpc {

// Logs files that gRPC cannot use. gRPC reloads these files without a check: if certificate and key do not match, or
// there is no authority, every new connection breaks without an explanation. Logs each complaint once. Has one thread
// of its own, joined by the destructor. Thread-safe.
class IdentityWatch {
 public:
  // Returns what is wrong with the files as they are. Sets `end` to when the certificate ends, where it can be read.
  using Check = std::function<absl::Status(absl::Time* end)>;

  // `check` is called on the thread, every kReloadInterval. The certificate ends at `end`.
  IdentityWatch(Check check, absl::Time end);
  ~IdentityWatch();
  IdentityWatch(const IdentityWatch&) = delete;
  IdentityWatch& operator=(const IdentityWatch&) = delete;

  // When the certificate ends that the file has.
  absl::Time end() const;

 private:
  void Run();

  const Check check_;
  mutable absl::Mutex mutex_;
  absl::Time end_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace atl::rpc
