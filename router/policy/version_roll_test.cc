#include "router/policy/version_roll.h"

#include "gtest/gtest.h"

namespace atl::router {
namespace {

constexpr absl::Duration kNow = absl::Seconds(100);

struct RollCase {
  std::string name;
  std::optional<ServingChoice> wanted;
  std::vector<VersionStatus> versions;
  RollAction action;
  std::string version;
  std::vector<std::string> pinned = {};
};

class VersionRollTest : public ::testing::TestWithParam<RollCase> {};

TEST_P(VersionRollTest, DecidesAtMostOneAction) {
  const RollDecision decision = DecideRoll(kNow, GetParam().wanted, GetParam().versions, GetParam().pinned);
  EXPECT_EQ(decision.action, GetParam().action) << decision.reason;
  EXPECT_EQ(decision.version, GetParam().version) << decision.reason;
  EXPECT_FALSE(decision.reason.empty());
}

const ServingChoice kTwo{.version = "v2", .generation = 2};
using S = VersionState;

VersionStatus Needing(const std::string& version, S state, ServerNeeds needs) {
  return {.version = version, .state = state, .servers = std::move(needs)};
}
const ServerNeeds kHosted{.networks = 4};
const ServerNeeds kLacking{.networks = 4, .missing = {1, 3}};
const ServerNeeds kDeserted{.networks = 4, .missing = {0, 1, 2, 3}, .without_servers = true};

INSTANTIATE_TEST_SUITE_P(
    States, VersionRollTest,
    ::testing::Values(
        RollCase{"NothingWanted", std::nullopt, {}, RollAction::kNone, ""},
        RollCase{"FirstVersionLoads", kTwo, {}, RollAction::kLoad, "v2"},
        RollCase{"LoadsBesideTheOld", kTwo, {{"v1", S::kServing, 3}}, RollAction::kLoad, "v2"},
        RollCase{"WaitsWhileLoading", kTwo, {{"v1", S::kServing}, {"v2", S::kLoading}}, RollAction::kNone, "v2"},
        RollCase{"OneLoadAtATime", kTwo, {{"v3", S::kLoading}}, RollAction::kNone, "v3"},
        RollCase{"SwitchesWhenReady", kTwo, {{"v1", S::kServing, 3}, {"v2", S::kReady}}, RollAction::kSwitch, "v2"},
        RollCase{"OldOneDrainsWhileRequestsLast",
                 kTwo,
                 {{"v1", S::kDraining, 1}, {"v2", S::kServing}},
                 RollAction::kNone,
                 "v2"},
        RollCase{"OldOneGoesWithItsLastRequest",
                 kTwo,
                 {{"v1", S::kDraining, 0}, {"v2", S::kServing}},
                 RollAction::kDrop,
                 "v1"},
        RollCase{"RollbackWhileDrainingNeedsNoLoad",
                 kTwo,
                 {{"v2", S::kDraining, 0}, {"v3", S::kServing}},
                 RollAction::kSwitch,
                 "v2"},
        RollCase{"ReadyButNoLongerWantedGoes", kTwo, {{"v1", S::kServing}, {"v3", S::kReady}}, RollAction::kDrop, "v3"},
        RollCase{"FailureWaitsForItsRetry",
                 kTwo,
                 {{"v1", S::kServing}, {"v2", S::kFailed, 0, absl::Seconds(101)}},
                 RollAction::kNone,
                 "v2"},
        RollCase{
            "FailureIsTriedAgainWhenDue", kTwo, {{"v2", S::kFailed, 0, absl::Seconds(100)}}, RollAction::kLoad, "v2"},
        RollCase{"FailureOfAnotherVersionIsForgotten",
                 kTwo,
                 {{"v1", S::kServing}, {"v3", S::kFailed, 0, absl::InfiniteDuration()}},
                 RollAction::kDrop,
                 "v3"},
        RollCase{"DrainingHasItsTime",
                 kTwo,
                 {{"v1", S::kDraining, 1, {}, absl::Seconds(101)}, {"v2", S::kServing}},
                 RollAction::kNone,
                 "v2"},
        RollCase{"DrainingEndsWithItsTime",
                 kTwo,
                 {{"v1", S::kDraining, 1, {}, absl::Seconds(100)}, {"v2", S::kServing}},
                 RollAction::kEndRequests,
                 "v1"},
        RollCase{"DrainedInTimeIsDropped",
                 kTwo,
                 {{"v1", S::kDraining, 0, {}, absl::Seconds(100)}, {"v2", S::kServing}},
                 RollAction::kDrop,
                 "v1"},
        RollCase{"WantedAgainEndsNothing",
                 kTwo,
                 {{"v2", S::kDraining, 1, {}, absl::Seconds(100)}, {"v3", S::kServing}},
                 RollAction::kSwitch,
                 "v2"},
        RollCase{"APinnedVersionLoadsOnceAnotherServes", kTwo, {{"v2", S::kServing}}, RollAction::kLoad, "v1", {"v1"}},
        RollCase{"TheWantedVersionLoadsBeforePinnedOnes", kTwo, {}, RollAction::kLoad, "v2", {"v1"}},
        RollCase{"PinnedOnesWaitForAVersionThatServes",
                 kTwo,
                 {{"v2", S::kFailed, 0, absl::Seconds(101)}},
                 RollAction::kNone,
                 "v2",
                 {"v1"}},
        RollCase{"APinnedVersionIsOfferedWhenReady",
                 kTwo,
                 {{"v1", S::kReady}, {"v2", S::kServing}},
                 RollAction::kOffer,
                 "v1",
                 {"v1"}},
        RollCase{
            "AnOfferedVersionStays", kTwo, {{"v1", S::kOffered}, {"v2", S::kServing}}, RollAction::kNone, "v2", {"v1"}},
        RollCase{"AnOfferedVersionSwitchesWithoutALoad",
                 kTwo,
                 {{"v1", S::kServing}, {"v2", S::kOffered}},
                 RollAction::kSwitch,
                 "v2",
                 {"v2"}},
        RollCase{"APinnedVersionThatFailedWaitsForItsRetry",
                 kTwo,
                 {{"v1", S::kFailed, 0, absl::Seconds(101)}, {"v2", S::kServing}},
                 RollAction::kNone,
                 "v2",
                 {"v1"}},
        RollCase{"APinnedVersionThatFailedDoesNotStopTheNext",
                 kTwo,
                 {{"v1", S::kFailed, 0, absl::Seconds(101)}, {"v2", S::kServing}},
                 RollAction::kLoad,
                 "v0",
                 {"v1", "v0"}},
        RollCase{"SwitchesWhenEveryNetworkHasAServer",
                 kTwo,
                 {{"v1", S::kServing}, Needing("v2", S::kReady, kHosted)},
                 RollAction::kSwitch,
                 "v2"},
        RollCase{"WaitsForServersOfEveryNetwork",
                 kTwo,
                 {{"v1", S::kServing}, Needing("v2", S::kReady, kLacking)},
                 RollAction::kWait,
                 "v2"},
        RollCase{
            "TheFirstVersionWaitsForServersToo", kTwo, {Needing("v2", S::kReady, kLacking)}, RollAction::kWait, "v2"},
        RollCase{
            "WhatServesStaysWhenItsServersGo", kTwo, {Needing("v2", S::kServing, kLacking)}, RollAction::kNone, "v2"},
        RollCase{"RollbackWaitsForServersThatHaveDroppedIt",
                 kTwo,
                 {Needing("v2", S::kDraining, kLacking), {"v3", S::kServing}},
                 RollAction::kWait,
                 "v2"},
        RollCase{"DroppingGoesOnWhileTheWantedWaits",
                 kTwo,
                 {{"v0", S::kDraining, 0}, {"v1", S::kServing}, Needing("v2", S::kReady, kLacking)},
                 RollAction::kDrop,
                 "v0"},
        RollCase{"WhatWaitsForServersIsDroppedWhenAnotherIsWanted",
                 kTwo,
                 {{"v1", S::kServing}, Needing("v3", S::kReady, kLacking)},
                 RollAction::kDrop,
                 "v3"},
        RollCase{"WithoutServersTheRouterTakesItOver",
                 kTwo,
                 {{"v1", S::kServing}, Needing("v2", S::kReady, kDeserted)},
                 RollAction::kLoad,
                 "v2"},
        RollCase{"WhatDrainsWithoutServersIsLoadedAnewForTheRollback",
                 kTwo,
                 {Needing("v2", S::kDraining, kDeserted), {"v3", S::kServing}},
                 RollAction::kLoad,
                 "v2"},
        RollCase{"APinnedVersionIsOfferedWhileTheWantedWaits",
                 kTwo,
                 {{"v1", S::kServing}, {"v0", S::kReady}, Needing("v2", S::kReady, kLacking)},
                 RollAction::kOffer,
                 "v0",
                 {"v0"}},
        RollCase{"APinnedVersionWithoutServersIsNotOfferedAndDoesNotStopTheNext",
                 kTwo,
                 {Needing("v1", S::kReady, kLacking), {"v0", S::kReady}, {"v2", S::kServing}},
                 RollAction::kOffer,
                 "v0",
                 {"v1", "v0"}},
        RollCase{"APinnedVersionIsTakenOverWithoutServers",
                 kTwo,
                 {Needing("v1", S::kReady, kDeserted), {"v2", S::kServing}},
                 RollAction::kLoad,
                 "v1",
                 {"v1"}}),
    [](const auto& info) { return info.param.name; });

TEST(DescribeMissingTest, NamesTheNetworksAndTheBytes) {
  EXPECT_EQ(DescribeMissing(kHosted), "");
  EXPECT_EQ(DescribeMissing({.networks = 4, .missing = {-1, 3}}),
            "2 of its 4 networks are on no expert server: router network, expert 3");
  EXPECT_EQ(
      DescribeMissing(
          {.networks = 4, .missing = {1}, .bytes_needed = 900, .bytes_lacking = 100, .why = "servers are full"}),
      "1 of its 4 networks are on no expert server: expert 1; it needs 900 bytes of the servers' memory, and 100 of "
      "them do not fit (servers are full)");
  EXPECT_EQ(
      DescribeMissing({.networks = 16, .missing = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}}),
      "10 of its 16 networks are on no expert server: expert 0, expert 1, expert 2, expert 3, expert 4, expert 5, "
      "expert 6, expert 7 and 2 more");
}

TEST(ReplacesTest, WithinAWatchOnlyAHigherGenerationReplacesTheKnownRow) {
  for (const bool first : {false, true}) {
    EXPECT_TRUE(Replaces(kTwo, std::nullopt, first));
    EXPECT_FALSE(Replaces(kTwo, kTwo, first));
    EXPECT_TRUE(Replaces({"v1", 3}, kTwo, first));
  }
  EXPECT_FALSE(Replaces({"v9", 1}, kTwo, /*first=*/false));
}

TEST(ReplacesTest, WhatARestoredCoordinatorSaysFirstReplacesAnyOtherRow) {
  EXPECT_TRUE(Replaces({"v1", 1}, kTwo, /*first=*/true));
  EXPECT_TRUE(Replaces({"another", 2}, kTwo, /*first=*/true));
}

TEST(VersionRollTest, RepeatedDecisionsWalkFromTheOldVersionToTheNew) {
  std::vector<VersionStatus> versions = {{"v1", S::kServing, 1}};
  std::vector<std::string> walked;
  for (int i = 0; i < 10; ++i) {
    const RollDecision decision = DecideRoll(kNow, kTwo, versions);
    if (decision.action == RollAction::kLoad) {
      versions.push_back({"v2", S::kReady});
      walked.push_back("load");
    } else if (decision.action == RollAction::kSwitch) {
      versions[0].state = S::kDraining;
      versions[1].state = S::kServing;
      walked.push_back("switch");
    } else if (decision.action == RollAction::kDrop) {
      versions.erase(versions.begin());
      walked.push_back("drop");
    } else if (versions.size() == 2) {
      versions[0].requests = 0;  // the last request ends
    }
  }
  EXPECT_EQ(walked, (std::vector<std::string>{"load", "switch", "drop"}));
}

}  // namespace
}  // namespace atl::router
