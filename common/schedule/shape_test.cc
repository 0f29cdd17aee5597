#include "common/schedule/shape.h"

#include <gtest/gtest.h>

namespace atl::schedule {
namespace {

std::string Merged(const char* text) {
  Schedule schedule = *ParseText(text);
  MergeBackwards(&schedule);
  EXPECT_TRUE(Validate(schedule).ok());
  return ToText(schedule);
}

TEST(MergeBackwards, JoinsWhereNobodyWaitsForTheInputGradient) {
  // No stage waits for stage 0. Rank 0 has two forwards to run after 1W0 has ended, and one, which a hop may need,
  // after 1W1.
  EXPECT_EQ(Merged("0F0,0F1,0F2,0F3,0F4,0I0,0W0,0I1,0W1,0B2,0B3,0B4\n"
                   "1F0,1I0,1W0,1F1,1I1,1W1,1F2,1B2,1F3,1B3,1F4,1B4\n"),
            "0F0,0F1,0F2,0F3,0F4,0B0,0B1,0B2,0B3,0B4\n"
            "1F0,1B0,1F1,1I1,1W1,1F2,1B2,1F3,1B3,1F4,1B4\n");
  EXPECT_EQ(Merged("0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1W0,1F1,1I1,1W1\n"), "0F0,0F1,0B0,0B1\n1F0,1I0,1W0,1F1,1I1,1W1\n");
}

TEST(MergeBackwards, LeavesApartWhatIsNotNextToEachOther) {
  EXPECT_EQ(Merged("0F0,0F1,0I0,0I1,0W0,0W1\n"), "0F0,0F1,0I0,0I1,0W0,0W1\n");
}

TEST(TrimMicroBatches, LeavesAValidSchedule) {
  Schedule schedule = *ParseText("0F0,0F1,0B0,0F2,0B1,0B2,E0\n1F0,1B0,1F1,1B1,1F2,1B2\n");
  TrimMicroBatches(&schedule, 1);
  EXPECT_EQ(ToText(schedule), "0F0,0B0,E0\n1F0,1B0\n");
  EXPECT_EQ(schedule, *ParseText(ToText(schedule)));
}

}  // namespace
}  // namespace atl::schedule
