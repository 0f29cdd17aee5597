#include "common/storage/local_copies.h"

#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"

namespace atl::storage {
namespace {

std::string Copied(LocalCopies* copies, const std::string& key, size_t bytes, absl::Time now) {
  std::string path = copies->NewPath().value();
  std::ofstream(path) << std::string(bytes, 'x');
  return copies->Keep(key, path, static_cast<int64_t>(bytes), now);
}

TEST(LocalCopiesTest, WhatWasAskedForLeastRecentlyGoesFirst) {
  LocalCopies copies(25);
  absl::Time now = absl::UnixEpoch();
  const std::string a = Copied(&copies, "a", 10, now);
  const std::string b = Copied(&copies, "b", 10, now + absl::Minutes(1));
  EXPECT_EQ(copies.Find("a", now + absl::Minutes(2)), a);
  now += absl::Minutes(10);
  const std::string c = Copied(&copies, "c", 10, now);
  EXPECT_EQ(copies.bytes(), 20);
  EXPECT_FALSE(copies.Find("b", now).has_value());
  EXPECT_FALSE(std::filesystem::exists(b));
  EXPECT_EQ(copies.Find("a", now), a);
  EXPECT_EQ(copies.Find("c", now), c);
}

TEST(LocalCopiesTest, WhatWasJustAskedForStaysHoweverLarge) {
  LocalCopies copies(5);
  const absl::Time now = absl::UnixEpoch();
  const std::string a = Copied(&copies, "a", 10, now);
  const std::string b = Copied(&copies, "b", 10, now + LocalCopies::kGrace - absl::Seconds(1));
  EXPECT_TRUE(std::filesystem::exists(a));
  EXPECT_TRUE(std::filesystem::exists(b));
  Copied(&copies, "c", 1, now + absl::Hours(1));
  EXPECT_EQ(copies.bytes(), 1);
}

TEST(LocalCopiesTest, TwoCopiesOfOneFileBothStayValidAndBothGo) {
  std::string first;
  std::string second;
  {
    LocalCopies copies(15);
    const absl::Time now = absl::UnixEpoch();
    first = Copied(&copies, "a", 10, now);
    second = Copied(&copies, "a", 10, now);
    EXPECT_NE(first, second);
    EXPECT_TRUE(std::filesystem::exists(first));
    EXPECT_TRUE(std::filesystem::exists(second));
    EXPECT_EQ(copies.Find("a", now + absl::Hours(1)), first);
    Copied(&copies, "b", 1, now + absl::Hours(1));
    EXPECT_FALSE(std::filesystem::exists(second));
  }
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(first).parent_path()));
}

TEST(LocalCopiesTest, WhatTheSystemCleanedAwayIsNotGivenOutAndMadeAgain) {
  LocalCopies copies(25);
  const absl::Time now = absl::UnixEpoch();
  const std::string a = Copied(&copies, "a", 10, now);
  std::filesystem::remove_all(std::filesystem::path(a).parent_path());
  EXPECT_FALSE(copies.Find("a", now).has_value());
  EXPECT_EQ(copies.bytes(), 0);
  const std::string again = Copied(&copies, "a", 10, now);
  EXPECT_TRUE(std::filesystem::exists(again));
  EXPECT_EQ(copies.Find("a", now), again);
}

}  // namespace
}  // namespace atl::storage
