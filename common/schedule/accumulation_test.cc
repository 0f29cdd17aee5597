#include "common/schedule/accumulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/errors.h"

namespace atl::schedule {
namespace {

using ::testing::HasSubstr;

absl::Status Check(const char* text) {
  const Schedule schedule = *ParseText(text);
  EXPECT_TRUE(Validate(schedule).ok()) << Validate(schedule);
  return AccumulatesInOrder(schedule);
}

TEST(AccumulatesInOrder, TakesGradientsThatEndInMicroBatchOrder) {
  EXPECT_TRUE(Check("0F0,0F1,0B0,0B1\n").ok());
  EXPECT_TRUE(Check("0F0,0F1,0I0,0I1,0W0,0W1\n").ok());
  EXPECT_TRUE(Check("0F1,0F0,0I0,0W0,0B1,R0\n").ok());  // forwards add nothing up
  EXPECT_TRUE(Check("0F0,1F0,0F1,1F1,1B0,1B1,0B0,0B1\n").ok());
}

TEST(AccumulatesInOrder, RefusesWithRankPositionAndReason) {
  const absl::Status backward = Check("0F0,0F1,0B1,0B0\n");
  EXPECT_EQ(ErrorReason(backward), "SCHEDULE_ACCUMULATION");
  EXPECT_THAT(std::string(backward.message()),
              HasSubstr("rank 0, position 2, 0B1: expected the input gradient of micro-batch 0 before it"));
  // Input gradients in order, weight gradients not, and the other way round.
  EXPECT_THAT(std::string(Check("0F0,0F1,0I0,0I1,0W1,0W0\n").message()),
              HasSubstr("position 4, 0W1: expected the weight gradient of micro-batch 0"));
  EXPECT_THAT(std::string(Check("0F0,0F1,0I0,0B1,0W0\n").message()),
              HasSubstr("position 3, 0B1: expected the weight gradient of micro-batch 0"));
  EXPECT_THAT(std::string(Check("0F0,0F1,0I1,0I0,0W0,0W1\n").message()),
              HasSubstr("position 2, 0I1: expected the input gradient of micro-batch 0"));
}

}  // namespace
}  // namespace atl::schedule
