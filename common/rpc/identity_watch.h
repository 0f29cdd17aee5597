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
// authorities are none, every new connection ends, and nothing says why. This says it in the log, once per change. One
// thread of its own, joined by the destructor.
class IdentityWatch {
 public:
  // `check` says what is wrong with the files as they are; called on the thread, when one of them has changed.
  IdentityWatch(std::vector<std::string> files, std::function<absl::Status()> check, absl::Duration interval);
  ~IdentityWatch();
  IdentityWatch(const IdentityWatch&) = delete;
  IdentityWatch& operator=(const IdentityWatch&) = delete;

 private:
  void Run();
  // Another text when a file is another one.
  std::string Stamp() const;
  void Tell(const absl::Status& status) const;

  const std::vector<std::string> files_;
  const std::function<absl::Status()> check_;
  const absl::Duration interval_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace atl::rpc
