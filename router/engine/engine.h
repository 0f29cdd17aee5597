// The sampling engine: takes requests for any model, steps all their images together, and reports to each request.
//
// Threads: Submit, the tickets and the model calls may come from any thread and never wait for a step. One sampling
// thread (Start) or the caller of RunTick (tests; never both) runs the ticks; it calls the backends, which may use
// threads of their own, and the requests' events.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "router/engine/flight.h"
#include "router/engine/stepper.h"
#include "router/policy/admission.h"
#include "router/policy/request.h"

namespace atl::router {

struct EngineOptions {
  SamplerLimits limits;
  AdmissionOptions admission;
  // Images that step in one tick. Bounds how long a small request waits behind a large one.
  size_t max_images_per_tick = 256;
  size_t max_rows_per_batch = 256;
  // A request without a deadline, or with a later one, ends after this.
  absl::Duration max_request_time = absl::Minutes(30);
};

struct TickStats {
  absl::Duration duration;
  StepStats step;
};

struct RequestStats {
  std::string model;
  absl::StatusCode outcome = absl::StatusCode::kOk;
  int64_t images = 0;  // finished
  absl::Duration queue_time;
  absl::Duration sample_time;
  RoutingReport routing;
  absl::Duration first_image_time;  // from its arrival; of requests that ended well alone
};

struct QueueStats {
  int64_t queued_requests = 0;
  int64_t queued_images = 0;
  int64_t images_in_flight = 0;
};

// For metrics. Called without a lock of the engine, from the sampling thread and (OnQueue, OnRejected) from submitting
// ones; must not block.
class EngineObserver {
 public:
  virtual ~EngineObserver() = default;
  virtual void OnTick(const TickStats& stats) = 0;
  virtual void OnQueue(const QueueStats& stats) = 0;
  virtual void OnRequestEnd(const RequestStats& stats) = 0;
  // `model` is empty when the request named none that is served.
  virtual void OnRejected(const std::string& model, absl::StatusCode code) = 0;
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
  // Ends what is left with UNAVAILABLE and joins the thread. Safe to call twice.
  void Stop();

  // Makes `model` the serving version of its name from the next request on; the version before drains: requests that
  // hold it keep it to their end.
  void Serve(std::shared_ptr<ModelBackend> model);
  // Requests that are queued or sampled with a version.
  int64_t RequestsOn(const std::string& model, const std::string& version);
  // The serving version of `model`; of the only one when the name is empty. FAILED_PRECONDITION with reason NO_MODEL
  // before any is there, NOT_FOUND with reason UNKNOWN_MODEL, INVALID_ARGUMENT with reason MODEL_REQUIRED when there
  // are several.
  absl::StatusOr<SamplerInfo> Info(const std::string& model);

  // The serving versions, by the names of their models.
  std::vector<SamplerInfo> Served();
  // Whether any model is served.
  bool serves_any();

  // Takes a request or says why not: errors of Info and ResolveRequest, NOT_FOUND with reason UNKNOWN_VERSION,
  // RESOURCE_EXHAUSTED with reason QUEUE_FULL (RetryDelayOf), UNAVAILABLE with reason DRAINING. `deadline` of the
  // clock's monotonic time. Calls events->OnQueued before it returns a ticket, and nothing when it returns an error.
  absl::StatusOr<std::unique_ptr<SampleTicket>> Submit(const SampleRequest& request, absl::Duration deadline,
                                                       std::shared_ptr<SampleEvents> events);

  // Whether a cancelled request waits for the next tick to leave.
  bool has_leavers();
  // How many requests wait for a tick to let them join. A request that is being submitted is not among them yet,
  // although RequestsOn counts it.
  size_t waiting_requests();

  // One tick: leavers leave, queued requests join, chosen images step. Returns whether work is left. Tests only.
  bool RunTick();

  const EngineOptions& options() const { return options_; }

 private:
  friend class SampleTicket;
  struct ServedModel {
    std::shared_ptr<ModelBackend> backend;
    int64_t key = 0;
  };
  // An admitted request, known by its id until its ticket is dropped and its sampling is over.
  struct Admitted {
    int64_t images = 0;
    bool joined = false;   // else queued
    bool sampling = true;  // else done, failed or left
    bool ticket_held = true;
    std::string model;
    std::string version;
  };

  void Release(int64_t id);
  absl::StatusOr<ServedModel> FindModel(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::unique_ptr<ActiveRequest>> Reserve(const SampleRequest& request, absl::Duration deadline,
                                                         AdmissionDecision* decision);
  AdmissionState CurrentState() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  size_t Joinable() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Duration EarliestQueuedDeadline() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetIfOver(int64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void Loop();
  void RemoveLeavers();
  void LetJoin();
  StepStats StepSome();
  void DeliverProgress();
  // Delivers finished images; true when the request is over.
  bool DeliverImages(ActiveRequest* request);
  void End(ActiveRequest* request, const absl::Status& status);
  void ReportQueue();

  const EngineOptions options_;
  Clock* const clock_;
  EngineObserver* const observer_;

  // Of the sampling thread alone.
  std::vector<std::unique_ptr<ActiveRequest>> active_;
  int64_t tick_ = 0;

  absl::Mutex mutex_;
  std::map<std::string, ServedModel> models_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::unique_ptr<ActiveRequest>> queue_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, Admitted> admitted_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<int64_t> cancelled_ ABSL_GUARDED_BY(mutex_);
  int64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  int64_t next_model_key_ ABSL_GUARDED_BY(mutex_) = 1;
  int64_t active_requests_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t image_steps_left_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Duration time_per_image_step_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace atl::router
