#include "router/policy/numerics.h"

#include "gtest/gtest.h"

namespace atl::router {
namespace {

LaneState Lane(int32_t numerics, std::vector<LaneNetwork> networks) {
  return {.networks = std::move(networks), .numerics = numerics};
}

TEST(ChooseNumericsTest, Table) {
  const LaneNetwork router{.model = 1}, first{.model = 1, .network = 0}, second{.model = 1, .network = 1};
  const LaneNetwork other{.model = 2, .network = 0};
  struct Case {
    std::string name;
    std::vector<LaneState> lanes;
    int32_t expected;
  };
  const Case cases[] = {
      {"no lane", {}, 0},
      {"nobody hosts it", {Lane(1, {other}), Lane(2, {})}, 0},
      {"most networks", {Lane(1, {router, first}), Lane(2, {router, first, second})}, 2},
      {"networks of one group add up", {Lane(2, {router}), Lane(1, {router, first}), Lane(2, {first, second})}, 2},
      {"then most lanes", {Lane(1, {router}), Lane(2, {router}), Lane(2, {router})}, 2},
      {"lanes without it do not count", {Lane(1, {router}), Lane(2, {router}), Lane(2, {other})}, 1},
      {"then the one known longest", {Lane(3, {router}), Lane(2, {router})}, 2},
  };
  for (const Case& c : cases) EXPECT_EQ(ChooseNumerics(1, c.lanes), c.expected) << c.name;
}

}  // namespace
}  // namespace atl::router
