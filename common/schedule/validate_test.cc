#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/errors.h"
#include "common/schedule/action.h"
#include "common/schedule/generators.h"

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
  std::vector<size_t> position(schedule.ranks.size(), 0);
  std::vector<std::vector<int32_t>> forward_lane(schedule.stages + 1);
  std::vector<std::vector<int32_t>> gradient_lane(schedule.stages + 1);
  std::vector<size_t> forward_read(schedule.stages + 1, 0);
  std::vector<size_t> gradient_read(schedule.stages + 1, 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
      if (position[rank] == schedule.ranks[rank].size()) continue;
      const Action& action = schedule.ranks[rank][position[rank]];
      const bool forward = action.kind == ActionKind::kForward;
      if (action.kind != ActionKind::kWeightGradient) {
        const bool reads = forward ? action.stage > 0 : action.stage + 1 < schedule.stages;
        auto& lane = forward ? forward_lane[action.stage] : gradient_lane[action.stage];
        size_t& read = forward ? forward_read[action.stage] : gradient_read[action.stage];
        if (reads) {
          if (read == lane.size()) continue;
          if (lane[read] != action.micro_batch) return false;
          ++read;
        }
        if (forward) {
          forward_lane[action.stage + 1].push_back(action.micro_batch);
        } else if (action.stage > 0) {
          gradient_lane[action.stage - 1].push_back(action.micro_batch);
        }
      }
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
