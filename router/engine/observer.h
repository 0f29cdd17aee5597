// The engine's reports for metrics.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/network_id.h"
#include "router/engine/flight.h"

namespace atl::router {

struct BatchStats {
  std::string model;
  int32_t network = kRouterNetwork;
  int64_t rows = 0;
  bool remote = false;
  absl::StatusCode outcome = absl::StatusCode::kOk;
  absl::Duration wait;       // of the evaluation that waited longest, until the batch started
  absl::Duration lane_time;  // from the start to the answer
};

// A batch that its lane did not answer (in time), so that its rows are sent again; or one evaluation that is given up.
struct FailoverStats {
  std::string model;
  int32_t network = kRouterNetwork;
  bool lost = false;
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

// For metrics. Called without a lock of the engine: OnQueue and OnRejected from submitting threads too, the others from
// the sampling thread. Must not block.
class EngineObserver {
 public:
  virtual ~EngineObserver() = default;
  virtual void OnBatch(const BatchStats& stats) = 0;
  virtual void OnFailover(const FailoverStats& /*stats*/) {}
  // One image made one step, from the first request of an evaluation to its last answer.
  virtual void OnImageStep(const std::string& model, absl::Duration duration) = 0;
  virtual void OnQueue(const QueueStats& stats) = 0;
  virtual void OnRequestEnd(const RequestStats& stats) = 0;
  // `model` is empty when the request named no served model.
  virtual void OnRejected(const std::string& model, absl::StatusCode code) = 0;
};

}  // namespace atl::router
