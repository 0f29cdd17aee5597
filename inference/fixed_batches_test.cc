#include "inference/fixed_batches.h"

#include "gtest/gtest.h"

namespace atl::router {
namespace {

struct Case {
  int64_t rows;
  std::vector<int64_t> sizes;
  std::vector<FixedBatch> expected;
};

TEST(CutIntoFixedBatchesTest, Table) {
  const Case cases[] = {
      {0, {2, 4}, {}},
      {1, {1}, {{0, 1, 1}}},
      {3, {1}, {{0, 1, 1}, {1, 1, 1}, {2, 1, 1}}},
      {1, {4}, {{0, 1, 4}}},
      {5, {4}, {{0, 4, 4}, {4, 1, 4}}},
      {1, {2, 4, 8}, {{0, 1, 2}}},
      {5, {2, 4, 8}, {{0, 4, 4}, {4, 1, 2}}},
      {16, {2, 4, 8}, {{0, 8, 8}, {8, 8, 8}}},
      {15, {2, 4, 8}, {{0, 8, 8}, {8, 4, 4}, {12, 2, 2}, {14, 1, 2}}},
  };
  for (const Case& c : cases) EXPECT_EQ(CutIntoFixedBatches(c.rows, c.sizes), c.expected) << c.rows << " rows";
}

}  // namespace
}  // namespace atl::router
