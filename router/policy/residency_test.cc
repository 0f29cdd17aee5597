#include "router/policy/residency.h"

#include "common/base/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::router {
namespace {

using ::testing::HasSubstr;

NetworkId Expert(int32_t number) {
  return {.model = "m", .version = "v", .digest = "d", .expert = number};
}

ResidentNetwork Resident(int32_t number, int64_t bytes, int32_t pins, int64_t used_at, bool elsewhere = false) {
  return {
      .id = Expert(number), .bytes = bytes, .pins = pins, .last_used = absl::Seconds(used_at), .elsewhere = elsewhere};
}

ResidentNetwork Checked(int32_t number, int64_t bytes, int64_t loaded_at) {
  ResidentNetwork network = Resident(number, bytes, 0, loaded_at);
  network.unasked = true;
  return network;
}

struct Case {
  std::string name;
  int64_t bytes;
  std::vector<ResidentNetwork> resident;
  int64_t budget;
  ResidencyAction action;
  std::vector<int32_t> evict;
  int64_t missing;
};

TEST(DecideResidencyTest, Table) {
  const Case cases[] = {
      {"no limit", 1'000, {Resident(0, 1'000'000, 0, 1)}, 0, ResidencyAction::kLoad, {}, 0},
      {"room", 10, {Resident(0, 90, 0, 1)}, 100, ResidencyAction::kLoad, {}, 0},
      {"exactly the budget, alone", 100, {}, 100, ResidencyAction::kLoad, {}, 0},
      {"larger than the budget", 101, {}, 100, ResidencyAction::kRefuse, {}, 1},
      {"least recently used out",
       50,
       {Resident(0, 50, 0, 7), Resident(1, 50, 0, 3)},
       100,
       ResidencyAction::kLoad,
       {1},
       0},
      {"no more than has to", 20, {Resident(0, 40, 0, 1), Resident(1, 60, 0, 2)}, 100, ResidencyAction::kLoad, {0}, 0},
      {"as many as have to",
       70,
       {Resident(0, 40, 0, 2), Resident(1, 40, 0, 1)},
       100,
       ResidencyAction::kLoad,
       {1, 0},
       0},
      {"what is in use stays", 50, {Resident(0, 50, 1, 1), Resident(1, 50, 0, 9)}, 100, ResidencyAction::kLoad, {1}, 0},
      {"all in use", 50, {Resident(0, 50, 1, 1), Resident(1, 50, 2, 9)}, 100, ResidencyAction::kWait, {}, 50},
      {"too little unused", 80, {Resident(0, 50, 1, 1), Resident(1, 50, 0, 9)}, 100, ResidencyAction::kWait, {}, 30},
      {"what lies elsewhere too goes first",
       50,
       {Resident(0, 50, 0, 3), Resident(1, 50, 0, 9, /*elsewhere=*/true)},
       100,
       ResidencyAction::kLoad,
       {1},
       0},
      {"and stays while it is in use",
       50,
       {Resident(0, 50, 0, 3), Resident(1, 50, 1, 9, /*elsewhere=*/true)},
       100,
       ResidencyAction::kLoad,
       {0},
       0},
      {"what was only checked goes first",
       80,
       {Resident(0, 40, 0, 1), Checked(1, 30, 9), Checked(2, 30, 8)},
       100,
       ResidencyAction::kLoad,
       {2, 1, 0},
       0},
      {"what was only checked, and no more than has to",
       30,
       {Resident(0, 40, 0, 1), Checked(1, 30, 9), Checked(2, 30, 8)},
       100,
       ResidencyAction::kLoad,
       {2},
       0},
      {"ties by id", 50, {Resident(1, 50, 0, 4), Resident(0, 50, 0, 4)}, 100, ResidencyAction::kLoad, {0}, 0},
  };
  for (const Case& c : cases) {
    const ResidencyDecision decision = DecideResidency(c.bytes, c.resident, c.budget);
    EXPECT_EQ(decision.action, c.action) << c.name << ": " << decision.reason;
    std::vector<int32_t> evicted;
    for (const NetworkId& id : decision.evict) evicted.push_back(id.expert);
    EXPECT_EQ(evicted, c.evict) << c.name;
    EXPECT_EQ(decision.bytes_missing, c.missing) << c.name;
    EXPECT_FALSE(decision.reason.empty()) << c.name;
  }
}

TEST(DecideResidencyTest, WhatDoesNotFitNamesTheNetworkAndTheBytes) {
  const absl::Status status = DoesNotFitStatus(Expert(3), 300, 200);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReason(status), "EXPERT_DOES_NOT_FIT");
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("expert 3 of model 'm' version 'v': expected a memory budget of at least 300 bytes"));
}

}  // namespace
}  // namespace atl::router
