#include "router/policy/step_batching.h"

#include <map>

#include "gtest/gtest.h"

namespace atl::router {
namespace {

std::vector<FlightImage> Images(const std::vector<std::pair<int64_t, int>>& request_and_count) {
  std::vector<FlightImage> images;
  for (const auto& [request, count] : request_and_count) {
    for (int i = 0; i < count; ++i) images.push_back({.request = request});
  }
  return images;
}

TEST(PickImagesTest, EveryoneStepsBelowTheLimit) {
  EXPECT_EQ(PickImages(Images({{1, 3}, {2, 2}}), 5), (std::vector<size_t>{0, 1, 2, 3, 4}));
}

TEST(PickImagesTest, RequestsTakeTurnsAboveTheLimit) {
  const std::vector<FlightImage> images = Images({{1, 100}, {2, 1}, {3, 2}});
  // First turns of 1, 2 and 3, then second turns of 1 and 3.
  EXPECT_EQ(PickImages(images, 5), (std::vector<size_t>{0, 100, 101, 1, 102}));
}

TEST(PickImagesTest, AmongEqualsTheImageThatWaitedLongestGoesFirst) {
  const std::vector<FlightImage> images = {
      {.request = 1, .last_tick = 5}, {.request = 2, .last_tick = 3}, {.request = 3, .last_tick = 4}};
  EXPECT_EQ(PickImages(images, 2), (std::vector<size_t>{1, 2}));
}

TEST(PickImagesTest, NobodyStarvesWithMoreRequestsThanRoom) {
  std::vector<FlightImage> images = Images({{1, 50}, {2, 1}, {3, 7}, {4, 1}, {5, 30}, {6, 1}, {7, 1}});
  std::map<int64_t, int64_t> longest_wait;
  for (int64_t tick = 1; tick <= 200; ++tick) {
    for (const size_t i : PickImages(images, 4)) images[i].last_tick = tick;
    std::map<int64_t, int64_t> last;
    for (const FlightImage& image : images) last[image.request] = std::max(last[image.request], image.last_tick);
    for (const auto& [request, when] : last) longest_wait[request] = std::max(longest_wait[request], tick - when);
  }
  for (const FlightImage& image : images) EXPECT_GT(image.last_tick, 0) << "request " << image.request;
  for (const auto& [request, wait] : longest_wait) EXPECT_LE(wait, 60) << "request " << request;
}

TEST(PickImagesTest, ASingleImageBesideALargeRequestStepsAtEveryTick) {
  std::vector<FlightImage> images = Images({{1, 200}, {2, 1}});
  for (int64_t tick = 1; tick <= 30; ++tick) {
    for (const size_t i : PickImages(images, 16)) images[i].last_tick = tick;
    EXPECT_EQ(images.back().last_tick, tick);
  }
}

GroupKey Key(int64_t model, int32_t network, bool guided) {
  return {.model = model, .network = network, .height = 8, .width = 8, .guided = guided};
}

TEST(GroupIntoBatchesTest, SharesBatchesByModelExpertShapeAndGuidance) {
  GroupKey wide = Key(1, 0, true);
  wide.width = 16;
  const std::vector<GroupKey> evaluations = {Key(1, 2, true),  Key(1, 0, true), Key(1, 2, true),
                                             Key(1, 2, false), Key(2, 2, true), wide};
  const std::vector<Batch> batches = GroupIntoBatches(evaluations, 64);
  ASSERT_EQ(batches.size(), 5u);
  EXPECT_EQ(batches[0].evaluations, (std::vector<size_t>{0, 2}));
  EXPECT_EQ(batches[0].rows(), 4u);
  EXPECT_EQ(batches[1].evaluations, (std::vector<size_t>{1}));
  EXPECT_EQ(batches[2].rows(), 1u);
}

TEST(GroupIntoBatchesTest, LargeGroupsFallIntoEvenBatchesWithinTheLimit) {
  const std::vector<GroupKey> guided(33, Key(1, 0, true));
  const std::vector<Batch> batches = GroupIntoBatches(guided, 32);
  ASSERT_EQ(batches.size(), 3u);
  size_t next = 0;
  for (const Batch& batch : batches) {
    EXPECT_EQ(batch.evaluations.size(), 11u);
    EXPECT_LE(batch.rows(), 32u);
    for (const size_t evaluation : batch.evaluations) EXPECT_EQ(evaluation, next++);
  }
}

TEST(GroupIntoBatchesTest, APairIsNeverSplitEvenBelowItsSize) {
  const std::vector<GroupKey> guided(2, Key(1, 0, true));
  EXPECT_EQ(GroupIntoBatches(guided, 1).size(), 2u);
}

}  // namespace
}  // namespace atl::router
