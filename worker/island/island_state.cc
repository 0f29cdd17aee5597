#include "worker/island/island_state.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "common/base/errors.h"
#include "common/base/status_macros.h"

namespace atl::worker {
namespace {

using Kind = IslandCommand::Kind;

// When one rank fails, its peers' transports fail with it and may report first. The cause of the attempt's end is the
// most telling report: consequences, then a lost rank, then a task's own error. The leader's own word is final.
constexpr int kLeadersWord = 3;

// From an abort until every other rank has ended its part; a rank that has not is dropped.
constexpr absl::Duration kAbortTimeout = absl::Seconds(30);

int Telling(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return -1;
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnavailable:
      return ErrorReason(status) == "LOST_RANK" ? 1 : 0;
    default:
      return 2;
  }
}

}  // namespace

std::string_view ToString(IslandPhase phase) {
  switch (phase) {
    case IslandPhase::kGathering:
      return "gathering";
    case IslandPhase::kStarting:
      return "starting";
    case IslandPhase::kRunning:
      return "running";
    case IslandPhase::kAborting:
      return "aborting";
  }
  return "unknown";
}

IslandState::IslandState(IslandOptions options) : options_(std::move(options)), ranks_(std::max(options_.ranks, 1)) {
  ranks_[0].present = true;
  ranks_[0].where = "the leader";
  ranks_[0].devices = options_.devices;
}

absl::Status IslandState::Join(int32_t rank, std::string_view build, std::string_view where,
                               std::vector<RankDevice> devices, absl::Duration now) {
  if (rank < 1 || rank >= static_cast<int32_t>(ranks_.size())) {
    return MakeError(
        absl::StatusCode::kInvalidArgument, "RANK_OUT_OF_RANGE",
        fmt::format("rank of {}: expected from 1 to {} on this island, found {}", where, ranks_.size() - 1, rank));
  }
  if (build != options_.build) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, "WRONG_BUILD",
        fmt::format("build of rank {} ({}): expected the leader's {}, found {}", rank, where, options_.build, build));
  }
  Rank& entry = ranks_[rank];
  if (entry.present) {
    return MakeError(absl::StatusCode::kAlreadyExists, "RANK_TAKEN",
                     fmt::format("rank {} of {}: {} holds it and is not lost yet", rank, where, entry.where));
  }
  std::vector<DeviceSeeker> seekers = Seekers();
  seekers.push_back({.rank = rank, .where = std::string(where), .devices = devices});
  ATOLL_RETURN_IF_ERROR(AssignDevices(seekers).status());
  // Its part stays: an attempt that lost its predecessor may still be ending, and does not wait for the new process.
  entry.present = true;
  entry.leaving = false;
  entry.where = std::string(where);
  entry.devices = std::move(devices);
  entry.heard = now;
  return absl::OkStatus();
}

void IslandState::Heard(int32_t rank, absl::Duration now) {
  ranks_[rank].heard = now;
}

std::vector<IslandCommand> IslandState::Left(int32_t rank, const absl::Status& reason, absl::Duration now) {
  std::vector<IslandCommand> commands;
  Rank& entry = ranks_[rank];
  if (rank == 0 || !entry.present) return commands;
  entry.present = false;
  const bool working = Working(rank);
  entry.left_well = entry.leaving && !working;
  if (!working) return commands;
  entry.part = Part::kEnded;
  const absl::Status lost =
      MakeError(absl::StatusCode::kUnavailable, "LOST_RANK",
                fmt::format("rank {} ({}) is lost: {}", rank, entry.where, std::string(reason.message())));
  BeginAbort(lost, Telling(lost), now, &commands);
  return commands;
}

absl::Status IslandState::Begin(int64_t attempt, std::vector<int32_t> ranks, absl::Duration now,
                                std::vector<IslandCommand>* commands) {
  if (phase_ != IslandPhase::kGathering) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, "ISLAND_BUSY",
        fmt::format("attempt {}: expected an idle island, found attempt {} {}", attempt, attempt_, ToString(phase_)));
  }
  for (const int32_t rank : ranks) {
    if (rank < 0 || rank >= static_cast<int32_t>(ranks_.size()) || !ranks_[rank].present || ranks_[rank].leaving) {
      return MakeError(absl::StatusCode::kFailedPrecondition, "LOST_RANK",
                       fmt::format("attempt {}: rank {} is not there", attempt, rank));
    }
  }
  const std::vector<DeviceSeeker> seekers = Seekers();
  ATOLL_ASSIGN_OR_RETURN(const std::vector<RankDevice> given, AssignDevices(seekers));
  for (size_t i = 0; i < seekers.size(); ++i) {
    if (!seekers[i].devices.empty()) ranks_[seekers[i].rank].devices = {given[i]};
  }
  attempt_ = attempt;
  plan_ = std::move(ranks);
  cause_ = absl::OkStatus();
  telling_ = -1;
  hung_ = false;
  phase_ = IslandPhase::kStarting;
  phase_since_ = now;
  for (Rank& entry : ranks_) entry.part = Part::kNone;
  for (size_t i = 0; i < plan_.size(); ++i) {
    Rank& entry = ranks_[plan_[i]];
    entry.part = Part::kStarting;
    entry.plan_rank = static_cast<int32_t>(i);
    entry.address.clear();
    entry.step = 0;
    entry.stalled = false;
    commands->push_back({.kind = Kind::kStart,
                         .rank = plan_[i],
                         .plan_rank = entry.plan_rank,
                         .device = entry.devices.empty() ? "" : entry.devices[0].label});
  }
  return absl::OkStatus();
}

std::vector<DeviceSeeker> IslandState::Seekers() const {
  std::vector<DeviceSeeker> seekers;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const Rank& entry = ranks_[rank];
    if (!entry.present) continue;
    seekers.push_back({.rank = static_cast<int32_t>(rank), .where = entry.where, .devices = entry.devices});
  }
  return seekers;
}

bool IslandState::Working(int32_t rank, int64_t attempt) const {
  if (phase_ == IslandPhase::kGathering || attempt != attempt_) return false;
  return ranks_[rank].part == Part::kStarting || ranks_[rank].part == Part::kReady;
}

std::vector<IslandCommand> IslandState::Ready(int32_t rank, int64_t attempt, std::string_view address,
                                              absl::Duration now) {
  std::vector<IslandCommand> commands;
  if (!Working(rank, attempt) || phase_ != IslandPhase::kStarting) return commands;
  ranks_[rank].part = Part::kReady;
  ranks_[rank].address = std::string(address);
  std::vector<std::string> addresses;
  for (const int32_t member : plan_) {
    if (ranks_[member].part != Part::kReady) return commands;
    addresses.push_back(ranks_[member].address);
  }
  phase_ = IslandPhase::kRunning;
  phase_since_ = now;
  for (const int32_t member : plan_) {
    commands.push_back({.kind = Kind::kConnect, .rank = member, .addresses = addresses});
  }
  return commands;
}

std::vector<IslandCommand> IslandState::Beat(int32_t rank, int64_t attempt,
                                             const std::optional<engine::Overdue>& overdue, absl::Duration now) {
  std::vector<IslandCommand> commands;
  if (phase_ != IslandPhase::kRunning || !Working(rank, attempt)) return commands;
  ranks_[rank].stalled = overdue && overdue->waiting;
  if (overdue && !overdue->waiting) {
    const absl::Status stuck = absl::UnavailableError("stuck: " + overdue->what);
    if (rank > 0) {
      commands.push_back({.kind = Kind::kDrop, .rank = rank, .reason = stuck});
      for (IslandCommand& command : Left(rank, stuck, now)) commands.push_back(std::move(command));
    } else {
      const absl::Status lost =
          MakeError(absl::StatusCode::kUnavailable, "LOST_RANK",
                    fmt::format("rank 0 ({}) is lost: {}", ranks_[0].where, std::string(stuck.message())));
      BeginAbort(lost, Telling(lost), now, &commands);
    }
    return commands;
  }
  const auto stalled = [this](int32_t member) { return ranks_[member].stalled; };
  if (std::all_of(plan_.begin(), plan_.end(), stalled)) {
    const absl::Status stall =
        MakeError(absl::StatusCode::kUnavailable, "RANKS_STALLED",
                  fmt::format("attempt {}: every rank waits for another, as if what lies between them were cut; {}",
                              attempt_, overdue->what));
    BeginAbort(stall, Telling(stall), now, &commands);
  }
  return commands;
}

std::vector<IslandCommand> IslandState::Ended(int32_t rank, int64_t attempt, const absl::Status& status, int64_t step,
                                              absl::Duration now) {
  std::vector<IslandCommand> commands;
  if (!Working(rank, attempt)) return commands;
  ranks_[rank].part = Part::kEnded;
  ranks_[rank].step = step;
  if (!status.ok()) {
    BeginAbort(WithContext(status, fmt::format("rank {}", rank)), Telling(status), now, &commands);
  } else {
    FinishIfAllEnded(&commands);
  }
  return commands;
}

std::vector<IslandCommand> IslandState::Abort(const absl::Status& reason, absl::Duration now) {
  std::vector<IslandCommand> commands;
  if (phase_ == IslandPhase::kGathering) return commands;
  BeginAbort(reason, kLeadersWord, now, &commands);
  return commands;
}

std::vector<IslandCommand> IslandState::Tick(absl::Duration now) {
  std::vector<IslandCommand> commands;
  const auto drop = [&](int32_t rank, const absl::Status& reason) {
    commands.push_back({.kind = Kind::kDrop, .rank = rank, .reason = reason});
    for (IslandCommand& command : Left(rank, reason, now)) commands.push_back(std::move(command));
  };
  for (int32_t rank = 1; rank < static_cast<int32_t>(ranks_.size()); ++rank) {
    const absl::Duration silence = now - ranks_[rank].heard;
    if (ranks_[rank].present && silence > options_.silence_timeout) {
      drop(rank, absl::UnavailableError(fmt::format("silent for {:.1f} s", absl::ToDoubleSeconds(silence))));
    }
  }
  if (phase_ == IslandPhase::kStarting && now - phase_since_ > options_.start_timeout) {
    const absl::Status late = MakeError(absl::StatusCode::kDeadlineExceeded, "RANK_NOT_READY",
                                        fmt::format("attempt {}: not every rank was ready within {:.1f} s", attempt_,
                                                    absl::ToDoubleSeconds(options_.start_timeout)));
    BeginAbort(late, Telling(late), now, &commands);
  }
  if (phase_ == IslandPhase::kAborting && now - phase_since_ > kAbortTimeout) {
    for (const int32_t rank : plan_) {
      if (rank != 0 && Working(rank, attempt_))
        drop(rank, absl::DeadlineExceededError("did not end an aborted attempt"));
    }
  }
  if (phase_ == IslandPhase::kAborting && now - phase_since_ > options_.hung_timeout && Working(0, attempt_) &&
      !hung_) {
    hung_ = true;
    commands.push_back({.kind = Kind::kHung, .rank = 0, .reason = cause_});
  }
  return commands;
}

void IslandState::BeginAbort(const absl::Status& reason, int telling, absl::Duration now,
                             std::vector<IslandCommand>* commands) {
  if (telling > telling_) {
    cause_ = reason;
    telling_ = telling;
  }
  if (phase_ != IslandPhase::kAborting) {
    phase_ = IslandPhase::kAborting;
    phase_since_ = now;
    for (const int32_t rank : plan_) {
      if (Working(rank, attempt_)) commands->push_back({.kind = Kind::kAbort, .rank = rank, .reason = reason});
    }
  }
  FinishIfAllEnded(commands);
}

void IslandState::FinishIfAllEnded(std::vector<IslandCommand>* commands) {
  int64_t step = std::numeric_limits<int64_t>::max();
  for (const int32_t rank : plan_) {
    if (ranks_[rank].part != Part::kEnded) return;
    step = std::min(step, ranks_[rank].step);
  }
  phase_ = IslandPhase::kGathering;
  commands->push_back({.kind = Kind::kFinished, .reason = cause_, .step = step});
}

std::vector<int32_t> IslandState::Present() const {
  std::vector<int32_t> present;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].present && !ranks_[rank].leaving) present.push_back(static_cast<int32_t>(rank));
  }
  return present;
}

}  // namespace atl::worker
