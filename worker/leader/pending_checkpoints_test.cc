#include "worker/leader/pending_checkpoints.h"

#include <gtest/gtest.h>

namespace atl::worker {
namespace {

using Steps = std::vector<int64_t>;

storage::CheckpointManifest Part(int32_t rank, int64_t step) {
  return {.step = step, .samples_consumed = 64 * step, .files = {{.name = "stage-" + std::to_string(rank)}}};
}

TEST(PendingCheckpoints, AStepIsCompleteOnceEveryRankWroteItsPart) {
  PendingCheckpoints pending(2);
  EXPECT_EQ(pending.Add(1, Part(1, 10)), Steps());
  EXPECT_FALSE(pending.Next().has_value());
  EXPECT_EQ(pending.Add(0, Part(0, 10)), Steps());
  const auto next = pending.Next();
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(next->step, 10);
  EXPECT_EQ(next->samples_consumed, 640);
  ASSERT_EQ(next->files.size(), 2u);
  EXPECT_EQ(next->files[0].name, "stage-0");
  EXPECT_EQ(next->files[1].name, "stage-1");
  pending.Done(10);
  EXPECT_EQ(pending.waiting(), 0);
  EXPECT_FALSE(pending.Next().has_value());
}

TEST(PendingCheckpoints, WhileTheCoordinatorIsAwayTheOneBeingTriedAndTheNewestStay) {
  PendingCheckpoints pending(1);
  EXPECT_EQ(pending.Add(0, Part(0, 10)), Steps());
  ASSERT_EQ(pending.Next()->step, 10);
  EXPECT_EQ(pending.Add(0, Part(0, 20)), Steps());
  EXPECT_EQ(pending.Add(0, Part(0, 30)), Steps({20}));
  EXPECT_EQ(pending.Add(0, Part(0, 40)), Steps({30}));
  EXPECT_EQ(pending.waiting(), 2);
  EXPECT_EQ(pending.Next()->step, 10);
  pending.Done(10);
  EXPECT_EQ(pending.Next()->step, 40);
}

TEST(PendingCheckpoints, UntriedOnesGiveWayToTheNewestTwo) {
  PendingCheckpoints pending(1);
  EXPECT_EQ(pending.Add(0, Part(0, 10)), Steps());
  EXPECT_EQ(pending.Add(0, Part(0, 20)), Steps());
  EXPECT_EQ(pending.Add(0, Part(0, 30)), Steps({10}));
  EXPECT_EQ(pending.Next()->step, 20);
}

TEST(PendingCheckpoints, AnIncompleteStepIsGivenUpOnceALaterOneIsComplete) {
  PendingCheckpoints pending(2);
  EXPECT_EQ(pending.Add(0, Part(0, 10)), Steps());
  EXPECT_EQ(pending.Add(0, Part(0, 20)), Steps());
  EXPECT_EQ(pending.Add(1, Part(1, 20)), Steps({10}));
  EXPECT_EQ(pending.Next()->step, 20);
}

}  // namespace
}  // namespace atl::worker
