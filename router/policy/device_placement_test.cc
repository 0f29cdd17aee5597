#include "router/policy/device_placement.h"

#include <algorithm>
#include <random>

#include "absl/strings/str_join.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::router {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::Le;

NetworkId Expert(int32_t number) {
  return {.model = "m", .version = "v", .digest = "d", .expert = number};
}

// Experts 0, 1, … of ten bytes each, that take a tenth of a second to load, used for so many seconds.
std::vector<PlacedNetwork> Experts(const std::vector<double>& use) {
  std::vector<PlacedNetwork> networks;
  for (size_t i = 0; i < use.size(); ++i) {
    networks.push_back({.id = Expert(static_cast<int32_t>(i)),
                        .bytes = 10,
                        .use = absl::Seconds(use[i]),
                        .load_time = absl::Milliseconds(100)});
  }
  return networks;
}

PlacementDevice Device(int64_t budget, const std::vector<int32_t>& experts) {
  PlacementDevice device{.budget_bytes = budget};
  for (const int32_t expert : experts) device.resident.push_back({.id = Expert(expert), .bytes = 10});
  return device;
}

// "3 to 1 for 0 2": expert 3 to device 1, 0 and 2 give way.
std::string Text(const PlacementDecision& decision) {
  if (!decision.load) return "none";
  std::vector<int32_t> evict;
  for (const NetworkId& id : decision.load->evict) evict.push_back(id.expert);
  return fmt::format("{} to {}{}{}", decision.load->network.expert, decision.load->device, evict.empty() ? "" : " for ",
                     absl::StrJoin(evict, " "));
}

TEST(DecidePlacementTest, Table) {
  struct Case {
    std::string name;
    std::vector<double> use;
    std::vector<PlacementDevice> devices;
    std::string expected;
  };
  const Case cases[] = {
      {"one device, nothing to decide", {5, 1}, {Device(20, {0, 1})}, "none"},
      {"one device without a network that fits", {5, 1}, {Device(20, {0})}, "1 to 0"},
      {"one device that is full: what is asked for is loaded then", {5, 1, 9}, {Device(20, {0, 1})}, "none"},
      {"cold start: where least lies", {0, 0, 0}, {Device(0, {0}), Device(0, {1})}, "2 to 0"},
      {"cold start: nothing is copied before it was used", {0, 0}, {Device(0, {0}), Device(0, {1})}, "none"},
      {"every network once before any twice", {90, 1, 0}, {Device(20, {0}), Device(20, {1})}, "2 to 1"},
      {"one hot expert is copied", {9, 1, 1}, {Device(20, {0, 1}), Device(20, {2})}, "0 to 1"},
      {"the hotter one first", {4, 6}, {Device(20, {0}), Device(20, {1})}, "1 to 0"},
      {"uniform use without room: all stays", {5, 5, 5, 5}, {Device(20, {0, 1}), Device(20, {2, 3})}, "none"},
      {"tight memory: the last copy of a cold one stays", {90, 0, 0}, {Device(10, {0}), Device(20, {1, 2})}, "none"},
      {"a copy takes over no more than its load takes", {0.2, 0}, {Device(20, {0}), Device(20, {1})}, "none"},
      {"a copy takes over more than its load takes", {0.3, 0}, {Device(20, {0}), Device(20, {1})}, "0 to 1"},
      {"a hotter one takes a copy's place", {2, 9, 1}, {Device(20, {0, 1}), Device(20, {0, 2})}, "1 to 1 for 0"},
      {"copies of what is hardly less used stay", {8, 9, 1}, {Device(20, {0, 1}), Device(20, {0, 2})}, "none"},
      {"what lies nowhere takes a cold copy's place", {0.1, 5, 1}, {Device(20, {0, 1}), Device(20, {0})}, "2 to 1"},
      {"and of a hot one only when it is used more", {9, 5, 1, 0}, {Device(20, {0, 1}), Device(20, {0, 2})}, "none"},
      {"it is used more", {2, 5, 1, 3}, {Device(20, {0, 1}), Device(20, {0, 2})}, "3 to 1 for 0"},
      {"a cold last copy moves where there is room", {9, 8, 0}, {Device(20, {0}), Device(20, {1, 2})}, "2 to 0"},
      {"for a hot one's copy", {9, 0, 0}, {Device(20, {0}), Device(20, {1, 2})}, "1 to 0"},
      {"which then takes its place", {9, 0, 0}, {Device(20, {0, 1}), Device(20, {1, 2})}, "0 to 1 for 1"},
      {"not for a copy that is not worth both loads", {0.4, 0, 0}, {Device(20, {0}), Device(20, {1, 2})}, "none"},
      {"the device with less use", {9, 8, 1}, {Device(30, {0, 1}), Device(30, {2}), Device(30, {})}, "0 to 2"},
  };
  for (const Case& c : cases) {
    const PlacementDecision decision = DecidePlacement(Experts(c.use), c.devices, {});
    EXPECT_EQ(Text(decision), c.expected) << c.name << ": " << decision.reason;
    EXPECT_FALSE(decision.reason.empty()) << c.name;
  }
}

TEST(DecidePlacementTest, WhatIsInUseNeverGivesWay) {
  std::vector<PlacementDevice> devices = {Device(20, {0, 1}), Device(20, {0, 2})};
  const std::vector<PlacedNetwork> networks = Experts({2, 9, 1});
  ASSERT_EQ(Text(DecidePlacement(networks, devices, {})), "1 to 1 for 0");
  devices[1].resident[0].pins = 1;
  EXPECT_EQ(Text(DecidePlacement(networks, devices, {})), "none");
}

TEST(DecidePlacementTest, ANetworkWhoseLoadFailedIsLeftOutForAWhile) {
  std::vector<PlacedNetwork> networks = Experts({9, 5});
  networks[0].loadable = false;
  EXPECT_EQ(Text(DecidePlacement(networks, std::vector{Device(0, {0}), Device(0, {1})}, {})), "1 to 0");
}

TEST(DecidePlacementTest, WithoutReplicasEveryNetworkLiesOnce) {
  const PlacementOptions once{.replicate = false};
  EXPECT_EQ(Text(DecidePlacement(Experts({9, 5}), std::vector{Device(0, {0}), Device(0, {1})}, once)), "none");
  EXPECT_EQ(Text(DecidePlacement(Experts({9, 5}), std::vector{Device(0, {0}), Device(0, {})}, once)), "1 to 1");
}

TEST(DecidePlacementTest, LanesShareADevicesUse) {
  std::vector<PlacementDevice> devices = {Device(0, {0}), Device(0, {1}), Device(0, {2})};
  const std::vector<PlacedNetwork> networks = Experts({9, 4, 3});
  ASSERT_EQ(Text(DecidePlacement(networks, devices, {})), "0 to 2");
  devices[1].lanes = 2;
  EXPECT_EQ(Text(DecidePlacement(networks, devices, {})), "0 to 1");
}

// Carries out what is decided until there is nothing more; how many loads that took.
int Settle(const std::vector<PlacedNetwork>& networks, std::vector<PlacementDevice>* devices) {
  int loads = 0;
  for (;; ++loads) {
    const PlacementDecision decision = DecidePlacement(networks, *devices, {});
    if (!decision.load) return loads;
    if (loads > 1000) {
      ADD_FAILURE() << "loads go on for ever: " << decision.reason;
      return loads;
    }
    PlacementDevice& device = (*devices)[decision.load->device];
    for (const NetworkId& id : decision.load->evict) {
      std::erase_if(device.resident, [&](const auto& copy) { return copy.id == id; });
    }
    device.resident.push_back({.id = decision.load->network, .bytes = 10});
    int64_t held = 0;
    for (const ResidentNetwork& copy : device.resident) held += copy.bytes;
    EXPECT_TRUE(device.budget_bytes == 0 || held <= device.budget_bytes) << Text(decision);
  }
}

std::vector<int32_t> On(const PlacementDevice& device) {
  std::vector<int32_t> experts;
  for (const ResidentNetwork& copy : device.resident) experts.push_back(copy.id.expert);
  std::sort(experts.begin(), experts.end());
  return experts;
}

TEST(DecidePlacementTest, FromNothingToCopiesInProportionToUse) {
  std::vector<PlacementDevice> devices(4, Device(30, {}));
  const auto networks = Experts({40, 8, 8, 8, 8, 8});
  Settle(networks, &devices);
  std::vector<int> copies(networks.size());
  for (const PlacementDevice& device : devices) {
    EXPECT_EQ(device.resident.size(), 3u) << "all room is used";
    for (const int32_t expert : On(device)) ++copies[static_cast<size_t>(expert)];
  }
  EXPECT_EQ(copies[0], 4);
  for (size_t i = 1; i < copies.size(); ++i) EXPECT_THAT(copies[i], AllOf(Ge(1), Le(2))) << i;
}

TEST(DecidePlacementTest, TwoHotExpertsOfOneDeviceAreSharedThoughColdOnesMustMove) {
  std::vector<PlacementDevice> devices = {Device(30, {0, 1}), Device(30, {2, 3})};
  Settle(Experts({9, 8, 1, 1}), &devices);
  EXPECT_THAT(On(devices[0]), ElementsAre(0, 1, 2));
  EXPECT_THAT(On(devices[1]), ElementsAre(0, 1, 3));
}

TEST(DecidePlacementTest, CopiesFollowAUseThatShifts) {
  std::vector<PlacementDevice> devices = {Device(30, {0, 1}), Device(30, {2, 3})};
  Settle(Experts({9, 1, 1, 1}), &devices);
  EXPECT_EQ(std::count_if(devices.begin(), devices.end(), [](const auto& d) { return On(d)[0] == 0; }), 2);
  const int loads = Settle(Experts({1, 1, 1, 9}), &devices);
  EXPECT_GE(loads, 1);
  EXPECT_LE(loads, 3);
  for (const PlacementDevice& device : devices) EXPECT_EQ(On(device).back(), 3);
}

TEST(DecidePlacementTest, UseThatIsMeasuredRoughlyMovesNothing) {
  std::mt19937 random(7);
  const std::vector<double> use = {20, 10, 10, 5, 5, 5, 3, 1};
  std::vector<PlacementDevice> devices = {Device(50, {}), Device(50, {})};
  Settle(Experts(use), &devices);
  const auto before = std::pair(On(devices[0]), On(devices[1]));
  std::uniform_real_distribution<double> error(0.9, 1.1);
  for (int i = 0; i < 200; ++i) {
    std::vector<double> found = use;
    for (double& seconds : found) seconds *= error(random);
    EXPECT_EQ(Settle(Experts(found), &devices), 0) << i;
  }
  EXPECT_EQ(std::pair(On(devices[0]), On(devices[1])), before);
}

TEST(NetworkUseTest, FadesWithItsTimeConstant) {
  NetworkUse use(absl::Seconds(60));
  EXPECT_EQ(use.Recent(absl::Seconds(5), Expert(0)), absl::ZeroDuration());
  use.Record(absl::Seconds(10), Expert(0), absl::Seconds(3));
  EXPECT_EQ(use.Recent(absl::Seconds(10), Expert(0)), absl::Seconds(3));
  EXPECT_NEAR(absl::ToDoubleSeconds(use.Recent(absl::Seconds(70), Expert(0))), 3 / 2.71828, 1e-4);
  use.Record(absl::Seconds(70), Expert(0), absl::Seconds(1));
  EXPECT_NEAR(absl::ToDoubleSeconds(use.Recent(absl::Seconds(70), Expert(0))), 1 + 3 / 2.71828, 1e-4);
  use.KeepOnly(Experts({1}));
  EXPECT_GT(use.Recent(absl::Seconds(70), Expert(0)), absl::ZeroDuration());
  use.KeepOnly({});
  EXPECT_EQ(use.Recent(absl::Seconds(70), Expert(0)), absl::ZeroDuration());
}

// A steady share of a lane is expected to go on.
TEST(NetworkUseTest, IsAboutWhatOneTimeConstantHolds) {
  NetworkUse use(absl::Seconds(60));
  for (int i = 0; i < 600; ++i) use.Record(absl::Seconds(i), Expert(0), absl::Milliseconds(500));
  EXPECT_NEAR(absl::ToDoubleSeconds(use.Recent(absl::Seconds(600), Expert(0))), 30, 0.5);
}

TEST(ChooseDeviceTest, RoomThenLittleUseThenLittleInMemoryThenWhatWasNotUsedForLongest) {
  std::vector<PlacedNetwork> networks = Experts({5, 1, 0, 0});
  EXPECT_EQ(ChooseDevice(10, networks, std::vector{Device(20, {0, 2}), Device(20, {1})}), 1u) << "room";
  EXPECT_EQ(ChooseDevice(10, networks, std::vector{Device(30, {0}), Device(30, {1, 2})}), 1u) << "less use";
  EXPECT_EQ(ChooseDevice(10, networks, std::vector{Device(30, {2, 3}), Device(30, {})}), 1u) << "less in memory";
  EXPECT_EQ(ChooseDevice(10, networks, std::vector{Device(0, {}), Device(0, {})}), 0u) << "the first";
  std::vector<PlacementDevice> full = {Device(10, {0}), Device(10, {1})};
  full[0].resident[0].last_used = absl::Seconds(3);
  full[1].resident[0].last_used = absl::Seconds(2);
  EXPECT_EQ(ChooseDevice(10, networks, full), 1u) << "not used for longest";
  full[1].resident[0].pins = 1;
  EXPECT_EQ(ChooseDevice(10, networks, full), 0u) << "in use";
}

}  // namespace
}  // namespace atl::router
