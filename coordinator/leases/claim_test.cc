#include "coordinator/leases/claim.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::leases {
namespace {

using spec::TaskKind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Island IslandWith(Capabilities capabilities) {
  return {"a", 1, "r", std::move(capabilities), absl::ZeroDuration(), 0};
}

Candidate Training(std::string task_id, spec::Requirements needs = {}) {
  Candidate candidate;
  candidate.task_id = std::move(task_id);
  candidate.kind = TaskKind::kTrainExpert;
  candidate.requirements = std::move(needs);
  return candidate;
}

TEST(ClaimTest, RequirementsDecideAndSayWhy) {
  struct Case {
    Capabilities has;
    spec::Requirements needs;
    std::string unmet;
  };
  const Case cases[] = {
      {{.ranks = 2}, {.min_ranks = 2}, ""},
      {{.ranks = 2}, {.min_ranks = 4}, "needs 4 ranks, the island has 2"},
      {{.device_kind = "cpu"}, {.device_kind = "cuda"}, "needs device 'cuda', the island has 'cpu'"},
      {{.device_kind = "cuda"}, {.device_kind = "cuda"}, ""},
      {{.memory_bytes_per_rank = 1}, {.min_memory_bytes = 2}, "needs 2 bytes of memory per rank, the island has 1"},
      {{}, {.labels = {{"zone", "a"}}}, "needs label zone=a, the island has none"},
      {{.labels = {{"zone", "b"}}}, {.labels = {{"zone", "a"}}}, "the island has zone=b"},
      {{.labels = {{"zone", "a"}}}, {.labels = {{"zone", "a"}}}, ""},
      {{.format = {2, 3}}, {}, "needs a format version in [1, 1], the island has [2, 3]"},
  };
  for (const Case& c : cases) {
    const std::string unmet = UnmetRequirement(IslandWith(c.has), Training("j/t", c.needs));
    if (c.unmet.empty()) {
      EXPECT_EQ(unmet, "");
    } else {
      EXPECT_THAT(unmet, HasSubstr(c.unmet));
      EXPECT_THAT(unmet, HasSubstr("j/t"));
    }
  }
}

TEST(ClaimTest, RanksAreAskedOfTrainingOnly) {
  Candidate candidate = Training("j/t", {.min_ranks = 8});
  candidate.kind = TaskKind::kFeaturize;
  EXPECT_EQ(UnmetRequirement(IslandWith({.ranks = 1}), candidate), "");
}

TEST(ClaimTest, PriorityThenHeldInputsThenOrder) {
  Candidate low = Training("j/low");
  Candidate first = Training("j/first");
  Candidate second = Training("j/second");
  first.priority = second.priority = 5;
  second.input_uris = {"file:///p1"};
  const std::vector<Candidate> candidates = {low, first, second};
  EXPECT_EQ(DecideClaim(IslandWith({}), candidates, {}).candidate, 1u);
  EXPECT_EQ(DecideClaim(IslandWith({}), candidates, {"file:///p1"}).candidate, 2u);
  low.input_uris = {"file:///p0"};
  EXPECT_EQ(DecideClaim(IslandWith({}), {low, first}, {"file:///p0"}).candidate, 1u) << "priority comes first";
}

TEST(ClaimTest, NothingThatFitsIsExplainedWithinABound) {
  std::vector<Candidate> candidates;
  EXPECT_THAT(DecideClaim(IslandWith({}), candidates, {}).unmet, IsEmpty());
  for (int i = 0; i < 20; ++i) candidates.push_back(Training("j/t", {.min_ranks = 9}));
  const ClaimDecision decision = DecideClaim(IslandWith({}), candidates, {});
  EXPECT_FALSE(decision.candidate.has_value());
  ASSERT_EQ(decision.unmet.size(), kMaxUnmet + 1);
  EXPECT_EQ(decision.unmet.back(), "and 4 more");
  candidates.push_back(Training("j/fits"));
  const ClaimDecision granted = DecideClaim(IslandWith({}), candidates, {});
  EXPECT_EQ(granted.candidate, 20u);
  EXPECT_THAT(granted.unmet, IsEmpty());
}

TEST(ClaimTest, AMovedTaskIsKeptForOneIslandOrFromOne) {
  Island a = IslandWith({});
  Island b = IslandWith({});
  b.island_id = "b";
  Candidate urgent = Training("j/urgent");
  urgent.priority = 5;
  Candidate moved = Training("j/moved");
  moved.wanted_island = "b";
  moved.avoided_island = "a";
  EXPECT_EQ(DecideClaim(a, {moved, urgent}, {}).candidate, 1u);
  EXPECT_EQ(DecideClaim(b, {urgent, moved}, {}).candidate, 1u) << "before what is more urgent";
  EXPECT_THAT(DecideClaim(a, {moved}, {}).unmet, ElementsAre("j/moved is kept for island b"));
  moved.wanted_island.clear();
  EXPECT_THAT(DecideClaim(a, {moved}, {}).unmet, ElementsAre("j/moved was moved away from this island"));
  EXPECT_EQ(DecideClaim(b, {moved, urgent}, {}).candidate, 1u) << "anybody's now, and less urgent";
}

TEST(ClaimTest, AnExpiredLeaseIsGrantedToTheNextRequester) {
  Candidate candidate = Training("j/t");
  candidate.expired_island = "b";
  const ClaimDecision decision = DecideClaim(IslandWith({}), {candidate}, {});
  EXPECT_EQ(decision.candidate, 0u);
  EXPECT_THAT(decision.reason, HasSubstr("lease of island b ran out"));
}

}  // namespace
}  // namespace atl::leases
