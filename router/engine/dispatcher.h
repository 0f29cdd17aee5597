// Sends evaluations to lanes and collects the answers. The step scheduler forms batches whenever a lane is free;
// answers come in any order. Never waits for a lane.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "inference/lane.h"
#include "router/engine/image_step.h"
#include "router/engine/inbox.h"
#include "router/engine/observer.h"
#include "router/engine/served_version.h"
#include "router/policy/cost_estimates.h"
#include "router/policy/failover.h"
#include "router/policy/numerics.h"
#include "router/policy/step_scheduler.h"

namespace atl::router {

// The image, step and point that want an evaluation; an answer that comes too late is recognised by them.
struct Asker {
  int64_t image = 0;
  int32_t step = 0;      // of the image
  int64_t point = 0;     // of the step
  int32_t failures = 0;  // lanes that did not answer it
};

// A batch that was answered, or that no lane will answer.
struct FinishedCall {
  GroupKey key;
  std::vector<Asker> askers;  // of each row; some may have left
  // Values as EvaluationAnswer says, of a valid size. Otherwise UNAVAILABLE: EXPERT_LOST if no lane answered, or
  // NUMERICS_CHANGED if no lane is left with the arithmetic of a reproducible call.
  absl::StatusOr<EvaluationAnswer> answer;
};

// Returns INTERNAL (NETWORK_FAILED) if the answer, which may come from another machine, does not have the number of
// values that the evaluation requests.
absl::Status CheckAnswer(const Evaluation& evaluation, const EvaluationAnswer& answer);

// Belongs to the engine's thread. Lanes put answers into the inbox, from their own threads.
class Dispatcher {
 public:
  // `observer` may be null.
  Dispatcher(Clock* clock, std::shared_ptr<Inbox> inbox, EngineObserver* observer);
  // Stops watching the lanes and cancels running evaluations without waiting for them. A lane whose last reference is
  // dropped here waits for its answers, so a caller that must not wait keeps a reference.
  ~Dispatcher();
  Dispatcher(const Dispatcher&) = delete;
  Dispatcher& operator=(const Dispatcher&) = delete;

  void AddLane(std::shared_ptr<ExpertLane> lane);
  // Running batches of the lane fail over as if it had answered UNAVAILABLE.
  void RemoveLane(const std::string& name);

  // The number by which group keys name a version.
  int64_t KeyOf(const ServedVersion& version);

  // Returns the arithmetic on which a reproducible request must run a network from now on (ChooseNumerics).
  Numerics NumericsFor(int64_t model_key, int32_t network);

  // Adds a request to the fair order, until it leaves. Leave also drops its waiting evaluations.
  void Join(int64_t request, int32_t priority, int64_t images);
  void Leave(int64_t request);
  // `step` must not move until the evaluation is answered or its request has left.
  void Want(int64_t request, const Asker& asker, const GroupKey& key, const ImageStep* step);

  // Drops the measurements of a version that no request uses any more.
  void Forget(const ServedVersion& version);

  // Drops the image's evaluations that have not started and belong to another point of its step than this one.
  void Retract(int64_t image, int64_t point);

  // Starts the batches that the scheduler decides; returns whether it started any. Lanes that answer inline have then
  // put their answers into the inbox.
  bool StartBatches();
  // Takes an answer. If its lane failed, its rows wait for another one.
  std::optional<FinishedCall> TakeAnswer(LaneAnswer answer);
  // Returns the calls that ended without an answer since the last call of TakeLost.
  std::vector<FinishedCall> TakeLost();
  // The time at which StartBatches must be called even without an event. Set by its last call.
  absl::Duration look_again_at() const { return look_again_at_; }

 private:
  // An evaluation that waits for a lane, or for its answer.
  struct Wanted {
    Asker asker;
    int64_t request = 0;
    const ImageStep* step = nullptr;  // null: it was retracted under way
    std::string errors;               // of the lanes that failed
  };
  struct Lane {
    std::shared_ptr<ExpertLane> lane;
    LaneInfo info;
    std::shared_ptr<const std::vector<HostedNetwork>> hosted;  // of which `state` was made
    LaneState state;
    int32_t under_way = 0;
    CircuitBreaker breaker;
    // Networks that the lane failed to evaluate though it answered, and the time until which it is not used for them;
    // by model.
    std::map<std::pair<int64_t, int32_t>, absl::Duration> paused;
  };
  // A running batch, by its evaluation's id.
  struct Call {
    std::shared_ptr<const Evaluation> evaluation;
    GroupKey key;
    std::vector<Wanted> rows;
    absl::Duration wait;
    int32_t lane = 0;
    bool remote = false;
    absl::Duration started;

    int64_t row_count() const { return evaluation->rows.count * key.rows_each(); }
  };
  using Place = std::tuple<int64_t, int32_t, int32_t>;  // model, network, numerics

  void RefreshLanes();
  void RefreshLane(Lane* lane);
  // Returns the lanes that the scheduler may use.
  std::vector<LaneState> UsableLanes(absl::Duration now);
  void LookAgain(absl::Duration at) { look_again_at_ = std::min(look_again_at_, at); }
  SchedulerOptions SchedulerOptionsNow() const;
  // Gives up evaluations of networks that no lane has hosted for too long.
  void GiveUpUnhosted(absl::Duration now, const std::vector<LaneState>& usable);
  void Start(absl::Duration now, const Dispatch& dispatch);
  // Handles a lane that did not answer: rows that may be retried wait for another lane, the others are lost.
  void Fail(int64_t id, const std::string& why);
  void Lose(const GroupKey& key, const Asker& asker, const std::string& why);
  void Cancel(const Call& call);
  Evaluation Gather(const Dispatch& dispatch) const;
  NetworkId NetworkOf(const GroupKey& key) const;
  void Report(const Call& call, absl::StatusCode outcome);
  int32_t NumericsOf(const std::string& fingerprint);

  Clock* const clock_;
  const std::shared_ptr<Inbox> inbox_;
  EngineObserver* const observer_;

  struct VersionId {
    std::string model;
    std::string version;
    std::string digest;
    auto operator<=>(const VersionId&) const = default;
  };
  std::map<VersionId, int64_t> version_keys_;
  std::map<int64_t, VersionId> versions_;
  std::map<std::string, int32_t> numerics_;  // by fingerprint

  std::map<int32_t, Lane> lanes_;
  int32_t next_lane_ = 0;
  std::vector<ReadyEvaluation> ready_;  // ascending by id
  absl::flat_hash_map<int64_t, Wanted> waiting_;
  std::map<int64_t, RequestService> requests_;
  std::map<int64_t, Call> calls_;
  std::map<Place, absl::Duration> unhosted_since_;
  std::vector<FinishedCall> lost_;
  CostEstimates costs_;  // from the compute times that lanes report
  CostEstimates times_;  // until the answer
  int64_t next_id_ = 1;
  absl::Duration look_again_at_ = absl::InfiniteDuration();
};

}  // namespace atl::router
