#include "worker/island/island_state.h"

#include <algorithm>
#include <random>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "common/base/errors.h"

namespace atl::worker {
namespace {

std::string Text(const std::vector<IslandCommand>& commands) {
  std::string text;
  for (const IslandCommand& command : commands) {
    if (!text.empty()) text += "; ";
    switch (command.kind) {
      case IslandCommand::Kind::kStart:
        text += fmt::format("start {} as {}", command.rank, command.plan_rank);
        if (!command.device.empty()) text += " on " + command.device;
        break;
      case IslandCommand::Kind::kConnect:
        text += fmt::format("connect {}", command.rank);
        for (const std::string& address : command.addresses) text += " " + address;
        break;
      case IslandCommand::Kind::kAbort:
        text += fmt::format("abort {}", command.rank);
        break;
      case IslandCommand::Kind::kDrop:
        text += fmt::format("drop {}", command.rank);
        break;
      case IslandCommand::Kind::kHung:
        text += "hung";
        break;
      case IslandCommand::Kind::kFinished:
        text += command.reason.ok() ? fmt::format("finished {}", command.step)
                                    : fmt::format("finished {} {}", absl::StatusCodeToString(command.reason.code()),
                                                  ErrorReason(command.reason));
        break;
    }
  }
  return text;
}

struct Line {
  int64_t at_ms;
  std::string event;     // see Apply
  std::string expected;  // Text of the commands, or the reason of a refusal
};

absl::Status ErrorNamed(const std::string& name) {
  if (name == "OK") return absl::OkStatus();
  if (name == "DATA_LOSS") return absl::DataLossError("shard broken");
  if (name == "STALE") return MakeError(absl::StatusCode::kAborted, "STALE_ATTEMPT", "revoked");
  return absl::UnavailableError("peer closed");
}

std::string Apply(IslandState* island, const Line& line) {
  std::istringstream in(line.event);
  const absl::Duration now = absl::Milliseconds(line.at_ms);
  std::string verb, name;
  int32_t rank = 0;
  int64_t attempt = 0, step = 0;
  in >> verb;
  if (verb == "tick") return Text(island->Tick(now));
  if (verb == "begin") {
    std::vector<int32_t> ranks;
    in >> attempt;
    while (in >> rank) ranks.push_back(rank);
    std::vector<IslandCommand> commands;
    const absl::Status status = island->Begin(attempt, ranks, now, &commands);
    return status.ok() ? Text(commands) : ErrorReason(status);
  }
  if (verb == "stop") {
    in >> name;
    return Text(island->Abort(ErrorNamed(name), now));
  }
  in >> rank;
  if (verb == "join") {
    in >> name;
    return ErrorReason(island->Join(rank, name.empty() ? "b1" : name, "host", {}, now));
  }
  if (verb == "heard") {
    island->Heard(rank, now);
    return "";
  }
  if (verb == "leaving") {
    island->Leaving(rank);
    return "";
  }
  if (verb == "left") return Text(island->Left(rank, absl::UnavailableError("stream closed"), now));
  in >> attempt >> name;
  if (verb == "works") return Text(island->Beat(rank, attempt, engine::Overdue{false, "1F3"}, now));
  if (verb == "waits") return Text(island->Beat(rank, attempt, engine::Overdue{true, "waiting"}, now));
  if (verb == "beat") return Text(island->Beat(rank, attempt, std::nullopt, now));
  if (verb == "ready") return Text(island->Ready(rank, attempt, name, now));
  in >> step;
  EXPECT_EQ(verb, "ended") << line.event;
  return Text(island->Ended(rank, attempt, ErrorNamed(name), step, now));
}

void Play(int32_t ranks, const std::vector<Line>& lines, IslandPhase last) {
  IslandState island({.ranks = ranks, .build = "b1", .start_timeout = absl::Seconds(30)});
  for (const Line& line : lines) {
    EXPECT_EQ(Apply(&island, line), line.expected) << "at " << line.at_ms << " ms: " << line.event;
  }
  EXPECT_EQ(island.phase(), last) << "found " << ToString(island.phase());
}

TEST(IslandState, AnAttemptRunsFromJoinToItsEnd) {
  Play(2,
       {{0, "join 1", ""},
        {10, "begin 7 0 1", "start 0 as 0; start 1 as 1"},
        {20, "ready 1 7 addr1", ""},
        {30, "ready 0 7 addr0", "connect 0 addr0 addr1; connect 1 addr0 addr1"},
        {50, "heard 1", ""},
        {90, "tick", ""},
        {99, "ended 1 7 OK 40", ""},
        {99, "ended 0 7 OK 40", "finished 40"},
        {99, "begin 8 0", "start 0 as 0"}},
       IslandPhase::kStarting);
}

TEST(IslandState, RefusesWhoDoesNotBelong) {
  Play(2,
       {{0, "join 0", "RANK_OUT_OF_RANGE"},
        {0, "join 2", "RANK_OUT_OF_RANGE"},
        {0, "join 1 b2", "WRONG_BUILD"},
        {0, "begin 1 0 1", "LOST_RANK"},
        {0, "join 1", ""},
        {0, "join 1", "RANK_TAKEN"},
        {0, "left 1", ""},
        {0, "join 1", ""},
        {0, "begin 1 0 1", "start 0 as 0; start 1 as 1"},
        {0, "begin 2 0 1", "ISLAND_BUSY"}},
       IslandPhase::kStarting);
}

TEST(IslandState, RanksOfOneHostHaveADeviceEachAndKeepIt) {
  const absl::Duration now;
  const RankDevice a{"cuda:0", "GPU-a"};
  const RankDevice b{"cuda:1", "GPU-b"};
  const RankDevice c{"cuda:2", "GPU-c"};
  IslandState island({.ranks = 4, .build = "b1", .devices = {a}});
  const auto join = [&](int32_t rank, const std::vector<RankDevice>& devices) {
    return island.Join(rank, "b1", "reef-1, process 7", devices, now);
  };
  const auto begin = [&](int64_t attempt) {
    std::vector<IslandCommand> commands;
    const absl::Status begun = island.Begin(attempt, island.Present(), now, &commands);
    return begun.ok() ? Text(commands) : begun.ToString();
  };
  // In rank order, whoever joins first.
  ASSERT_TRUE(join(2, {a, b, c}).ok());
  ASSERT_TRUE(join(1, {a, b, c}).ok());
  EXPECT_EQ(begin(1), "start 0 as 0 on cuda:0; start 1 as 1 on cuda:1; start 2 as 2 on cuda:2");
  const absl::Status refused = join(3, {a, b, c});
  EXPECT_EQ(ErrorReason(refused), "DEVICE_TAKEN") << refused;
  EXPECT_EQ(ErrorReason(join(3, {a})), "DEVICE_TAKEN");
  // Rank 2 computes on cuda:2 already; the place of rank 1 is for the next process.
  static_cast<void>(island.Left(1, absl::UnavailableError("stream closed"), now));
  for (const int32_t rank : {0, 2}) static_cast<void>(island.Ended(rank, 1, absl::OkStatus(), 5, now));
  EXPECT_EQ(begin(2), "start 0 as 0 on cuda:0; start 2 as 1 on cuda:2");
  for (const int32_t rank : {0, 2}) static_cast<void>(island.Ended(rank, 2, absl::OkStatus(), 5, now));
  ASSERT_TRUE(join(3, {a, b, c}).ok());
  EXPECT_EQ(begin(3), "start 0 as 0 on cuda:0; start 2 as 1 on cuda:2; start 3 as 2 on cuda:1");
}

TEST(IslandState, ASilentRankIsLostAfterTwoSecondsAndTheOthersAbort) {
  Play(3,
       {{0, "join 1", ""},
        {0, "join 2", ""},
        {0, "begin 7 0 1 2", "start 0 as 0; start 1 as 1; start 2 as 2"},
        {0, "ready 0 7 a", ""},
        {0, "ready 1 7 b", ""},
        {0, "ready 2 7 c", "connect 0 a b c; connect 1 a b c; connect 2 a b c"},
        {1900, "heard 2", ""},
        {2000, "tick", ""},
        {2100, "tick", "drop 1; abort 0; abort 2"},
        {2200, "ended 0 7 ABORT 12", ""},
        {2300, "heard 2", ""},
        {2300, "ended 2 7 ABORT 12", "finished UNAVAILABLE LOST_RANK"},
        {2400, "join 1", ""},
        {2400, "begin 8 0 1 2", "start 0 as 0; start 1 as 1; start 2 as 2"}},
       IslandPhase::kStarting);
}

TEST(IslandState, AClosedStreamAbortsAtOnceAndThePlanGoesOnWithFewerRanks) {
  Play(2,
       {{0, "join 1", ""},
        {0, "begin 7 0 1", "start 0 as 0; start 1 as 1"},
        {5, "left 1", "abort 0"},
        {9, "ended 0 7 ABORT 0", "finished UNAVAILABLE LOST_RANK"},
        {9, "begin 8 0 1", "LOST_RANK"},
        {9, "begin 8 0", "start 0 as 0"},
        {9, "ready 0 8 a", "connect 0 a"},
        {9, "join 1", ""},
        {9, "left 1", ""},
        {9, "ended 0 8 OK 40", "finished 40"}},
       IslandPhase::kGathering);
}

TEST(IslandState, ARankThatLeavesEndsItsAttemptWellAndIsNotCountedOnAgain) {
  Play(2,
       {{0, "join 1", ""},
        {0, "begin 7 0 1", "start 0 as 0; start 1 as 1"},
        {1, "leaving 1", ""},
        {2, "ended 1 7 OK 12", ""},
        {2, "ended 0 7 OK 12", "finished 12"},
        {3, "begin 8 0 1", "LOST_RANK"},
        {3, "left 1", ""},
        {4, "join 1", ""},
        {4, "begin 8 0 1", "start 0 as 0; start 1 as 1"}},
       IslandPhase::kStarting);
}

TEST(IslandState, OnlyARankWithoutWorkLeavesWell) {
  IslandState island({.ranks = 4, .build = "b1"});
  const absl::Duration now;
  const absl::Status closed = absl::UnavailableError("stream closed");
  for (const int32_t rank : {1, 2, 3}) ASSERT_TRUE(island.Join(rank, "b1", "host", {}, now).ok());
  std::vector<IslandCommand> commands;
  ASSERT_TRUE(island.Begin(7, {0, 1, 2}, now, &commands).ok());
  for (const int32_t rank : {1, 2}) island.Leaving(rank);
  static_cast<void>(island.Ended(1, 7, absl::OkStatus(), 12, now));
  for (const int32_t rank : {1, 2, 3}) static_cast<void>(island.Left(rank, closed, now));
  EXPECT_TRUE(island.LeftWell(1));
  EXPECT_FALSE(island.LeftWell(2)) << "it was at work";
  EXPECT_FALSE(island.LeftWell(3)) << "it had not said so";
}

TEST(IslandState, ATasksOwnErrorTellsMoreThanThePeersItTookDown) {
  Play(2,
       {{0, "join 1", ""},
        {0, "begin 7 0 1", "start 0 as 0; start 1 as 1"},
        {1, "ended 0 7 PEER 3", "abort 1"},
        {2, "ended 1 7 DATA_LOSS 3", "finished DATA_LOSS "}},
       IslandPhase::kGathering);
}

TEST(IslandState, TheLeadersWordIsFinal) {
  Play(2,
       {{0, "join 1", ""},
        {0, "stop STALE", ""},
        {0, "begin 7 0 1", "start 0 as 0; start 1 as 1"},
        {1, "stop STALE", "abort 0; abort 1"},
        {2, "ended 1 7 DATA_LOSS 3", ""},
        {2, "left 1", ""},
        {3, "ended 0 7 ABORT 3", "finished ABORTED STALE_ATTEMPT"}},
       IslandPhase::kGathering);
}

TEST(IslandState, WhoIsNeverReadyOrNeverEndsIsNotWaitedForForever) {
  Play(2,
       {{0, "join 1", ""},
        {0, "begin 7 0 1", "start 0 as 0; start 1 as 1"},
        {0, "ready 0 7 a", ""},
        {30000, "heard 1", ""},
        {30001, "tick", "abort 0; abort 1"},
        {30002, "ended 0 7 ABORT 0", ""},
        {60000, "heard 1", ""},
        {60002, "tick", "drop 1; finished UNAVAILABLE LOST_RANK"}},
       IslandPhase::kGathering);
}

TEST(IslandState, AStuckRankIsLostAndThoseThatWaitForItAreNot) {
  Play(3,
       {{0, "join 1", ""},
        {0, "join 2", ""},
        {0, "begin 7 0 1 2", "start 0 as 0; start 1 as 1; start 2 as 2"},
        {0, "works 1 7", ""},
        {0, "ready 0 7 a", ""},
        {0, "ready 1 7 b", ""},
        {0, "ready 2 7 c", "connect 0 a b c; connect 1 a b c; connect 2 a b c"},
        {9, "waits 0 7", ""},
        {9, "waits 2 7", ""},
        {9, "works 1 6", ""},
        {9, "works 1 7", "drop 1; abort 0; abort 2"},
        {9, "works 1 7", ""},
        {9, "ended 0 7 ABORT 3", ""},
        {9, "ended 2 7 ABORT 3", "finished UNAVAILABLE LOST_RANK"},
        {9, "begin 8 0 2", "start 0 as 0; start 2 as 1"}},
       IslandPhase::kStarting);
}

TEST(IslandState, RanksThatAllWaitForEachOtherAreCutOff) {
  Play(2,
       {{0, "join 1", ""},
        {0, "begin 7 0 1", "start 0 as 0; start 1 as 1"},
        {0, "ready 1 7 b", ""},
        {0, "ready 0 7 a", "connect 0 a b; connect 1 a b"},
        {5, "waits 0 7", ""},
        {5, "beat 0 7", ""},
        {6, "waits 1 7", ""},
        {7, "waits 0 7", "abort 0; abort 1"},
        {9, "ended 0 7 PEER 3", ""},
        {9, "ended 1 7 PEER 3", "finished UNAVAILABLE RANKS_STALLED"}},
       IslandPhase::kGathering);
}

TEST(IslandState, ALeaderThatDoesNotEndAnAbortedAttemptIsOfNoUse) {
  Play(1,
       {{0, "begin 7 0", "start 0 as 0"},
        {0, "ready 0 7 a", "connect 0 a"},
        {9, "works 0 7", "abort 0"},
        {120000, "tick", ""},
        {120010, "tick", "hung"},
        {120020, "tick", ""},
        {120030, "ended 0 7 ABORT 3", "finished UNAVAILABLE LOST_RANK"}},
       IslandPhase::kGathering);
}

TEST(IslandState, ReportsOfAnotherAttemptChangeNothing) {
  Play(2,
       {{0, "join 1", ""},
        {0, "ended 1 7 DATA_LOSS 1", ""},
        {0, "begin 8 0 1", "start 0 as 0; start 1 as 1"},
        {0, "ready 1 7 x", ""},
        {0, "ended 1 7 DATA_LOSS 1", ""},
        {0, "ready 1 8 b", ""},
        {0, "ready 0 8 a", "connect 0 a b; connect 1 a b"},
        {0, "ready 0 8 z", ""}},
       IslandPhase::kRunning);
}

TEST(IslandState, ALostRankThatIsBackBeforeTheOthersHaveEndedIsNotWaitedFor) {
  Play(3,
       {{0, "join 1", ""},
        {0, "join 2", ""},
        {0, "begin 7 0 1 2", "start 0 as 0; start 1 as 1; start 2 as 2"},
        {5, "left 1", "abort 0; abort 2"},
        {6, "join 1", ""},
        {7, "ended 2 7 ABORT 3", ""},
        {7, "left 2", ""},
        {8, "join 2", ""},
        {9, "ended 0 7 ABORT 3", "finished UNAVAILABLE LOST_RANK"},
        {9, "begin 8 0 1 2", "start 0 as 0; start 1 as 1; start 2 as 2"}},
       IslandPhase::kStarting);
}

// Ranks come, go, fail, fall silent and come back in any order: once each that works has ended or is lost, the attempt
// is over, and it is over once.
TEST(IslandState, EveryAttemptEndsWhateverItsRanksDo) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int32_t>(random() % n); };
  for (int story = 0; story < 3000; ++story) {
    const int32_t ranks = 1 + below(4);
    IslandState island({.ranks = ranks, .build = "b1", .start_timeout = absl::Seconds(30)});
    absl::Duration now;
    std::string told;
    const auto finished = [&told](const std::vector<IslandCommand>& commands) {
      told += Text(commands) + "\n";
      return std::count_if(commands.begin(), commands.end(),
                           [](const auto& command) { return command.kind == IslandCommand::Kind::kFinished; });
    };
    for (int64_t attempt = 1; attempt <= 3; ++attempt) {
      for (int32_t rank = 1; rank < ranks; ++rank) (void)island.Join(rank, "b1", "host", {}, now);
      std::vector<IslandCommand> commands;
      ASSERT_TRUE(island.Begin(attempt, island.Present(), now, &commands).ok()) << told;
      int64_t ends = finished(commands);
      const absl::Status errors[] = {absl::OkStatus(), absl::UnavailableError("peer"), absl::DataLossError("shard")};
      for (int event = below(30); event > 0 && ends == 0; --event) {
        now += absl::Milliseconds(below(900));
        const int32_t rank = below(ranks);
        switch (below(8)) {
          case 0:
            if (rank > 0) (void)island.Join(rank, "b1", "host", {}, now);
            break;
          case 1:
            ends += finished(island.Left(rank, absl::UnavailableError("stream closed"), now));
            break;
          case 2:
            ends += finished(island.Ended(rank, attempt, errors[below(3)], 1, now));
            break;
          case 3:
            ends += finished(island.Beat(rank, attempt, engine::Overdue{below(2) == 0, "1F3"}, now));
            break;
          case 4:
            ends += finished(island.Tick(now));
            break;
          case 5:
            if (below(4) == 0) ends += finished(island.Abort(absl::AbortedError("revoked"), now));
            break;
          default:
            ends += finished(island.Ready(rank, attempt, "a", now));
            island.Heard(rank, now);
        }
      }
      for (int32_t rank = 0; rank < ranks; ++rank) {
        if (ends == 0 && island.Working(rank)) {
          ends += finished(island.Ended(rank, attempt, absl::AbortedError("over"), 1, now));
        }
      }
      ASSERT_EQ(ends, 1) << told;
      ASSERT_EQ(island.phase(), IslandPhase::kGathering) << told;
    }
  }
}

}  // namespace
}  // namespace atl::worker
