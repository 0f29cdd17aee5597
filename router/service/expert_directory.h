// Keeps RemoteExperts told of the expert servers that the coordinator lists (ServingService.WatchServers), with backoff
// while it is away: what was known stays then.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "atoll/serving/v1/serving_service.grpc.pb.h"
#include "common/base/clock.h"
#include "router/service/remote_experts.h"

namespace atl::router {

struct DirectoryOptions {
  // Between two tries to reach the coordinator, doubled up to the last, with jitter.
  absl::Duration first_backoff = absl::Milliseconds(200);
  absl::Duration last_backoff = absl::Seconds(5);
  // A watch is renewed after this: every call has a deadline.
  absl::Duration watch_deadline = absl::Minutes(10);
};

// Owns one thread, joined by the destructor.
class ExpertDirectory {
 public:
  // `experts` and `clock` must outlive it.
  ExpertDirectory(DirectoryOptions options, std::shared_ptr<grpc::Channel> channel, RemoteExperts* experts,
                  Clock* clock);
  ~ExpertDirectory();
  ExpertDirectory(const ExpertDirectory&) = delete;
  ExpertDirectory& operator=(const ExpertDirectory&) = delete;

 private:
  void Run();
  // Reads one stream to its end. Returns whether anything came.
  bool WatchOnce();

  const DirectoryOptions options_;
  const std::unique_ptr<atlpb::serving::v1::ServingService::Stub> stub_;
  RemoteExperts* const experts_;
  Clock* const clock_;
  std::string away_;  // why the last watch ended; of the thread alone

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* watch_ ABSL_GUARDED_BY(mutex_) = nullptr;  // the call under way, to cancel
  std::thread thread_;
};

}  // namespace atl::router
