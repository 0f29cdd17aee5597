// The leader's end of one rank's Join stream: only transfers messages.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "atoll/island/v1/rendezvous_service.grpc.pb.h"
#include "grpcpp/support/server_callback.h"

namespace atl::worker {

// Thread-safe. Lives until gRPC has finished the call and all references are released.
class RankStream final
    : public grpc::ServerBidiReactor<atlpb::island::v1::JoinRequest, atlpb::island::v1::JoinResponse>,
      public std::enable_shared_from_this<RankStream> {
 public:
  // Both are called on gRPC's threads and must not block. `closed` is called once, after the last message.
  struct Events {
    std::function<void(std::shared_ptr<RankStream>, atlpb::island::v1::JoinRequest)> received;
    std::function<void(std::shared_ptr<RankStream>)> closed;
  };

  static std::shared_ptr<RankStream> Open(grpc::CallbackServerContext* context, Events events);

  // Queues a message; drops it if the stream is closing.
  void Send(atlpb::island::v1::JoinResponse message);
  // Ends the stream after the queued messages; a peer that stops reading is disconnected. Idempotent.
  void Close(const absl::Status& status, bool at_once);

 private:
  RankStream(grpc::CallbackServerContext* context, Events events);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FinishOnce() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SayClosed();

  grpc::CallbackServerContext* const context_;
  const Events events_;
  std::shared_ptr<RankStream> self_;  // until OnDone
  atlpb::island::v1::JoinRequest incoming_;

  absl::Mutex mutex_;
  std::deque<atlpb::island::v1::JoinResponse> outgoing_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  atlpb::island::v1::JoinResponse in_flight_ ABSL_GUARDED_BY(mutex_);  // untouched while writing_
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool said_closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status final_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace atl::worker
