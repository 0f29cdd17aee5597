// The engine over lanes that fail, fall silent or answer late: what reaches the requests.
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/errors.h"
#include "common/base/fake_clock.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/engine/engine.h"
#include "router/engine/testing/fake_backend.h"
#include "router/engine/testing/recorded_events.h"
#include "router/engine/testing/scripted_lane.h"
#include "router/engine/testing/ticked_engine.h"

namespace atl::router {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr absl::Duration kLimit = absl::Milliseconds(200);  // of a first attempt at the small batches here

SamplerInfo Info() {
  return {.model = "digits", .version = "v1", .experts = 2, .classes = 10, .channels = 1, .height = 2, .width = 2};
}

class Counted : public EngineObserver {
 public:
  void OnBatch(const BatchStats& /*stats*/) override { ++batches; }
  void OnFailover(const FailoverStats& stats) override { ++(stats.lost ? lost : retries); }
  void OnImageStep(const std::string& /*model*/, absl::Duration /*duration*/) override {}
  void OnQueue(const QueueStats& /*stats*/) override {}
  void OnRequestEnd(const RequestStats& /*stats*/) override {}
  void OnRejected(const std::string& /*model*/, absl::StatusCode /*code*/) override {}

  int batches = 0;
  int retries = 0;
  int lost = 0;
};

// The router network on a local lane that answers; the experts on servers "a" and "b". Classes of even number are
// drawn by expert 0, others by expert 1; both equally likely where a test says so.
class EngineFailoverTest : public ::testing::Test {
 protected:
  EngineFailoverTest() {
    backend_->velocity = [](int32_t expert, std::span<const float> x, float /*t*/, int64_t /*class_row*/) {
      return std::vector<float>(x.size(), expert == 0 ? 1.0F : 4.0F);
    };
    engine_.Serve(std::make_shared<ServedVersion>(ServedVersion{.info = Info()}));
    local_ = AddLane("local", {kRouterNetwork}, /*remote=*/false);
    a_ = AddLane("a", {0, 1});
    b_ = AddLane("b", {0, 1});
    // Calls of both experts are measured, so that it is known how long they take.
    const auto warm = Submit({0, 1}, 20);
    RunUntilOver(warm, {a_, b_});
    EXPECT_EQ(warm->log().back(), "done");
  }

  std::shared_ptr<ScriptedLane> AddLane(const std::string& name, const std::vector<int32_t>& networks,
                                        bool remote = true) {
    auto lane = std::make_shared<ScriptedLane>(LaneInfo{.name = name, .remote = remote, .slots = 2}, backend_);
    lane->Host(networks);
    engine_.AddLane(lane);
    return lane;
  }
  std::shared_ptr<RecordedEvents> Submit(std::vector<int32_t> classes, int32_t steps, bool allow_loss = false,
                                         RoutingRule routing = {}, Solver solver = Solver::kEuler) {
    SampleRequest request{.classes = std::move(classes), .routing = routing, .solver = solver, .steps = steps};
    request.guidance = 1.0;
    request.format = ImageFormat::kRaw;
    request.allow_expert_loss = allow_loss;
    auto events = std::make_shared<RecordedEvents>();
    auto ticket = engine_.Submit(request, absl::InfiniteDuration(), events);
    EXPECT_TRUE(ticket.ok()) << ticket.status();
    if (ticket.ok()) tickets_[events.get()] = *std::move(ticket);
    return events;
  }
  // The local lane and `living` answer at once; time passes by `pace` per round.
  void Round(const std::vector<std::shared_ptr<ScriptedLane>>& living, absl::Duration pace = absl::Milliseconds(1)) {
    engine_.RunTick();
    local_->AnswerAll();
    for (const auto& lane : living) lane->AnswerAll();
    clock_.Advance(pace);
    for (const auto& lane : {a_, b_}) {
      if (lane != nullptr) lane->Expire(clock_.Monotonic());
    }
  }
  // How long it took, by the clock.
  absl::Duration RunUntilOver(const std::shared_ptr<RecordedEvents>& events,
                              const std::vector<std::shared_ptr<ScriptedLane>>& living) {
    const absl::Duration start = clock_.Monotonic();
    for (int i = 0; i < 100'000 && !events->over(); ++i) Round(living);
    EXPECT_TRUE(events->over()) << "it hangs";
    return clock_.Monotonic() - start;
  }
  // Until the lane holds a batch of an expert.
  void RunUntilHeld(const std::shared_ptr<ScriptedLane>& lane) {
    for (int i = 0; i < 1000 && lane->started().empty(); ++i) Round({});
    ASSERT_FALSE(lane->started().empty());
  }
  void BothLikely() {
    backend_->posterior = [](std::span<const float> /*x*/, float /*t*/, int64_t /*class_row*/) {
      return std::vector<float>{0.5F, 0.5F};
    };
  }

  FakeClock clock_;
  Counted counted_;
  std::shared_ptr<FakeBackend> backend_ = std::make_shared<FakeBackend>(Info());
  TickedEngine engine_{{}, &clock_, &counted_};
  std::shared_ptr<ScriptedLane> local_;
  std::shared_ptr<ScriptedLane> a_;
  std::shared_ptr<ScriptedLane> b_;
  std::map<RecordedEvents*, std::unique_ptr<SampleTicket>> tickets_;
};

constexpr RoutingRule kBoth{.mode = RoutingMode::kTopK, .top_k = 2};

TEST_F(EngineFailoverTest, AFailedBatchIsTakenByTheOtherReplica) {
  const auto events = Submit({0}, 2);
  RunUntilHeld(a_);
  a_->FailAll(absl::UnavailableError("connection reset"));
  a_->Host({});
  RunUntilOver(events, {b_});
  EXPECT_EQ(events->log().back(), "done");
  EXPECT_EQ(events->report().routing.failovers, 1) << "the second step went to the living lane at once";
  EXPECT_EQ(counted_.retries, 1);
}

TEST_F(EngineFailoverTest, ASilentLaneCostsOneLimitOnce) {
  const auto events = Submit({0}, 20);
  RunUntilHeld(a_);
  const absl::Duration took = RunUntilOver(events, {b_});
  EXPECT_EQ(events->log().back(), "done");
  EXPECT_EQ(events->report().routing.failovers, 1);
  EXPECT_EQ(counted_.retries, 1);
  EXPECT_LE(took, kLimit + absl::Milliseconds(20 * 10)) << "later steps avoid the lane";
}

TEST_F(EngineFailoverTest, ALaneThatAnswersAgainIsUsedAgain) {
  const auto events = Submit({0}, 20);
  RunUntilHeld(a_);
  RunUntilOver(events, {b_});
  EXPECT_EQ(events->log().back(), "done");
  EXPECT_FLOAT_EQ(events->Pixels(0)[0], [&] {
    const auto alone = Submit({0}, 20);
    RunUntilOver(alone, {a_, b_});
    return alone->Pixels(0)[0];
  }()) << "the same seed without a loss";
  // One batch at a time at first; the other lane is gone.
  b_->Host({});
  clock_.Advance(absl::Seconds(1));
  const auto next = Submit({0, 1}, 1);
  RunUntilHeld(a_);
  EXPECT_THAT(a_->started(), SizeIs(1));
  a_->AnswerAll();
  const auto more = Submit({0, 1}, 1);
  for (int i = 0; i < 3; ++i) Round({});
  EXPECT_THAT(a_->started(), SizeIs(2));
  RunUntilOver(next, {a_});
  RunUntilOver(more, {a_});
  EXPECT_EQ(next->report().routing.failovers, 0);
}

TEST_F(EngineFailoverTest, ANetworkThatALaneNoLongerHasIsAskedElsewhereAndTheLaneForItsOthers) {
  const auto events = Submit({0}, 3);
  RunUntilHeld(a_);
  a_->FailAll(MakeError(absl::StatusCode::kNotFound, "NETWORK_NOT_HOSTED", "dropped"));
  RunUntilOver(events, {b_});
  EXPECT_EQ(events->log().back(), "done");
  EXPECT_EQ(events->report().routing.failovers, 1);
  EXPECT_EQ(counted_.retries, 1) << "its list still names the network";
  const auto other = Submit({1}, 1);
  RunUntilHeld(a_);
  RunUntilOver(other, {a_});
  EXPECT_EQ(other->log().back(), "done");
}

TEST_F(EngineFailoverTest, OnlyAServerMayDropABatchThatTakesLong) {
  const auto events = Submit({0}, 1);
  engine_.RunTick();
  ASSERT_THAT(local_->started(), SizeIs(1));
  EXPECT_EQ(local_->started()[0]->deadline, absl::InfiniteDuration());
  RunUntilHeld(a_);
  EXPECT_LT(a_->started()[0]->deadline, absl::InfiniteDuration());
  RunUntilOver(events, {a_, b_});
}

TEST_F(EngineFailoverTest, WithEveryReplicaGoneTheRequestFailsByName) {
  const auto events = Submit({1}, 2);
  RunUntilHeld(a_);
  a_->FailAll(absl::UnavailableError("connection reset"));
  a_->Host({});
  RunUntilHeld(b_);
  b_->FailAll(absl::UnavailableError("connection refused"));
  b_->Host({});
  RunUntilOver(events, {});
  EXPECT_EQ(events->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReason(events->status()), "EXPERT_LOST");
  EXPECT_THAT(std::string(events->status().message()),
              AllOf(HasSubstr("expert 1 of model 'digits' version 'v1'"),
                    HasSubstr("'a': connection reset; 'b': connection refused")));
  EXPECT_EQ(counted_.lost, 1);
}

TEST_F(EngineFailoverTest, SilentReplicasAllGoneEndTheRequestToo) {
  const auto events = Submit({1}, 2);
  RunUntilHeld(a_);
  const absl::Duration took = RunUntilOver(events, {});
  EXPECT_EQ(ErrorReason(events->status()), "EXPERT_LOST");
  EXPECT_LE(took, absl::Minutes(1));
}

TEST_F(EngineFailoverTest, ARequestThatAllowsItGoesOnWithTheOtherExpert) {
  BothLikely();
  a_->Host({0});
  b_->Host({0});
  const auto refuses = Submit({0}, 4, /*allow_loss=*/false, kBoth);
  const auto allows = Submit({0}, 4, /*allow_loss=*/true, kBoth);
  RunUntilOver(refuses, {a_, b_});
  RunUntilOver(allows, {a_, b_});
  EXPECT_EQ(ErrorReason(refuses->status()), "EXPERT_LOST");
  ASSERT_EQ(allows->log().back(), "done");
  const RoutingReport report = allows->report().routing;
  EXPECT_EQ(report.renormalised_image_steps, 4);
  EXPECT_THAT(report.lost_experts, ElementsAre(1));
  EXPECT_EQ(report.chosen[0], 4);
  EXPECT_NEAR(report.weight[0], 4, 1e-6);
  EXPECT_EQ(report.chosen[1], 0) << "it drew nothing";
  EXPECT_EQ(report.weight[1], 0);
  // As if expert 0 had drawn it alone.
  const auto alone = Submit({0}, 4, false, {.mode = RoutingMode::kOracle, .oracle_expert = 0});
  RunUntilOver(alone, {a_, b_});
  EXPECT_EQ(allows->Pixels(0), alone->Pixels(0));
}

TEST_F(EngineFailoverTest, ALossIsWaitedForOnce) {
  BothLikely();
  a_->Host({0});
  b_->Host({0});
  const auto first = Submit({0}, 1, /*allow_loss=*/true, kBoth);
  EXPECT_GE(RunUntilOver(first, {a_, b_}), absl::Seconds(4));
  const auto next = Submit({0}, 10, /*allow_loss=*/true, kBoth);
  EXPECT_LE(RunUntilOver(next, {a_, b_}), absl::Seconds(1));
  EXPECT_EQ(next->report().routing.renormalised_image_steps, 10);
  // The expert is back.
  b_->Host({0, 1});
  const auto whole = Submit({0}, 3, /*allow_loss=*/true, kBoth);
  RunUntilOver(whole, {a_, b_});
  EXPECT_EQ(whole->report().routing.renormalised_image_steps, 0);
  EXPECT_THAT(whole->report().routing.lost_experts, IsEmpty());
}

TEST_F(EngineFailoverTest, ALossAtHeunsSecondPointRedoesTheStepWithoutTheExpert) {
  BothLikely();
  a_->Host({0});
  b_->Host({1});
  const auto events = Submit({0}, 2, /*allow_loss=*/true, kBoth, Solver::kHeun);
  RunUntilHeld(b_);
  b_->AnswerAll();
  a_->AnswerAll();
  Round({});
  // At the second point of the first step.
  RunUntilHeld(b_);
  b_->FailAll(absl::UnavailableError("connection reset"));
  b_->Host({});
  RunUntilOver(events, {a_});
  ASSERT_EQ(events->log().back(), "done");
  EXPECT_EQ(events->report().routing.renormalised_image_steps, 2);
  const auto alone = Submit({0}, 2, false, {.mode = RoutingMode::kOracle, .oracle_expert = 0}, Solver::kHeun);
  RunUntilOver(alone, {a_});
  EXPECT_EQ(events->Pixels(0), alone->Pixels(0));
}

TEST_F(EngineFailoverTest, TheOnlyExpertOfAStepCannotBeDoneWithout) {
  a_->Host({0});
  b_->Host({0});
  const auto events = Submit({1}, 2, /*allow_loss=*/true);
  RunUntilOver(events, {a_, b_});
  EXPECT_EQ(ErrorReason(events->status()), "EXPERT_LOST");
}

TEST_F(EngineFailoverTest, TheRouterNetworkCannotBeDoneWithoutEither) {
  const auto events = Submit({0}, 2, /*allow_loss=*/true, kBoth);
  local_->Host({});
  RunUntilOver(events, {a_, b_});
  EXPECT_EQ(ErrorReason(events->status()), "EXPERT_LOST");
  EXPECT_THAT(std::string(events->status().message()), HasSubstr("the router network"));
}

TEST_F(EngineFailoverTest, AnErrorOfTheBatchItselfIsNotRetried) {
  const auto events = Submit({0}, 2);
  RunUntilHeld(a_);
  a_->FailAll(MakeError(absl::StatusCode::kInternal, "NON_FINITE_OUTPUT", "NaN"));
  RunUntilOver(events, {b_});
  EXPECT_EQ(ErrorReason(events->status()), "NON_FINITE_OUTPUT");
  EXPECT_EQ(counted_.retries, 0);
}

TEST_F(EngineFailoverTest, ALaneThatIsRemovedFailsOver) {
  const auto events = Submit({0}, 2);
  RunUntilHeld(a_);
  engine_.RemoveLane("a");
  RunUntilOver(events, {b_});
  EXPECT_EQ(events->log().back(), "done");
  EXPECT_EQ(events->report().routing.failovers, 1);
  a_->AnswerAll();
  engine_.RunTick();
}

TEST_F(EngineFailoverTest, EveryImageOfManyRequestsSurvivesALaneThatComesAndGoes) {
  std::vector<std::shared_ptr<RecordedEvents>> requests;
  for (int i = 0; i < 20; ++i) requests.push_back(Submit({i % 10, (i + 1) % 10, (i + 3) % 10}, 6));
  for (int round = 0; round < 4000; ++round) {
    // Lane a answers, falls silent for a second, breaks, comes back.
    const int phase = (round / 500) % 4;
    if (round % 500 == 0 && phase == 2) {
      a_->FailAll(absl::UnavailableError("connection reset"));
      a_->Host({});
    }
    if (round % 500 == 0 && phase == 3) a_->Host({0, 1});
    Round(phase == 1 || phase == 2 ? std::vector{b_} : std::vector{a_, b_});
  }
  for (const auto& events : requests) {
    EXPECT_EQ(events->log().back(), "done") << events->status();
    EXPECT_THAT(events->images(), SizeIs(3));
  }
  EXPECT_LE(counted_.retries, counted_.batches / 10 + 16);
}

// ---- Reproducible requests. The router network computes on other arithmetic than servers "x1" and "x2" do, and these
// on other than server "y", whose answers differ in their last bits.

class EngineNumericsTest : public ::testing::Test {
 protected:
  EngineNumericsTest() {
    backend_->velocity = [](int32_t expert, std::span<const float> x, float t, int64_t) {
      return std::vector<float>(x.size(), 0.1F * static_cast<float>(expert + 1) + t);
    };
    rounded_->velocity = [](int32_t expert, std::span<const float> x, float t, int64_t) {
      return std::vector<float>(x.size(), std::nextafter(0.1F * static_cast<float>(expert + 1) + t, 9.0F));
    };
    engine_.Serve(std::make_shared<ServedVersion>(ServedVersion{.info = Info()}));
    lanes_ = {AddLane("local", "r", {kRouterNetwork}), AddLane("x1", "x", {0, 1}), AddLane("x2", "x", {0, 1}),
              AddLane("y", "y", {0, 1})};
  }

  std::shared_ptr<ScriptedLane> AddLane(const std::string& name, const std::string& fingerprint,
                                        const std::vector<int32_t>& networks) {
    const LaneInfo info{.name = name, .remote = name != "local", .slots = 2, .fingerprint = fingerprint};
    auto lane = std::make_shared<ScriptedLane>(info, fingerprint == "y" ? rounded_ : backend_);
    lane->Host(networks);
    engine_.AddLane(lane);
    return lane;
  }
  std::shared_ptr<RecordedEvents> Submit(bool reproducible = true) {
    SampleRequest request{.classes = {0, 1}, .seeds = {3}, .steps = 6};
    request.format = ImageFormat::kRaw;
    request.reproducible = reproducible;
    request.allow_expert_loss = true;
    auto events = std::make_shared<RecordedEvents>();
    tickets_.push_back(engine_.Submit(request, absl::InfiniteDuration(), events).value());
    return events;
  }
  // Until the request is over or has done so many steps.
  void Run(const RecordedEvents& events, int32_t steps = 1000) {
    const std::string until = fmt::format("progress {}/6", steps);
    for (int i = 0; i < 100'000 && !events.over() && events.log().back() != until; ++i) {
      engine_.RunTick();
      for (const auto& lane : lanes_) lane->AnswerAll();
      clock_.Advance(absl::Milliseconds(1));
    }
    EXPECT_TRUE(events.over() || events.log().back() == until) << "it hangs";
  }
  void Lose(size_t lane) {
    lanes_[lane]->FailAll(absl::UnavailableError("connection reset"));
    lanes_[lane]->Host({});
  }
  static std::vector<std::vector<float>> ImagesOf(const RecordedEvents& events) {
    EXPECT_EQ(events.log().back(), "done") << events.status();
    return {events.Pixels(0), events.Pixels(1)};
  }

  FakeClock clock_;
  std::shared_ptr<FakeBackend> backend_ = std::make_shared<FakeBackend>(Info());
  std::shared_ptr<FakeBackend> rounded_ = std::make_shared<FakeBackend>(Info());
  TickedEngine engine_{{}, &clock_, nullptr};
  std::vector<std::shared_ptr<ScriptedLane>> lanes_;
  std::vector<std::unique_ptr<SampleTicket>> tickets_;
};

TEST_F(EngineNumericsTest, AReproducibleRequestEndsWithTheSameBitsOnAReplicaOfItsArithmetic) {
  const auto undisturbed = Submit();
  Run(*undisturbed);
  EXPECT_EQ(undisturbed->report().fingerprint, "x; router network: r");
  const auto disturbed = Submit();
  Run(*disturbed, 2);
  for (int i = 0; i < 10 && lanes_[1]->started().empty(); ++i) {
    engine_.RunTick();
    lanes_[0]->AnswerAll();
  }
  ASSERT_FALSE(lanes_[1]->started().empty());
  Lose(1);
  Run(*disturbed);
  EXPECT_EQ(ImagesOf(*disturbed), ImagesOf(*undisturbed));
  EXPECT_EQ(disturbed->report().fingerprint, undisturbed->report().fingerprint);
  EXPECT_GE(disturbed->report().routing.failovers, 1);
}

TEST_F(EngineNumericsTest, WithOtherArithmeticLeftItFailsAndOthersGoOn) {
  const auto reproducible = Submit();
  const auto other = Submit(/*reproducible=*/false);
  Run(*reproducible, 2);
  Lose(1);
  Lose(2);
  Run(*reproducible);
  Run(*other);
  EXPECT_EQ(reproducible->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReason(reproducible->status()), "NUMERICS_CHANGED") << reproducible->status();
  EXPECT_THAT(std::string(reproducible->status().message()),
              AllOf(HasSubstr("of model 'digits' version 'v1'"), HasSubstr("send the request again")));
  EXPECT_EQ(other->log().back(), "done") << other->status();
  // Sent again, it keeps to what is there.
  const auto again = Submit();
  Run(*again);
  EXPECT_EQ(again->report().fingerprint, "y; router network: r");
  const auto twice = Submit();
  Run(*twice);
  EXPECT_EQ(ImagesOf(*again), ImagesOf(*twice));
}

TEST_F(EngineNumericsTest, WithNothingLeftTheExpertIsLost) {
  const auto events = Submit();
  Run(*events, 2);
  for (const size_t lane : {1, 2, 3}) Lose(lane);
  Run(*events);
  EXPECT_EQ(ErrorReason(events->status()), "EXPERT_LOST");
}

TEST_F(EngineNumericsTest, AnAnswerOfOtherArithmeticIsNotTaken) {
  class Changed : public ScriptedLane {
   public:
    using ScriptedLane::ScriptedLane;
    // It was started again on another machine, and the list of its networks is not there yet.
    void Start(std::shared_ptr<const Evaluation> evaluation, Done done) override {
      ScriptedLane::Start(std::move(evaluation), [done](absl::StatusOr<EvaluationAnswer> answer) {
        if (answer.ok()) answer->fingerprint = "z";
        done(std::move(answer));
      });
    }
  };
  for (const size_t lane : {1, 2, 3}) Lose(lane);
  const auto changed = std::make_shared<Changed>(LaneInfo{.name = "changed", .slots = 2, .fingerprint = "x"}, backend_);
  changed->Host({0, 1});
  engine_.AddLane(changed);
  lanes_.push_back(changed);
  const auto events = Submit();
  Run(*events);
  EXPECT_EQ(ErrorReason(events->status()), "NUMERICS_CHANGED");
  EXPECT_THAT(std::string(events->status().message()), AllOf(HasSubstr("'x'"), HasSubstr("'z'")));
}

TEST_F(EngineFailoverTest, WhatWasMeasuredOfAForgottenVersionIsMeasuredAnew) {
  const auto limit = [this] { return a_->started()[0]->deadline - clock_.Monotonic() + absl::Milliseconds(1); };
  const auto known = Submit({0}, 1);
  RunUntilHeld(a_);
  EXPECT_EQ(limit(), kLimit);
  RunUntilOver(known, {a_, b_});
  engine_.Forget(ServedVersion{.info = Info()});
  const auto unknown = Submit({0}, 1);
  RunUntilHeld(a_);
  EXPECT_EQ(limit(), kLongestCall) << "nothing is known of its calls";
}

}  // namespace
}  // namespace atl::router
