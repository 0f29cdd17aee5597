#include "coordinator/leases/membership.h"

#include "common/base/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::leases {
namespace {

using ::testing::HasSubstr;

const Island kKnown{"a", 3, "start-1", Capabilities{}, absl::Seconds(5), 9};

std::map<std::string, std::string> ManyLabels(int count) {
  std::map<std::string, std::string> labels;
  for (int i = 0; i < count; ++i) labels[std::to_string(i)] = "x";
  return labels;
}

TEST(MembershipTest, RegistrationDecidesTheIncarnation) {
  struct Case {
    const Island* known;
    std::string request_id;
    int64_t incarnation;
    bool releases;
    bool durable;
    std::string reason;
  };
  const Case cases[] = {
      {nullptr, "start-1", 1, false, true, "is new"},
      {&kKnown, "start-1", 3, false, false, "repeated"},
      {&kKnown, "start-2", 4, true, true, "incarnation 4 replaces 3"},
  };
  for (const Case& c : cases) {
    const auto decision = DecideRegister(c.known, "a", c.request_id, Capabilities{}, absl::Seconds(7));
    ASSERT_TRUE(decision.ok()) << decision.status();
    EXPECT_EQ(decision->island.incarnation, c.incarnation);
    EXPECT_EQ(decision->releases_leases, c.releases);
    EXPECT_EQ(decision->durable_change, c.durable);
    EXPECT_THAT(decision->reason, HasSubstr(c.reason));
    EXPECT_EQ(decision->island.last_seen, absl::Seconds(7));
  }
}

TEST(MembershipTest, ARegistrationThatCanNeverWorkNamesItsField) {
  struct Case {
    std::string island_id;
    std::string request_id;
    Capabilities capabilities;
    std::string reason;
    std::string field;
  };
  const Case cases[] = {
      {"", "r", {}, "INVALID_ISLAND_ID", "island_id"},
      {"a/b", "r", {}, "INVALID_ISLAND_ID", "island_id"},
      {std::string(129, 'a'), "r", {}, "INVALID_ISLAND_ID", "island_id"},
      {"a", "", {}, "INVALID_REQUEST_ID", "request_id"},
      {"a", "r", {.ranks = 0}, "INVALID_CAPABILITIES", "capabilities.ranks"},
      {"a", "r", {.protocol = {2, 1}}, "INVALID_CAPABILITIES", "capabilities.protocol"},
      {"a", "r", {.device_kind = "tpu"}, "INVALID_CAPABILITIES", "capabilities.device_kind"},
      {"a\n", "r", {}, "INVALID_ISLAND_ID", "island_id"},
      {"a", std::string(65, 'r'), {}, "INVALID_REQUEST_ID", "request_id"},
      {"a", "r", {.build = std::string(129, 'b')}, "INVALID_CAPABILITIES", "capabilities.build"},
      {"a", "r", {.device_name = std::string(257, 'd')}, "INVALID_CAPABILITIES", "capabilities.device_name"},
      {"a", "r", {.labels = {{"k", std::string(4096, 'v')}}}, "INVALID_CAPABILITIES", "capabilities.labels"},
      {"a", "r", {.labels = ManyLabels(65)}, "INVALID_CAPABILITIES", "capabilities.labels"},
      {"a", "r", {.protocol = {5, 6}}, "PROTOCOL_UNSUPPORTED", ""},
  };
  for (const Case& c : cases) {
    const auto decision = DecideRegister(nullptr, c.island_id, c.request_id, c.capabilities, absl::Seconds(1));
    EXPECT_EQ(ErrorReason(decision.status()), c.reason) << decision.status();
    EXPECT_EQ(ErrorField(decision.status()), c.field);
  }
}

TEST(MembershipTest, ARegistrationMayBeAsLongAsTheLimitsSay) {
  const Capabilities capabilities{
      .build = std::string(128, 'b'), .device_name = std::string(256, 'd'), .labels = ManyLabels(64)};
  EXPECT_TRUE(
      DecideRegister(nullptr, std::string(128, 'a'), std::string(64, 'r'), capabilities, absl::Seconds(1)).ok());
  EXPECT_TRUE(DecideRegister(nullptr, "a", "r", {.labels = {{"k", std::string(4095, 'v')}}}, absl::Seconds(1)).ok());
}

TEST(MembershipTest, HowLongAnIslandIsSilent) {
  struct Case {
    const char* name;
    absl::Duration last_seen;  // since some start; zero: not since the coordinator's
    absl::Duration up;         // the coordinator
    absl::Duration silence;
  };
  const absl::Time wall = absl::FromUnixSeconds(1'700'000'000);
  const absl::Duration now = absl::Hours(1000);
  const Case cases[] = {
      {"heard", now - absl::Minutes(3), absl::Hours(90), absl::Minutes(3)},
      {"heard before a start that was just now", now - absl::Minutes(3), absl::Minutes(1), absl::Minutes(3)},
      {"may call any moment", absl::ZeroDuration(), absl::Minutes(59), absl::ZeroDuration()},
      {"did not call", absl::ZeroDuration(), absl::Hours(1), absl::Hours(50)},
  };
  for (const Case& test : cases) {
    Island island{.island_id = "a", .last_seen = test.last_seen, .register_time = wall - absl::Hours(50)};
    EXPECT_EQ(SilenceOf(island, now - test.up, now, wall), test.silence) << test.name;
  }
}

TEST(MembershipTest, OnlyTheNewestIncarnationIsObeyed) {
  EXPECT_TRUE(CheckIncarnation(&kKnown, "a", 3).ok());
  EXPECT_EQ(ErrorReason(CheckIncarnation(&kKnown, "a", 2)), "STALE_INCARNATION");
  EXPECT_EQ(ErrorReason(CheckIncarnation(&kKnown, "a", 4)), "STALE_INCARNATION");
  EXPECT_EQ(ErrorReason(CheckIncarnation(nullptr, "a", 1)), "ISLAND_UNKNOWN");
}

TEST(MembershipTest, WhatAnIslandIsAt) {
  struct Case {
    const char* name;
    double last_seen;  // 0: never
    const char* drain_reason;
    bool holds_lease;
    IslandActivity activity;
  };
  const Case cases[] = {
      {"never heard", 0, "", false, IslandActivity::kLost},
      {"never heard since a restart, with a lease", 0, "", true, IslandActivity::kLost},
      {"heard a lease's duration ago", 90, "", true, IslandActivity::kBusy},
      {"heard a moment before", 89.9, "", true, IslandActivity::kLost},
      {"nothing to do", 99, "", false, IslandActivity::kIdle},
      {"drained at work", 99, "disk", true, IslandActivity::kDraining},
      {"drained", 99, "disk", false, IslandActivity::kDrained},
      {"drained and gone", 80, "disk", false, IslandActivity::kLost},
  };
  for (const Case& test : cases) {
    Island island{"a", 1, "r", {}, absl::Seconds(test.last_seen), 0, test.drain_reason};
    EXPECT_EQ(ActivityOf(island, test.holds_lease, absl::Seconds(100), absl::Seconds(10)), test.activity) << test.name;
  }
}

TEST(MembershipTest, ADrainedIslandStaysDrainedWhenItStartsAgain) {
  Island known = kKnown;
  known.drain_reason = "disk";
  for (const char* start : {"again", known.request_id.c_str()}) {
    const auto decision = DecideRegister(&known, "a", start, known.capabilities, absl::Seconds(1));
    ASSERT_TRUE(decision.ok()) << decision.status();
    EXPECT_EQ(decision->island.drain_reason, "disk") << start;
  }
}

TEST(MembershipTest, RangesOverlapWhenTheyShareAVersion) {
  EXPECT_TRUE(Overlap({1, 2}, {2, 3}));
  EXPECT_TRUE(Overlap({1, 5}, {2, 3}));
  EXPECT_FALSE(Overlap({1, 2}, {3, 4}));
}

}  // namespace
}  // namespace atl::leases
