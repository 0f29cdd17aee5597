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
  EXPECT_EQ(OneLine("日本 🏝"), "日本 🏝");
  EXPECT_EQ(OneLine(std::string_view("a\nb\x1b[2J\x7f\0\t\r", 11)), "a\\nb\\x1b[2J\\x7f\\x00\\t\\r");
  EXPECT_EQ(OneLine("\xc2\x9b"
                    "2J"),
            "\\xc2\\x9b2J")
      << "U+009B begins what ESC [ begins";
  EXPECT_EQ(OneLine("\xc2\xa0"), "\xc2\xa0") << "U+00A0 is a space";
}

TEST(OneLineTest, BytesThatAreNoUtf8BecomeEscapes) {
  EXPECT_EQ(OneLine("\x9b"
                    "2J\xff"),
            "\\x9b2J\\xff");
  EXPECT_EQ(OneLine("\xc0\x8a"), "\\xc0\\x8a") << "a line break, longer than needed";
  EXPECT_EQ(OneLine("\xe0\x82\x9b"), "\\xe0\\x82\\x9b") << "U+009B, longer than needed";
  EXPECT_EQ(OneLine("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "half of a pair";
  EXPECT_EQ(OneLine("\xf5\x80\x80\x80"), "\\xf5\\x80\\x80\\x80") << "beyond the last letter";
  EXPECT_EQ(OneLine("\xe2\x82"), "\\xe2\\x82") << "cut";
}

}  // namespace
}  // namespace atl
