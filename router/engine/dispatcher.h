// Brings evaluations to lanes and their answers back: batches are put together by the step scheduler whenever a lane is
// free, and answers come in any order. Never waits for a lane.
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

// Whose evaluation it is: an answer that came too late is known by it.
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
  // Values as EvaluationAnswer says, of a size that fits; or why there are none: UNAVAILABLE with reason EXPERT_LOST
  // when no lane answered, or NUMERICS_CHANGED when none is left of a reproducible call's arithmetic.
  absl::StatusOr<EvaluationAnswer> answer;
};

// INTERNAL with reason NETWORK_FAILED when an answer, which may come from another machine, has not as many values as
// the evaluation asks for.
absl::Status CheckAnswer(const Evaluation& evaluation, const EvaluationAnswer& answer);

// Of one thread, the engine's. Lanes answer into the inbox, from their threads.
class Dispatcher {
 public:
  // `observer` may be null.
  Dispatcher(Clock* clock, std::shared_ptr<Inbox> inbox, EngineObserver* observer);
  // Stops watching the lanes and cancels what is under way; waits for nothing of it. A lane whose last reference this
  // is waits for its answers, though: who must not wait keeps one.
  ~Dispatcher();
  Dispatcher(const Dispatcher&) = delete;
  Dispatcher& operator=(const Dispatcher&) = delete;

  void AddLane(std::shared_ptr<ExpertLane> lane);
  // What is under way on it fails over as if the lane had said UNAVAILABLE.
  void RemoveLane(const std::string& name);

  // The number by which group keys name a version.
  int64_t KeyOf(const ServedVersion& version);

  // The arithmetic on which a reproducible request is to run a network from now on (ChooseNumerics).
  Numerics NumericsFor(int64_t model_key, int32_t network);

  // A request takes part in the fair order from now on, until it leaves. What it waits for is then forgotten.
  void Join(int64_t request, int32_t priority, int64_t images);
  void Leave(int64_t request);
  // `step` must stay where it is until the evaluation is answered or its request left.
  void Want(int64_t request, const Asker& asker, const GroupKey& key, const ImageStep* step);

  // Nothing that was measured of the version is kept; no request of it is left.
  void Forget(const ServedVersion& version);

  // What the image waits for at other points than this one of its step is forgotten, as far as it was not started.
  void Retract(int64_t image, int64_t point);

  // Starts what the scheduler says; whether anything. Lanes that answer inline have then answered into the inbox.
  bool StartBatches();
  // Takes an answer in. Where its lane failed, its rows wait for another one.
  std::optional<FinishedCall> TakeAnswer(LaneAnswer answer);
  // Calls that came to an end without an answer since the last time.
  std::vector<FinishedCall> TakeLost();
  // When StartBatches is to be called though nothing happened. Of its last call.
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
    // Networks that it could not evaluate though it answered, and until when it is not asked again; by model.
    std::map<std::pair<int64_t, int32_t>, absl::Duration> paused;
  };
  // A batch on its way, by its evaluation's id.
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
  // The lanes as the scheduler may use them.
  std::vector<LaneState> UsableLanes(absl::Duration now);
  void LookAgain(absl::Duration at) { look_again_at_ = std::min(look_again_at_, at); }
  SchedulerOptions SchedulerOptionsNow() const;
  // Evaluations of networks that no lane has hosted for too long are lost.
  void GiveUpUnhosted(absl::Duration now, const std::vector<LaneState>& usable);
  void Start(absl::Duration now, const Dispatch& dispatch);
  // The lane did not answer: rows that may be tried again wait for another one, the others are lost.
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
  CostEstimates costs_;  // by what lanes say that they computed
  CostEstimates times_;  // until the answer
  int64_t next_id_ = 1;
  absl::Duration look_again_at_ = absl::InfiniteDuration();
};

}  // namespace atl::router
