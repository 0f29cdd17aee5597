#include "coordinator/serving/router_reports.h"

#include <limits>

#include "common/base/errors.h"
#include "gtest/gtest.h"

namespace atl::serving {
namespace {

constexpr absl::Duration kNow = absl::Seconds(100);
const VersionName kV1{"m", "v1"};
const VersionName kV2{"m", "v2"};

RoutingReport Report(const std::string& router, std::vector<VersionUse> uses) {
  return {.router_id = router, .uses = std::move(uses)};
}

VersionUse Use(const std::string& version, UseState state) {
  return {.model = "m", .version = version, .state = state};
}

TEST(RouterReports, WhatIsUsedIsTheSumOverRouters) {
  struct Case {
    std::string name;
    std::vector<VersionUse> uses;
    std::set<VersionName> in_use;
    std::set<VersionName> pinned;
  };
  VersionUse waiting = Use("v1", UseState::kLoading);
  waiting.requests = 1;
  VersionUse pinned = Use("v1", UseState::kLoading);
  pinned.pinned = true;
  for (const Case& c : std::vector<Case>{
           {.name = "nothing"},
           {.name = "loading is no use yet", .uses = {Use("v1", UseState::kLoading)}},
           {.name = "serving", .uses = {Use("v1", UseState::kServing)}, .in_use = {kV1}},
           {.name = "draining", .uses = {Use("v1", UseState::kDraining)}, .in_use = {kV1}},
           {.name = "requests", .uses = {waiting}, .in_use = {kV1}},
           {.name = "pinned", .uses = {pinned}, .pinned = {kV1}},
           {.name = "two versions",
           .uses = {Use("v1", UseState::kDraining), Use("v2", UseState::kServing)},
           .in_use = {kV1, kV2}},
       }) {
    RouterReports reports;
    EXPECT_TRUE(*reports.Take(kNow, Report("other", {})));
    EXPECT_TRUE(*reports.Take(kNow, Report("r", c.uses))) << c.name;
    EXPECT_FALSE(*reports.Take(kNow, Report("r", c.uses))) << c.name;
    EXPECT_EQ(reports.InUse(), c.in_use) << c.name;
    EXPECT_EQ(reports.Pinned(), c.pinned) << c.name;
  }
}

TEST(RouterReports, OnlyWhatChangesUsesIsNews) {
  RouterReports reports;
  VersionUse use = Use("v1", UseState::kServing);
  EXPECT_TRUE(*reports.Take(kNow, Report("r", {use})));
  use.requests = 7;
  use.chosen = {1, 2};
  EXPECT_FALSE(*reports.Take(kNow, Report("r", {use})));
  use.state = UseState::kDraining;
  EXPECT_FALSE(*reports.Take(kNow, Report("r", {use})));
  EXPECT_TRUE(*reports.Take(kNow, Report("r", {}))) << "it dropped the version";
  RoutingReport needs = Report("r", {});
  needs.needs_router_networks = true;
  EXPECT_FALSE(reports.needs_router_networks());
  EXPECT_TRUE(*reports.Take(kNow, needs));
  EXPECT_TRUE(reports.needs_router_networks());
}

TEST(RouterReports, TheSilentAreForgottenWithWhatTheyUsed) {
  RouterReports reports;
  EXPECT_EQ(reports.NextExpiry(), absl::InfiniteDuration());
  VersionUse hot = Use("v1", UseState::kServing);
  hot.chosen = {5};
  ASSERT_TRUE(reports.Take(kNow, Report("a", {hot})).ok());
  ASSERT_TRUE(reports.Take(kNow + absl::Seconds(10), Report("b", {Use("v2", UseState::kServing)})).ok());
  EXPECT_EQ(reports.NextExpiry(), kNow + absl::Seconds(30));
  EXPECT_TRUE(reports.Expire(kNow + absl::Seconds(29)).empty());
  EXPECT_EQ(reports.Expire(kNow + absl::Seconds(30)), std::vector<std::string>{"a"});
  EXPECT_EQ(reports.InUse(), std::set<VersionName>{kV2});
  EXPECT_TRUE(reports.Chosen(kNow + absl::Seconds(30), kV1).empty());
}

TEST(RouterReports, WhatWasAskedFadesByHalves) {
  RouterReports reports;
  VersionUse use = Use("v1", UseState::kServing);
  use.chosen = {800, 100};
  ASSERT_TRUE(reports.Take(kNow, Report("a", {use})).ok());
  EXPECT_EQ(reports.Chosen(kNow, kV1), (std::vector<int64_t>{800, 100}));
  EXPECT_EQ(reports.Chosen(kNow + absl::Minutes(2), kV1), (std::vector<int64_t>{200, 25}));
  use.chosen = {0, 0, 50};
  ASSERT_TRUE(reports.Take(kNow + absl::Minutes(1), Report("b", {use})).ok());
  EXPECT_EQ(reports.Chosen(kNow + absl::Minutes(1), kV1), (std::vector<int64_t>{400, 50, 50}));
  use.chosen = {std::numeric_limits<int64_t>::max()};
  ASSERT_TRUE(reports.Take(kNow + absl::Minutes(1), Report("c", {use})).ok());
  EXPECT_EQ(reports.Chosen(kNow + absl::Minutes(1), kV1), (std::vector<int64_t>{100'000'000'000'000, 50, 50}))
      << "sums of them do not overflow";
}

TEST(RouterReports, NonsenseIsRefusedByField) {
  RouterReports reports;
  VersionUse nameless = Use("", UseState::kServing);
  VersionUse negative = Use("v1", UseState::kServing);
  negative.requests = -1;
  VersionUse unchosen = Use("v1", UseState::kServing);
  unchosen.chosen = {1, -2};
  const std::vector<std::pair<RoutingReport, std::string>> cases = {
      {Report("", {}), "router_id"},
      {Report(std::string(300, 'x'), {}), "router_id"},
      {Report("r", {Use("v1", UseState::kServing), nameless}), "uses[1].version"},
      {Report("r", {negative}), "uses[0].requests"},
      {Report("r", {unchosen}), "uses[0].chosen[1]"},
      {Report("r", std::vector<VersionUse>(1001, negative)), "uses"},
  };
  for (const auto& [report, field] : cases) {
    const absl::Status status = reports.Take(kNow, report).status();
    EXPECT_EQ(ErrorReason(status), "INVALID_ROUTING_REPORT");
    EXPECT_EQ(ErrorField(status), field);
  }
  EXPECT_EQ(reports.size(), 0u);
  for (size_t i = 0; i < kMaxRouters; ++i) ASSERT_TRUE(reports.Take(kNow, Report(std::to_string(i), {})).ok());
  EXPECT_EQ(ErrorReason(reports.Take(kNow, Report("b", {})).status()), "TOO_MANY_ROUTERS");
}

}  // namespace
}  // namespace atl::serving
