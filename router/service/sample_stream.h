// One Sample call: the engine's events on one side, gRPC's write stream on the other.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "atoll/sample/v1/sample_service.grpc.pb.h"
#include "router/engine/engine.h"
#include "router/service/caller_quotas.h"
#include "router/service/running_requests.h"

namespace atl::router {

// Lives until the engine has sent its last event and gRPC has called OnDone. Writes one message at a time, in the order
// of the events. A waiting progress event is replaced by the next one, and so is each image's preview. When the caller
// disconnects, or the request is cancelled by its id, the ticket is dropped, and the engine's last event (cancelled)
// finishes the call. OnNotTaken drops the remaining messages of a caller that does not read.
class SampleStream final : public grpc::ServerWriteReactor<atlpb::sample::v1::SampleResponse>,
                           public SampleEvents,
                           public std::enable_shared_from_this<SampleStream> {
 public:
  // `requests` must outlive the stream.
  static std::shared_ptr<SampleStream> Create(RunningRequests* requests);

  // Ends the call with an error before its request was submitted.
  void Refuse(const absl::Status& status) { OnError(status); }
  // Keeps the share until the stream is over.
  void Keep(CallerQuotas::Share share) { share_ = std::move(share); }
  // Gives the request its id. Must be called before it is submitted.
  void Register();
  // Keeps the request's place until its results are delivered.
  void Hold(std::unique_ptr<SampleTicket> ticket);

  // The engine's events.
  void OnQueued(int64_t position, const std::string& version) override;
  void OnProgress(int32_t step, int32_t total_steps) override;
  void OnPreviews(std::vector<SampledImage> previews) override;
  void OnImage(SampledImage image) override;
  void OnDone(const SampleReport& report) override;
  void OnError(const absl::Status& status) override;
  void OnNotTaken() override;

  // gRPC's events.
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  explicit SampleStream(RunningRequests* requests) : requests_(requests) {}
  void Push(atlpb::sample::v1::SampleResponse event);
  void PushLast(const absl::Status& status);
  // Takes the next message to write into current_; returns false without one.
  bool TakeNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Starts the next write or the finish, unless one is running.
  void Pump();
  void DropTicket();
  // Handles a cancellation by id: messages that are not written yet are dropped.
  void CancelRequest();

  RunningRequests* const requests_;
  CallerQuotas::Share share_;
  std::string request_id_;  // set before the engine knows of the request

  absl::Mutex mutex_;
  std::deque<atlpb::sample::v1::SampleResponse> pending_ ABSL_GUARDED_BY(mutex_);
  // The newest preview of each image that is not finished, while it waits.
  std::map<int32_t, atlpb::sample::v1::Image> previews_ ABSL_GUARDED_BY(mutex_);
  atlpb::sample::v1::SampleProgress progress_ ABSL_GUARDED_BY(mutex_);  // the newest
  std::optional<absl::Status> last_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;    // a write is under way, or the finish was started
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;  // the caller is gone: nothing more is written
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<SampleTicket> ticket_ ABSL_GUARDED_BY(mutex_);
  // The message of the running write; used only by the thread that set busy_.
  atlpb::sample::v1::SampleResponse current_;
  std::shared_ptr<SampleStream> self_;
};

}  // namespace atl::router
