// A lane whose batches an expert server evaluates: one Denoise stream, reopened whenever it breaks.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "atoll/expert/v1/expert_service.grpc.pb.h"
#include "common/base/backoff.h"
#include "common/base/clock.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/byte_buffer.h"
#include "inference/lane.h"

namespace atl::router {

struct RemoteLaneOptions {
  std::string address;                                    // "host:port"
  std::shared_ptr<grpc::ChannelCredentials> credentials;  // null: plain text
  std::string name;                                       // of the lane, unique in the engine; empty: the address
  absl::Duration list_interval = absl::Seconds(1);        // between two requests for the list of hosted networks
  // The delay between two tries to reach the server.
  BackoffLimits backoff{.first = absl::Milliseconds(100), .longest = absl::Seconds(5)};
  // Called after the hosted networks changed, beside the watcher's callback and under the same rules; may be null.
  std::function<void()> on_hosting;
};

// Thread-safe. While the server is unreachable, the lane hosts nothing, and running batches are answered UNAVAILABLE
// (EXPERT_SERVER_LOST). A batch whose deadline passes is answered DEADLINE_EXCEEDED, and cancelled at the server.
//
// One thread, joined by the destructor: it connects, lists the hosted networks, watches deadlines and calls `changed`.
// Answers come on gRPC's threads.
class RemoteLane : public ExpertLane {
 public:
  // Connects in the background. `clock` must outlive the lane.
  RemoteLane(RemoteLaneOptions options, Clock* clock);
  ~RemoteLane() override;

  // The fingerprint is empty until the server is reached for the first time.
  LaneInfo info() const override;
  std::shared_ptr<const std::vector<HostedNetwork>> hosted() const override;
  // Must not be called inside `changed`.
  void Watch(std::function<void()> changed) override;
  void Start(std::shared_ptr<const Evaluation> evaluation, Done done) override;
  void Cancel(int64_t evaluation) override;

 private:
  class Stream;
  class ListCall;
  struct Pending {
    std::shared_ptr<const Evaluation> evaluation;
    Done done;
    absl::Duration started;
  };

  void Run();
  // Connects and serves until the server is unreachable or the lane stops; returns the reason. Sets `steady` once the
  // server has answered for a while.
  absl::Status Connect(bool* steady);
  absl::Status Serve(Stream* stream, atlpb::expert::v1::ExpertService::Stub* stub, bool* steady);
  absl::StatusOr<atlpb::expert::v1::ListNetworksResponse> List(atlpb::expert::v1::ExpertService::Stub* stub,
                                                               Stream* stream);
  // Returns when `due`, of state under mutex_, holds, at `until`, or when the lane stops. Meanwhile answers batches
  // whose deadlines pass.
  void AwaitBeside(const absl::Condition& due, absl::Duration until);
  void TakeHosting(const atlpb::expert::v1::ListNetworksResponse& hosting, Stream* stream);
  // Clears the hosted networks and answers running batches.
  void Disconnect(const absl::Status& why);
  void NotifyChanged();
  std::vector<Pending> TakeOverdue(Stream** to_write) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns true if the batch was not sent yet. Otherwise queues its cancellation behind the running write.
  bool CancelOnStream(int64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnAnswer(grpc::ByteBuffer* bytes, absl::Status* broken);

  const RemoteLaneOptions options_;
  Clock* const clock_;
  std::atomic<int64_t> last_number_ = 0;

  mutable absl::Mutex mutex_;
  LaneInfo info_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const std::vector<HostedNetwork>> hosted_ ABSL_GUARDED_BY(mutex_);
  Stream* stream_ ABSL_GUARDED_BY(mutex_) = nullptr;            // null while unreachable
  std::map<int64_t, Pending> pending_ ABSL_GUARDED_BY(mutex_);  // by the number on the stream
  // The time of the thread's next check of deadlines; earlier ones wake it.
  absl::Duration next_look_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteDuration();
  bool look_now_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> changed_ ABSL_GUARDED_BY(mutex_);
  bool notifying_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace atl::router
