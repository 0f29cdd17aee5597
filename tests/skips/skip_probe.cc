// Cases for skips_test.py: one passes, one is skipped.
#include "gtest/gtest.h"

TEST(Probe, Passes) {}
TEST(Probe, Skips) {
  GTEST_SKIP() << "needs the moon";
}
