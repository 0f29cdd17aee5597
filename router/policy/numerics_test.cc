#include "router/policy/numerics.h"

#include <vector>

#include "gtest/gtest.h"

namespace atl::router {
namespace {

LaneState Lane(int32_t numerics, std::vector<LaneNetwork> networks) {
  return {.networks = std::move(networks), .numerics = numerics};
}

TEST(ChooseNumericsTest, Table) {
  const LaneNetwork router{.model = 1}, first{.model = 1, .network = 0};
  const LaneNetwork other{.model = 2, .network = 0};
  struct Case {
    std::string name;
    std::vector<LaneState> lanes;
    int32_t expected;  // of expert 0
  };
  const Case cases[] = {
      {"no lane", {}, 0},
      {"no lane hosts it", {Lane(1, {other}), Lane(2, {router}), Lane(3, {})}, 0},
      {"most lanes", {Lane(1, {first}), Lane(2, {first}), Lane(2, {router, first})}, 2},
      {"lanes without it do not count", {Lane(1, {first}), Lane(2, {first}), Lane(2, {other})}, 1},
      {"then the one known longest", {Lane(3, {first}), Lane(2, {first})}, 2},
  };
  for (const Case& c : cases) EXPECT_EQ(ChooseNumerics(1, 0, c.lanes), c.expected) << c.name;
}

TEST(DescribeNumericsTest, NamesTheNetworksThatDiffer) {
  EXPECT_EQ(DescribeNumerics({}), "");
  EXPECT_EQ(DescribeNumerics({{0, {1, "a"}}, {4, {1, "a"}}}), "a");
  EXPECT_EQ(DescribeNumerics({{kRouterNetwork, {2, "b"}}, {0, {3, "c"}}, {1, {1, "a"}}}),
            "a; router network: b; expert 0: c");
}

}  // namespace
}  // namespace atl::router
