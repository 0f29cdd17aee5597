// A look after a process's certificate, its key and its authorities while it runs.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace atl::rpc {

// gRPC reads these files again when they change and believes them: where certificate and key do not fit each other, or
// authorities are none, every new connection ends, and nothing says why. This says it in the log, once per change, and
// when the certificate has expired, once. One thread of its own, joined by the destructor. Thread-safe.
class IdentityWatch {
 public:
  // What is wrong with the files as they are. Sets `end` to when the certificate ends, where there is one to be read.
  using Check = std::function<absl::Status(absl::Time* end)>;

  // The first of the files is the certificate, which ends at `end`. `check` is called on the thread, when one of them
  // has changed.
  IdentityWatch(std::vector<std::string> files, Check check, absl::Time end);
  ~IdentityWatch();
  IdentityWatch(const IdentityWatch&) = delete;
  IdentityWatch& operator=(const IdentityWatch&) = delete;

  // When the certificate ends that the file has.
  absl::Time end() const;

 private:
  void Run();
  // Another text when a file is another one.
  std::string Stamp() const;
  void Tell(const absl::Status& status) const;

  const std::vector<std::string> files_;
  const Check check_;
  mutable absl::Mutex mutex_;
  absl::Time end_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace atl::rpc
