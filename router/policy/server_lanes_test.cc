#include "router/policy/server_lanes.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const ListedServer kOne{.server_id = "one", .incarnation = "1", .address = "a:1"};
const ListedServer kTwo{.server_id = "two", .incarnation = "1", .address = "b:1"};

LaneChanges Decide(const std::vector<ListedServer>& listed, const std::vector<ServerLane>& lanes,
                   const std::vector<std::string>& named = {}) {
  return DecideLanes(listed, lanes, named);
}

TEST(DecideLanesTest, ListedServersGetLanesAndKeepThem) {
  const LaneChanges first = Decide({kOne, kTwo}, {});
  EXPECT_THAT(first.add, ElementsAre(kOne, kTwo));
  EXPECT_THAT(first.remove, IsEmpty());
  // In reach or not: a lane connects again by itself.
  const LaneChanges next = Decide({kOne, kTwo}, {{.server = kOne, .hosts = true}, {.server = kTwo, .hosts = false}});
  EXPECT_THAT(next.add, IsEmpty());
  EXPECT_THAT(next.remove, IsEmpty());
}

TEST(DecideLanesTest, AnotherProcessOrAddressOfAServerGetsANewLane) {
  for (const ListedServer& now : {ListedServer{"one", "2", "a:1"}, ListedServer{"one", "1", "a:2"}}) {
    const LaneChanges changes = Decide({now}, {{.server = kOne, .hosts = true}});
    EXPECT_THAT(changes.remove, ElementsAre("one"));
    EXPECT_THAT(changes.add, ElementsAre(now));
  }
}

TEST(DecideLanesTest, ServersThatWereNamedGetNoSecondLane) {
  EXPECT_THAT(Decide({kOne, kTwo}, {}, {"a:1"}).add, ElementsAre(kTwo));
}

TEST(DecideLanesTest, WhatIsNotListedGoesAtOnceWhenItHostsNothing) {
  EXPECT_THAT(Decide({kTwo}, {{.server = kOne, .hosts = false}, {.server = kTwo, .hosts = true}}).remove,
              ElementsAre("one"));
}

TEST(DecideLanesTest, WhatIsNotListedStaysWhileItHostsSomething) {
  EXPECT_THAT(Decide({}, {{.server = kOne, .hosts = true}}).remove, IsEmpty());
}

}  // namespace
}  // namespace atl::router
