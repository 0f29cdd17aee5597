#include "coordinator/serving/hosting_plan.h"

#include "common/base/errors.h"
#include "gmock/gmock.h"

namespace atl::serving {
namespace {

using ::testing::HasSubstr;

const VersionName kV1{"m", "v1"};

NetworkId Expert(int32_t expert, const std::string& version = "v1") {
  return {.model = "m", .version = version, .digest = "d-" + version, .expert = expert};
}

// Two experts.
WantedVersion Version(const std::string& version, VersionRole role = VersionRole::kStays) {
  return {.model = "m", .version = {.version = version, .digest = "d-" + version, .experts = 2}, .role = role};
}

ExpertServer Server(const std::string& id, int64_t memory, const std::vector<HostedNetwork>& networks = {}) {
  return {.server_id = id, .incarnation = "i", .address = id + ":1", .memory_bytes = memory, .networks = networks};
}

const VersionWeights kWeights = {{kRouterNetwork, 5}, {0, 10}, {1, 20}};

TEST(HostingPlan, RouterNetworksOnlyWhereARouterNeedsThem) {
  const ExpertServer a = Server("a", 0);
  HostingFacts facts{.versions = {Version("v1")}, .weights = {{"d-v1", kWeights}}, .servers = {&a}};
  HostingPlan plan = PlanHosting(facts, 2);
  EXPECT_EQ(plan.assigned["a"], (std::vector<NetworkId>{Expert(0), Expert(1)}));
  EXPECT_TRUE(plan.shortages.empty());
  facts.router_networks = true;
  plan = PlanHosting(facts, 2);
  EXPECT_EQ(plan.assigned["a"], (std::vector<NetworkId>{Expert(kRouterNetwork), Expert(0), Expert(1)}));
}

TEST(HostingPlan, WhatLacksIsSaidByVersion) {
  const ExpertServer a = Server("a", 25);
  const HostingPlan plan =
      PlanHosting({.versions = {Version("v1")}, .weights = {{"d-v1", kWeights}}, .servers = {&a}}, 2);
  ASSERT_EQ(plan.shortages.size(), 1u);
  const Shortage& shortage = plan.shortages.at(kV1);
  EXPECT_EQ(shortage.networks, std::vector<int32_t>{1});
  EXPECT_EQ(shortage.needed_bytes, 30);
  EXPECT_EQ(shortage.lacking_bytes, 20);
  EXPECT_EQ(plan.lacking_bytes, 20);
  EXPECT_EQ(ErrorReason(shortage.error), "EXPERT_SERVERS_FULL");
  EXPECT_THAT(std::string(shortage.error.message()), HasSubstr("20 have no room on 1 expert server with 25 bytes"));
}

TEST(HostingPlan, AVersionThatIsNotBegunSaysTheBytesForAllOfIt) {
  const ExpertServer a =
      Server("a", 30, {{Expert(0), NetworkState::kReady, 10}, {Expert(1), NetworkState::kReady, 20}});
  const HostingPlan plan =
      PlanHosting({.versions = {Version("v2", VersionRole::kComes), Version("v1", VersionRole::kLeaves)},
                   .weights = {{"d-v1", kWeights}, {"d-v2", VersionWeights{{0, 10}, {1, 40}}}},
                   .servers = {&a}},
                  2);
  EXPECT_EQ(plan.assigned.at("a"), (std::vector<NetworkId>{Expert(0), Expert(1)}));
  const Shortage& shortage = plan.shortages.at({"m", "v2"});
  EXPECT_EQ(shortage.networks, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(shortage.needed_bytes, 50);
  EXPECT_EQ(shortage.lacking_bytes, 40);
}

TEST(HostingPlan, WithoutServersEverythingLacks) {
  const HostingPlan plan = PlanHosting({.versions = {Version("v1")}, .weights = {{"d-v1", kWeights}}}, 2);
  EXPECT_EQ(ErrorReason(plan.shortages.at(kV1).error), "NO_EXPERT_SERVER");
  EXPECT_EQ(plan.lacking_bytes, 30);
}

TEST(HostingPlan, UnknownWeightsLeaveWhatIsHostedWhereItIs) {
  const ExpertServer a = Server("a", 100, {{Expert(0), NetworkState::kReady, 10}});
  const ExpertServer b = Server("b", 100, {{Expert(0), NetworkState::kFailed, 0}});
  HostingFacts facts{.versions = {Version("v1")}, .servers = {&a, &b}, .failing = {{"b", Expert(0)}}};
  // Being read: no complaint yet.
  HostingPlan plan = PlanHosting(facts, 1);
  EXPECT_EQ(plan.assigned["a"], std::vector<NetworkId>{Expert(0)});
  EXPECT_TRUE(plan.assigned["b"].empty());
  EXPECT_TRUE(plan.shortages.empty());
  // Unreadable.
  facts.weights.emplace("d-v1", MakeError(absl::StatusCode::kNotFound, "FILE_NOT_FOUND", "no model_index.json"));
  plan = PlanHosting(facts, 1);
  EXPECT_EQ(plan.assigned["a"], std::vector<NetworkId>{Expert(0)});
  const Shortage& shortage = plan.shortages.at(kV1);
  EXPECT_EQ(shortage.networks, std::vector<int32_t>{1});
  EXPECT_EQ(shortage.needed_bytes, 0);
  EXPECT_EQ(ErrorReason(shortage.error), "FILE_NOT_FOUND");
}

TEST(HostingPlan, WhatFailedGoesElsewhereWhileThatIsRemembered) {
  const ExpertServer a = Server("a", 0, {{Expert(0), NetworkState::kFailed, 0}});
  const ExpertServer b = Server("b", 0);
  HostingFacts facts{
      .versions = {Version("v1")}, .weights = {{"d-v1", kWeights}}, .servers = {&a, &b}, .failing = {{"a", Expert(0)}}};
  HostingPlan plan = PlanHosting(facts, 1);
  EXPECT_EQ(plan.assigned["a"], std::vector<NetworkId>{Expert(1)});
  EXPECT_EQ(plan.assigned["b"], std::vector<NetworkId>{Expert(0)});
}

TEST(HostingPlan, AFewRequestsMakeNoExpertHot) {
  const ExpertServer a = Server("a", 0), b = Server("b", 0), c = Server("c", 0);
  HostingFacts facts{.versions = {Version("v1")},
                     .weights = {{"d-v1", VersionWeights{{0, 10}, {1, 10}, {2, 10}}}},
                     .servers = {&a, &b, &c}};
  facts.versions[0].version.experts = 3;
  const auto replicas = [&] {
    const HostingPlan plan = PlanHosting(facts, 1);
    return plan.assigned.at("a").size() + plan.assigned.at("b").size() + plan.assigned.at("c").size();
  };
  EXPECT_EQ(replicas(), 3u);
  facts.chosen = {{kV1, {60, 0, 0}}};
  EXPECT_EQ(replicas(), 3u);
  facts.chosen = {{kV1, {6000, 0, 0}}};
  EXPECT_EQ(replicas(), 4u);
}

TEST(HostingPlan, ReadyIsEveryExpertOnceOfThatVersion) {
  const auto ready = [](const std::vector<HostedNetwork>& a, const std::vector<HostedNetwork>& b) {
    const ExpertServer first = Server("a", 0, a), second = Server("b", 0, b);
    const std::vector<const ExpertServer*> servers = {&first, &second};
    return IsReady("m", Version("v1").version, servers);
  };
  constexpr NetworkState kReady = NetworkState::kReady;
  EXPECT_TRUE(ready({{Expert(0), kReady}}, {{Expert(1), kReady}}));
  EXPECT_TRUE(ready({{Expert(0), kReady}, {Expert(1), kReady}}, {}));
  EXPECT_FALSE(ready({{Expert(0), kReady}}, {{Expert(1), NetworkState::kLoading}}));
  EXPECT_FALSE(ready({{Expert(0), kReady}}, {{Expert(0), kReady}}));
  EXPECT_FALSE(ready({{Expert(0), kReady}}, {{Expert(1, "v2"), kReady}}));
  EXPECT_FALSE(ready({{Expert(0), kReady}}, {{Expert(kRouterNetwork), kReady}}));
}

}  // namespace
}  // namespace atl::serving
