// One Sample call: the engine's events on one side, gRPC's write stream on the other.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "atoll/sample/v1/sample_service.grpc.pb.h"
#include "router/engine/engine.h"

namespace atl::router {

// Lives until the engine has sent its last event and gRPC has called OnDone. Writes one message at a time, in the order
// of the events; a progress event that waits is replaced by the next one. When the caller goes away the ticket is
// dropped, and the engine's last event (cancelled) finishes the call.
class SampleStream final : public grpc::ServerWriteReactor<atlpb::sample::v1::SampleResponse>,
                           public SampleEvents,
                           public std::enable_shared_from_this<SampleStream> {
 public:
  static std::shared_ptr<SampleStream> Create();

  // Ends the call with an error before anything was submitted.
  void Refuse(const absl::Status& status) { OnError(status); }
  // Keeps the request's place until its results are delivered.
  void Hold(std::unique_ptr<SampleTicket> ticket);

  // Of the engine.
  void OnQueued(int64_t position, const std::string& version) override;
  void OnProgress(int32_t step, int32_t total_steps) override;
  void OnImage(SampledImage image) override;
  void OnDone(const SampleReport& report) override;
  void OnError(const absl::Status& status) override;

  // Of gRPC.
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  SampleStream() = default;
  void Push(atlpb::sample::v1::SampleResponse event);
  void PushLast(const absl::Status& status);
  // Starts the next write or the finish, when none is under way.
  void Pump();
  void DropTicket();

  absl::Mutex mutex_;
  std::deque<atlpb::sample::v1::SampleResponse> pending_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> last_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;    // a write is under way, or the finish was started
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;  // the caller is gone: nothing more is written
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<SampleTicket> ticket_ ABSL_GUARDED_BY(mutex_);
  // Of the write under way; touched only by whoever made the stream busy.
  atlpb::sample::v1::SampleResponse current_;
  std::shared_ptr<SampleStream> self_;
};

}  // namespace atl::router
