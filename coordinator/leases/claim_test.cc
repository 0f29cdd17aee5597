#include "coordinator/leases/claim.h"

#include <random>

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

// One job each, the first being the oldest.
CandidateIndex IndexOf(const std::vector<Candidate>& candidates) {
  CandidateIndex index;
  int64_t age = 0;
  for (const Candidate& candidate : candidates) index.Put(age++, {candidate});
  return index;
}

std::string Granted(const CandidateIndex& index, const std::set<std::string>& cached_uris = {},
                    const std::set<int64_t>* ages = nullptr) {
  const ClaimDecision decision = index.Decide(IslandWith({}), cached_uris, ages);
  return decision.candidate == nullptr ? "" : decision.candidate->task_id;
}

TEST(ClaimTest, PriorityThenHeldInputsThenOrder) {
  Candidate low = Training("j/low");
  Candidate first = Training("j/first");
  Candidate second = Training("j/second");
  first.priority = second.priority = 5;
  second.input_uris = {"file:///p1"};
  EXPECT_EQ(Granted(IndexOf({low, first, second})), "j/first");
  EXPECT_EQ(Granted(IndexOf({low, first, second}), {"file:///p1"}), "j/second");
  low.input_uris = {"file:///p0"};
  EXPECT_EQ(Granted(IndexOf({low, first}), {"file:///p0"}), "j/first") << "priority comes first";
}

TEST(ClaimTest, GraphOrderWithinAJobAndTheOldestJobFirst) {
  CandidateIndex index;
  index.Put(2, {Training("b/1"), Training("b/2")});
  index.Put(1, {Training("a/needs-more", {.min_ranks = 9}), Training("a/1"), Training("a/2")});
  EXPECT_EQ(Granted(index), "a/1");
  const std::set<int64_t> only_b = {2};
  EXPECT_EQ(Granted(index, {}, &only_b), "b/1");
  index.Put(1, {});
  EXPECT_EQ(Granted(index), "b/1");
}

TEST(ClaimTest, PutSaysWhetherAnythingIsNew) {
  CandidateIndex index;
  EXPECT_TRUE(index.Put(1, {Training("a/1"), Training("a/2")}));
  EXPECT_FALSE(index.Put(1, {Training("a/1"), Training("a/2")}));
  EXPECT_FALSE(index.Put(1, {Training("a/2")})) << "less is nothing new";
  EXPECT_TRUE(index.Put(1, {Training("a/1"), Training("a/2")}));
  EXPECT_TRUE(index.Put(1, {Training("a/1"), Training("a/2", {.min_ranks = 2})}))
      << "a task that asks for less or more";
  EXPECT_TRUE(index.Put(1, {Training("a/1"), Training("a/2"), Training("a/4")}));
  EXPECT_FALSE(index.Put(1, {Training("a/1"), Training("a/4")})) << "one between others is gone";
  EXPECT_TRUE(index.Put(1, {Training("a/1"), Training("a/3"), Training("a/4")})) << "one between others is new";
  EXPECT_TRUE(index.Put(1, {Training("a/3"), Training("a/5")})) << "one is gone, and another new";
  EXPECT_FALSE(index.Put(1, {}));
  EXPECT_EQ(Granted(index), "");
}

TEST(ClaimTest, AJobWhosePriorityChangesIsFoundWhereItBelongs) {
  CandidateIndex index;
  Candidate urgent = Training("a/1");
  urgent.priority = 3;
  index.Put(1, {urgent});
  index.Put(2, {Training("b/1")});
  EXPECT_EQ(Granted(index), "a/1");
  urgent.priority = -3;
  index.Put(1, {urgent});
  EXPECT_EQ(Granted(index), "b/1");
}

// Against a choice that looks at everything.
TEST(ClaimTest, TheIndexChoosesAsALookAtEverythingWould) {
  std::mt19937 random(7);
  const auto below = [&random](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 300; ++round) {
    CandidateIndex index;
    std::vector<Candidate> all;
    for (int64_t age = 0; age < 6; ++age) {
      const int32_t priority = below(3);
      std::vector<Candidate> job;
      for (int task = below(4); task > 0; --task) {
        Candidate& candidate =
            job.emplace_back(Training("j/" + std::to_string(all.size()), {.min_ranks = 1 + below(3)}));
        candidate.priority = priority;
        if (below(2) == 0) candidate.input_uris = {"file:///p" + std::to_string(below(3))};
        all.push_back(candidate);
      }
      index.Put(age, std::move(job));
    }
    const Island island = IslandWith({.ranks = 1 + below(2)});
    const std::set<std::string> cached = below(2) == 0 ? std::set<std::string>{} : std::set<std::string>{"file:///p1"};
    const Candidate* best = nullptr;
    const auto holds = [&](const Candidate& candidate) {
      return !candidate.input_uris.empty() && cached.contains(candidate.input_uris[0]);
    };
    for (const Candidate& candidate : all) {
      if (!UnmetRequirement(island, candidate).empty()) continue;
      if (best == nullptr || candidate.priority > best->priority ||
          (candidate.priority == best->priority && holds(candidate) && !holds(*best))) {
        best = &candidate;
      }
    }
    const ClaimDecision decision = index.Decide(island, cached);
    ASSERT_EQ(decision.candidate == nullptr, best == nullptr) << round;
    if (best != nullptr) ASSERT_EQ(decision.candidate->task_id, best->task_id) << round;
  }
}

TEST(ClaimTest, NothingThatFitsIsExplainedWithinABound) {
  EXPECT_THAT(CandidateIndex().Decide(IslandWith({}), {}).unmet, IsEmpty());
  std::vector<Candidate> candidates;
  for (int i = 0; i < 20; ++i) candidates.push_back(Training("j/t", {.min_ranks = 9}));
  const CandidateIndex index = IndexOf(candidates);
  const ClaimDecision decision = index.Decide(IslandWith({}), {});
  EXPECT_EQ(decision.candidate, nullptr);
  ASSERT_EQ(decision.unmet.size(), kMaxUnmet + 1);
  EXPECT_EQ(decision.unmet.back(), "and 4 more");
  candidates.push_back(Training("j/fits"));
  const CandidateIndex one_fits = IndexOf(candidates);
  const ClaimDecision granted = one_fits.Decide(IslandWith({}), {});
  ASSERT_NE(granted.candidate, nullptr);
  EXPECT_EQ(granted.candidate->task_id, "j/fits");
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
  const auto granted = [](const Island& island, const std::vector<Candidate>& candidates) {
    const CandidateIndex index = IndexOf(candidates);
    const ClaimDecision decision = index.Decide(island, {});
    return decision.candidate == nullptr ? "" : decision.candidate->task_id;
  };
  EXPECT_EQ(granted(a, {moved, urgent}), "j/urgent");
  EXPECT_EQ(granted(b, {urgent, moved}), "j/moved") << "before what is more urgent";
  EXPECT_THAT(IndexOf({moved}).Decide(a, {}).unmet, ElementsAre("j/moved is kept for island b"));
  moved.wanted_island.clear();
  EXPECT_THAT(IndexOf({moved}).Decide(a, {}).unmet, ElementsAre("j/moved was moved away from this island"));
  EXPECT_EQ(granted(b, {moved, urgent}), "j/urgent") << "anybody's now, and less urgent";
}

TEST(ClaimTest, WhatFailedOnAnIslandIsLeftToOthers) {
  Candidate failed = Training("j/failed");
  failed.priority = 5;
  failed.failed_islands = {"a", "c"};
  Island b = IslandWith({});
  b.island_id = "b";
  const CandidateIndex index = IndexOf({failed, Training("j/other")});
  EXPECT_EQ(index.Decide(IslandWith({}), {}).candidate->task_id, "j/other");
  EXPECT_EQ(index.Decide(b, {}).candidate->task_id, "j/failed");
  EXPECT_THAT(IndexOf({failed}).Decide(IslandWith({}), {}).unmet,
              ElementsAre("j/failed failed on this island, and another can run it"));
}

TEST(ClaimTest, AMovedTaskBringsTheOthersOfItsJobNoAdvantage) {
  CandidateIndex index;
  Candidate moved = Training("b/moved");
  moved.wanted_island = "another";
  index.Put(1, {Training("a/1")});
  index.Put(2, {moved, Training("b/1")});
  index.Put(3, {Training("c/1")});
  EXPECT_EQ(Granted(index), "a/1") << "the oldest job's";
  index.Put(1, {});
  EXPECT_EQ(Granted(index), "b/1");
}

TEST(ClaimTest, AnExpiredLeaseIsGrantedToTheNextRequester) {
  Candidate candidate = Training("j/t");
  candidate.expired_island = "b";
  const CandidateIndex index = IndexOf({candidate});
  const ClaimDecision decision = index.Decide(IslandWith({}), {});
  ASSERT_NE(decision.candidate, nullptr);
  EXPECT_THAT(decision.reason, HasSubstr("lease of island b ran out"));
}

}  // namespace
}  // namespace atl::leases
