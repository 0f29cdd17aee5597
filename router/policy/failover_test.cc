#include "router/policy/failover.h"

#include <functional>
#include <map>

#include "common/base/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::router {
namespace {

using A = FailoverAction;
constexpr absl::Duration kInfinite = absl::InfiniteDuration();
constexpr auto kSuspect = LaneHealth::kSuspect;
constexpr auto kQuarantined = LaneHealth::kQuarantined;

constexpr absl::Duration Ms(int64_t ms) {
  return absl::Milliseconds(ms);
}

// Calls of one row are late after 200 ms.
FailoverState State(std::vector<CallAttempt> attempts, std::vector<Replica> replicas) {
  return {.attempts = std::move(attempts), .replicas = std::move(replicas), .p95_per_row = Ms(10)};
}

FailoverState With(FailoverState state, const std::function<void(FailoverState&)>& change) {
  change(state);
  return state;
}

CallAttempt Open(int32_t lane, absl::Duration started) {
  return {.lane = lane, .started = started};
}
CallAttempt Failed(int32_t lane, absl::Duration started, absl::Duration at) {
  return {.lane = lane, .started = started, .failed_at = at};
}

struct FailoverCase {
  std::string name;
  absl::Duration now;
  FailoverState state;
  A action;
  int32_t lane = 0;                          // of kRetry and kHedge
  absl::Duration look_again_at = kInfinite;  // of kWait
};

class FailoverTest : public ::testing::TestWithParam<FailoverCase> {};

TEST_P(FailoverTest, Decides) {
  const FailoverCase& c = GetParam();
  const FailoverDecision decision = DecideFailover(c.now, c.state);
  EXPECT_EQ(decision.action, c.action) << decision.reason;
  EXPECT_EQ(decision.lane, c.lane) << decision.reason;
  EXPECT_EQ(decision.look_again_at, c.look_again_at) << decision.reason;
  EXPECT_FALSE(decision.reason.empty());
}

std::string NameOf(const ::testing::TestParamInfo<FailoverCase>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(
    Late, FailoverTest,
    ::testing::Values(
        FailoverCase{"InTimeWaits", Ms(199), State({Open(0, Ms(0))}, {{0}, {1}}), A::kWait, 0, Ms(200)},
        FailoverCase{"LateIsHedged", Ms(200), State({Open(0, Ms(0))}, {{0}, {1}}), A::kHedge, 1},
        FailoverCase{"LateAloneWaits", Ms(200), State({Open(0, Ms(0))}, {{0}}), A::kWait, 0, absl::Seconds(30)},
        FailoverCase{"TheHedgeHasItsOwnDeadline", Ms(399),
                     With(State({Open(0, Ms(0)), Open(1, Ms(200))}, {{0}, {1}, {2}}), [](auto& s) { s.hedges = 1; }),
                     A::kWait, 0, Ms(400)},
        FailoverCase{"OneHedgePerStep", Ms(500),
                     With(State({Open(0, Ms(0)), Open(1, Ms(200))}, {{0}, {1}, {2}}), [](auto& s) { s.hedges = 1; }),
                     A::kWait, 0, absl::Seconds(30)},
        FailoverCase{
            "AHedgeThatFailsLeavesTheFirst", Ms(500),
            With(State({Open(0, Ms(0)), Failed(1, Ms(200), Ms(210))}, {{0}, {1}, {2}}), [](auto& s) { s.hedges = 1; }),
            A::kWait, 0, absl::Seconds(30)},
        FailoverCase{"LateOnAQuarantinedLaneIsRetriedAtOnce", Ms(200),
                     State({Open(0, Ms(0))}, {{0, kQuarantined}, {1}}), A::kRetry, 1},
        FailoverCase{"InTimeOnAQuarantinedLaneWaits", Ms(100), State({Open(0, Ms(0))}, {{0, kQuarantined}, {1}}),
                     A::kWait, 0, Ms(200)},
        FailoverCase{"LateOnALaneOutOfReachIsRetriedAtOnce", Ms(200), State({Open(0, Ms(0))}, {{1}}), A::kRetry, 1},
        FailoverCase{"BothLateOnQuarantinedLanesGoToAThird", Ms(500),
                     With(State({Open(0, Ms(0)), Open(1, Ms(200))}, {{0, kQuarantined}, {1, kQuarantined}, {2}}),
                          [](auto& s) { s.hedges = 1; }),
                     A::kRetry, 2},
        FailoverCase{"NothingIsExpectedOfACallForEver", absl::Seconds(30), State({Open(0, Ms(0))}, {{0}, {1}}),
                     A::kRetry, 1},
        FailoverCase{"ALocalCallIsNeverLate", absl::Hours(1),
                     State({{.lane = 0, .remote = false, .started = Ms(0)}}, {{0}, {1}}), A::kWait, 0, kInfinite},
        FailoverCase{"RowsStretchTheDeadline", Ms(319),
                     With(State({Open(0, Ms(0))}, {{0}, {1}}), [](auto& s) { s.rows = 8; }), A::kWait, 0, Ms(320)},
        FailoverCase{"LoadingStretchesTheDeadline", Ms(1000),
                     State({{.lane = 0, .started = Ms(0), .loads_first = true}}, {{0}, {1}}), A::kWait, 0,
                     absl::Minutes(1) + Ms(200)},
        FailoverCase{"WithoutMeasurementsTheDeadlineIsWide", Ms(4999),
                     With(State({Open(0, Ms(0))}, {{0}, {1}}), [](auto& s) { s.p95_per_row = absl::ZeroDuration(); }),
                     A::kWait, 0, absl::Seconds(5)}),
    NameOf);

INSTANTIATE_TEST_SUITE_P(
    Replicas, FailoverTest,
    ::testing::Values(FailoverCase{"FailedIsRetriedElsewhereAtOnce", Ms(10),
                                   State({Failed(0, Ms(0), Ms(10))}, {{0}, {1}}), A::kRetry, 1},
                      FailoverCase{"HealthyBeforeSuspect", Ms(10),
                                   State({Failed(0, Ms(0), Ms(10))}, {{0}, {1, kSuspect, 5}, {2}}), A::kRetry, 2},
                      FailoverCase{"SuspectBeforeNone", Ms(10), State({Failed(0, Ms(0), Ms(10))}, {{0}, {1, kSuspect}}),
                                   A::kRetry, 1},
                      FailoverCase{"IdleBeforeBusy", Ms(10),
                                   State({Failed(0, Ms(0), Ms(10))},
                                         {{0}, {.lane = 1, .free_slots = 0}, {.lane = 2, .free_slots = 1}}),
                                   A::kRetry, 2},
                      FailoverCase{"UntriedBeforeTried", Ms(500),
                                   State({Failed(0, Ms(0), Ms(10)), Failed(1, Ms(10), Ms(20))},
                                         {{.lane = 0, .free_slots = 9}, {.lane = 1, .free_slots = 9}, {2, kSuspect}}),
                                   A::kRetry, 2},
                      FailoverCase{"TheOnlyOneIsTriedAgainAfterABackoff", Ms(10),
                                   State({Failed(0, Ms(0), Ms(10))}, {{0}}), A::kWait, 0, Ms(110)},
                      FailoverCase{"AndThenCalled", Ms(110), State({Failed(0, Ms(0), Ms(10))}, {{0}}), A::kRetry, 0},
                      FailoverCase{"TheBackoffDoubles", Ms(120),
                                   State({Failed(0, Ms(0), Ms(10)), Failed(0, Ms(110), Ms(120))}, {{0}}), A::kWait, 0,
                                   Ms(320)},
                      FailoverCase{"AttemptsAreLimited", Ms(1000),
                                   State({Failed(0, Ms(0), Ms(1)), Failed(1, Ms(1), Ms(2)), Failed(2, Ms(2), Ms(3)),
                                          Failed(3, Ms(3), Ms(4)), Failed(4, Ms(4), Ms(5)), Failed(5, Ms(5), Ms(6))},
                                         {{0}, {1}, {2}, {3}, {4}, {5}, {6}}),
                                   A::kGiveUp}),
    NameOf);

INSTANTIATE_TEST_SUITE_P(
    NoReplica, FailoverTest,
    ::testing::Values(
        FailoverCase{"ANewOneMayCome", Ms(10), State({Failed(0, Ms(0), Ms(10))}, {}), A::kWait, 0, Ms(5010)},
        FailoverCase{"ButNotForEver", Ms(5010), State({Failed(0, Ms(0), Ms(10))}, {}), A::kGiveUp},
        FailoverCase{"ItComes", Ms(5009), State({Failed(0, Ms(0), Ms(10))}, {{1}}), A::kRetry, 1},
        FailoverCase{"TheWaitCountsFromTheLossNotFromTheStep", Ms(8010),
                     With(State({Failed(0, Ms(8000), Ms(8010))}, {}), [](auto& s) { s.no_replica_since = Ms(3000); }),
                     A::kGiveUp},
        FailoverCase{"QuarantinedIsNone", Ms(5200), State({Open(0, Ms(0))}, {{0, kQuarantined}, {1, kQuarantined}}),
                     A::kGiveUp},
        FailoverCase{"NotStartedWaitsForTheScheduler", Ms(5000), State({}, {{0}}), A::kWait, 0, kInfinite},
        FailoverCase{"NotStartedWithoutReplicaWaits", Ms(7999),
                     With(State({}, {}), [](auto& s) { s.no_replica_since = Ms(3000); }), A::kWait, 0, Ms(8000)},
        FailoverCase{"NotStartedWithoutReplicaIsLost", Ms(8000),
                     With(State({}, {}), [](auto& s) { s.no_replica_since = Ms(3000); }), A::kGiveUp}),
    NameOf);

INSTANTIATE_TEST_SUITE_P(
    Budget, FailoverTest,
    ::testing::Values(
        FailoverCase{"AHedgeWaitsForTheBudget", Ms(200),
                     With(State({Open(0, Ms(0))}, {{0}, {1}}), [](auto& s) { s.budget_at = Ms(700); }), A::kWait, 0,
                     Ms(700)},
        FailoverCase{"ARetryWaitsForTheBudget", Ms(10),
                     With(State({Failed(0, Ms(0), Ms(10))}, {{0}, {1}}), [](auto& s) { s.budget_at = Ms(700); }),
                     A::kWait, 0, Ms(700)},
        FailoverCase{"ARetryWithinTheBudget", Ms(700),
                     With(State({Failed(0, Ms(0), Ms(10))}, {{0}, {1}}), [](auto& s) { s.budget_at = Ms(700); }),
                     A::kRetry, 1},
        FailoverCase{"AnEmptyBudgetIsLookedAtAgain", Ms(10),
                     With(State({Failed(0, Ms(0), Ms(10))}, {{0}, {1}}), [](auto& s) { s.budget_at = kInfinite; }),
                     A::kWait, 0, Ms(5010)},
        FailoverCase{"AndEndsTheStepAtLast", Ms(5010),
                     With(State({Failed(0, Ms(0), Ms(10))}, {{0}, {1}}), [](auto& s) { s.budget_at = kInfinite; }),
                     A::kGiveUp}),
    NameOf);

const std::vector<Replica> kMixedReplicas{
    {.lane = 0, .numerics = 1}, {.lane = 1, .free_slots = 9, .numerics = 2}, {.lane = 2, .numerics = 1}};

INSTANTIATE_TEST_SUITE_P(
    Reproducible, FailoverTest,
    ::testing::Values(
        FailoverCase{"AnyReplicaServesOthers", Ms(10), State({Failed(0, Ms(0), Ms(10))}, kMixedReplicas), A::kRetry, 1},
        FailoverCase{"OnlyTheSameNumericsServeIt", Ms(10),
                     With(State({Failed(0, Ms(0), Ms(10))}, kMixedReplicas), [](auto& s) { s.numerics = 1; }),
                     A::kRetry, 2},
        FailoverCase{"HedgesToo", Ms(200),
                     With(State({Open(0, Ms(0))}, kMixedReplicas), [](auto& s) { s.numerics = 1; }), A::kHedge, 2},
        FailoverCase{
            "OtherNumericsAreNoReplica", Ms(5010),
            With(State({Failed(0, Ms(0), Ms(10))}, {{.lane = 1, .numerics = 2}}), [](auto& s) { s.numerics = 1; }),
            A::kGiveUp}),
    NameOf);

// One stopped server of three, all times by the decisions alone.
TEST(FailoverStoryTest, AStepUnderAStoppedServerEndsWithinItsDeadlineAndOneCall) {
  FailoverState state = State({Open(0, Ms(0))}, {{0}, {1}, {2}});
  FailoverDecision decision = DecideFailover(Ms(0), state);
  ASSERT_EQ(decision.action, A::kWait);
  const absl::Duration now = decision.look_again_at;
  decision = DecideFailover(now, state);
  ASSERT_EQ(decision.action, A::kHedge);
  EXPECT_EQ(now, StepDeadline(state, false));
}

// Whatever happens, a step that gets no answer ends, with few calls: the decision is asked until it gives up.
TEST(FailoverStoryTest, EveryStepEnds) {
  for (const bool failing : {true, false}) {
    FailoverState state = State({Open(0, Ms(0))}, {{0}, {1}, {2}});
    std::map<int32_t, LaneRecord> health;
    absl::Duration now;
    FailoverDecision decision;
    for (int round = 0; round < 100; ++round) {
      if (failing) {
        for (CallAttempt& attempt : state.attempts) {
          if (attempt.failed_at) continue;
          now += Ms(5);
          attempt.failed_at = now;
          health[attempt.lane].Missed(now);
        }
      }
      for (Replica& replica : state.replicas) replica.health = health[replica.lane].health();
      decision = DecideFailover(now, state);
      if (decision.action == A::kGiveUp) break;
      if (decision.action == A::kWait) {
        ASSERT_GT(decision.look_again_at, now) << decision.reason;
        ASSERT_LT(decision.look_again_at, kInfinite) << decision.reason;
        now = decision.look_again_at;
        continue;
      }
      state.attempts.push_back(Open(decision.lane, now));
      if (decision.action == A::kHedge) ++state.hedges;
    }
    EXPECT_EQ(decision.action, A::kGiveUp) << "failing " << failing;
    EXPECT_LE(static_cast<int32_t>(state.attempts.size()), kMaxAttempts);
    EXPECT_LE(state.hedges, 1);
    EXPECT_LE(now, absl::Minutes(3));
  }
}

TEST(StepDeadlineTest, IsFourTimesTheUsualAndAtLeast200Milliseconds) {
  FailoverState state{.rows = 4, .p95_per_row = Ms(3)};
  EXPECT_EQ(StepDeadline(state, false), Ms(200));
  state.rows = 64;
  EXPECT_EQ(StepDeadline(state, false), Ms(4 * 64 * 3));
}

TEST(RetryBudgetTest, AShareOfTheCalls) {
  RetryBudget budget;
  int retries = 0;
  for (int i = 0; i < 1000; ++i) {
    budget.Called();
    // Every call fails and is retried as often as may be.
    while (budget.AvailableAt(Ms(0)) == Ms(0)) {
      budget.Take(Ms(0));
      ++retries;
    }
  }
  EXPECT_GE(retries, 100);
  EXPECT_LE(retries, 100 + RetryBudget::kReserve);
}

TEST(RetryBudgetTest, NoMoreThanTheReserveIsSavedUp) {
  RetryBudget budget;
  for (int i = 0; i < 10'000; ++i) budget.Called();
  const absl::Duration later = absl::Hours(1);
  for (int i = 0; i < RetryBudget::kReserve; ++i) {
    ASSERT_EQ(budget.AvailableAt(later), later);
    budget.Take(later);
  }
  EXPECT_GT(budget.AvailableAt(later), later);
}

TEST(RetryBudgetTest, RefillsWithTimeToo) {
  RetryBudget budget;
  for (int i = 0; i < RetryBudget::kReserve; ++i) budget.Take(Ms(1000));
  const absl::Duration at = budget.AvailableAt(Ms(1000));
  EXPECT_GE(at, Ms(2000));
  EXPECT_LE(at, Ms(2001));
  EXPECT_GT(budget.AvailableAt(Ms(1999)), Ms(1999));
  EXPECT_EQ(budget.AvailableAt(at), at);
}

TEST(FailoverErrorTest, OnlyWhatAnotherReplicaMayDoBetter) {
  EXPECT_TRUE(IsFailoverError(MakeError(absl::StatusCode::kUnavailable, "CANNOT_LISTEN", "")));
  EXPECT_TRUE(IsFailoverError(MakeError(absl::StatusCode::kNotFound, "NETWORK_NOT_HOSTED", "")));
  EXPECT_TRUE(IsFailoverError(absl::DeadlineExceededError("dropped")));
  EXPECT_FALSE(IsFailoverError(MakeError(absl::StatusCode::kNotFound, "BLOB_NOT_FOUND", "")));
  EXPECT_FALSE(IsFailoverError(MakeError(absl::StatusCode::kInternal, "NON_FINITE_OUTPUT", "")));
  EXPECT_FALSE(IsFailoverError(absl::InvalidArgumentError("shape")));
}

TEST(ExpertLostTest, NamesTheExpertAndTheReplicas) {
  const std::vector<std::string> replicas{"10.0.0.1:7000", "10.0.0.2:7000"};
  const absl::Status status =
      ExpertLost({.model = "digits", .version = "v2", .expert = 3}, replicas, "no replica is left");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReason(status), "EXPERT_LOST");
  EXPECT_THAT(std::string(status.message()),
              ::testing::AllOf(::testing::HasSubstr("expert 3 of model 'digits' version 'v2'"),
                               ::testing::HasSubstr("'10.0.0.1:7000', '10.0.0.2:7000'")));
}

}  // namespace
}  // namespace atl::router
