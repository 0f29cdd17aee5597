#include "router/policy/lane_health.h"

#include "gtest/gtest.h"

namespace atl::router {
namespace {

constexpr absl::Duration kNow = absl::Seconds(100);

TEST(LaneRecordTest, OneMissMakesItSuspectMoreQuarantineIt) {
  LaneRecord lane;
  EXPECT_EQ(lane.health(), LaneHealth::kHealthy);
  lane.Missed(kNow);
  EXPECT_EQ(lane.health(), LaneHealth::kSuspect);
  lane.Missed(kNow);
  EXPECT_EQ(lane.health(), LaneHealth::kQuarantined);
  lane.Missed(kNow);
  EXPECT_EQ(lane.health(), LaneHealth::kQuarantined);
}

TEST(LaneRecordTest, AnyAnswerClearsIt) {
  LaneRecord lane;
  for (int i = 0; i < 5; ++i) lane.Missed(kNow);
  lane.Answered();
  EXPECT_EQ(lane.health(), LaneHealth::kHealthy);
  EXPECT_EQ(lane.probe_at(), absl::InfiniteDuration());
  lane.Missed(kNow);
  EXPECT_EQ(lane.health(), LaneHealth::kSuspect) << "misses before the answer do not count";
  EXPECT_EQ(lane.probe_at(), kNow + absl::Milliseconds(500));
}

TEST(LaneRecordTest, AHealthyLaneIsNotProbed) {
  EXPECT_FALSE(LaneRecord().ProbeDue(kNow));
}

TEST(LaneRecordTest, ProbesBackOffToALimit) {
  LaneRecord lane;
  absl::Duration now = kNow;
  lane.Missed(now);
  const int delays_ms[] = {500, 500, 1000, 2000, 4000, 8000, 16000, 30000, 30000};
  for (const int delay : delays_ms) {
    EXPECT_EQ(lane.probe_at(), now + absl::Milliseconds(delay));
    EXPECT_FALSE(lane.ProbeDue(now + absl::Milliseconds(delay - 1)));
    now += absl::Milliseconds(delay);
    ASSERT_TRUE(lane.ProbeDue(now));
    lane.Probed();
    lane.Missed(now);
  }
}

TEST(LaneRecordTest, ManyMissesKeepTheLimit) {
  LaneRecord lane;
  for (int i = 0; i < 10'000; ++i) lane.Missed(kNow);
  EXPECT_EQ(lane.probe_at(), kNow + absl::Seconds(30));
}

TEST(LaneRecordTest, OneProbeAtATime) {
  LaneRecord lane;
  lane.Missed(kNow);
  lane.Probed();
  EXPECT_FALSE(lane.ProbeDue(kNow + absl::Hours(1)));
  EXPECT_EQ(lane.probe_at(), absl::InfiniteDuration());
  lane.Missed(kNow + absl::Seconds(1));
  EXPECT_TRUE(lane.ProbeDue(kNow + absl::Hours(1)));
}

constexpr auto kHealthy = LaneHealth::kHealthy;
constexpr auto kSuspect = LaneHealth::kSuspect;
constexpr auto kQuarantined = LaneHealth::kQuarantined;

struct UsableCase {
  std::string name;
  std::vector<LaneHealth> health;
  // By lane; lanes 0 and 1 host expert 0, lanes 1 and 2 expert 1.
  std::vector<std::vector<int32_t>> usable;
};

class UsableLanesTest : public ::testing::TestWithParam<UsableCase> {};

TEST_P(UsableLanesTest, SuspectsServeWhatNobodyElseDoes) {
  std::vector<LaneState> lanes(3);
  lanes[0].networks = {{.network = 0}};
  lanes[1].networks = {{.network = 0}, {.network = 1}};
  lanes[2].networks = {{.network = 1}};
  lanes = UsableLanes(lanes, GetParam().health);
  ASSERT_EQ(lanes.size(), 3U);
  for (size_t i = 0; i < lanes.size(); ++i) {
    std::vector<int32_t> networks;
    for (const LaneNetwork& network : lanes[i].networks) networks.push_back(network.network);
    EXPECT_EQ(networks, GetParam().usable[i]) << "lane " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Lanes, UsableLanesTest,
    ::testing::Values(UsableCase{"AllHealthy", {kHealthy, kHealthy, kHealthy}, {{0}, {0, 1}, {1}}},
                      UsableCase{"ASuspectOneRests", {kHealthy, kSuspect, kHealthy}, {{0}, {}, {1}}},
                      UsableCase{
                          "ASuspectOneServesWhatItAloneHosts", {kHealthy, kSuspect, kQuarantined}, {{0}, {1}, {}}},
                      UsableCase{"SuspectsAmongThemselves", {kSuspect, kSuspect, kHealthy}, {{0}, {0}, {1}}},
                      UsableCase{"AllQuarantined", {kQuarantined, kQuarantined, kQuarantined}, {{}, {}, {}}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace atl::router
