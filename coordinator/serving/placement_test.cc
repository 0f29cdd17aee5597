#include "coordinator/serving/placement.h"

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

struct Case {
  std::string name;
  std::vector<PlacementServer> servers;
  std::vector<WantedNetwork> wanted;
  int32_t replicas = 2;
  std::map<std::string, std::vector<Network>> assigned;
  std::vector<Network> unplaced;
  int64_t lacking_bytes = 0;
};

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
  };
  for (const Case& c : cases) {
    const Placement placement = Place(c.servers, c.wanted, {.replicas = c.replicas});
    EXPECT_EQ(placement.assigned, c.assigned) << c.name;
    EXPECT_EQ(placement.unplaced, c.unplaced) << c.name;
    EXPECT_EQ(placement.lacking_bytes, c.lacking_bytes) << c.name;
    EXPECT_EQ(Place(c.servers, c.wanted, {.replicas = c.replicas}), placement) << c.name;
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
