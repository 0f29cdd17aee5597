#include "common/base/quoted.h"

#include "gtest/gtest.h"

namespace atl {
namespace {

TEST(QuotedTest, AMessageStaysOneShortLine) {
  EXPECT_EQ(Quoted("digits"), "'digits'");
  EXPECT_EQ(Quoted(""), "''");
  EXPECT_EQ(Quoted("a\nb\x1b[2J\xff"), "'a\\nb\\x1b[2J\\xff'");
  EXPECT_EQ(Quoted(std::string(60, 'x')), "'" + std::string(60, 'x') + "'");
  EXPECT_EQ(Quoted(std::string(1 << 20, 'x')), "'" + std::string(60, 'x') + "...'");
}

}  // namespace
}  // namespace atl
