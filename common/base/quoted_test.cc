#include "common/base/quoted.h"

#include "common/base/one_line.h"
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

TEST(OneLineTest, OnlyControlCharactersBecomeEscapes) {
  EXPECT_EQ(OneLine("Größe 'a'"), "Größe 'a'");
  EXPECT_EQ(OneLine(std::string_view("a\nb\x1b[2J\x7f\0", 9)), "a\\nb\\x1b[2J\\x7f\\x00");
}

}  // namespace
}  // namespace atl
