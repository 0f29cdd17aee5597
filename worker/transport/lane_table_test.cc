#include "worker/transport/lane_table.h"

#include "common/base/errors.h"
#include "gtest/gtest.h"

namespace atl::transport {
namespace {

const Lane kForward{0, 1, 1, LaneKind::kForward};
const Lane kGradient{1, 0, 1, LaneKind::kGradient};

TEST(LaneTableTest, NumbersDoNotDependOnTheOrderOfTheList) {
  const auto one = LaneTable::Create({kForward, kGradient}, 2);
  const auto other = LaneTable::Create({kGradient, kForward}, 2);
  ASSERT_TRUE(one.ok() && other.ok());
  EXPECT_EQ(one->Text(), other->Text());
  EXPECT_EQ(*one->IndexOf(kForward), *other->IndexOf(kForward));
  EXPECT_NE(*one->IndexOf(kForward), *one->IndexOf(kGradient));
}

TEST(LaneTableTest, EveryRankReachesRankZeroForCollectives) {
  const auto table = LaneTable::Create({}, 3);
  ASSERT_TRUE(table.ok());
  for (int32_t rank = 1; rank < 3; ++rank) {
    EXPECT_TRUE(table->IndexOf(CollectiveLane(rank, 0)).ok());
    EXPECT_TRUE(table->IndexOf(CollectiveLane(0, rank)).ok());
  }
}

TEST(LaneTableTest, UnknownLaneIsNamed) {
  const auto table = LaneTable::Create({kForward}, 2);
  ASSERT_TRUE(table.ok());
  const absl::Status status = table->IndexOf(kGradient).status();
  EXPECT_EQ(ErrorReason(status), "TRANSPORT_LANE_UNKNOWN");
  EXPECT_NE(status.message().find("1->0 chunk 1 gradient"), absl::string_view::npos) << status;
}

TEST(LaneTableTest, LanesThatCannotBeAreRefused) {
  const std::vector<std::vector<Lane>> lists = {
      {{0, 2, 0, LaneKind::kForward}},
      {{-1, 1, 0, LaneKind::kForward}},
      {{0, 1, -1, LaneKind::kForward}},
      {{0, 1, 0, static_cast<LaneKind>(9)}},
      {kForward, kForward},
  };
  for (const auto& lanes : lists) {
    const absl::Status status = LaneTable::Create(lanes, 2).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << ToString(lanes[0]);
    EXPECT_EQ(ErrorReason(status), "TRANSPORT_LANE_INVALID") << ToString(lanes[0]);
  }
}

}  // namespace
}  // namespace atl::transport
