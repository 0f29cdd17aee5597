// The expert server's end of one router's Denoise stream.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "expert_server/expert_wire.h"
#include "expert_server/lane_queue.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"

namespace atl::worker {

// Thread-safe. Lives until gRPC has finished the call and the queue has answered every batch. While `max_frames`
// batches are evaluated or wait to be written it reads no further, so that the connection holds back a router that
// sends without reading. If the router disconnects or sends an invalid request, its batches are cancelled.
class DenoiseStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                            public std::enable_shared_from_this<DenoiseStream> {
 public:
  struct Options {
    size_t max_frames = 16;
    // Returns a number for each batch, unique in the queue.
    std::function<int64_t()> next_evaluation;
    std::function<void()> closed;  // called once, last
  };

  // `queue` and `clock` must outlive every stream's batches.
  static std::shared_ptr<DenoiseStream> Open(Options options, LaneQueue* queue, Clock* clock);

 private:
  DenoiseStream(Options options, LaneQueue* queue, Clock* clock);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // Returns INVALID_ARGUMENT with reason DUPLICATE_BATCH if the stream still evaluates a batch of this number.
  absl::Status Take(DenoiseFrame frame);
  void Answer(int64_t id, absl::StatusOr<router::EvaluationAnswer> answer);
  // Cancels all unanswered batches and ends the stream; frames that are not written yet are dropped.
  void Break(const absl::Status& status);
  // Starts the next read, the next write or the finish, whichever is due.
  void Pump();
  bool ReadIsDue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  LaneQueue* const queue_;
  Clock* const clock_;
  std::shared_ptr<DenoiseStream> self_;  // until OnDone

  absl::Mutex mutex_;
  std::map<int64_t, int64_t> under_way_ ABSL_GUARDED_BY(mutex_);  // the router's number -> the queue's
  std::deque<grpc::ByteBuffer> outgoing_ ABSL_GUARDED_BY(mutex_);
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool reads_over_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;  // no more reads or writes
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status final_ ABSL_GUARDED_BY(mutex_);
  // Touched only by the thread that set reading_ or writing_, and by gRPC.
  grpc::ByteBuffer incoming_;
  grpc::ByteBuffer current_;
};

}  // namespace atl::worker
