#include "common/placement/placement.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>

#include "common/placement/fading_sum.h"
#include "gtest/gtest.h"

namespace atl::placement {
namespace {

NetworkId Expert(int32_t expert, const std::string& digest = "d1") {
  return {.model = "m", .version = "v1", .digest = digest, .expert = expert};
}

// Experts of 10 bytes each; without `use` all are used alike.
std::vector<WantedNetwork> Experts(int32_t count, const std::vector<double>& use = {}) {
  const double average = std::accumulate(use.begin(), use.end(), 0.0) / count;
  std::vector<WantedNetwork> wanted;
  for (int32_t expert = 0; expert < count; ++expert) {
    wanted.push_back({.network = Expert(expert), .bytes = 10});
    if (use.empty()) continue;
    wanted.back().use = use[static_cast<size_t>(expert)];
    wanted.back().heat = wanted.back().use / average;
  }
  return wanted;
}

std::vector<NetworkId> These(const std::vector<int32_t>& experts) {
  std::vector<NetworkId> networks;
  for (const int32_t expert : experts) networks.push_back(Expert(expert));
  return networks;
}

// Experts of another version, and in another role.
std::vector<NetworkId> These(const std::vector<int32_t>& experts, const std::string& digest) {
  std::vector<NetworkId> networks;
  for (const int32_t expert : experts) networks.push_back(Expert(expert, digest));
  return networks;
}

std::vector<WantedNetwork> Role(VersionRole role, const std::string& digest, int32_t experts, double use = 0) {
  std::vector<WantedNetwork> wanted;
  for (int32_t expert = 0; expert < experts; ++expert) {
    wanted.push_back({.network = Expert(expert, digest), .bytes = 10, .use = use, .role = role});
  }
  return wanted;
}

template <typename T>
std::vector<T> operator+(std::vector<T> a, const std::vector<T>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Servers with room for one expert each: 0 to 3, and one more replica of `again`.
std::vector<Holder> OnFive(int32_t again) {
  std::vector<Holder> servers;
  for (const int32_t expert : {0, 1, 2, 3, again}) {
    servers.push_back({.memory_bytes = 10, .holding = These({expert})});
  }
  return servers;
}

struct Case {
  std::string name;
  std::vector<Holder> holders;
  std::vector<WantedNetwork> wanted;
  int32_t replicas = 2;
  std::vector<std::vector<NetworkId>> assigned;
  std::vector<NetworkId> unplaced;
  int64_t lacking_bytes = 0;
  int64_t over_memory_bytes = 0;
  std::optional<std::vector<NetworkId>> no_room;  // unset: all that is unplaced
};

void Check(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    const Placement placement = Place(c.holders, c.wanted, c.replicas);
    EXPECT_EQ(placement.assigned, c.assigned) << c.name;
    EXPECT_EQ(placement.unplaced, c.unplaced) << c.name;
    EXPECT_EQ(placement.no_room, c.no_room.value_or(c.unplaced)) << c.name;
    int64_t lacking = 0;
    for (const WantedNetwork& network : c.wanted) {
      lacking += network.bytes * std::count(placement.no_room.begin(), placement.no_room.end(), network.network);
    }
    EXPECT_EQ(lacking, c.lacking_bytes) << c.name;
    EXPECT_EQ(placement.over_memory_bytes, c.over_memory_bytes) << c.name;
    EXPECT_EQ(Place(c.holders, c.wanted, c.replicas), placement) << c.name;
  }
}

TEST(Placement, Table) {
  const std::vector<Case> cases = {
      {.name = "no server hosts nothing", .wanted = Experts(2), .unplaced = These({0, 1}), .lacking_bytes = 20},
      {.name = "a server alone has everything", .holders = {{}}, .wanted = Experts(2), .assigned = {These({0, 1})}},
      {.name = "two servers are each other's replica",
       .holders = {{}, {}},
       .wanted = Experts(2),
       .assigned = {These({0, 1}), These({0, 1})}},
      {.name = "without replicas experts are spread",
       .holders = {{}, {}},
       .wanted = Experts(4),
       .replicas = 1,
       .assigned = {These({0, 2}), These({1, 3})}},
      {.name = "of three servers two host each",
       .holders = {{}, {}, {}},
       .wanted = Experts(3),
       .assigned = {These({0, 2}), These({0, 1}), These({1, 2})}},
      {.name = "all once goes before any twice",
       .holders = {{.memory_bytes = 25}, {.memory_bytes = 15}},
       .wanted = Experts(3),
       .assigned = {These({0, 2}), These({1})}},
      {.name = "room left is for second replicas",
       .holders = {{.memory_bytes = 20}, {.memory_bytes = 10}},
       .wanted = Experts(2),
       .assigned = {These({0, 1}), These({1})}},
      {.name = "what does not fit is said in bytes",
       .holders = {{.memory_bytes = 15}},
       .wanted = Experts(3),
       .assigned = {These({0})},
       .unplaced = These({1, 2}),
       .lacking_bytes = 20},
      {.name = "what lies somewhere stays there",
       .holders = {{.memory_bytes = 10, .holding = These({2})},
                   {.memory_bytes = 10, .holding = These({0})},
                   {.memory_bytes = 10}},
       .wanted = Experts(3),
       .replicas = 1,
       .assigned = {These({2}), These({0}), These({1})}},
      {.name = "what nobody wants is dropped",
       .holders = {{.holding = {Expert(0, "old"), Expert(0)}}},
       .wanted = Experts(1),
       .assigned = {These({0})}},
      {.name = "a replica too many stays while there is room",
       .holders = {{.holding = These({0})}, {.holding = These({0})}, {.holding = These({0})}},
       .wanted = Experts(1),
       .assigned = {These({0}), These({0}), These({0})}},
      {.name = "a hot expert lies on more servers",
       .holders = {{}, {}, {}, {}},
       .wanted = Experts(3, {800, 100, 100}),
       .replicas = 1,
       .assigned = {These({0}), These({1}), These({2}), These({0})}},
      {.name = "the hottest has the room where it lacks",
       .holders = {{.memory_bytes = 10}},
       .wanted = Experts(3, {1, 5, 2}),
       .assigned = {These({1})},
       .unplaced = These({0, 2}),
       .lacking_bytes = 20},
      {.name = "the ready replica is kept, not the one that loads",
       .holders = {{.memory_bytes = 20, .holding = These({0}), .loading = These({0})},
                   {.memory_bytes = 10, .holding = These({0})}},
       .wanted = Experts(2),
       .replicas = 1,
       .assigned = {These({0, 1}), These({0})}},
      {.name = "the ready replica is kept where room is short",
       .holders = {{.memory_bytes = 10, .holding = These({0}), .loading = These({0})},
                   {.memory_bytes = 10, .holding = These({0})}},
       .wanted = Experts(2),
       .assigned = {These({1}), These({0})}},
      {.name = "a server that comes takes part, though every network lies twice",
       .holders = {{.holding = These({0, 1, 2, 3})},
                   {.holding = These({0, 1, 2, 3})},
                   {.memory_bytes = 20},
                   {.failing = These({0})}},
       .wanted = Experts(4),
       .assigned = {These({0, 1, 2, 3}), These({0, 1, 2, 3}), These({0, 1}), These({2, 3})}},
      {.name = "it gets those that are asked most",
       .holders = {{.holding = These({0, 1, 2, 3})}, {}},
       .wanted = Experts(4, {100, 130, 100, 120}),
       .replicas = 1,
       .assigned = {These({0, 1, 2, 3}), These({1, 3})}},
      {.name = "who could not load it gets it only where nobody else takes it",
       .holders = {{.failing = These({0, 1})}, {.memory_bytes = 10}},
       .wanted = Experts(2),
       .replicas = 1,
       .assigned = {These({1}), These({0})}},
      {.name = "a replica that is nearly hot enough stays, against a newcomer",
       .holders = OnFive(0),
       .wanted = Experts(4, {170, 200, 20, 10}),
       .replicas = 1,
       .assigned = {These({0}), These({1}), These({2}), These({3}), These({0})}},
      {.name = "a replica is given up for one that is asked far more",
       .holders = OnFive(0),
       .wanted = Experts(4, {150, 210, 25, 15}),
       .replicas = 1,
       .assigned = {These({1}), These({1}), These({2}), These({3}), These({0})}},
  };
  Check(cases);
}

TEST(Placement, VersionsRoll) {
  constexpr VersionRole kStays = VersionRole::kStays;
  constexpr VersionRole kComes = VersionRole::kComes;
  constexpr VersionRole kLeaves = VersionRole::kLeaves;
  const std::vector<WantedNetwork> old = Role(kLeaves, "d1", 2, 100);
  Check({
      {.name = "beside the old one where it fits",
       .holders = {{.memory_bytes = 40, .holding = These({0, 1}, "d1")},
                   {.memory_bytes = 40, .holding = These({0, 1}, "d1")}},
       .wanted = old + Role(kComes, "d2", 2),
       .assigned = {These({0, 1}, "d1") + These({0, 1}, "d2"), These({0, 1}, "d1") + These({0, 1}, "d2")}},
      {.name = "second replicas of the old one give way, its last ones never",
       .holders = {{.memory_bytes = 20, .holding = These({0, 1}, "d1")},
                   {.memory_bytes = 20, .holding = These({0, 1}, "d1")}},
       .wanted = old + Role(kComes, "d2", 2),
       .assigned = {{Expert(0, "d1"), Expert(0, "d2")}, {Expert(1, "d1"), Expert(1, "d2")}}},
      {.name = "the ready replica of the old one stays while another server loads it",
       .holders = {{.memory_bytes = 20, .holding = These({0}, "d1"), .loading = These({0}, "d1")},
                   {.memory_bytes = 10, .holding = These({0}, "d1")}},
       .wanted = Role(kLeaves, "d1", 1, 100) + Role(kComes, "d2", 2),
       .assigned = {These({0, 1}, "d2"), These({0}, "d1")}},
      {.name = "without room beside it, over memory until the old one is gone",
       .holders = {{.memory_bytes = 20, .holding = These({0, 1}, "d1")}},
       .wanted = old + Role(kComes, "d2", 2),
       .assigned = {These({0, 1}, "d1") + These({0, 1}, "d2")},
       .over_memory_bytes = 20},
      {.name = "over memory it stays as it is while the new one loads and serves",
       .holders =
           {{.memory_bytes = 20, .holding = These({0, 1}, "d1") + These({0, 1}, "d2"), .loading = These({1}, "d2")}},
       .wanted = old + Role(kStays, "d2", 2, 500),
       .assigned = {These({0, 1}, "d1") + These({0, 1}, "d2")},
       .over_memory_bytes = 20},
      {.name = "the old one gone, second replicas of the new one come",
       .holders = {{.memory_bytes = 20, .holding = {Expert(0, "d1"), Expert(0, "d2")}},
                   {.memory_bytes = 20, .holding = {Expert(1, "d1"), Expert(1, "d2")}}},
       .wanted = Role(kStays, "d2", 2),
       .assigned = {These({0, 1}, "d2"), These({0, 1}, "d2")}},
      {.name = "one that does not even fit alone is not begun",
       .holders = {{.memory_bytes = 20, .holding = These({0, 1}, "d1")},
                   {.memory_bytes = 20, .holding = These({0, 1}, "d1")}},
       .wanted = old + Role(kComes, "d2", 5),
       .assigned = {These({0, 1}, "d1"), These({0, 1}, "d1")},
       .unplaced = These({0, 1, 2, 3, 4}, "d2"),
       .lacking_bytes = 10,
       .no_room = These({4}, "d2")},
      {.name = "what serves keeps its part where a server went",
       .holders = {{.memory_bytes = 20, .holding = These({0, 1}, "d1")}},
       .wanted = Role(kStays, "d1", 3, 100),
       .assigned = {These({0, 1}, "d1")},
       .unplaced = These({2}, "d1"),
       .lacking_bytes = 10},
      {.name = "an old one that lost its servers is brought back, over memory if it must be",
       .holders = {{.memory_bytes = 20, .holding = These({0, 1}, "d2")}},
       .wanted = old + Role(kStays, "d2", 2, 10),
       .assigned = {These({0, 1}, "d1") + These({0, 1}, "d2")},
       .over_memory_bytes = 20},
      {.name = "two versions that stay share what there is",
       .holders = {{.memory_bytes = 20, .holding = These({0, 1}, "d1")}},
       .wanted = Role(kStays, "d1", 2, 10) + Role(kStays, "d2", 2),
       .assigned = {These({0, 1}, "d1")},
       .unplaced = These({0, 1}, "d2"),
       .lacking_bytes = 20},
  });
}

// A network that routers use keeps a ready replica at every step of a whole roll.
TEST(Placement, ARollNeverTakesTheLastReadyReplica) {
  for (const int64_t memory : {20, 30, 40, 60}) {
    std::vector<Holder> servers(3, Holder{.memory_bytes = memory});
    // Servers drop at once what is not assigned, and have loaded the rest by the next time.
    const auto settle = [&](const std::vector<WantedNetwork>& wanted) {
      const Placement placement = Place(servers, wanted, 2);
      EXPECT_TRUE(placement.unplaced.empty()) << memory;
      for (const WantedNetwork& network : wanted) {
        if (network.use == 0) continue;
        bool ready = false;
        for (size_t i = 0; i < servers.size(); ++i) {
          const auto on = [&](const std::vector<NetworkId>& networks) {
            return std::count(networks.begin(), networks.end(), network.network) > 0;
          };
          ready = ready || (on(servers[i].holding) && on(placement.assigned[i]));
        }
        EXPECT_TRUE(ready) << "memory " << memory << ", expert " << network.network.expert;
      }
      for (size_t i = 0; i < servers.size(); ++i) servers[i].holding = placement.assigned[i];
    };
    settle(Role(VersionRole::kStays, "d1", 5));
    settle(Role(VersionRole::kStays, "d1", 5, 100));
    const auto roll = Role(VersionRole::kLeaves, "d1", 5, 100) + Role(VersionRole::kComes, "d2", 5);
    settle(roll);
    settle(roll);
    settle(Role(VersionRole::kLeaves, "d1", 5, 50) + Role(VersionRole::kStays, "d2", 5, 50));
    settle(Role(VersionRole::kStays, "d2", 5, 100));
    settle(Role(VersionRole::kStays, "d2", 5, 100));
  }
}

TEST(Placement, AServerThatComesOrGoesMovesNothingElse) {
  std::vector<Holder> servers(3, Holder{.memory_bytes = 40});
  const auto place = [&] {
    const Placement placement = Place(servers, Experts(6), 2);
    for (size_t i = 0; i < servers.size(); ++i) servers[i].holding = placement.assigned[i];
    return placement;
  };
  const Placement first = place();
  EXPECT_TRUE(first.unplaced.empty());
  EXPECT_EQ(place(), first);
  // One goes: what it hosted has a replica elsewhere, and the others keep all that they have.
  servers.pop_back();
  const Placement less = place();
  EXPECT_TRUE(less.unplaced.empty());
  for (size_t i = 0; i < servers.size(); ++i) {
    EXPECT_EQ(less.assigned[i].size(), 4u);
    EXPECT_EQ(less.assigned[i], first.assigned[i]) << i;
  }
}

// Devices: one replica of each, and the room that is left for those that are used most.
struct DeviceCase {
  std::string name;
  std::vector<double> use;
  std::vector<Holder> devices;
  std::vector<std::vector<NetworkId>> assigned;
};

Holder Device(int64_t memory, const std::vector<int32_t>& experts) {
  return {.memory_bytes = memory, .holding = These(experts)};
}

// As a machine asks: the copies that fit are shared out by use, and a copy takes over a unit of it.
std::vector<std::vector<NetworkId>> OnDevices(const std::vector<Holder>& devices, const std::vector<double>& use) {
  const auto count = static_cast<int32_t>(use.size());
  double copies = 0;
  for (const Holder& device : devices) {
    copies += device.memory_bytes == 0 ? count : std::min<double>(count, static_cast<double>(device.memory_bytes) / 10);
  }
  std::vector<WantedNetwork> wanted = Experts(count, use);
  for (WantedNetwork& network : wanted) {
    network.heat *= copies / count;
    network.max_replicas = std::max(1, static_cast<int32_t>(network.use));
  }
  return Place(devices, wanted, 1).assigned;
}

TEST(Placement, OfDevices) {
  const std::vector<DeviceCase> cases = {
      {"one device that is full stays as it is", {5, 1, 9}, {Device(20, {0, 1})}, {These({0, 1})}},
      {"every network once before any twice",
       {90, 1, 0.1},
       {Device(20, {0}), Device(20, {1})},
       {These({0, 2}), These({0, 1})}},
      {"what is hardly used is not copied", {0.9, 0.8}, {Device(0, {0}), Device(0, {1})}, {These({0}), These({1})}},
      {"one hot expert is copied", {9, 1, 1}, {Device(20, {0, 1}), Device(20, {2})}, {These({0, 1}), These({0, 2})}},
      {"uniform use without room: all stays",
       {5, 5, 5, 5},
       {Device(20, {0, 1}), Device(20, {2, 3})},
       {These({0, 1}), These({2, 3})}},
      {"the last copy of a cold one stays",
       {90, 1, 1},
       {Device(10, {0}), Device(20, {1, 2})},
       {These({0}), These({1, 2})}},
      {"a cold one is copied to make room for a hot one",
       {9, 0, 0},
       {Device(20, {0}), Device(20, {1, 2})},
       {These({0, 2}), These({1, 2})}},
      {"and gives way when it is there",
       {9, 0, 0},
       {Device(20, {0, 2}), Device(20, {1, 2})},
       {These({0, 2}), These({0, 1})}},
      {"a hotter one takes a copy's place",
       {2, 9, 1},
       {Device(20, {0, 1}), Device(20, {0, 2})},
       {These({0, 1}), These({1, 2})}},
      {"copies of what is hardly less used stay",
       {8, 9, 1},
       {Device(20, {0, 1}), Device(20, {0, 2})},
       {These({0, 1}), These({0, 2})}},
      {"what lies nowhere takes a copy's place",
       {9, 5, 2, 3},
       {Device(20, {0, 1}), Device(20, {0, 2})},
       {These({0, 1}), These({2, 3})}},
  };
  for (const DeviceCase& c : cases) EXPECT_EQ(OnDevices(c.devices, c.use), c.assigned) << c.name;
}

TEST(Placement, OfDevicesFollowsAUseThatShifts) {
  std::vector<Holder> devices = {Device(30, {0, 1}), Device(30, {2, 3})};
  const auto copies = [&](int32_t expert) {
    return std::count_if(devices.begin(), devices.end(), [&](const Holder& device) {
      return std::count(device.holding.begin(), device.holding.end(), Expert(expert)) > 0;
    });
  };
  for (const int32_t hot : {0, 3, 1}) {
    std::vector<double> use(4, 1);
    use[static_cast<size_t>(hot)] = 9;
    const auto assigned = OnDevices(devices, use);
    for (size_t i = 0; i < devices.size(); ++i) devices[i].holding = assigned[i];
    EXPECT_EQ(copies(hot), 2) << hot;
    for (int32_t expert = 0; expert < 4; ++expert) EXPECT_GE(copies(expert), 1) << expert;
    EXPECT_EQ(OnDevices(devices, use), assigned) << "a steady use moves nothing";
  }
}

TEST(Placement, OfDevicesIsStableAgainstUseThatIsMeasuredRoughly) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> error(0.9, 1.1);
  const std::vector<double> use = {20, 10, 10, 5, 5, 5, 3, 1};
  std::vector<Holder> devices = {Device(50, {}), Device(50, {})};
  const auto first = OnDevices(devices, use);
  for (size_t i = 0; i < devices.size(); ++i) devices[i].holding = first[i];
  for (int i = 0; i < 200; ++i) {
    std::vector<double> found = use;
    for (double& seconds : found) seconds *= error(random);
    EXPECT_EQ(OnDevices(devices, found), first) << i;
  }
}

TEST(FadingSum, HalvesInAMinute) {
  FadingSum sum;
  EXPECT_EQ(sum.At(absl::Seconds(5)), 0);
  sum.Add(absl::Seconds(10), 8);
  EXPECT_EQ(sum.At(absl::Seconds(10)), 8);
  EXPECT_EQ(sum.At(absl::Seconds(5)), 8) << "time does not run backwards";
  EXPECT_EQ(sum.At(absl::Seconds(70)), 4);
  sum.Add(absl::Seconds(70), 2);
  EXPECT_EQ(sum.At(absl::Seconds(130)), 3);
}

}  // namespace
}  // namespace atl::placement
