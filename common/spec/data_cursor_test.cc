#include "common/spec/data_cursor.h"

#include <set>

#include "gtest/gtest.h"

namespace atl::spec {
namespace {

TEST(DataCursorTest, BatchesOfWindowsAreLeftOut) {
  struct Case {
    std::vector<SkippedWindow> skipped;
    std::vector<int64_t> starts;  // of steps 1, 2, …, batches of 4
  };
  const Case cases[] = {
      {{}, {0, 4, 8, 12}},
      {{{1, 2}}, {8, 12, 16}},
      {{{3, 2}}, {0, 4, 16, 20}},
      {{{3, 0}}, {0, 4, 8, 12}},
      {{{2, 1}, {4, 1}}, {0, 8, 16, 20}},
      {{{4, 1}, {2, 1}}, {0, 8, 16, 20}},       // in any order
      {{{2, 2}, {4, 1}}, {0, 16, 20}},          // side by side
      {{{2, 3}, {3, 1}, {3, 4}}, {0, 24, 28}},  // overlapping
      {{{2, 1}, {2, 1}}, {0, 8, 12}},           // twice the same
      {{{100, 5}}, {0, 4, 8}},                  // later
  };
  for (const Case& c : cases) {
    int64_t cursor = 0;  // after the batch that was read
    for (size_t i = 0; i < c.starts.size(); ++i) {
      const auto step = static_cast<int64_t>(i) + 1;
      EXPECT_EQ(BatchStart(0, step - 1, 4, c.skipped), c.starts[i]) << "step " << step;
      EXPECT_EQ(BatchStart(cursor, 0, 4, c.skipped), c.starts[i]) << "step " << step << " after the one before";
      EXPECT_EQ(UnskippedStep(step, c.skipped), c.starts[i] / 4 + 1) << "step " << step;
      cursor = c.starts[i] + 4;
      for (size_t later = i + 1; later < c.starts.size(); ++later) {
        EXPECT_EQ(BatchStart(cursor, static_cast<int64_t>(later - i) - 1, 4, c.skipped), c.starts[later])
            << "step " << later + 1 << " from step " << step;
      }
    }
  }
}

TEST(DataCursorTest, AWindowAfterACheckpointLeavesItsCursorAsItWas) {
  const std::vector<SkippedWindow> before = {{3, 2}};
  const int64_t cursor = BatchStart(0, 4, 8, before) + 8;  // five steps done
  std::vector<SkippedWindow> after = before;
  after.push_back({UnskippedStep(6, before), 3});
  EXPECT_EQ(BatchStart(0, 4, 8, after) + 8, cursor);
  EXPECT_EQ(BatchStart(cursor, 0, 8, after), cursor + 3 * 8);
}

}  // namespace
}  // namespace atl::spec
