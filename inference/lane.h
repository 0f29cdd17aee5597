// The interface for evaluating batches: on a compute thread, on a device or on another machine. The engine starts
// batches and takes their answers in any order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/network_id.h"
#include "inference/rows.h"

namespace atl::router {

// One batch for one network.
struct Evaluation {
  int64_t id = 0;  // unique in this process
  NetworkId network;
  int32_t channels = 0;
  int32_t height = 0;
  int32_t width = 0;
  Rows rows;
  // The answer must depend only on the row and the lane's fingerprint.
  bool reproducible = false;
  // On the monotonic clock. The caller does not use a later answer; a remote lane then answers DEADLINE_EXCEEDED.
  absl::Duration deadline = absl::InfiniteDuration();

  bool guided() const { return !rows.null_classes.empty(); }
};

struct EvaluationAnswer {
  // From an expert: velocities shaped as rows.x, then those of the second branch. From a router network:
  // [count][experts], each row adding up to 1.
  std::vector<float> values;
  std::string fingerprint;  // of the arithmetic that computed them
  absl::Duration compute_time;
  absl::Duration queue_time;  // in the lane, including the transfers there and back
};

struct LaneInfo {
  std::string name;  // unique in the engine
  bool remote = false;
  int32_t slots = 1;  // batches that keep it busy; further ones wait in the lane
  // The most numbers that it accepts in the tensors of one batch and returns in an answer; 0: no limit.
  int64_t max_batch_values = 0;
  std::string fingerprint;  // equal fingerprints give equal answers to reproducible evaluations
  bool operator==(const LaneInfo&) const = default;
};

struct HostedNetwork {
  NetworkId id;
  bool resident = true;  // if false, the lane loads it before the batch runs
  bool operator==(const HostedNetwork&) const = default;
};

// Thread-safe. The destructor blocks until every `done` has returned.
class ExpertLane {
 public:
  using Done = std::function<void(absl::StatusOr<EvaluationAnswer>)>;

  virtual ~ExpertLane() = default;
  virtual LaneInfo info() const = 0;
  // Returns the networks that Start can run now, ascending; empty while the lane is unreachable. Returns the same
  // object until they change.
  virtual std::shared_ptr<const std::vector<HostedNetwork>> hosted() const = 0;
  // Calls `changed` after info() or hosted() changed, from any thread and never under a lock of the lane; it must not
  // block. Replaces the previous callback; null removes it. When Watch returns, no call of the previous one is running.
  virtual void Watch(std::function<void()> changed) = 0;
  // Never blocks on the evaluation, unless the lane documents that it answers inline. Calls `done` exactly once, from
  // any thread, possibly inside Start, never under a lock of the lane. Errors: NOT_FOUND with reason
  // NETWORK_NOT_HOSTED; UNAVAILABLE if another lane may do better; DEADLINE_EXCEEDED from remote lanes; CANCELLED after
  // Cancel; all others come from the evaluation.
  virtual void Start(std::shared_ptr<const Evaluation> evaluation, Done done) = 0;
  // Cancels, best effort, an evaluation whose answer is no longer needed; `done` is still called.
  virtual void Cancel(int64_t evaluation) = 0;
};

}  // namespace atl::router
