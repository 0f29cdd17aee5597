#include "coordinator/serving/placement.h"

#include <algorithm>
#include <optional>

#include "gtest/gtest.h"

namespace atl::serving {
namespace {

Network Expert(int32_t expert, const std::string& digest = "d1") {
  return {.model = "m", .version = "v1", .digest = digest, .expert = expert};
}

// Experts of 10 bytes each.
std::vector<WantedNetwork> Experts(int32_t count, const std::vector<int64_t>& chosen = {}) {
  std::vector<WantedNetwork> wanted;
  for (int32_t expert = 0; expert < count; ++expert) {
    wanted.push_back(
        {.network = Expert(expert), .bytes = 10, .chosen = chosen.empty() ? 0 : chosen[static_cast<size_t>(expert)]});
  }
  return wanted;
}

std::vector<Network> These(const std::vector<int32_t>& experts) {
  std::vector<Network> networks;
  for (const int32_t expert : experts) networks.push_back(Expert(expert));
  return networks;
}

// Experts of another version, and in another role.
std::vector<Network> These(const std::vector<int32_t>& experts, const std::string& digest) {
  std::vector<Network> networks;
  for (const int32_t expert : experts) networks.push_back(Expert(expert, digest));
  return networks;
}

std::vector<WantedNetwork> Role(VersionRole role, const std::string& digest, int32_t experts, int64_t chosen = 0) {
  std::vector<WantedNetwork> wanted;
  for (int32_t expert = 0; expert < experts; ++expert) {
    wanted.push_back({.network = Expert(expert, digest), .bytes = 10, .chosen = chosen, .role = role});
  }
  return wanted;
}

template <typename T>
std::vector<T> operator+(std::vector<T> a, const std::vector<T>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Servers with room for one expert each: 0 to 3, and one more replica of `again`.
std::vector<PlacementServer> OnFive(int32_t again) {
  std::vector<PlacementServer> servers;
  for (const int32_t expert : {0, 1, 2, 3, again}) {
    servers.push_back({.server_id = std::string(1, static_cast<char>('a' + servers.size())),
                       .memory_bytes = 10,
                       .hosting = These({expert})});
  }
  return servers;
}

struct Case {
  std::string name;
  std::vector<PlacementServer> servers;
  std::vector<WantedNetwork> wanted;
  int32_t replicas = 2;
  std::map<std::string, std::vector<Network>> assigned;
  std::vector<Network> unplaced;
  int64_t lacking_bytes = 0;
  int64_t over_memory_bytes = 0;
  std::optional<std::vector<Network>> no_room;  // unset: all that is unplaced
};

void Check(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    const Placement placement = Place(c.servers, c.wanted, {.replicas = c.replicas});
    EXPECT_EQ(placement.assigned, c.assigned) << c.name;
    EXPECT_EQ(placement.unplaced, c.unplaced) << c.name;
    EXPECT_EQ(placement.no_room, c.no_room.value_or(c.unplaced)) << c.name;
    EXPECT_EQ(placement.lacking_bytes, c.lacking_bytes) << c.name;
    EXPECT_EQ(placement.over_memory_bytes, c.over_memory_bytes) << c.name;
    EXPECT_EQ(Place(c.servers, c.wanted, {.replicas = c.replicas}), placement) << c.name;
  }
}

TEST(Placement, Table) {
  const std::vector<Case> cases = {
      {.name = "no server hosts nothing", .wanted = Experts(2), .unplaced = These({0, 1}), .lacking_bytes = 20},
      {.name = "a server alone has everything",
       .servers = {{.server_id = "a"}},
       .wanted = Experts(2),
       .assigned = {{"a", These({0, 1})}}},
      {.name = "two servers are each other's replica",
       .servers = {{.server_id = "a"}, {.server_id = "b"}},
       .wanted = Experts(2),
       .assigned = {{"a", These({0, 1})}, {"b", These({0, 1})}}},
      {.name = "without replicas experts are spread",
       .servers = {{.server_id = "a"}, {.server_id = "b"}},
       .wanted = Experts(4),
       .replicas = 1,
       .assigned = {{"a", These({0, 2})}, {"b", These({1, 3})}}},
      {.name = "of three servers two host each",
       .servers = {{.server_id = "a"}, {.server_id = "b"}, {.server_id = "c"}},
       .wanted = Experts(3),
       .assigned = {{"a", These({0, 2})}, {"b", These({0, 1})}, {"c", These({1, 2})}}},
      {.name = "all once goes before any twice",
       .servers = {{.server_id = "a", .memory_bytes = 25}, {.server_id = "b", .memory_bytes = 15}},
       .wanted = Experts(3),
       .assigned = {{"a", These({0, 2})}, {"b", These({1})}}},
      {.name = "room left is for second replicas",
       .servers = {{.server_id = "a", .memory_bytes = 20}, {.server_id = "b", .memory_bytes = 10}},
       .wanted = Experts(2),
       .assigned = {{"a", These({0, 1})}, {"b", These({1})}}},
      {.name = "what does not fit is said in bytes",
       .servers = {{.server_id = "a", .memory_bytes = 15}},
       .wanted = Experts(3),
       .assigned = {{"a", These({0})}},
       .unplaced = These({1, 2}),
       .lacking_bytes = 20},
      {.name = "what lies somewhere stays there",
       .servers = {{.server_id = "a", .memory_bytes = 10, .hosting = These({2})},
                   {.server_id = "b", .memory_bytes = 10, .hosting = These({0})},
                   {.server_id = "c", .memory_bytes = 10}},
       .wanted = Experts(3),
       .replicas = 1,
       .assigned = {{"a", These({2})}, {"b", These({0})}, {"c", These({1})}}},
      {.name = "what nobody wants is dropped",
       .servers = {{.server_id = "a", .hosting = {Expert(0, "old"), Expert(0)}}},
       .wanted = Experts(1),
       .assigned = {{"a", These({0})}}},
      {.name = "a replica too many stays while there is room",
       .servers = {{.server_id = "a", .hosting = These({0})},
                   {.server_id = "b", .hosting = These({0})},
                   {.server_id = "c", .hosting = These({0})}},
       .wanted = Experts(1),
       .assigned = {{"a", These({0})}, {"b", These({0})}, {"c", These({0})}}},
      {.name = "a hot expert lies on more servers",
       .servers = {{.server_id = "a"}, {.server_id = "b"}, {.server_id = "c"}, {.server_id = "d"}},
       .wanted = Experts(3, {800, 100, 100}),
       .replicas = 1,
       .assigned = {{"a", These({0})}, {"b", These({1})}, {"c", These({2})}, {"d", These({0})}}},
      {.name = "the hottest has the room where it lacks",
       .servers = {{.server_id = "a", .memory_bytes = 10}},
       .wanted = Experts(3, {1, 5, 2}),
       .assigned = {{"a", These({1})}},
       .unplaced = These({0, 2}),
       .lacking_bytes = 20},
      {.name = "the ready replica is kept, not the one that loads",
       .servers = {{.server_id = "a", .memory_bytes = 20, .hosting = These({0}), .loading = These({0})},
                   {.server_id = "b", .memory_bytes = 10, .hosting = These({0})}},
       .wanted = Experts(2),
       .replicas = 1,
       .assigned = {{"a", These({0, 1})}, {"b", These({0})}}},
      {.name = "the ready replica is kept where room is short",
       .servers = {{.server_id = "a", .memory_bytes = 10, .hosting = These({0}), .loading = These({0})},
                   {.server_id = "b", .memory_bytes = 10, .hosting = These({0})}},
       .wanted = Experts(2),
       .assigned = {{"a", These({1})}, {"b", These({0})}}},
      {.name = "a server that comes takes part, though every network lies twice",
       .servers = {{.server_id = "a", .hosting = These({0, 1, 2, 3})},
                   {.server_id = "b", .hosting = These({0, 1, 2, 3})},
                   {.server_id = "c", .memory_bytes = 20},
                   {.server_id = "d", .failing = These({0})}},
       .wanted = Experts(4),
       .assigned =
           {{"a", These({0, 1, 2, 3})}, {"b", These({0, 1, 2, 3})}, {"c", These({0, 1})}, {"d", These({2, 3})}}},
      {.name = "it gets those that are asked most",
       .servers = {{.server_id = "a", .hosting = These({0, 1, 2, 3})}, {.server_id = "b"}},
       .wanted = Experts(4, {100, 130, 100, 120}),
       .replicas = 1,
       .assigned = {{"a", These({0, 1, 2, 3})}, {"b", These({1, 3})}}},
      {.name = "who could not load it gets it only where nobody else takes it",
       .servers = {{.server_id = "a", .failing = These({0, 1})}, {.server_id = "b", .memory_bytes = 10}},
       .wanted = Experts(2),
       .replicas = 1,
       .assigned = {{"a", These({1})}, {"b", These({0})}}},
      {.name = "a replica that is nearly hot enough stays, against a newcomer",
       .servers = OnFive(0),
       .wanted = Experts(4, {170, 200, 20, 10}),
       .replicas = 1,
       .assigned = {{"a", These({0})}, {"b", These({1})}, {"c", These({2})}, {"d", These({3})}, {"e", These({0})}}},
      {.name = "a replica is given up for one that is asked far more",
       .servers = OnFive(0),
       .wanted = Experts(4, {150, 210, 25, 15}),
       .replicas = 1,
       .assigned = {{"a", These({1})}, {"b", These({1})}, {"c", These({2})}, {"d", These({3})}, {"e", These({0})}}},
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
       .servers = {{.server_id = "a", .memory_bytes = 40, .hosting = These({0, 1}, "d1")},
                   {.server_id = "b", .memory_bytes = 40, .hosting = These({0, 1}, "d1")}},
       .wanted = old + Role(kComes, "d2", 2),
       .assigned = {{"a", These({0, 1}, "d1") + These({0, 1}, "d2")},
                    {"b", These({0, 1}, "d1") + These({0, 1}, "d2")}}},
      {.name = "second replicas of the old one give way, its last ones never",
       .servers = {{.server_id = "a", .memory_bytes = 20, .hosting = These({0, 1}, "d1")},
                   {.server_id = "b", .memory_bytes = 20, .hosting = These({0, 1}, "d1")}},
       .wanted = old + Role(kComes, "d2", 2),
       .assigned = {{"a", {Expert(0, "d1"), Expert(0, "d2")}}, {"b", {Expert(1, "d1"), Expert(1, "d2")}}}},
      {.name = "the ready replica of the old one stays while another server loads it",
       .servers = {{.server_id = "a", .memory_bytes = 20, .hosting = These({0}, "d1"), .loading = These({0}, "d1")},
                   {.server_id = "b", .memory_bytes = 10, .hosting = These({0}, "d1")}},
       .wanted = Role(kLeaves, "d1", 1, 100) + Role(kComes, "d2", 2),
       .assigned = {{"a", These({0, 1}, "d2")}, {"b", These({0}, "d1")}}},
      {.name = "without room beside it, over memory until the old one is gone",
       .servers = {{.server_id = "a", .memory_bytes = 20, .hosting = These({0, 1}, "d1")}},
       .wanted = old + Role(kComes, "d2", 2),
       .assigned = {{"a", These({0, 1}, "d1") + These({0, 1}, "d2")}},
       .over_memory_bytes = 20},
      {.name = "over memory it stays as it is while the new one loads and serves",
       .servers = {{.server_id = "a",
                    .memory_bytes = 20,
                    .hosting = These({0, 1}, "d1") + These({0, 1}, "d2"),
                    .loading = These({1}, "d2")}},
       .wanted = old + Role(kStays, "d2", 2, 500),
       .assigned = {{"a", These({0, 1}, "d1") + These({0, 1}, "d2")}},
       .over_memory_bytes = 20},
      {.name = "the old one gone, second replicas of the new one come",
       .servers = {{.server_id = "a", .memory_bytes = 20, .hosting = {Expert(0, "d1"), Expert(0, "d2")}},
                   {.server_id = "b", .memory_bytes = 20, .hosting = {Expert(1, "d1"), Expert(1, "d2")}}},
       .wanted = Role(kStays, "d2", 2),
       .assigned = {{"a", These({0, 1}, "d2")}, {"b", These({0, 1}, "d2")}}},
      {.name = "one that does not even fit alone is not begun",
       .servers = {{.server_id = "a", .memory_bytes = 20, .hosting = These({0, 1}, "d1")},
                   {.server_id = "b", .memory_bytes = 20, .hosting = These({0, 1}, "d1")}},
       .wanted = old + Role(kComes, "d2", 5),
       .assigned = {{"a", These({0, 1}, "d1")}, {"b", These({0, 1}, "d1")}},
       .unplaced = These({0, 1, 2, 3, 4}, "d2"),
       .lacking_bytes = 10,
       .no_room = These({4}, "d2")},
      {.name = "what serves keeps its part where a server went",
       .servers = {{.server_id = "a", .memory_bytes = 20, .hosting = These({0, 1}, "d1")}},
       .wanted = Role(kStays, "d1", 3, 100),
       .assigned = {{"a", These({0, 1}, "d1")}},
       .unplaced = These({2}, "d1"),
       .lacking_bytes = 10},
      {.name = "an old one that lost its servers is brought back, over memory if it must be",
       .servers = {{.server_id = "a", .memory_bytes = 20, .hosting = These({0, 1}, "d2")}},
       .wanted = old + Role(kStays, "d2", 2, 10),
       .assigned = {{"a", These({0, 1}, "d1") + These({0, 1}, "d2")}},
       .over_memory_bytes = 20},
      {.name = "two versions that stay share what there is",
       .servers = {{.server_id = "a", .memory_bytes = 20, .hosting = These({0, 1}, "d1")}},
       .wanted = Role(kStays, "d1", 2, 10) + Role(kStays, "d2", 2),
       .assigned = {{"a", These({0, 1}, "d1")}},
       .unplaced = These({0, 1}, "d2"),
       .lacking_bytes = 20},
  });
}

// Whatever is told, a network that routers use keeps a ready replica, step by step through a whole roll.
TEST(Placement, ARollNeverTakesTheLastReadyReplica) {
  for (const int64_t memory : {20, 30, 40, 60}) {
    std::vector<PlacementServer> servers(3);
    for (size_t i = 0; i < servers.size(); ++i) {
      servers[i] = {.server_id = std::string(1, static_cast<char>('a' + i)), .memory_bytes = memory};
    }
    // Servers drop at once what is not assigned, and have loaded the rest by the next time.
    const auto settle = [&](const std::vector<WantedNetwork>& wanted) {
      const Placement placement = Place(servers, wanted, {});
      EXPECT_TRUE(placement.unplaced.empty()) << memory;
      for (const WantedNetwork& network : wanted) {
        if (network.chosen == 0) continue;
        const bool ready = std::any_of(servers.begin(), servers.end(), [&](const PlacementServer& server) {
          const auto& assigned = placement.assigned.at(server.server_id);
          return std::count(server.hosting.begin(), server.hosting.end(), network.network) > 0 &&
                 std::count(assigned.begin(), assigned.end(), network.network) > 0;
        });
        EXPECT_TRUE(ready) << "memory " << memory << ", expert " << network.network.expert;
      }
      for (PlacementServer& server : servers) server.hosting = placement.assigned.at(server.server_id);
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
  std::vector<PlacementServer> servers = {{.server_id = "a", .memory_bytes = 40},
                                          {.server_id = "b", .memory_bytes = 40},
                                          {.server_id = "c", .memory_bytes = 40}};
  const auto place = [&] {
    const Placement placement = Place(servers, Experts(6), {});
    for (PlacementServer& server : servers) server.hosting = placement.assigned.at(server.server_id);
    return placement;
  };
  const Placement first = place();
  EXPECT_TRUE(first.unplaced.empty());
  EXPECT_EQ(place(), first);
  // One goes: what it hosted has a replica elsewhere, and the others keep all that they have.
  servers.pop_back();
  const Placement less = place();
  EXPECT_TRUE(less.unplaced.empty());
  for (const PlacementServer& server : servers) EXPECT_EQ(less.assigned.at(server.server_id).size(), 4u);
  for (const std::string id : {"a", "b"}) EXPECT_EQ(less.assigned.at(id), first.assigned.at(id)) << id;
}

}  // namespace
}  // namespace atl::serving
