#include "worker/island/rank_discovery.h"

#include <gtest/gtest.h>

#include "common/base/errors.h"

namespace atl::worker {
namespace {

struct Case {
  std::string name;
  RankFlags flags;
  Environment environment;
  RankIdentity expected;
  std::string error;  // a part of the message; empty when it must work
};

const Environment kTorchrun = {
    {"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "10.0.0.7"}, {"MASTER_PORT", "29500"}};
const Environment kSlurm = {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_JOB_NODELIST", "gpu[003-004]"}};
const Environment kJobSet = {
    {"JOB_COMPLETION_INDEX", "1"}, {"JOBSET_NAME", "reef"}, {"JOBSET_REPLICATED_JOB", "rank"}, {"JOBSET_RANKS", "2"}};

Environment With(Environment environment, const std::string& name, const std::string& value) {
  environment[name] = value;
  return environment;
}
Environment Without(Environment environment, const std::string& name) {
  environment.erase(name);
  return environment;
}

std::vector<Case> Cases() {
  const RankFlags all{.rank = 1, .ranks = 2, .leader = "h:5"};
  return {
      {"nothing is an island of one", {}, {}, {0, 1, "127.0.0.1:0", "alone"}, ""},
      {"flags", all, {}, {1, 2, "h:5", "flags"}, ""},
      {"complete flags win over a launcher", all, kTorchrun, {1, 2, "h:5", "flags"}, ""},
      {"torchrun", {}, kTorchrun, {3, 4, "10.0.0.7:29500", "torchrun"}, ""},
      {"torchrun under Slurm", {}, With(kTorchrun, "SLURM_PROCID", "0"), {3, 4, "10.0.0.7:29500", "torchrun"}, ""},
      {"slurm", {}, kSlurm, {1, 2, "gpu003:7170", "slurm"}, ""},
      {"slurm port", {}, With(kSlurm, "ATOLL_LEADER_PORT", "81"), {1, 2, "gpu003:81", "slurm"}, ""},
      {"slurm by address",
       {},
       With(Without(kSlurm, "SLURM_JOB_NODELIST"), "SLURM_LAUNCH_NODE_IPADDR", "10.1.1.1"),
       {1, 2, "10.1.1.1:7170", "slurm"},
       ""},
      {"jobset", {}, kJobSet, {1, 2, "reef-rank-0-0.reef:7170", "jobset"}, ""},
      {"jobset names",
       {},
       With(With(kJobSet, "JOBSET_JOB_INDEX", "4"), "JOBSET_SUBDOMAIN", "lagoon"),
       {1, 2, "reef-rank-4-0.lagoon:7170", "jobset"},
       ""},
      {"jobset, ranks by flag",
       {.ranks = 8},
       Without(kJobSet, "JOBSET_RANKS"),
       {1, 8, "reef-rank-0-0.reef:7170", "jobset"},
       ""},
      {"agreeing flag", {.rank = 3}, kTorchrun, {3, 4, "10.0.0.7:29500", "torchrun"}, ""},

      {"rank too large",
       {.rank = 2, .ranks = 2, .leader = "h:5"},
       {},
       {},
       "expected from 0 to 1 with 2 ranks, found 2"},
      {"negative rank", {.rank = -1, .ranks = 2, .leader = "h:5"}, {}, {}, "found -1"},
      {"no ranks", {.rank = 0, .ranks = 0, .leader = "h:5"}, {}, {}, "expected from 1"},
      {"leader without port", {.rank = 0, .ranks = 1, .leader = "h"}, {}, {}, "expected HOST:PORT, found 'h'"},
      {"port 0 is the leader's only", {.rank = 1, .ranks = 2, .leader = "h:0"}, {}, {}, "from 1 to 65535, found '0'"},
      {"ranks alone", {.ranks = 2}, {}, {}, "--rank and --leader are expected too"},
      {"rank alone", {.rank = 1}, {}, {}, "expected from 0 to 0"},
      {"contradicting rank", {.rank = 0}, kSlurm, {}, "--rank 0 contradicts slurm, which says 1"},
      {"contradicting leader", {.leader = "h:5"}, kTorchrun, {}, "--leader h:5 contradicts torchrun"},
      {"half a torchrun", {}, Without(kTorchrun, "WORLD_SIZE"), {}, "WORLD_SIZE is expected too"},
      {"torchrun with words", {}, With(kTorchrun, "RANK", "first"), {}, "RANK: expected a number from 0"},
      {"torchrun rank too large", {}, With(kTorchrun, "RANK", "4"), {}, "expected from 0 to 3"},
      {"torchrun bad port", {}, With(kTorchrun, "MASTER_PORT", "70000"), {}, "MASTER_PORT"},
      {"slurm without host", {}, Without(kSlurm, "SLURM_JOB_NODELIST"), {}, "SLURM_LAUNCH_NODE_IPADDR"},
      {"jobset without index", {}, Without(kJobSet, "JOB_COMPLETION_INDEX"), {}, "JOB_COMPLETION_INDEX is expected"},
      {"jobset without ranks", {}, Without(kJobSet, "JOBSET_RANKS"), {}, "JOBSET_RANKS"},
  };
}

TEST(RankDiscovery, EverySourceGivesTheIdentityOrOneClearError) {
  for (const Case& test : Cases()) {
    SCOPED_TRACE(test.name);
    const absl::StatusOr<RankIdentity> found = DiscoverRank(test.flags, test.environment);
    if (test.error.empty()) {
      ASSERT_TRUE(found.ok()) << found.status();
      EXPECT_EQ(found->rank, test.expected.rank);
      EXPECT_EQ(found->ranks, test.expected.ranks);
      EXPECT_EQ(found->leader, test.expected.leader);
      EXPECT_EQ(found->source, test.expected.source);
    } else {
      ASSERT_FALSE(found.ok());
      EXPECT_EQ(found.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_EQ(ErrorReason(found.status()), "RANK_UNCLEAR");
      EXPECT_NE(std::string(found.status().message()).find(test.error), std::string::npos) << found.status();
    }
  }
}

TEST(RankDiscovery, FirstHostOfSlurmNodeLists) {
  const std::vector<std::pair<std::string, std::string>> cases = {{"node1", "node1"},
                                                                  {"a,b", "a"},
                                                                  {"node[003-007,9],other", "node003"},
                                                                  {"gpu[1,5]-ib,x", "gpu1-ib"},
                                                                  {"c-[01-02]", "c-01"}};
  for (const auto& [list, host] : cases) {
    const auto found = FirstSlurmHost(list);
    ASSERT_TRUE(found.ok()) << list << ": " << found.status();
    EXPECT_EQ(*found, host) << list;
  }
  for (const std::string list : {"", ",a", "node[", "node[]", "[1-2]"}) EXPECT_FALSE(FirstSlurmHost(list).ok()) << list;
}

}  // namespace
}  // namespace atl::worker
