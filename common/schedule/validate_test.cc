#include <algorithm>
#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/errors.h"
#include "common/schedule/action.h"
#include "common/schedule/generators.h"
#include "common/schedule/self_conditioning.h"

namespace atl::schedule {
namespace {

using ::testing::HasSubstr;

absl::Status ValidateText(const char* text) {
  const auto schedule = ParseText(text);
  if (!schedule.ok()) return schedule.status();
  return Validate(*schedule);
}

TEST(Validate, SplitBackwardAndSharedRanksAreValid) {
  EXPECT_TRUE(ValidateText("0F0,0F1,0I0,0W0,0B1\n1F0,1I0,1F1,1I1,1W1,1W0\n").ok());
  EXPECT_TRUE(ValidateText("0F0,3F0,3B0,0B0\n1F0,2F0,2I0,1I0,2W0,1W0\n").ok());
}

TEST(Validate, FrozenPiecesMayLieAnywhereAndReductionsAfterTheirStage) {
  EXPECT_TRUE(ValidateText("E1,0F0,E0,0B0,E3\n1F0,1B0,E2\n").ok());
  EXPECT_TRUE(ValidateText("0F0,3F0,3B0,R3,0I0,E0,0W0,R0\n1F0,2F0,2I0,1I0,2W0,R2,1W0,R1\n").ok());
  EXPECT_TRUE(ValidateText("0F0,0B0\nE0,E1\n").ok());  // a rank without a stage
}

TEST(Validate, ForwardsOfSelfConditioningPrecedeThoseThatReadThem) {
  EXPECT_TRUE(ValidateText("0C0,0F0,0B0\n").ok());
  EXPECT_TRUE(ValidateText("0C0,0C1,0F0,0F1,0B0,0B1,R0\n1C0,1F0,1C1,1B0,1F1,1B1,E0,R1\n").ok());
  // In a V the feedback stays on its rank; the C of micro-batch 1 may come after the F of 0.
  EXPECT_TRUE(ValidateText("0C0,3C0,0F0,0C1,3C1,0F1,3F0,3B0,3F1,3B1,0B0,0B1\n"
                           "1C0,2C0,1C1,2C1,1F0,2F0,1F1,2F1,2B0,1B0,2B1,1B1\n")
                  .ok());
}

struct BadSchedule {
  const char* text;
  const char* reason;
  const char* message;
};

TEST(Validate, RefusesWithRankPositionTokenAndReason) {
  const BadSchedule cases[] = {
      {"0F0,0F1,0B0\n", "SCHEDULE_INCOMPLETE",
       "rank 0, stage 0: expected a forward and a backward of each of 2 micro-batches"},
      // A weight gradient forgotten, a micro-batch left after its forward, one repeated in place of another.
      {"0F0,0F1,0I0,0B1\n", "SCHEDULE_INCOMPLETE",
       "rank 0, position 2, 0I0: expected W of the micro-batch after it, found none"},
      {"0F0,0B0\n1F0,1I0\n", "SCHEDULE_INCOMPLETE", "rank 1, position 1, 1I0: expected W"},
      {"0F0,0I0,0W0,0F1\n", "SCHEDULE_INCOMPLETE", "rank 0, position 3, 0F1: expected a backward"},
      {"0F0,0F1,0B0,0B1\n1F0,1I0,1W0,1F0\n", "SCHEDULE_ORDER", "rank 1, position 3, 1F0: expected nothing"},
      {"0F0,0I0,0W0,0F2,0I2,0W2,0F1,0B1\n1F0,1I0,1W0,1F1,1I1,1W1\n", "SCHEDULE_INCOMPLETE",
       "rank 1, stage 1: expected a forward and a backward of micro-batch 2, found neither"},
      {"0B0,0F0\n", "SCHEDULE_ORDER", "rank 0, position 0, 0B0: expected F of the micro-batch done before it"},
      {"0F0,0F0,0B0\n", "SCHEDULE_ORDER",
       "position 1, 0F0: expected nothing of the micro-batch done before it, found F"},
      {"0F0,0W0,0I0\n", "SCHEDULE_ORDER", "position 1, 0W0: expected F and I"},
      {"0F0,0B0,0B0\n", "SCHEDULE_ORDER", "position 2, 0B0"},
      {"0F0,0I0,0W0,0W0\n", "SCHEDULE_ORDER", "position 3, 0W0"},
      {"0F0,0F1,0B0,0B1\n1F1,1B1,1F0,1B0\n", "SCHEDULE_LANE_ORDER",
       "rank 1, position 0, 1F1: expected micro-batch 0 as message 0 of the forward lane from rank 0"},
      {"0F0,0F1,0B0,0B1\n1F0,1F1,1B1,1B0\n", "SCHEDULE_LANE_ORDER", "gradient lane from rank 1"},
      // Rank 0 wants the gradient of micro-batch 0 before it sends 1, rank 1 wants micro-batch 1 first.
      {"0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", "SCHEDULE_DEADLOCK",
       "rank 0, position 1, 0B0: waits for ever for 1B0 of rank 1, position 2"},
      // Two stages on one rank in the wrong order: it waits for itself.
      {"1F0,0F0,1B0,0B0\n", "SCHEDULE_DEADLOCK",
       "rank 0, position 0, 1F0: waits for ever for 0F0 of rank 0, position 1, which comes after it"},
      // Two ranks that wait for each other, and two more that wait for them.
      {"0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n2F0,2B0,2F1,2B1\n3F0,3F1,3B0,3B1\n", "SCHEDULE_DEADLOCK",
       "rank 2, position 1, 2B0: waits for ever for 3B0 of rank 3, position 2; rank 3 stops before it at position 1, "
       "3F1, and waits for 2F1 of rank 2"},
      {"0F0,0B0,R1\n1F0,1B0\n", "SCHEDULE_TEXT", "stage 1 of 1F0 lies on rank 0"},
      {"0F0,0B0,E0,E0\n", "SCHEDULE_ORDER",
       "rank 0, position 3, E0: expected the piece once, found it on rank 0, position 2, too"},
      {"0F0,0B0,E0\n1F0,1B0,E0\n", "SCHEDULE_ORDER", "rank 1, position 2, E0: expected the piece once"},
      {"0F0,R0,0B0\n", "SCHEDULE_ORDER", "rank 0, position 2, 0B0: expected nothing of the stage after its R"},
      {"0F0,0B0,R0,R0\n", "SCHEDULE_ORDER", "rank 0, position 3, R0: expected nothing of the stage after its R"},
      {"0F0,0I0,R0,0W0\n", "SCHEDULE_ORDER", "rank 0, position 3, 0W0"},
      // C missing of one micro-batch, of a whole stage, twice, after its F.
      {"0C0,0F0,0B0,0F1,0B1\n", "SCHEDULE_INCOMPLETE",
       "rank 0, position 3, 0F1: expected C of the stage's micro-batch"},
      {"0C0,0F0,0B0\n1F0,1B0\n", "SCHEDULE_INCOMPLETE",
       "rank 1, position 0, 1F0: expected C of the stage's micro-batch before it, as of others, found none"},
      {"0C0,0C0,0F0,0B0\n", "SCHEDULE_ORDER",
       "rank 0, position 1, 0C0: expected C of the micro-batch once, found it at position 0, too"},
      {"0C0,0F0,0B0\n1C0,1F0,1C0,1B0\n", "SCHEDULE_ORDER",
       "rank 1, position 2, 1C0: expected C of the micro-batch once"},
      {"0F0,0C0,0B0\n", "SCHEDULE_ORDER",
       "rank 0, position 1, 0C0: expected C of the micro-batch before its F, found F at position 0"},
      {"0C0,0F0,0B0,R0,0C1,0F1,0B1\n", "SCHEDULE_ORDER", "expected nothing of the stage after its R"},
      {"0C0,0B0,0F0\n", "SCHEDULE_ORDER", "rank 0, position 1, 0B0: expected F of the micro-batch done before it"},
      {"0C0,0C1\n", "SCHEDULE_INCOMPLETE", "expected a forward and a backward of each of 2 micro-batches"},
      // Order of a lane between C's, and of the feedback; both ends of the feedback on one rank have no lane.
      {"0C0,0C1,0F0,0F1,0B0,0B1\n1C1,1C0,1F0,1F1,1B0,1B1\n", "SCHEDULE_LANE_ORDER",
       "rank 1, position 0, 1C1: expected micro-batch 0 as message 0 of the self-conditioning lane from rank 0 (its "
       "0C0), found 1"},
      {"0C1,0C0,0F0,0F1,0B0,0B1\n1C1,1C0,1F0,1F1,1B0,1B1\n", "SCHEDULE_LANE_ORDER",
       "rank 0, position 2, 0F0: expected micro-batch 1 as message 0 of the feedback lane from rank 1 (its 1C1), found "
       "0"},
      // Rings through a C lane and through the feedback, within a rank and between two.
      {"0C0,0F0,0B0,0C1,0F1,0B1\n1C0,1F0,1C1,1B0,1F1,1B1\n", "SCHEDULE_DEADLOCK",
       "rank 0, position 2, 0B0: waits for ever for 1B0 of rank 1, position 3; rank 1 stops before it at position 2, "
       "1C1, and waits for 0C1 of rank 0"},
      {"0C0,0F0,1C0,1F0,1B0,0B0\n", "SCHEDULE_DEADLOCK",
       "rank 0, position 1, 0F0: waits for ever for 1C0 of rank 0, position 2, which comes after it"},
      {"0C0,0F0,2C0,2F0,2B0,0B0\n1C0,3C0,1F0,3F0,3B0,1B0\n", "SCHEDULE_DEADLOCK",
       "rank 0, position 1, 0F0: waits for ever for 3C0 of rank 1, position 1; rank 1 stops before it at position 1, "
       "3C0, and waits for 2C0 of rank 0"},
      {"0F0,0B0,R0\n1F0,1B0\n", "SCHEDULE_INCOMPLETE",
       "rank 0, position 2, R0: expected an R of every stage where there is one, found none of stage 1 on rank 1"},
  };
  for (const BadSchedule& bad : cases) {
    const absl::Status status = ValidateText(bad.text);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.text;
    EXPECT_EQ(ErrorReason(status), bad.reason) << bad.text << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.message));
  }
}

TEST(Validate, RefusesSchedulesBuiltByHandWithNumbersOutOfRange) {
  Schedule schedule = *Generate1F1B(2, 2);
  schedule.ranks[0][0].micro_batch = 2;
  EXPECT_EQ(ErrorReason(Validate(schedule)), "SCHEDULE_SHAPE");
  schedule = *Generate1F1B(2, 2);
  schedule.ranks[0][0].stage = -1;
  EXPECT_EQ(ErrorReason(Validate(schedule)), "SCHEDULE_SHAPE");
  schedule = *Generate1F1B(2, 2);
  schedule.rank_of_stage = {1, 0};
  EXPECT_EQ(ErrorReason(Validate(schedule)), "SCHEDULE_SHAPE");
  EXPECT_EQ(ErrorReason(Validate(Schedule{})), "SCHEDULE_SHAPE");
  schedule = *Generate1F1B(2, 2);
  schedule.frozen_pieces = -1;
  EXPECT_EQ(ErrorReason(Validate(schedule)), "SCHEDULE_SHAPE");
  schedule.frozen_pieces = 1 << 30;  // refused before anything of that size is made
  EXPECT_EQ(ErrorReason(Validate(schedule)), "SCHEDULE_INCOMPLETE");
  schedule.frozen_pieces = 1;
  schedule.ranks[0].push_back({ActionKind::kFrozen, 0, 1});
  EXPECT_EQ(ErrorReason(Validate(schedule)), "SCHEDULE_SHAPE");
  schedule.ranks[0].back() = {ActionKind::kReduce, 2, 0};
  EXPECT_EQ(ErrorReason(Validate(schedule)), "SCHEDULE_SHAPE");
}

// A plain interpreter of the transport's blocking semantics, as slow and simple as can be: FIFO lanes, receives that
// block, sends that do not.
bool RunsThrough(const Schedule& schedule) {
  const int32_t last = schedule.stages - 1;
  std::vector<size_t> position(schedule.ranks.size(), 0);
  struct Lane {
    int32_t from_stage = 0;
    std::vector<int32_t> sent;
    size_t read = 0;
  };
  std::vector<Lane> forward(schedule.stages + 1);  // by reading stage
  std::vector<Lane> gradient(schedule.stages + 1);
  std::vector<Lane> conditioning(schedule.stages + 1);  // the last is read by F of the first stage
  for (int32_t stage = 0; stage <= last + 1; ++stage) {
    forward[stage].from_stage = conditioning[stage].from_stage = stage - 1;
    gradient[stage].from_stage = stage + 1;
  }
  bool conditioned = false;
  for (const Action& action : schedule.ranks[schedule.rank_of_stage[0]]) {
    conditioned = conditioned || action.kind == ActionKind::kSelfConditioning;
  }
  const auto reads_from = [&](const Action& action) -> Lane* {
    switch (action.kind) {
      case ActionKind::kForward:
        return action.stage > 0 ? &forward[action.stage] : conditioned ? &conditioning[last + 1] : nullptr;
      case ActionKind::kSelfConditioning:
        return action.stage > 0 ? &conditioning[action.stage] : nullptr;
      case ActionKind::kInputGradient:
      case ActionKind::kBackward:
        return action.stage < last ? &gradient[action.stage] : nullptr;
      default:
        return nullptr;
    }
  };
  const auto sends_to = [&](const Action& action) -> Lane* {
    switch (action.kind) {
      case ActionKind::kForward:
        return &forward[action.stage + 1];
      case ActionKind::kSelfConditioning:
        return &conditioning[action.stage + 1];
      case ActionKind::kInputGradient:
      case ActionKind::kBackward:
        return action.stage > 0 ? &gradient[action.stage - 1] : nullptr;
      default:
        return nullptr;
    }
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
      if (position[rank] == schedule.ranks[rank].size()) continue;
      const Action& action = schedule.ranks[rank][position[rank]];
      if (Lane* lane = reads_from(action)) {
        if (schedule.rank_of_stage[lane->from_stage] == static_cast<int32_t>(rank)) {
          // Handed over within the rank, in any order.
          if (std::count(lane->sent.begin(), lane->sent.end(), action.micro_batch) == 0) continue;
        } else {
          if (lane->read == lane->sent.size()) continue;
          if (lane->sent[lane->read] != action.micro_batch) return false;
          ++lane->read;
        }
      }
      if (Lane* lane = sends_to(action)) lane->sent.push_back(action.micro_batch);
      ++position[rank];
      moved = true;
    }
  }
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    if (position[rank] != schedule.ranks[rank].size()) return false;
  }
  return true;
}

TEST(Validate, AgreesWithAPlainInterpreterOnShuffledSchedules) {
  constexpr uint32_t kSeed = 20240717;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  int valid = 0;
  for (int round = 0; round < 4000; ++round) {
    Schedule schedule =
        *Generate(GeneratorNames()[round % GeneratorNames().size()], 1 + random() % 4, 1 + random() % 4);
    if (round % 3 == 0) {
      SimulationCosts costs;
      costs.stages.resize(schedule.stages);
      schedule = AddSelfConditioning(schedule, costs);
    }
    const int swaps = static_cast<int>(random() % 3);
    for (int i = 0; i < swaps; ++i) {
      auto& rank = schedule.ranks[random() % schedule.ranks.size()];
      std::swap(rank[random() % rank.size()], rank[random() % rank.size()]);
    }
    const absl::Status status = Validate(schedule);
    if (ErrorReason(status) == "SCHEDULE_ORDER") continue;  // the interpreter does not look at order within a stage
    EXPECT_EQ(status.ok(), RunsThrough(schedule)) << ToText(schedule) << status;
    valid += status.ok();
  }
  EXPECT_GT(valid, 1000);
}

}  // namespace
}  // namespace atl::schedule
