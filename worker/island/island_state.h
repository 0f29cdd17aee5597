// The leader's view of its island: the present ranks and the phase of the current attempt. Pure: takes events with
// `now` (of a monotonic clock) and returns commands with their reasons; it neither sends, waits nor logs.
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
  // A rank that is silent for this long is lost.
  absl::Duration silence_timeout = absl::Seconds(2);
  // Limit from the start of an attempt until every rank has opened its data and its transport listens. The silence
  // timeout finds a rank that is lost meanwhile.
  absl::Duration start_timeout = absl::Minutes(5);
  // Limit from an abort until the leader's own rank has ended its part. After that its process must end, because the
  // leader cannot drop its own rank.
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
    kStart,     // `rank` starts as `plan_rank`
    kConnect,   // `rank` receives every rank's address
    kAbort,     // `rank` aborts, because of `reason`
    kDrop,      // close the stream of `rank`, because of `reason`
    kHung,      // the leader's own rank has not ended an aborted attempt within hung_timeout
    kFinished,  // the attempt has ended: `reason` is OK or the cause, `step` the last step that every rank did
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
  // Rank 0, the leader itself, is present from the start and never lost; but it can be stuck.
  explicit IslandState(IslandOptions options);

  // Adds a rank, with the devices that it may use. Rejects it with INVALID_ARGUMENT (RANK_OUT_OF_RANGE),
  // FAILED_PRECONDITION (WRONG_BUILD; DEVICE_TAKEN: no device would be left for it alone) or ALREADY_EXISTS
  // (RANK_TAKEN: the present process of this rank is not lost yet; try again).
  absl::Status Join(int32_t rank, std::string_view build, std::string_view where, std::vector<RankDevice> devices,
                    absl::Duration now);
  // Records a sign of life; any message of the rank is one.
  void Heard(int32_t rank, absl::Duration now);
  // Records that the rank's process will end: it continues the current attempt and is left out of the next.
  void Leaving(int32_t rank) { ranks_[rank].leaving = true; }
  // Records that the rank's stream has closed.
  std::vector<IslandCommand> Left(int32_t rank, const absl::Status& reason, absl::Duration now);

  // Starts attempt `attempt` on these ranks, in plan order; the first is 0. A rank keeps the device of its first
  // attempt. FAILED_PRECONDITION if the phase is not kGathering or one of the ranks is absent.
  absl::Status Begin(int64_t attempt, std::vector<int32_t> ranks, absl::Duration now,
                     std::vector<IslandCommand>* commands);
  std::vector<IslandCommand> Ready(int32_t rank, int64_t attempt, std::string_view address, absl::Duration now);
  // Records the overdue activity of the rank's compute thread in `attempt`; nullopt: it makes progress. A rank whose
  // work is overdue is stuck, and lost. Ranks that wait only witness a failure. If all of them wait for each other, the
  // connection between them is lost, and the attempt ends (RANKS_STALLED).
  std::vector<IslandCommand> Beat(int32_t rank, int64_t attempt, const std::optional<engine::Overdue>& overdue,
                                  absl::Duration now);
  std::vector<IslandCommand> Ended(int32_t rank, int64_t attempt, const absl::Status& status, int64_t step,
                                   absl::Duration now);
  // The leader ends the attempt. No effect while gathering.
  std::vector<IslandCommand> Abort(const absl::Status& reason, absl::Duration now);
  // Finds silent ranks and timeouts. Call it at least four times per silence_timeout.
  std::vector<IslandCommand> Tick(absl::Duration now);

  IslandPhase phase() const { return phase_; }
  int64_t attempt() const { return attempt_; }
  // Returns the ranks that an attempt may begin on, ascending; 0 is always among them.
  std::vector<int32_t> Present() const;
  // Returns whether `rank` still works on the current attempt.
  bool Working(int32_t rank) const { return Working(rank, attempt_); }
  // Returns whether the absent `rank` left after announcing it, with its work done.
  bool LeftWell(int32_t rank) const { return ranks_[rank].left_well; }

 private:
  enum class Part : uint8_t { kNone, kStarting, kReady, kEnded };
  struct Rank {
    bool present = false;
    bool leaving = false;
    bool left_well = false;  // at the end of its last presence
    std::string where;
    std::vector<RankDevice> devices;  // one, once it is assigned
    absl::Duration heard;
    Part part = Part::kNone;
    int32_t plan_rank = 0;
    std::string address;
    int64_t step = 0;
    bool stalled = false;  // its wait is overdue
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
  absl::Status cause_;         // the most informative reason so far
  int telling_ = -1;           // how informative it is
  bool hung_ = false;          // kHung was returned
};

}  // namespace atl::worker
