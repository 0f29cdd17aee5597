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

TEST(Validate, GeneratedSchedulesAreValid) {
  for (const std::string_view name : GeneratorNames()) {
    for (int32_t stages = 1; stages <= 8; ++stages) {
      for (int32_t micro_batches = 1; micro_batches <= 17; ++micro_batches) {
        const absl::Status status = Validate(*Generate(name, stages, micro_batches));
        EXPECT_TRUE(status.ok()) << name << " " << stages << " " << micro_batches << ": " << status;
      }
    }
  }
}

TEST(Validate, SplitBackwardAndSharedRanksAreValid) {
  EXPECT_TRUE(ValidateText("0F0,0F1,0I0,0W0,0B1\n1F0,1I0,1F1,1I1,1W1,1W0\n").ok());
  EXPECT_TRUE(ValidateText("0F0,3F0,3B0,0B0\n1F0,2F0,2I0,1I0,2W0,1W0\n").ok());
}

struct BadSchedule {
  const char* text;
  const char* reason;
  const char* message;
};

TEST(Validate, RefusesWithRankPositionTokenAndReason) {
  const BadSchedule cases[] = {
      {"0F0,0F1,0B0\n", "SCHEDULE_INCOMPLETE", "stage 0: expected a forward and a backward of each of 2 micro-batches"},
      {"0F0,0F1,0I0,0B1\n", "SCHEDULE_INCOMPLETE",
       "stage 0, micro-batch 0: expected forward and backward, found F and I"},
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
      {"1F0,0F0,1B0,0B0\n", "SCHEDULE_DEADLOCK", "rank 0, position 0, 1F0"},
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
    Schedule schedule = *Generate(GeneratorNames()[round % 2], 1 + random() % 4, 1 + random() % 4);
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
