#include "common/schedule/generators.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/errors.h"

namespace atl::schedule {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Generators, GPipeRunsAllForwardsThenAllBackwardsInMicroBatchOrder) {
  EXPECT_EQ(ToText(*GenerateGPipe(2, 3)), "0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1F1,1F2,1B0,1B1,1B2\n");
}

TEST(Generators, OneFOneBWarmsUpByDistanceFromTheLastStage) {
  EXPECT_EQ(ToText(*Generate1F1B(3, 4)),
            "0F0,0F1,0F2,0B0,0F3,0B1,0B2,0B3\n"
            "1F0,1F1,1B0,1F2,1B1,1F3,1B2,1B3\n"
            "2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3\n");
}

TEST(Generators, OneFOneBWithFewerMicroBatchesThanStagesIsGPipe) {
  EXPECT_EQ(*Generate1F1B(5, 1), *GenerateGPipe(5, 1));
  EXPECT_EQ(ToText(*Generate1F1B(3, 2)), "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n2F0,2B0,2F1,2B1\n");
}

TEST(Generators, BackwardsKeepMicroBatchOrderSoThatGradientsAccumulateAsInPlainTraining) {
  for (const std::string_view name : GeneratorNames()) {
    const Schedule schedule = *Generate(name, 4, 7);
    for (const auto& rank : schedule.ranks) {
      int32_t next = 0;
      for (const Action& action : rank) {
        if (action.kind == ActionKind::kBackward) {
          EXPECT_EQ(action.micro_batch, next++);
        }
      }
      EXPECT_EQ(next, 7);
    }
  }
}

TEST(Generators, UnknownNameListsTheKnownOnes) {
  EXPECT_THAT(GeneratorNames(), ElementsAre("1f1b", "gpipe"));
  const auto schedule = Generate("zb-v", 2, 2);
  ASSERT_FALSE(schedule.ok());
  EXPECT_EQ(ErrorReason(schedule.status()), "SCHEDULE_UNKNOWN");
  EXPECT_THAT(std::string(schedule.status().message()), HasSubstr("expected one of 1f1b, gpipe, found 'zb-v'"));
}

TEST(Generators, CountsBelowOneOrBeyondReasonAreRefused) {
  for (const std::string_view name : GeneratorNames()) {
    for (const auto& [stages, micro_batches] :
         std::vector<std::pair<int32_t, int32_t>>{{0, 4}, {4, 0}, {-1, 1}, {1 << 20, 1 << 20}, {1'000'001, 1}}) {
      const auto schedule = Generate(name, stages, micro_batches);
      ASSERT_FALSE(schedule.ok());
      EXPECT_EQ(schedule.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_EQ(ErrorReason(schedule.status()), "SCHEDULE_COUNTS");
    }
  }
}

}  // namespace
}  // namespace atl::schedule
