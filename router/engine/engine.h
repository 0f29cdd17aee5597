// The sampling engine: takes requests for any model, samples all their images together, and reports to each request.
//
// There is no common tick. An image continues as soon as its own answers are there, lanes get the next batch as soon as
// they are free, requests join and leave between any two batches, and a lane that hangs delays only the images that
// wait for it.
//
// Threads: Submit, the tickets, the model calls and the lane calls may come from any thread and never wait for a step.
// One sampling thread (Start) decides, calls the lanes and the requests' events, and sleeps until an answer, a request,
// a cancellation or a deadline. It waits for no lane. Once started, one more thread encodes finished samples and
// previews.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "inference/lane.h"
#include "router/engine/dispatcher.h"
#include "router/engine/encoder.h"
#include "router/engine/flight.h"
#include "router/engine/inbox.h"
#include "router/engine/observer.h"
#include "router/engine/served_version.h"
#include "router/policy/admission.h"
#include "router/policy/request.h"

namespace atl::router {

struct EngineOptions {
  SamplerLimits limits;
  AdmissionOptions admission;
  // The time after which a finished request whose results the caller has not taken releases its place
  // (SampleEvents::OnNotTaken).
  absl::Duration max_delivery_time = absl::Minutes(2);
};

class Engine;

// A request's place in the engine. Its destructor cancels unfinished images, which leave before the next step, and
// returns the memory of the results to admission, so the caller holds it until they are delivered. Must not outlive the
// engine.
class SampleTicket {
 public:
  SampleTicket(Engine* engine, int64_t id) : engine_(engine), id_(id) {}
  ~SampleTicket();
  SampleTicket(const SampleTicket&) = delete;
  SampleTicket& operator=(const SampleTicket&) = delete;

 private:
  Engine* const engine_;
  const int64_t id_;
};

class Engine {
 public:
  // `observer` may be null.
  Engine(EngineOptions options, Clock* clock, EngineObserver* observer);
  ~Engine();  // Stop
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Starts the sampling thread.
  void Start();
  // Rejects new requests (UNAVAILABLE, DRAINING) and waits until all requests are done or `grace` is over.
  void Drain(absl::Duration grace);
  // Ends the remaining requests with UNAVAILABLE, joins the threads and releases the lanes. Waits for no lane, unless
  // the engine holds its last reference. Safe to call twice.
  void Stop();

  // Makes `version` the serving one of its model for new requests. The previous version drains: its requests keep it to
  // their end. Its hosts may unload its networks when the last reference is gone.
  void Serve(std::shared_ptr<const ServedVersion> version);
  // Announces a version of `model`: until it serves, requests for the model are rejected with "try again" instead of
  // "unknown".
  void Expect(const std::string& model);
  // Lets requests ask by name for a version that does not serve. Withdraw ends this for new requests.
  void Offer(std::shared_ptr<const ServedVersion> version);
  void Withdraw(const std::string& model, const std::string& version);

  // Ends the requests of a version with UNAVAILABLE, VERSION_DRAINED, as soon as the sampling thread runs.
  void EndRequestsOn(const std::string& model, const std::string& version);

  // Drops the measurements of a version that no request uses any more.
  void Forget(const ServedVersion& version);

  // Lanes' names are unique. After RemoveLane no batch goes to the lane; its running batches fail over.
  void AddLane(std::shared_ptr<ExpertLane> lane);
  void RemoveLane(const std::string& name);

  // Returns the number of requests that are queued or sampled with a version.
  int64_t RequestsOn(const std::string& model, const std::string& version);
  // Returns, by model and version, the image-steps in which each expert was chosen since the last call.
  std::map<std::pair<std::string, std::string>, std::vector<int64_t>> TakeChosen();
  // Returns the serving version of `model`, or of the only model if the name is empty. UNAVAILABLE (MODEL_LOADING) if
  // the model is expected (Expect); otherwise FAILED_PRECONDITION (NO_MODEL) if no model is served, NOT_FOUND
  // (UNKNOWN_MODEL), or INVALID_ARGUMENT (MODEL_REQUIRED) if there are several.
  absl::StatusOr<SamplerInfo> Info(const std::string& model);

  // Returns the versions that requests may name for a model (as in Info): the serving version, then the offered ones.
  std::vector<std::string> Versions(const std::string& model);
  // Returns the serving versions, by the names of their models.
  std::vector<SamplerInfo> Served();
  // Whether any model is served and new requests are accepted: false once the engine drains.
  bool takes_requests();

  // Accepts or rejects a request. Errors of Info and ResolveRequest, NOT_FOUND (UNKNOWN_VERSION), RESOURCE_EXHAUSTED
  // (QUEUE_FULL, see RetryDelayOf), UNAVAILABLE (DRAINING). `deadline` is on the clock's monotonic time. Calls
  // events->OnQueued before it returns a ticket, and no event when it returns an error.
  absl::StatusOr<std::unique_ptr<SampleTicket>> Submit(const SampleRequest& request, absl::Duration deadline,
                                                       std::shared_ptr<SampleEvents> events);

  const EngineOptions& options() const { return options_; }

 private:
  friend class SampleTicket;
  friend class TickedEngine;  // of tests
  struct ServedModel {
    std::shared_ptr<const ServedVersion> serving;
    std::map<std::string, std::shared_ptr<const ServedVersion>> offered;  // by version
  };
  // An image in flight and its request.
  struct Flight {
    ActiveRequest* request = nullptr;
    ActiveImage* image = nullptr;
  };
  // An admitted request, known by its id until its ticket is dropped and its sampling is over.
  struct Admitted {
    int64_t images = 0;
    int64_t init_values = 0;  // of the images that it starts from
    bool joined = false;      // else queued
    bool beside = false;      // in the small requests' own room
    bool sampling = true;     // else done, failed or left
    bool ticket_held = true;
    std::string model;
    std::string version;
    // After the end: the events to call if the caller does not take the results, and the time of that call.
    std::shared_ptr<SampleEvents> events;
    absl::Duration give_up_at = absl::InfiniteDuration();
  };

  void Release(int64_t id);
  absl::StatusOr<const ServedModel*> FindModel(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::shared_ptr<const ServedVersion>> FindVersion(const SampleRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::unique_ptr<ActiveRequest>> Reserve(const SampleRequest& request, absl::Duration deadline,
                                                         int64_t* ahead);
  AdmissionState CurrentState() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Indices into the queue.
  std::vector<Joining> Joinable() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetIfOver(int64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void Loop();
  // Returns when the sampling thread must run even without an event.
  absl::Duration NextWake();
  void ApplyLaneCalls();
  void RemoveLeavers();
  void GiveUpDeliveries();
  void LetJoin();
  // Images without a step begin their next one.
  void BeginSteps();
  // Takes the results of lanes and encoder; returns whether there were any.
  bool TakeIn();
  void TakeCall(const FinishedCall& call);
  void TakeRow(const FinishedCall& call, size_t row, const Flight& flight);
  // Continues the image without the expert, or fails its request.
  void TakeLoss(const FinishedCall& call, const Flight& flight);
  void TakePosterior(const FinishedCall& call, size_t row, const Flight& flight);
  // Requests the missing answers of the image's step; finishes a step that waits for none.
  void Proceed(const Flight& flight);
  void CountChoice(ActiveRequest* request, ActiveImage* image);
  void FinishStep(const Flight& flight);
  void DeliverProgress();
  void StartPreviews(ActiveRequest* request);
  void TakePreview(const Flight& flight, absl::StatusOr<SampledImage> preview);
  // Delivers images that have made all their steps.
  void StartDelivery(ActiveRequest* request);
  void DeliverImage(ActiveRequest* request, int64_t image, absl::StatusOr<SampledImage> sampled);
  // Ends requests that failed, or whose images are all delivered.
  void EndRequests();
  void Forget(const ActiveRequest& request);
  void End(ActiveRequest* request, const absl::Status& status);
  void CountSteps();
  void ReportQueue();

  const EngineOptions options_;
  Clock* const clock_;
  EngineObserver* const observer_;

  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();

  // Used only by the sampling thread.
  std::unique_ptr<Dispatcher> dispatcher_;
  std::unique_ptr<Encoder> encoder_;  // of a started engine; others encode inline
  std::vector<std::unique_ptr<ActiveRequest>> active_;
  absl::flat_hash_map<int64_t, Flight> flights_;  // by image
  int64_t next_image_ = 1;
  absl::Duration counted_at_;  // when CountSteps last looked
  bool busy_ = false;          // whether images were in flight then
  absl::Duration busy_time_;   // not yet in time_per_image_step_
  int64_t steps_in_busy_time_ = 0;

  absl::Mutex mutex_;
  std::map<std::string, ServedModel> models_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> expected_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::unique_ptr<ActiveRequest>> queue_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, Admitted> admitted_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<int64_t> cancelled_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<int64_t> drained_ ABSL_GUARDED_BY(mutex_);  // their version must be dropped
  int64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::vector<std::function<void(Dispatcher*)>> lane_calls_ ABSL_GUARDED_BY(mutex_);
  int64_t active_requests_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t image_steps_left_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Duration time_per_image_step_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();
  std::map<std::pair<std::string, std::string>, std::vector<int64_t>> chosen_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace atl::router
