// Brings evaluations to lanes and their answers back: batches are put together by the step scheduler whenever a lane is
// free, and answers come in any order. Never waits for a lane.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "router/engine/image_step.h"
#include "router/engine/inbox.h"
#include "router/engine/lane.h"
#include "router/engine/served_version.h"
#include "router/policy/call_table.h"
#include "router/policy/cost_estimates.h"
#include "router/policy/numerics.h"
#include "router/policy/step_scheduler.h"

namespace atl::router {

// Whose evaluation it is: an answer that came too late is known by it.
struct Asker {
  int64_t image = 0;
  int32_t step = 0;   // of the image
  int64_t point = 0;  // of the step
};

// A batch that was answered, or that no lane will answer.
struct FinishedCall {
  GroupKey key;
  std::vector<Asker> askers;  // of each row; some may have left
  // Values as EvaluationAnswer says, of a size that fits; or why there are none: UNAVAILABLE with reason EXPERT_LOST
  // when no lane answered, or NUMERICS_CHANGED when none is left of a reproducible call's arithmetic.
  absl::StatusOr<EvaluationAnswer> answer;
  bool taken_over = false;  // by another lane than it was first given to
};

struct BatchStats {
  std::string model;
  int32_t network = kRouterNetwork;
  int64_t rows = 0;
  std::string lane;
  bool remote = false;
  absl::StatusCode outcome = absl::StatusCode::kOk;
  absl::Duration wait;          // of the evaluation that waited longest, until the batch started
  absl::Duration lane_time;     // from the start to the answer
  absl::Duration compute_time;  // as the lane says
};

// What became of a batch that its first lane did not answer, or not in time.
struct FailoverStats {
  std::string model;
  int32_t network = kRouterNetwork;
  FailoverAction action = FailoverAction::kRetry;  // kRetry, kHedge or kGiveUp
};

// Of one thread, the engine's. Lanes answer into the inbox, from their threads.
class Dispatcher {
 public:
  // `on_batch` and `on_failover` may be null.
  Dispatcher(Clock* clock, std::shared_ptr<Inbox> inbox, std::function<void(const BatchStats&)> on_batch,
             std::function<void(const FailoverStats&)> on_failover = nullptr);
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

  // The arithmetic on which a reproducible request of the version is to run from now on (ChooseNumerics): empty when no
  // lane hosts any of it.
  RequestNumerics NumericsFor(int64_t model_key, int32_t experts);

  // A request takes part in the fair order from now on, until it leaves. What it waits for is then forgotten.
  void Join(int64_t request, int32_t priority, int64_t images);
  void Leave(int64_t request);
  // `step` must stay where it is until the evaluation is answered or its request left.
  void Want(int64_t request, const Asker& asker, const GroupKey& key, const ImageStep* step);

  // Nothing that was measured of the version is kept; no request of it is left.
  void Forget(const ServedVersion& version);

  // What the image waits for at other points than this one of its step is forgotten, as far as it was not started.
  void Retract(int64_t image, int64_t point);

  // Starts what the scheduler and the failover of calls under way say; whether anything. Lanes that answer inline have
  // then answered into the inbox.
  bool StartBatches();
  // Takes an answer in. A call is finished by the first answer of its attempts; others are dropped.
  std::optional<FinishedCall> TakeAnswer(LaneAnswer answer);
  // Calls that came to an end without an answer since the last time.
  std::vector<FinishedCall> TakeLost();
  // When StartBatches is to be called though nothing happened. Of its last call.
  absl::Duration look_again_at() const { return look_again_at_; }

 private:
  struct Waiting {
    Asker asker;
    const ImageStep* step = nullptr;
  };
  struct Lane {
    std::shared_ptr<ExpertLane> lane;
    LaneInfo info;
    std::shared_ptr<const std::vector<HostedNetwork>> hosted;  // of which `state` was made
    LaneState state;
    int32_t under_way = 0;
  };
  // One try at a batch.
  struct Attempt {
    int32_t lane = 0;
    bool remote = false;
    absl::Duration started;
  };
  // A batch on its way. Attempts share the evaluation's id.
  struct Call {
    std::shared_ptr<const Evaluation> evaluation;
    GroupKey key;
    std::vector<Asker> askers;
    std::vector<int64_t> requests;  // of each row
    absl::Duration wait;
    std::vector<Attempt> attempts;
    std::vector<std::string> tried;  // names of the lanes, for they may be gone by the time they are told
    std::string last_error;
  };

  void RefreshLanes();
  SchedulerOptions SchedulerOptionsNow() const;
  // Retries, hedges and gives up what is due; whether anything was started.
  bool FailOver(absl::Duration now);
  void RefreshLane(Lane* lane);
  // Batches of networks that no lane has hosted for too long are lost.
  void GiveUpUnhosted(absl::Duration now);
  void Start(absl::Duration now, const Dispatch& dispatch);
  // Starts the batch on one more lane, of which no other attempt of it waits. A probe is no attempt.
  void StartOn(Call* call, int64_t id, int32_t lane, std::shared_ptr<const Evaluation> evaluation);
  void Cancel(int64_t id);
  // Until when a batch that leaves for the lane is waited for.
  absl::Duration DeadlineOn(int32_t lane, absl::Duration now) const;
  // Why a call that nobody answers is lost.
  absl::Status LossOf(const GroupKey& key, const std::vector<std::string>& tried, const std::string& why) const;
  FinishedCall End(int64_t id, absl::StatusOr<EvaluationAnswer> answer);
  Evaluation Gather(const Dispatch& dispatch) const;
  NetworkId NetworkOf(const GroupKey& key) const;
  void Report(const Call& call, int32_t lane, const absl::StatusOr<EvaluationAnswer>& answer);
  int32_t NumericsOf(const std::string& fingerprint);

  Clock* const clock_;
  const std::shared_ptr<Inbox> inbox_;
  const std::function<void(const BatchStats&)> on_batch_;
  const std::function<void(const FailoverStats&)> on_failover_;

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
  absl::flat_hash_map<int64_t, Waiting> waiting_;
  std::map<int64_t, RequestService> requests_;
  std::map<int64_t, Call> calls_;  // by the evaluation's id; those of table_
  CallTable table_;
  std::vector<FinishedCall> lost_;
  CostEstimates costs_;
  int64_t next_id_ = 1;
  absl::Duration look_again_at_ = absl::InfiniteDuration();
};

}  // namespace atl::router
