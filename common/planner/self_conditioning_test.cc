// Plans of self-conditioned models: two schedules, compared by what an iteration takes on average.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/errors.h"
#include "common/planner/evaluate.h"
#include "common/planner/frozen_flow.h"
#include "common/planner/plan.h"
#include "common/schedule/generators.h"
#include "common/schedule/self_conditioning.h"

namespace atl::planner {
namespace {

using ::testing::HasSubstr;

constexpr double kUnit = 0.005;
constexpr double kRate = 0.25;

PlanRequest Request(int32_t ranks, int32_t layers = 16, int32_t batch = 32) {
  PlanRequest request;
  request.batch_size = batch;
  request.ranks = ranks;
  request.self_conditioning_rate = kRate;
  request.profile.parameter_bytes.assign(layers, 1e6);
  for (const int32_t samples : {1, batch}) {
    const double seconds = kUnit * samples / batch;
    request.profile.layers[samples].assign(layers, {.forward_seconds = seconds,
                                                    .input_gradient_seconds = seconds,
                                                    .weight_gradient_seconds = seconds,
                                                    .backward_seconds = 2 * seconds,
                                                    .kept_bytes = 1e6 * samples,
                                                    .weight_gradient_bytes = 0.8e6 * samples,
                                                    .output_bytes = 1e5 * samples});
  }
  return request;
}

void AddFrozen(double seconds, int32_t batch, PlanRequest* request) {
  FrozenComponentProfile& component = request->profile.frozen.emplace_back(FrozenComponentProfile{.name = "image"});
  for (const double share : {0.4, 0.3, 0.2, 0.1}) {
    component.layers.push_back({.seconds = {{1, 1e-4 + seconds * share / batch}, {batch, 1e-4 + seconds * share}},
                                .input_bytes = 10,
                                .output_bytes = 10,
                                .parameter_bytes = 1e5});
  }
}

// Both schedules are valid, the second is the first and C's, and both take and hold what is predicted.
void ExpectSound(const Plan& plan, const PlanRequest& request) {
  ASSERT_TRUE(plan.is_self_conditioned());
  EXPECT_TRUE(schedule::Validate(plan.schedule).ok()) << schedule::Validate(plan.schedule);
  EXPECT_TRUE(schedule::Validate(plan.self_conditioned).ok()) << schedule::Validate(plan.self_conditioned);
  const absl::Status same = schedule::CheckSelfConditioned(plan.self_conditioned, plan.schedule);
  EXPECT_TRUE(same.ok()) << same;
  EXPECT_TRUE(FrozenFlowOf(plan).ok()) << FrozenFlowOf(plan).status();
  const schedule::SimulationCosts costs = CostsOf(plan, request.profile);
  const auto plain = schedule::Simulate(plan.schedule, costs);
  const auto self_conditioned = schedule::Simulate(plan.self_conditioned, costs);
  ASSERT_TRUE(plain.ok() && self_conditioned.ok()) << plain.status() << self_conditioned.status();
  EXPECT_GT(plan.predicted.self_conditioned_seconds, plan.predicted.iteration_seconds);
  EXPECT_NEAR(plan.predicted.self_conditioned_seconds, self_conditioned->makespan_seconds,
              0.01 * plan.predicted.self_conditioned_seconds);
  for (size_t rank = 0; rank < plan.predicted.peak_bytes.size(); ++rank) {
    EXPECT_EQ(plan.predicted.peak_bytes[rank], std::max(plain->peak_bytes[rank], self_conditioned->peak_bytes[rank]));
  }
}

TEST(SelfConditionedPlan, EveryScheduleHasASecondOneWithItsForwards) {
  for (const schedule::GeneratorInfo& generator : schedule::Generators()) {
    for (const int32_t ranks : {1, 2, 4}) {
      PlanRequest request = Request(ranks);
      request.pipeline = {.schedule = std::string(generator.name), .micro_batches = 8};
      const auto plan = MakePlan(request);
      ASSERT_TRUE(plan.ok()) << plan.status();
      ExpectSound(*plan, request);
      // Free transfers and at least as many micro-batches as stages: each rank's own forwards, and no more.
      const double of_rank = 16 / ranks * kUnit;
      EXPECT_NEAR(plan->predicted.self_conditioned_seconds - plan->predicted.iteration_seconds, of_rank, 1e-9)
          << generator.name << " " << ranks;
      EXPECT_THAT(plan->reason, HasSubstr("where the model sees its own estimate (25 % of steps)"));
      request.self_conditioning_rate = 0;
      const Plan without = *MakePlan(request);
      EXPECT_FALSE(without.is_self_conditioned());
      EXPECT_EQ(without.predicted.self_conditioned_seconds, 0);
      EXPECT_EQ(without.schedule, plan->schedule);
    }
  }
}

TEST(SelfConditionedPlan, ReductionsOfReplicasAreInBoth) {
  PlanRequest request = Request(4);
  request.pipeline = {.schedule = "1f1b", .micro_batches = 4, .replicas = 2};
  const Plan plan = *MakePlan(request);
  ExpectSound(plan, request);
  EXPECT_EQ(plan.self_conditioned.ranks[0].back(), (schedule::Action{schedule::ActionKind::kReduce, 0, 0}));
}

TEST(SelfConditionedPlan, PiecesOfFrozenComponentsAreInBoth) {
  for (const char* name : {"1f1b", "zbv", "gpipe", "interleaved-1f1b", "auto"}) {
    for (const char* fill : {"auto", "never"}) {
      PlanRequest request = Request(4);
      request.pipeline.schedule = name;
      request.pipeline.micro_batches = 8;
      request.pipeline.replicas = 1;
      request.pipeline.fill = fill;
      AddFrozen(0.1, 32, &request);
      const auto plan = MakePlan(request);
      ASSERT_TRUE(plan.ok()) << plan.status();
      ExpectSound(*plan, request);
      EXPECT_GT(plan->schedule.frozen_pieces, 0);
      EXPECT_EQ(plan->self_conditioned.frozen_pieces, plan->schedule.frozen_pieces);
    }
  }
}

TEST(SelfConditionedPlan, PlansAreComparedByTheExpectation) {
  for (const double latency : {0.0, 0.2, 1.0, 3.0}) {
    for (const int32_t micro_batches : {1, 2, 4, 8}) {
      for (const double rate : {kRate, 1.0}) {
        PlanRequest request = Request(4);
        request.self_conditioning_rate = rate;
        request.pipeline = {.schedule = "auto", .micro_batches = micro_batches};
        request.profile.transfer_latency_seconds = latency * kUnit;
        const auto choice = ComparePlans(request);
        ASSERT_TRUE(choice.ok()) << choice.status();
        ExpectSound(choice->plan, request);
        const double expected = ExpectedSeconds(choice->plan.predicted, rate);
        for (const Candidate& row : choice->candidates) {
          if (row.predicted.iteration_seconds == 0) continue;
          EXPECT_NEAR(row.expected_seconds, ExpectedSeconds(row.predicted, rate), 1e-12);
          EXPECT_GE(row.expected_seconds, expected / 1.01 - 1e-12) << row.schedule;
          EXPECT_GE(row.expected_seconds, row.bound_seconds * (1 - 1e-9)) << row.schedule;
        }
      }
    }
  }
}

TEST(SelfConditionedPlan, AFeedbackThatIsSlowMakesPipelinesShorter) {
  PlanRequest request = Request(4);
  request.pipeline = {.schedule = "auto", .micro_batches = 1};
  request.profile.transfer_latency_seconds = 3 * kUnit;
  request.self_conditioning_rate = 0;
  EXPECT_EQ(MakePlan(request)->rank_count(), 2);
  request.self_conditioning_rate = 1;
  const Plan plan = *MakePlan(request);
  EXPECT_EQ(plan.rank_count(), 1) << "C's would go over the hop, and back";
  EXPECT_THAT(plan.reason, HasSubstr("ms per iteration on average, the shortest of"));
}

TEST(SelfConditionedPlan, TheSearchIsBounded) {
  PlanRequest request = Request(8, 30, 128);
  request.pipeline.schedule = "auto";
  request.pipeline.micro_batches = 0;
  request.pipeline.replicas = 0;
  AddFrozen(0.2, 128, &request);
  const auto choice = ComparePlans(request);
  ASSERT_TRUE(choice.ok()) << choice.status();
  ExpectSound(choice->plan, request);
}

TEST(SelfConditionedPlan, AMemoryLimitCountsWhatTheForwardsNeed) {
  PlanRequest request = Request(4);
  request.pipeline = {.schedule = "1f1b", .micro_batches = 8};
  const Plan free = *MakePlan(request);
  request.self_conditioning_rate = 0;
  EXPECT_GT(PeakBytes(free), PeakBytes(*MakePlan(request)));
  request.self_conditioning_rate = kRate;

  const double fixed = 4 * 5e6;
  const double limit = fixed + (PeakBytes(free) - fixed) * 0.6;
  request.pipeline.memory = std::to_string(static_cast<int64_t>(limit));
  const auto tight = MakePlan(request);
  ASSERT_TRUE(tight.ok()) << tight.status();
  ExpectSound(*tight, request);
  EXPECT_FALSE(tight->recomputed_layers.empty());
  EXPECT_LE(PeakBytes(*tight), limit);

  request.pipeline.memory = "20MB";
  const std::string message(MakePlan(request).status().message());
  const size_t at = message.find("at least ") + 9;
  request.pipeline.memory = message.substr(at, message.find(' ', at) - at);
  const auto least = MakePlan(request);
  ASSERT_TRUE(least.ok()) << message;
  EXPECT_LE(PeakBytes(*least), std::stod(request.pipeline.memory));
}

}  // namespace
}  // namespace atl::planner
