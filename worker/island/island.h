// The leader's side of the rendezvous: an actor around IslandState. Serves Join streams, beats, starts and aborts
// attempts. The leader's own rank takes part through the same messages, without a stream.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "atoll/island/v1/rendezvous_service.grpc.pb.h"
#include "common/base/clock.h"
#include "common/spec/task.h"
#include "worker/attempt/rank_runner.h"
#include "worker/attempt/stop_plan.h"
#include "worker/attempt/worker_metrics.h"
#include "worker/island/island_state.h"
#include "worker/island/rank_stream.h"

namespace atl::worker {

struct IslandSettings {
  IslandOptions state;
  std::string secret;
  absl::Duration beat_interval = absl::Milliseconds(300);
};

// Events for the leader's other parts, mostly reports of ranks. Called on the island's thread; must not block.
struct IslandEvents {
  std::function<void(const atlpb::island::v1::StepDone&)> step_done;
  std::function<void(int32_t rank, const atlpb::island::v1::StageFiles&)> stage_files;
  std::function<void(int32_t rank, const atlpb::island::v1::RankProfile&)> rank_profile;
  // Returns how long the commit of a checkpoint took lately, after the ranks had written it; zero before a measurement.
  std::function<absl::Duration()> commit_time;
  std::function<void(const atlpb::island::v1::Diverged&)> diverged;
  // The leader's own rank does not end an aborted attempt. The handler should end the process, because the compute
  // thread cannot be joined.
  std::function<void(const absl::Status&)> hung;
};

struct AttemptOutcome {
  absl::Status status;  // OK: every rank ended without an error, at `step`
  int64_t step = 0;
};

// Thread-safe. Owns one thread; gRPC's threads only queue work for it. Shut the server down before destroying it.
class Island final : public atlpb::island::v1::RendezvousService::CallbackService {
 public:
  Island(IslandSettings settings, Clock* clock, WorkerMetrics* metrics, IslandEvents events);
  ~Island() override;

  // Sets the leader's own rank; call it before the first attempt. `runner` must outlive the island's last attempt.
  void SetLocalRunner(RankRunner* runner);
  // Takes a report of the leader's own rank.
  void Report(atlpb::island::v1::JoinRequest message);
  // Sets the incarnation that Welcome and StartAttempt carry.
  void SetIncarnation(int64_t incarnation);

  // Blocks until every rank is present, `timeout` passes or Interrupt is called; returns the present ranks, ascending.
  std::vector<int32_t> AwaitRanks(absl::Duration timeout);
  std::vector<int32_t> Present() const;
  // Ends AwaitRanks at once, for running and later calls.
  void Interrupt();

  // Starts an attempt on `ranks`, which become plan ranks 0, 1, …. Abort and StopSoon reach it from now on.
  void BeginAttempt(const atlpb::island::v1::StartAttempt& start, const std::vector<int32_t>& ranks);
  // Blocks until no rank works on the attempt any more.
  AttemptOutcome AwaitOutcome();
  // Aborts the running attempt, if any.
  void Abort(const absl::Status& reason);
  // Stops the running attempt, if any, after a step that no rank has passed yet, with a checkpoint; or at once if there
  // is no time for that (DecideStop). If the attempt is already stopping, an earlier deadline is evaluated anew.
  void StopSoon(StopRequest request);
  // Passes new keys for the task's attempt to its ranks, and to ranks on which it begins later.
  void RenewStorage(const spec::LeaseToken& token, const spec::StorageGrant& storage);
  // Commands every rank to end its process, with an error unless `status`, the leader's end, is OK. From now on, a
  // closing stream does not count as a lost rank.
  void ShutDownRanks(const absl::Status& status);

 private:
  using JoinRequest = atlpb::island::v1::JoinRequest;
  using JoinResponse = atlpb::island::v1::JoinResponse;
  using StreamPtr = std::shared_ptr<RankStream>;

  grpc::ServerBidiReactor<JoinRequest, JoinResponse>* Join(grpc::CallbackServerContext* context) override;

  void Post(std::function<void()> work);
  void Loop();
  // All of these run on the island's thread.
  void OnStreamMessage(const StreamPtr& stream, const JoinRequest& message);
  void OnStreamClosed(const StreamPtr& stream);
  absl::Status Admit(const StreamPtr& stream, const atlpb::island::v1::Hello& hello);
  void OnRankMessage(int32_t rank, const JoinRequest& message);
  void StopOrAbort(const StopRequest& request);
  void TakeOverdue(int32_t rank, const std::optional<RankRunner::OverdueAttempt>& found);
  void OnAttemptEnded(int32_t rank, const atlpb::island::v1::AttemptEnded& ended);
  void Execute(const std::vector<IslandCommand>& commands);
  void SendTo(int32_t rank, JoinResponse message);
  void SendToWorking(const atlpb::island::v1::JoinResponse& message);
  void Drop(int32_t rank, const absl::Status& reason);
  void Beat();
  void DropSilentStrangers();
  void PublishPresent();
  RankRunner* Local();
  void Finish(AttemptOutcome outcome);

  const IslandSettings settings_;
  Clock* const clock_;
  WorkerMetrics* const metrics_;
  const IslandEvents events_;

  // Used by the island's thread only.
  IslandState state_;
  std::map<int32_t, StreamPtr> streams_;           // of ranks that joined
  std::map<StreamPtr, absl::Duration> strangers_;  // opened, no Hello yet
  atlpb::island::v1::StartAttempt start_;
  // The newest keys and their lease; of the previous attempt if none were renewed since.
  spec::LeaseToken renewed_;
  atlpb::island::v1::StorageGrant renewed_storage_;
  std::optional<absl::Duration> stop_deadline_;  // of the running attempt; unset: it was not asked to stop
  bool ending_ = false;                          // every rank was commanded to end
  int64_t sequence_ = 0;
  absl::Duration next_beat_;

  mutable absl::Mutex mutex_;
  std::deque<std::function<void()>> work_ ABSL_GUARDED_BY(mutex_);
  std::vector<int32_t> present_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<AttemptOutcome> outcome_ ABSL_GUARDED_BY(mutex_);
  RankRunner* local_ ABSL_GUARDED_BY(mutex_) = nullptr;
  int64_t incarnation_ ABSL_GUARDED_BY(mutex_) = 0;
  bool interrupted_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace atl::worker
