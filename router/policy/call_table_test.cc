#include "router/policy/call_table.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using A = FailoverAction;

constexpr int64_t kModel = 7;
constexpr int32_t kExpert = 3;

constexpr absl::Duration Ms(int64_t ms) {
  return absl::Milliseconds(ms);
}

CallLane Remote(int32_t lane, std::vector<int32_t> experts = {kExpert}, int32_t numerics = 0) {
  CallLane remote{.state = {.lane = lane, .free_slots = 2, .numerics = numerics}, .remote = true};
  for (const int32_t expert : experts) remote.state.networks.push_back({.model = kModel, .network = expert});
  return remote;
}

// "hedge 4 on 1", "retry 4 on 1", "give up 4".
std::vector<std::string> Texts(const std::vector<CallMove>& moves) {
  std::vector<std::string> texts;
  for (const CallMove& move : moves) {
    if (move.action == A::kGiveUp) {
      texts.push_back("give up " + std::to_string(move.call));
    } else {
      texts.push_back(std::string(move.action == A::kHedge ? "hedge " : "retry ") + std::to_string(move.call) + " on " +
                      std::to_string(move.lane));
    }
  }
  return texts;
}

std::vector<int32_t> LanesOf(const std::vector<LaneState>& lanes) {
  std::vector<int32_t> numbers;
  for (const LaneState& lane : lanes) {
    if (!lane.networks.empty()) numbers.push_back(lane.lane);
  }
  return numbers;
}

// Two servers that host one expert, whose calls of one row take 10 ms: late after 200.
class CallTableTest : public ::testing::Test {
 protected:
  CallTableTest() {
    SetLanes({Remote(0), Remote(1)});
    Warm(kExpert);
  }

  void SetLanes(std::vector<CallLane> lanes) { table_.SetLanes(lanes); }
  void Start(int64_t call, int32_t lane, int32_t expert = kExpert, int32_t numerics = 0) {
    table_.Start(call, kModel, expert, 1, numerics, lane, now_);
  }
  void Warm(int32_t expert) {
    Start(next_warm_, 0, expert);
    now_ += Ms(10);
    ASSERT_TRUE(table_.Answered(next_warm_++, 0, now_));
  }
  std::vector<std::string> Decide(absl::Duration passed) {
    now_ += passed;
    return Texts(table_.Decide(now_));
  }
  // Lane 0 takes calls and answers none, until it is quarantined.
  void QuarantineLane0() {
    Start(901, 0);
    Start(902, 0);
    EXPECT_THAT(Decide(Ms(200)), ElementsAre("retry 901 on 1", "retry 902 on 1"));
    EXPECT_TRUE(table_.Answered(901, 1, now_));
    EXPECT_TRUE(table_.Answered(902, 1, now_));
    EXPECT_EQ(table_.health(0), LaneHealth::kQuarantined);
  }

  int64_t next_warm_ = 1000;
  absl::Duration now_ = absl::Seconds(100);
  CallTable table_;
};

TEST_F(CallTableTest, AnAnswerInTimeEndsTheCall) {
  Start(1, 0);
  EXPECT_THAT(Decide(Ms(199)), IsEmpty());
  EXPECT_EQ(table_.look_again_at(), now_ + Ms(1));
  EXPECT_TRUE(table_.Answered(1, 0, now_));
  EXPECT_THAT(Decide(absl::Hours(1)), IsEmpty());
  EXPECT_EQ(table_.look_again_at(), absl::InfiniteDuration());
}

TEST_F(CallTableTest, ALateCallIsHedgedAndTheFirstAnswerCounts) {
  Start(1, 0);
  EXPECT_THAT(Decide(Ms(200)), ElementsAre("hedge 1 on 1"));
  EXPECT_THAT(Decide(Ms(1)), IsEmpty());
  EXPECT_TRUE(table_.Answered(1, 1, now_));
  EXPECT_THAT(table_.Owing(1), ElementsAre(0));
  EXPECT_FALSE(table_.Answered(1, 0, now_)) << "the loser's answer is late";
  EXPECT_FALSE(table_.Answered(1, 0, now_)) << "and comes once";
  EXPECT_THAT(table_.Owing(1), IsEmpty());
  EXPECT_EQ(table_.counts().hedges, 1);
  EXPECT_EQ(table_.counts().late_answers, 1);
}

TEST_F(CallTableTest, TheFirstMayStillWin) {
  Start(1, 0);
  EXPECT_THAT(Decide(Ms(200)), ElementsAre("hedge 1 on 1"));
  EXPECT_TRUE(table_.Answered(1, 0, now_));
  EXPECT_EQ(table_.health(0), LaneHealth::kHealthy) << "it answered after all";
  EXPECT_FALSE(table_.Answered(1, 1, now_));
}

TEST_F(CallTableTest, AFailedCallIsRetriedAtOnce) {
  Start(1, 0);
  table_.Failed(1, 0, now_);
  EXPECT_THAT(Decide(Ms(0)), ElementsAre("retry 1 on 1"));
  EXPECT_EQ(table_.health(0), LaneHealth::kSuspect);
  EXPECT_TRUE(table_.Answered(1, 1, now_));
  EXPECT_EQ(table_.counts().retries, 1);
}

TEST_F(CallTableTest, ALaneThatHasTheNetworkNoLongerIsNoneThatFails) {
  for (const int64_t call : {1, 2}) Start(call, 0);
  for (const int64_t call : {1, 2}) table_.Failed(call, 0, now_, /*lives=*/true);
  EXPECT_EQ(table_.health(0), LaneHealth::kHealthy);
  EXPECT_THAT(Decide(Ms(0)), ElementsAre("retry 1 on 1", "retry 2 on 1"));
}

TEST_F(CallTableTest, CallsUnderWayOnAStoppedLaneWaitOneDeadlineTogether) {
  QuarantineLane0();
  EXPECT_THAT(LanesOf(table_.Usable(now_)), ElementsAre(1)) << "steps to come do not wait at all";
}

TEST_F(CallTableTest, ASuspectLaneRestsWhileAHealthyOneHosts) {
  Start(1, 0);
  EXPECT_THAT(Decide(Ms(200)), ElementsAre("hedge 1 on 1"));
  EXPECT_EQ(table_.health(0), LaneHealth::kSuspect);
  EXPECT_THAT(LanesOf(table_.Usable(now_)), ElementsAre(1));
  SetLanes({Remote(0)});
  EXPECT_THAT(LanesOf(table_.Usable(now_)), ElementsAre(0));
}

TEST_F(CallTableTest, ProbesAreCopiesAndFindALaneThatIsBack) {
  QuarantineLane0();
  Start(1, 1);
  EXPECT_EQ(table_.TakeProbe(1, now_), -1) << "too early";
  EXPECT_TRUE(table_.Answered(1, 1, now_));
  now_ += absl::Seconds(1);
  Start(2, 1);
  EXPECT_EQ(table_.TakeProbe(2, now_), 0);
  Start(3, 1);
  EXPECT_EQ(table_.TakeProbe(3, now_), -1) << "one at a time";
  EXPECT_TRUE(table_.Answered(2, 1, now_)) << "the call does not wait for its copy";
  EXPECT_THAT(table_.Owing(2), IsEmpty()) << "a probe is not cancelled";
  EXPECT_EQ(table_.health(0), LaneHealth::kQuarantined);
  EXPECT_FALSE(table_.Answered(2, 0, now_ + Ms(5)));
  EXPECT_EQ(table_.health(0), LaneHealth::kHealthy);
  EXPECT_EQ(table_.counts().probes, 1);
  EXPECT_EQ(table_.counts().hedges, 0);
}

TEST_F(CallTableTest, AProbeThatFailsOrIsLateIsFollowedByALaterOne) {
  QuarantineLane0();
  int64_t call = 1;
  absl::Duration asked = now_;
  absl::Duration backoff = Ms(500);
  for (const bool fails : {true, false, true, false}) {
    for (;; now_ += Ms(100)) {
      Start(++call, 1);
      const int32_t lane = table_.TakeProbe(call, now_);
      EXPECT_TRUE(table_.Answered(call, 1, now_));
      if (lane == 0) break;
      ASSERT_LT(now_ - asked, absl::Minutes(1)) << "no probe";
    }
    EXPECT_GE(now_ - asked, backoff);
    backoff *= 2;
    if (fails) {
      table_.Failed(call, 0, now_);
    } else {
      EXPECT_THAT(Decide(Ms(200)), IsEmpty());
    }
    asked = now_;
    EXPECT_EQ(table_.health(0), LaneHealth::kQuarantined);
  }
}

TEST_F(CallTableTest, TheLastReplicaIsProbedWithACallThatHasNoOtherLane) {
  SetLanes({Remote(0)});
  Start(1, 0);
  Start(2, 0);
  EXPECT_THAT(Decide(Ms(200)), IsEmpty());
  EXPECT_THAT(LanesOf(table_.Usable(now_)), IsEmpty());
  now_ += absl::Seconds(2);
  EXPECT_THAT(LanesOf(table_.Usable(now_)), ElementsAre(0));
  Start(3, 0);
  EXPECT_THAT(LanesOf(table_.Usable(now_)), IsEmpty()) << "one at a time";
  EXPECT_TRUE(table_.Answered(3, 0, now_));
  EXPECT_THAT(LanesOf(table_.Usable(now_)), ElementsAre(0));
  EXPECT_TRUE(table_.Answered(1, 0, now_)) << "calls that still wait are answered too";
}

TEST_F(CallTableTest, WithEveryReplicaGoneTheCallIsGivenUpWithThoseItTried) {
  Start(1, 0);
  table_.Failed(1, 0, now_);
  EXPECT_THAT(Decide(Ms(0)), ElementsAre("retry 1 on 1"));
  table_.Failed(1, 1, now_);
  SetLanes({Remote(0, {}), Remote(1, {})});
  EXPECT_THAT(Decide(Ms(0)), IsEmpty());
  EXPECT_FALSE(table_.Lost(kModel, kExpert, 0, now_));
  ASSERT_EQ(table_.look_again_at(), now_ + absl::Seconds(5));
  now_ += absl::Seconds(5);
  const std::vector<CallMove> moves = table_.Decide(now_);
  ASSERT_THAT(Texts(moves), ElementsAre("give up 1"));
  EXPECT_THAT(moves[0].tried, ElementsAre(0, 1));
  EXPECT_TRUE(table_.Lost(kModel, kExpert, 0, now_)) << "calls to come do not wait again";
  EXPECT_FALSE(table_.Lost(kModel, kRouterNetwork, 0, now_)) << "another network has its own wait";
  SetLanes({Remote(0), Remote(1, {})});
  EXPECT_FALSE(table_.Lost(kModel, kExpert, 0, now_)) << "it is back";
}

TEST_F(CallTableTest, ALaneThatIsBackIsJudgedAnew) {
  QuarantineLane0();
  SetLanes({Remote(0, {}), Remote(1)});
  EXPECT_EQ(table_.health(0), LaneHealth::kQuarantined);
  SetLanes({Remote(0), Remote(1)});
  EXPECT_EQ(table_.health(0), LaneHealth::kHealthy);
}

TEST_F(CallTableTest, ALocalLaneIsNeverLate) {
  CallLane local = Remote(2);
  local.remote = false;
  SetLanes({local, Remote(1)});
  Start(1, 2);
  EXPECT_THAT(Decide(absl::Hours(1)), IsEmpty());
  EXPECT_EQ(table_.health(2), LaneHealth::kHealthy);
  EXPECT_TRUE(table_.Answered(1, 2, now_));
}

TEST_F(CallTableTest, AFailureOfALocalLaneIsItsNetworksAlone) {
  CallLane local = Remote(0, {kExpert, kExpert + 1});
  local.remote = false;
  SetLanes({local});
  for (const int64_t call : {1, 2}) Start(call, 0);
  for (const int64_t call : {1, 2}) table_.Failed(call, 0, now_);
  EXPECT_EQ(table_.health(0), LaneHealth::kHealthy);
  EXPECT_THAT(Decide(Ms(100)), ElementsAre("retry 1 on 0", "retry 2 on 0"));
}

TEST_F(CallTableTest, ReproducibleCallsStayAmongEqualArithmetic) {
  SetLanes({Remote(0, {kExpert}, 1), Remote(1, {kExpert}, 2), Remote(2, {kExpert}, 1)});
  Start(1, 0, kExpert, 1);
  table_.Failed(1, 0, now_);
  EXPECT_THAT(Decide(Ms(0)), ElementsAre("retry 1 on 2"));
}

TEST_F(CallTableTest, OtherArithmeticIsNoReplicaOfAReproducibleCall) {
  SetLanes({Remote(0, {kExpert}, 1), Remote(1, {kExpert}, 2)});
  Start(1, 0, kExpert, 1);
  table_.Failed(1, 0, now_);
  SetLanes({Remote(0, {}, 1), Remote(1, {kExpert}, 2)});
  EXPECT_THAT(Decide(absl::Seconds(4)), IsEmpty());
  EXPECT_FALSE(table_.Lost(kModel, kExpert, 1, now_));
  EXPECT_THAT(Decide(absl::Seconds(5)), ElementsAre("give up 1"));
  EXPECT_TRUE(table_.Lost(kModel, kExpert, 1, now_));
  EXPECT_FALSE(table_.Lost(kModel, kExpert, 2, now_));
  EXPECT_FALSE(table_.Lost(kModel, kExpert, 0, now_));
}

TEST_F(CallTableTest, ADroppedCallIsNotHedgedAndItsFailureBlamesNobody) {
  Start(1, 0);
  table_.Drop(1);
  EXPECT_THAT(table_.Owing(1), ElementsAre(0));
  table_.Failed(1, 0, now_);  // cancelled
  EXPECT_EQ(table_.health(0), LaneHealth::kHealthy);
  EXPECT_THAT(Decide(absl::Hours(1)), IsEmpty());
}

TEST_F(CallTableTest, RetriesAndHedgesStayWithinTheBudget) {
  // Every first attempt fails at once, for long.
  for (int64_t call = 1; call <= 2000; ++call) {
    Start(call, 0);
    table_.Failed(call, 0, now_);
    for (const CallMove& move : table_.Decide(now_)) EXPECT_TRUE(table_.Answered(move.call, move.lane, now_));
  }
  EXPECT_GE(table_.counts().retries, 200);
  EXPECT_LE(table_.counts().retries, 200 + 16 + 1);
}

TEST_F(CallTableTest, AModelThatIsGoneLeavesNothing) {
  table_.Forget(kModel);
  Start(1, 0);
  EXPECT_THAT(Decide(absl::Seconds(4)), IsEmpty()) << "nothing measured: the deadline is wide again";
  EXPECT_TRUE(table_.Answered(1, 0, now_));
}

}  // namespace
}  // namespace atl::router
