// Where batches are evaluated: a compute thread, a device or another machine. The same to the engine, which starts
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
  // The answer may depend on nothing but the row and the lane's fingerprint.
  bool reproducible = false;
  // Of the monotonic clock. After it nobody waits for the answer: a remote lane then answers DEADLINE_EXCEEDED.
  absl::Duration deadline = absl::InfiniteDuration();

  bool guided() const { return !rows.null_classes.empty(); }
};

struct EvaluationAnswer {
  // Expert: velocities shaped as rows.x, then those of the second branch. Router network: [count][experts], rows add up
  // to 1.
  std::vector<float> values;
  std::string fingerprint;  // of the arithmetic that made them
  absl::Duration compute_time;
  absl::Duration queue_time;  // in the lane, the way there and back included
};

struct LaneInfo {
  std::string name;  // unique in the engine
  bool remote = false;
  int32_t slots = 1;  // batches that keep it busy: more wait in the lane
  // Numbers that it takes in the tensors of one batch, and gives in an answer; 0: any.
  int64_t max_batch_values = 0;
  std::string fingerprint;  // equal fingerprints give equal answers to reproducible evaluations
  bool operator==(const LaneInfo&) const = default;
};

struct HostedNetwork {
  NetworkId id;
  bool resident = true;  // else it is loaded before the batch runs
  bool operator==(const HostedNetwork&) const = default;
};

// Thread-safe. The destructor returns when every `done` has.
class ExpertLane {
 public:
  using Done = std::function<void(absl::StatusOr<EvaluationAnswer>)>;

  virtual ~ExpertLane() = default;
  virtual LaneInfo info() const = 0;
  // What Start can run now, ascending; empty while the lane is out of reach. The same object as long as nothing
  // changes.
  virtual std::shared_ptr<const std::vector<HostedNetwork>> hosted() const = 0;
  // Calls `changed` after info() or hosted() changed, from any thread and never under a lock of the lane; it must not
  // block. Replaces the one before; null ends it, and no call is under way when this returns.
  virtual void Watch(std::function<void()> changed) = 0;
  // Never blocks on the evaluation, unless the lane says that it answers inline. Calls `done` exactly once, from any
  // thread, possibly inside Start, never under a lock of the lane. NOT_FOUND with reason NETWORK_NOT_HOSTED;
  // UNAVAILABLE when another lane may do better; DEADLINE_EXCEEDED from remote lanes; CANCELLED after Cancel; other
  // errors are those of the evaluation.
  virtual void Start(std::shared_ptr<const Evaluation> evaluation, Done done) = 0;
  // Best effort, for an evaluation whose answer nobody wants any more; `done` is called all the same.
  virtual void Cancel(int64_t evaluation) = 0;
};

}  // namespace atl::router
