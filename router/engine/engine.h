// The sampling engine: takes requests for any model, draws all their images together, and reports to each request.
//
// There is no common tick. An image goes on as soon as its own answers are there, lanes are given the next batch as
// soon as they are free, requests join and leave between any two batches, and a lane that hangs keeps nobody but the
// images that wait for it.
//
// Threads: Submit, the tickets, the model calls and the lane calls may come from any thread and never wait for a step.
// One sampling thread (Start) decides, calls the lanes and the requests' events, and sleeps until an answer, a request,
// a cancellation or a deadline. It waits for no lane. Once started, one more thread makes pictures of finished samples
// and previews.
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
  // A request that is over and whose results are not taken by then gives its place to others
  // (SampleEvents::OnNotTaken).
  absl::Duration max_delivery_time = absl::Minutes(2);
};

class Engine;

// A request's place in the engine. Dropping it cancels what is not finished (the images leave before the next step) and
// gives the memory of its results back to admission: hold it until they are delivered. Must not outlive the engine.
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
  // Refuses new requests (UNAVAILABLE, DRAINING) and waits until all are done or `grace` is over.
  void Drain(absl::Duration grace);
  // Ends what is left with UNAVAILABLE, joins the threads and lets the lanes go. Waits for no lane, unless the engine
  // holds its last reference. Safe to call twice.
  void Stop();

  // Makes `version` the serving one of its name from the next request on; the one before drains: requests that hold it
  // keep it to their end. Whoever hosts its networks may take them away when the last reference is gone.
  void Serve(std::shared_ptr<const ServedVersion> version);
  // A version of `model` will be served: until then requests for it are told to try again, not that it is unknown.
  void Expect(const std::string& model);
  // Lets requests ask for a version that does not serve, by its name. Withdraw ends it for the requests to come.
  void Offer(std::shared_ptr<const ServedVersion> version);
  void Withdraw(const std::string& model, const std::string& version);

  // Ends the requests of a version with UNAVAILABLE, VERSION_DRAINED, as soon as the sampling thread looks.
  void EndRequestsOn(const std::string& model, const std::string& version);

  // Drops what was measured of a version, of which no request is left.
  void Forget(const ServedVersion& version);

  // Lanes' names are unique. After RemoveLane no batch goes to the lane; what is under way there fails over.
  void AddLane(std::shared_ptr<ExpertLane> lane);
  void RemoveLane(const std::string& name);

  // Requests that are queued or sampled with a version.
  int64_t RequestsOn(const std::string& model, const std::string& version);
  // By model and version: image-steps in which each expert was chosen since the last call.
  std::map<std::pair<std::string, std::string>, std::vector<int64_t>> TakeChosen();
  // The serving version of `model`; of the only one when the name is empty. UNAVAILABLE with reason MODEL_LOADING
  // where it is expected (Expect), FAILED_PRECONDITION with reason NO_MODEL where no model is served otherwise,
  // NOT_FOUND with reason UNKNOWN_MODEL, INVALID_ARGUMENT with reason MODEL_REQUIRED when there are several.
  absl::StatusOr<SamplerInfo> Info(const std::string& model);

  // What requests may ask for of a model (as in Info): the serving version, then those that are offered.
  std::vector<std::string> Versions(const std::string& model);
  // The serving versions, by the names of their models.
  std::vector<SamplerInfo> Served();
  // Whether any model is served, and new requests are taken: no longer once it drains.
  bool takes_requests();

  // Takes a request or says why not: errors of Info and ResolveRequest, NOT_FOUND with reason UNKNOWN_VERSION,
  // RESOURCE_EXHAUSTED with reason QUEUE_FULL (RetryDelayOf), UNAVAILABLE with reason DRAINING. `deadline` of the
  // clock's monotonic time. Calls events->OnQueued before it returns a ticket, and nothing when it returns an error.
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
  // An image in flight, where it is.
  struct Flight {
    ActiveRequest* request = nullptr;
    ActiveImage* image = nullptr;
  };
  // An admitted request, known by its id until its ticket is dropped and its sampling is over.
  struct Admitted {
    int64_t images = 0;
    int64_t init_values = 0;  // that it starts from
    bool joined = false;      // else queued
    bool beside = false;      // in the small requests' own room
    bool sampling = true;     // else done, failed or left
    bool ticket_held = true;
    std::string model;
    std::string version;
    // Once it is over: whom to tell that nobody takes the results, and when.
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
  // When the sampling thread has something to do though nothing happens.
  absl::Duration NextWake();
  void ApplyLaneCalls();
  void RemoveLeavers();
  void GiveUpDeliveries();
  void LetJoin();
  // Images without a step begin their next one.
  void BeginSteps();
  // Takes in what lanes and encoder finished; whether anything.
  bool TakeIn();
  void TakeCall(const FinishedCall& call);
  void TakeRow(const FinishedCall& call, size_t row, const Flight& flight);
  // The image goes on without the expert, or its request fails.
  void TakeLoss(const FinishedCall& call, const Flight& flight);
  void TakePosterior(const FinishedCall& call, size_t row, const Flight& flight);
  // Asks for what the image's step waits for and was not asked for yet; finishes a step that waits for nothing.
  void Proceed(const Flight& flight);
  void CountChoice(ActiveRequest* request, ActiveImage* image);
  void FinishStep(const Flight& flight);
  void DeliverProgress();
  void StartPreviews(ActiveRequest* request);
  void TakePreview(const Flight& flight, absl::StatusOr<SampledImage> preview);
  // Images that have made all their steps, on their way to the caller.
  void StartDelivery(ActiveRequest* request);
  void DeliverImage(ActiveRequest* request, int64_t image, absl::StatusOr<SampledImage> sampled);
  // Requests that failed, or whose images are all delivered.
  void EndRequests();
  void Forget(const ActiveRequest& request);
  void End(ActiveRequest* request, const absl::Status& status);
  void CountSteps();
  void ReportQueue();

  const EngineOptions options_;
  Clock* const clock_;
  EngineObserver* const observer_;

  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();

  // Of the sampling thread alone.
  std::unique_ptr<Dispatcher> dispatcher_;
  std::unique_ptr<Encoder> encoder_;  // of a started engine; others encode on the spot
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
  absl::flat_hash_set<int64_t> drained_ ABSL_GUARDED_BY(mutex_);  // their version has to go
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
