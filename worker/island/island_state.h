// The leader's view of its island: which ranks are there and how far the current attempt is. Pure: events come in with
// `now` (of a monotonic clock), commands with their reasons come out; nothing is sent, waited for or logged here.
//
// Not thread-safe; its owner serialises events.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/engine/activity.h"
#include "worker/island/rank_device.h"

namespace atl::worker {

struct IslandOptions {
  int32_t ranks = 1;
  std::string build;
  // The devices that rank 0 may have; empty: it computes on the processor.
  std::vector<RankDevice> devices;
  // A rank that says nothing for this long is lost.
  absl::Duration silence_timeout = absl::Seconds(2);
  // From the start of an attempt until every rank has opened its data and its transport listens. A rank that is lost
  // meanwhile is found by its silence.
  absl::Duration start_timeout = absl::Minutes(5);
  // From an abort until the leader's own rank has ended its part; one that has not cannot be dropped, and its process
  // is of no use any more.
  absl::Duration hung_timeout = absl::Minutes(2);
};

// kGathering -> kStarting   Begin
// kStarting  -> kRunning    every rank of the attempt is ready
// kStarting, kRunning -> kAborting   a rank is lost, stuck or ended with an error, Abort, start_timeout
// kStarting, kRunning, kAborting -> kGathering   no rank works on the attempt any more (kFinished)
enum class IslandPhase : uint8_t { kGathering, kStarting, kRunning, kAborting };

std::string_view ToString(IslandPhase phase);

struct IslandCommand {
  enum class Kind : uint8_t {
    kStart,     // tell `rank` to start as `plan_rank`
    kConnect,   // tell `rank` every rank's address
    kAbort,     // tell `rank` to abort, because of `reason`
    kDrop,      // close the stream of `rank`, because of `reason`
    kHung,      // the leader's own rank has not ended an aborted attempt within hung_timeout
    kFinished,  // the attempt is over: `reason` is OK or why it ended, `step` the last step that every rank did
  };
  Kind kind = Kind::kStart;
  int32_t rank = 0;
  int32_t plan_rank = 0;
  std::string device;                  // label; empty: the processor
  std::vector<std::string> addresses;  // by plan rank
  absl::Status reason;
  int64_t step = 0;
};

class IslandState {
 public:
  // Rank 0, the leader itself, is there from the start and is never lost; but it can be stuck.
  explicit IslandState(IslandOptions options);

  // A rank asks to join, with the devices that it may have. Refused with INVALID_ARGUMENT (RANK_OUT_OF_RANGE),
  // FAILED_PRECONDITION (WRONG_BUILD; DEVICE_TAKEN: no device would be left for it alone) or ALREADY_EXISTS
  // (RANK_TAKEN: the one that is there is not lost yet; try again).
  absl::Status Join(int32_t rank, std::string_view build, std::string_view where, std::vector<RankDevice> devices,
                    absl::Duration now);
  // Any message of a rank shows that it lives.
  void Heard(int32_t rank, absl::Duration now);
  // The rank's process will end: it works on in the current attempt and is not counted on for the next.
  void Leaving(int32_t rank) { ranks_[rank].leaving = true; }
  // The rank's stream is closed.
  std::vector<IslandCommand> Left(int32_t rank, const absl::Status& reason, absl::Duration now);

  // Starts attempt `attempt` on these ranks, in plan order; the first is 0. A rank keeps the device that its first
  // attempt gave it. FAILED_PRECONDITION unless gathering, or when one of them is not there.
  absl::Status Begin(int64_t attempt, std::vector<int32_t> ranks, absl::Duration now,
                     std::vector<IslandCommand>* commands);
  std::vector<IslandCommand> Ready(int32_t rank, int64_t attempt, std::string_view address, absl::Duration now);
  // What the rank's compute thread has been at for too long in `attempt`; nothing: it goes on. A rank that works on
  // something is stuck, and lost. Ranks that wait are only witnesses; but when all of them wait for each other, what
  // lies between them is lost, and the attempt ends (RANKS_STALLED).
  std::vector<IslandCommand> Beat(int32_t rank, int64_t attempt, const std::optional<engine::Overdue>& overdue,
                                  absl::Duration now);
  std::vector<IslandCommand> Ended(int32_t rank, int64_t attempt, const absl::Status& status, int64_t step,
                                   absl::Duration now);
  // The leader ends the attempt. No effect while gathering.
  std::vector<IslandCommand> Abort(const absl::Status& reason, absl::Duration now);
  // Time passed: finds silent ranks and timeouts. Call it at least four times per silence_timeout.
  std::vector<IslandCommand> Tick(absl::Duration now);

  IslandPhase phase() const { return phase_; }
  int64_t attempt() const { return attempt_; }
  // Ranks that an attempt may begin on, ascending; 0 is always there.
  std::vector<int32_t> Present() const;
  // Whether `rank` still works on the current attempt.
  bool Working(int32_t rank) const { return Working(rank, attempt_); }
  // Whether `rank`, which is gone, left as it had announced: with its work done.
  bool LeftWell(int32_t rank) const { return ranks_[rank].left_well; }

 private:
  enum class Part : uint8_t { kNone, kStarting, kReady, kEnded };
  struct Rank {
    bool present = false;
    bool leaving = false;
    bool left_well = false;  // when it was there last
    std::string where;
    std::vector<RankDevice> devices;  // one, once it is assigned
    absl::Duration heard;
    Part part = Part::kNone;
    int32_t plan_rank = 0;
    std::string address;
    int64_t step = 0;
    bool stalled = false;  // waits for too long
  };

  bool Working(int32_t rank, int64_t attempt) const;
  std::vector<DeviceSeeker> Seekers() const;
  void BeginAbort(const absl::Status& reason, int telling, absl::Duration now, std::vector<IslandCommand>* commands);
  void FinishIfAllEnded(std::vector<IslandCommand>* commands);

  const IslandOptions options_;
  std::vector<Rank> ranks_;
  IslandPhase phase_ = IslandPhase::kGathering;
  absl::Duration phase_since_;
  int64_t attempt_ = 0;
  std::vector<int32_t> plan_;  // ranks of the attempt, by plan rank
  absl::Status cause_;         // the most telling reason so far
  int telling_ = -1;           // how telling it is
  bool hung_ = false;          // said so
};

}  // namespace atl::worker
