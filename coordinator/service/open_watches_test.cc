#include "coordinator/service/open_watches.h"

#include "common/base/errors.h"
#include "gtest/gtest.h"

namespace atl::coordinator {
namespace {

class FakeStream : public WatchStream {
 public:
  absl::Duration unread_since() override { return unread; }
  void Cut() override { cut = true; }

  absl::Duration unread = absl::InfiniteDuration();
  bool cut = false;
};

TEST(OpenWatchesTest, EachCallerHasItsOwnLimit) {
  OpenWatches watches({.per_caller = 2});
  const auto first = watches.Admit("alice");
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE(watches.Admit("alice").ok());
  EXPECT_EQ(ErrorReason(watches.Admit("alice").status()), "TOO_MANY_WATCHES");
  EXPECT_EQ(watches.Admit("alice").status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(watches.Admit("bob").ok());
  watches.Close(*first);
  watches.Close(*first);
  EXPECT_TRUE(watches.Admit("alice").ok());
  EXPECT_FALSE(watches.Admit("alice").ok()) << "a place is given back once";
}

TEST(OpenWatchesTest, StreamsThatNobodyReadsAreCutOff) {
  OpenWatches watches({.max_unread = absl::Seconds(30)});
  const auto idle = std::make_shared<FakeStream>();
  const auto slow = std::make_shared<FakeStream>();
  const auto stuck = std::make_shared<FakeStream>();
  for (const auto& stream : {idle, slow, stuck}) watches.Open(*watches.Admit("alice"), stream);
  const absl::Duration now = absl::Seconds(100);
  slow->unread = now - absl::Seconds(29);
  stuck->unread = now - absl::Seconds(30);
  EXPECT_EQ(watches.CutUnread(now), 1);
  EXPECT_TRUE(stuck->cut);
  EXPECT_FALSE(slow->cut);
  EXPECT_FALSE(idle->cut);
  EXPECT_EQ(watches.CutUnread(now + absl::Seconds(1)), 0) << "it is not looked at so often";
  EXPECT_EQ(watches.CutUnread(watches.NextLook(now)), 2) << "the stuck one is still open";
}

TEST(OpenWatchesTest, WithoutStreamsThereIsNothingToLookAt) {
  OpenWatches watches;
  EXPECT_EQ(watches.NextLook(absl::Seconds(1)), absl::InfiniteDuration());
  const auto ticket = watches.Admit("alice");
  ASSERT_TRUE(ticket.ok());
  EXPECT_LT(watches.NextLook(absl::Seconds(1)), absl::InfiniteDuration());
  watches.Close(*ticket);
  EXPECT_EQ(watches.NextLook(absl::Seconds(1)), absl::InfiniteDuration());
}

}  // namespace
}  // namespace atl::coordinator
