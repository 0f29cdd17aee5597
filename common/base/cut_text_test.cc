#include "common/base/cut_text.h"

#include <string>

#include "gtest/gtest.h"

namespace atl {
namespace {

TEST(CutTextTest, KeepsWholeLettersOnly) {
  EXPECT_EQ(CutText("", 0), "");
  EXPECT_EQ(CutText("abc", 3), "abc");
  EXPECT_EQ(CutText("abc", 2), "ab");
  EXPECT_EQ(CutText("ab\u00e9", 4), "ab\u00e9");
  EXPECT_EQ(CutText("ab\u00e9", 3), "ab");
  EXPECT_EQ(CutText("ab\u00e9z", 4), "ab\u00e9");
  EXPECT_EQ(CutText("\U0001f600", 3), "");
  EXPECT_EQ(CutText(std::string(10, '\x80'), 4), "") << "bytes that begin no letter";
}

}  // namespace
}  // namespace atl
