#include "common/base/flag_checks.h"

#include "common/base/byte_size.h"
#include "gtest/gtest.h"

namespace atl {
namespace {

// "" for what passes.
std::string Refusal(const CLI::Validator& validator, std::string text) {
  return validator(text);
}

TEST(FlagChecksTest, WholeNumbersAreDecimalAndInRange) {
  for (const char* good : {"1", "64", "10"}) EXPECT_EQ(Refusal(WholeNumber(1, 64), good), "") << good;
  for (const char* bad : {"0", "65", "-1", "1.5", "", "x", "0x10", "010", "+2", " 2", "2 ", "1e1", "99999999999"}) {
    EXPECT_EQ(Refusal(WholeNumber(1, 64), bad), std::string("expected a whole number from 1 to 64, found ") + bad);
  }
  EXPECT_EQ(Refusal(WholeNumber(-5), "-5"), "");
  EXPECT_EQ(Refusal(WholeNumber(-5), "-05"), "expected a whole number from -5 to 2147483647, found -05");
  EXPECT_EQ(Refusal(WholeNumber(0), "0"), "");
}

TEST(FlagChecksTest, WholeNumbersReachTheEndsOfTheirType) {
  EXPECT_EQ(Refusal(WholeNumber<uint64_t>(0), "18446744073709551615"), "");
  for (const char* bad : {"18446744073709551616", "-1"}) {
    EXPECT_EQ(Refusal(WholeNumber<uint64_t>(0), bad),
              std::string("expected a whole number from 0 to 18446744073709551615, found ") + bad);
  }
  EXPECT_EQ(Refusal(WholeNumber<int64_t>(1), "9223372036854775807"), "");
  EXPECT_NE(Refusal(WholeNumber<int64_t>(1), "9223372036854775808"), "");
}

TEST(FlagChecksTest, NumbersAreFiniteAndInRange) {
  for (const char* good : {"0", "0.5", "1", "1e-9"}) EXPECT_EQ(Refusal(Number(0, 1), good), "") << good;
  for (const char* bad : {"-0.1", "1.1", "nan", "inf", "-inf", "", "x", "1x", "1e999"}) {
    EXPECT_EQ(Refusal(Number(0, 1), bad), std::string("expected a number from 0 to 1, found ") + bad);
  }
  EXPECT_EQ(Refusal(Number(0), "inf"), "expected a number of at least 0, found inf");
  EXPECT_EQ(Refusal(PositiveNumber(), "0"), "expected a number above 0, found 0");
  EXPECT_EQ(Refusal(PositiveNumber(1), "1.5"), "expected a number above 0 and at most 1, found 1.5");
  EXPECT_EQ(Refusal(PositiveNumber(1), "1e-300"), "");
}

TEST(ByteSizeTest, UnitsAreThousandsOrBinary) {
  const auto bytes = [](std::string text) {
    const std::string refusal = ByteSize()(text);
    return refusal.empty() ? text : refusal;
  };
  EXPECT_EQ(bytes("1"), "1");
  EXPECT_EQ(bytes("800MB"), "800000000");
  EXPECT_EQ(bytes("20GiB"), "21474836480");
  for (const char* bad : {"foo", "-5", "", "8XB", "99999999999999GB", "nan"}) {
    EXPECT_EQ(bytes(bad), std::string("expected a size such as 800MB or 20GiB, found ") + bad);
  }
}

}  // namespace
}  // namespace atl
