#include "common/schedule/action.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/errors.h"
#include "common/schedule/generators.h"

namespace atl::schedule {
namespace {

using ::testing::HasSubstr;

TEST(ActionText, TokenIsStageKindMicroBatch) {
  EXPECT_EQ(ToString({ActionKind::kForward, 2, 0}), "2F0");
  EXPECT_EQ(ToString({ActionKind::kInputGradient, 0, 13}), "0I13");
  EXPECT_EQ(ToString({ActionKind::kWeightGradient, 10, 1}), "10W1");
  EXPECT_EQ(ToString({ActionKind::kBackward, 3, 4}), "3B4");
}

TEST(ActionText, FrozenPiecesAndReductionsHaveOneNumber) {
  EXPECT_EQ(ToString({ActionKind::kFrozen, 0, 12}), "E12");
  EXPECT_EQ(ToString({ActionKind::kReduce, 3, 0}), "R3");
  const auto parsed = ParseText("E0,0F0,0I0,0W0,R0,E2\nE1,1F0,1B0,R1\n");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->stages, 2);
  EXPECT_EQ(parsed->micro_batches, 1);
  EXPECT_EQ(parsed->frozen_pieces, 3);
  EXPECT_EQ(parsed->ranks[0].back(), (Action{ActionKind::kFrozen, 0, 2}));
  EXPECT_EQ(parsed->ranks[1].back(), (Action{ActionKind::kReduce, 1, 0}));
  EXPECT_EQ(ToText(*parsed), "E0,0F0,0I0,0W0,R0,E2\nE1,1F0,1B0,R1\n");
}

TEST(ActionText, ForwardsOfSelfConditioningHaveAStageAndAMicroBatch) {
  EXPECT_EQ(ToString({ActionKind::kSelfConditioning, 1, 12}), "1C12");
  const std::string text = "0C0,0C1,0F0,0F1,0B0,0B1\n1C0,1C1,1F0,1B0,1F1,1B1\n";
  const auto parsed = ParseText(text);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->ranks[1][1], (Action{ActionKind::kSelfConditioning, 1, 1}));
  EXPECT_EQ(parsed->micro_batches, 2);
  EXPECT_EQ(ToText(*parsed), text);
}

TEST(ActionText, ScheduleIsOneLinePerRank) {
  EXPECT_EQ(ToText(*Generate1F1B(2, 2)), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
}

TEST(ActionText, EveryGeneratedScheduleReadsBackEqual) {
  for (const std::string_view name : GeneratorNames()) {
    for (int32_t ranks = 1; ranks <= 6; ++ranks) {
      for (int32_t micro_batches = 1; micro_batches <= 9; ++micro_batches) {
        const Schedule schedule = *Generate(name, ranks, micro_batches);
        const auto parsed = ParseText(ToText(schedule));
        ASSERT_TRUE(parsed.ok()) << parsed.status();
        EXPECT_EQ(*parsed, schedule);
      }
    }
  }
}

TEST(ActionText, PyTorchFilesWithIdleCellsAndCarriageReturnsAreRead) {
  const auto parsed = ParseText("0F0, 0F1,,0B0,0B1\r\n,1F0,1B0,1F1,1B1\r\n");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(ToText(*parsed), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  EXPECT_EQ(parsed->stages, 2);
  EXPECT_EQ(parsed->micro_batches, 2);
}

TEST(ActionText, SeveralStagesMayShareARank) {
  const auto parsed = ParseText("0F0,3F0,3B0,0B0\n1F0,2F0,2I0,1I0,2W0,1W0");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->rank_of_stage, (std::vector<int32_t>{0, 1, 1, 0}));
}

struct BadText {
  const char* text;
  const char* message;
};

TEST(ActionText, BadTextIsNamedByRankPositionAndReason) {
  const BadText cases[] = {
      {"", "found no line"},
      {"0F0,0B0\n\n", "rank 1, position 0: expected at least one action"},
      {"0F0,0X0\n", "rank 0, position 1: expected <stage><F|C|I|W|B><micro-batch>, E<piece> or R<stage>, found '0X0'"},
      {"0F0,00\n", "found '00'"},
      {"0F0,F0\n", "expected a stage below 10000000 in 'F0'"},
      {"0F0,0B\n", "expected a micro-batch below 10000000 in '0B'"},
      {"0F0,0B-1\n", "expected a micro-batch"},
      {"0F0,0B01\n", "expected a micro-batch"},
      {"0F0,0B0x\n", "expected a micro-batch"},
      {"0F99999999999999999999\n", "expected a micro-batch"},
      {"0F0,9999999F0\n", "rank 0, position 1: 9999999F0: stage 1 of 10000000 has no action"},
      {"0F0,0B0,0F2,0B2\n", "rank 0, position 2: 0F2: micro-batch 1 of 3 has no action"},
      {"0F0,0B0\n1F0,0B0,1B0\n", "rank 1, position 1: stage 0 of 0B0 lies on rank 0 already"},
      {"0F0,0B0,C0\n", "rank 0, position 2: expected a stage below 10000000 in 'C0'"},
      {"0C0,0C2,0F0,0B0\n", "rank 0, position 1: 0C2: micro-batch 1 of 3 has no action"},
      {"0F0,0B0\n1F0,0C0,1B0\n", "rank 1, position 1: stage 0 of 0C0 lies on rank 0 already"},
      {"0F0,0B0,0E1\n", "rank 0, position 2: expected E and a piece below 10000000, found '0E1'"},
      {"0F0,0B0,E\n", "expected E and a piece"},
      {"0F0,0B0,E01\n", "expected E and a piece"},
      {"0F0,0B0,E1F0\n", "expected E and a piece"},
      {"0F0,0B0,0R\n", "rank 0, position 2: expected R and a stage below 10000000, found '0R'"},
      {"0F0,0B0,R-1\n", "expected R and a stage"},
      {"E1,0F0,0B0\n", "rank 0, position 0: E1: frozen piece 0 of 2 has no action"},
      {"0F0,0B0,R1\n1F0,1B0\n", "rank 1, position 0: stage 1 of 1F0 lies on rank 0 already"},
      {"E0,E1\nR0\n", "found only frozen pieces or reductions"},
  };
  for (const BadText& bad : cases) {
    const auto parsed = ParseText(bad.text);
    ASSERT_FALSE(parsed.ok()) << bad.text;
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << bad.text;
    EXPECT_EQ(ErrorReason(parsed.status()), "SCHEDULE_TEXT") << bad.text;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(bad.message));
  }
}

TEST(ActionText, LongTokensAreCutInMessages) {
  const auto parsed = ParseText(std::string(100'000, 'x'));
  ASSERT_FALSE(parsed.ok());
  EXPECT_LT(parsed.status().message().size(), 200u);
}

TEST(ActionText, MoreThanTenMillionActionsAreRefused) {
  std::string text;
  for (int i = 0; i <= 10'000'000; ++i) text += "0F0,";
  const auto parsed = ParseText(text);
  ASSERT_FALSE(parsed.ok());
  EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("at most 10000000 actions"));
}

}  // namespace
}  // namespace atl::schedule
