#include "tests/chaos/schedule.h"

#include <map>
#include <set>

#include "gtest/gtest.h"

namespace atl::chaos {
namespace {

TEST(ScheduleTest, TheSeedIsTheSchedule) {
  const std::vector<Fault> schedule = MakeSchedule({.seed = 3});
  EXPECT_EQ(schedule, MakeSchedule({.seed = 3}));
  EXPECT_NE(schedule, MakeSchedule({.seed = 4}));
  // Written down, so that a seed that was reported means the same for ever.
  std::vector<std::string> lines;
  for (const Fault& fault : MakeSchedule({.seed = 3, .cycles = 3})) lines.push_back(ToString(fault));
  EXPECT_EQ(lines,
            (std::vector<std::string>{"t=1.7 stop island-1/1 for 6.7 s", "t=2.9 slow coordinator by 361 ms for 10.7 s",
                                      "t=53.4 kill coordinator", "t=102.3 drop router 42 % for 9.5 s",
                                      "t=105.9 mute island-2/0 for 7.7 s"}));
}

TEST(ScheduleTest, OneOrTwoFaultsOnDifferentNodesOfEachCycleThenQuiet) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const ScheduleOptions options{.seed = seed};
    std::map<int, std::vector<Fault>> cycles;
    for (const Fault& fault : MakeSchedule(options)) cycles[fault.cycle].push_back(fault);
    ASSERT_EQ(cycles.size(), static_cast<size_t>(options.cycles));
    for (const auto& [cycle, faults] : cycles) {
      ASSERT_LE(faults.size(), 2u);
      std::set<std::string> nodes;
      for (const Fault& fault : faults) {
        SCOPED_TRACE(ToString(fault));
        nodes.insert(fault.node);
        EXPECT_GE(fault.at, cycle * options.cycle);
        EXPECT_LE(fault.at + fault.lasts, (cycle + 1) * options.cycle - options.quiet);
        if (fault.kind == FaultKind::kKill) EXPECT_EQ(fault.lasts, absl::ZeroDuration());
        if (fault.kind == FaultKind::kStop) EXPECT_GT(fault.lasts, options.lease);
      }
      EXPECT_EQ(nodes.size(), faults.size());
    }
  }
}

TEST(ScheduleTest, EveryKindComesInTwentyCycles) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    std::set<FaultKind> kinds;
    for (const Fault& fault : MakeSchedule({.seed = seed})) kinds.insert(fault.kind);
    EXPECT_EQ(kinds.size(), std::size(kAllFaults)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace atl::chaos
