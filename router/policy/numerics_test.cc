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
    std::vector<int32_t> expected;  // of the router network and experts 0 and 1
  };
  const Case cases[] = {
      {"no lane", {}, {}},
      {"nobody hosts it", {Lane(1, {other}), Lane(2, {})}, {}},
      {"most networks", {Lane(1, {router, first}), Lane(2, {router, first, second})}, {2, 2, 2}},
      {"networks of one group add up",
       {Lane(2, {router}), Lane(1, {router, first}), Lane(2, {first, second})},
       {2, 2, 2}},
      {"then most lanes", {Lane(1, {router}), Lane(2, {router}), Lane(2, {router})}, {2, 2, 2}},
      {"lanes without it do not count", {Lane(1, {router}), Lane(2, {router}), Lane(2, {other})}, {1, 1, 1}},
      {"then the one known longest", {Lane(3, {router}), Lane(2, {router})}, {2, 2, 2}},
      {"a router network of its own", {Lane(1, {router}), Lane(2, {first, second})}, {1, 2, 2}},
      {"what only others host", {Lane(1, {router, first}), Lane(2, {second}), Lane(3, {second})}, {1, 1, 2}},
      {"nobody hosts it yet", {Lane(1, {router}), Lane(2, {router, first})}, {2, 2, 2}},
  };
  for (const Case& c : cases) EXPECT_EQ(ChooseNumerics(1, 2, c.lanes), c.expected) << c.name;
}

TEST(DescribeNumericsTest, NamesTheNetworksThatDiffer) {
  EXPECT_EQ(DescribeNumerics({}), "");
  EXPECT_EQ(DescribeNumerics(std::vector<std::string>{"a", "a", "a"}), "a");
  EXPECT_EQ(DescribeNumerics(std::vector<std::string>{"b", "c", "a"}), "a; router network: b; expert 0: c");
}

}  // namespace
}  // namespace atl::router
