// The joint choice of schedule, replicas, micro-batches, recomputation and fill.
#include <algorithm>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/errors.h"
#include "common/planner/evaluate.h"
#include "common/planner/frozen_flow.h"
#include "common/planner/plan.h"
#include "common/schedule/generators.h"

namespace atl::planner {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kUnit = 0.005;

// Equal layers: forward, input and weight gradient alike. The same for any micro-batch size, plus a fixed cost that
// makes small ones dear.
Profile EqualLayers(int32_t layers, int32_t batch, double fixed = 0) {
  Profile profile;
  profile.parameter_bytes.assign(layers, 1e6);
  for (const int32_t samples : {1, batch}) {
    const double seconds = fixed + kUnit * samples / batch;
    profile.layers[samples].assign(layers, {.forward_seconds = seconds,
                                            .input_gradient_seconds = seconds,
                                            .weight_gradient_seconds = seconds,
                                            .backward_seconds = 2 * seconds,
                                            .kept_bytes = 1e6 * samples,
                                            .weight_gradient_bytes = 0.8e6 * samples,
                                            .output_bytes = 1e5 * samples});
  }
  return profile;
}

void AddFrozen(double seconds, int32_t batch, Profile* profile) {
  for (const char* name : {"image", "text"}) {
    FrozenComponentProfile& component = profile->frozen.emplace_back(FrozenComponentProfile{.name = name});
    for (const double share : {0.4, 0.25, 0.2, 0.1, 0.05}) {
      const double of_layer = seconds / 2 * share;
      component.layers.push_back({.seconds = {{1, 1e-4 + of_layer / batch}, {batch, 1e-4 + of_layer}},
                                  .input_bytes = 10,
                                  .output_bytes = 10,
                                  .parameter_bytes = 1e5});
    }
  }
}

PlanRequest Auto(int32_t ranks, int32_t layers, int32_t batch) {
  PlanRequest request;
  request.pipeline.schedule = "auto";
  request.pipeline.micro_batches = 0;
  request.batch_size = batch;
  request.ranks = ranks;
  request.profile = EqualLayers(layers, batch);
  return request;
}

const Candidate& Row(const PlanChoice& choice, std::string_view schedule) {
  return *std::find_if(choice.candidates.begin(), choice.candidates.end(),
                       [&](const Candidate& row) { return row.schedule == schedule; });
}

TEST(JointPlan, NoScheduleOfTheTableIsShorterThanTheChosen) {
  for (const int32_t ranks : {1, 2, 4}) {
    PlanRequest request = Auto(ranks, 16, 32);
    request.pipeline.replicas = 1;
    const auto choice = ComparePlans(request);
    ASSERT_TRUE(choice.ok()) << choice.status();
    EXPECT_TRUE(schedule::Validate(choice->plan.schedule).ok());
    EXPECT_EQ(choice->candidates.size(), schedule::Generators().size() + 1);
    EXPECT_EQ(choice->candidates.back().schedule, "adaptive");
    int chosen = 0;
    for (const Candidate& row : choice->candidates) {
      EXPECT_GE(row.predicted.iteration_seconds, choice->plan.predicted.iteration_seconds / 1.01) << row.schedule;
      EXPECT_GE(row.predicted.iteration_seconds, row.bound_seconds * (1 - 1e-9)) << row.schedule;
      EXPECT_EQ(row.chosen, row.why_not.empty()) << row.schedule;
      chosen += row.chosen ? 1 : 0;
    }
    EXPECT_EQ(chosen, 1);
  }
}

TEST(JointPlan, SmallMicroBatchesAreDearWhereEachHasAFixedCost) {
  PlanRequest request = Auto(2, 8, 64);
  request.pipeline = {.schedule = "1f1b", .micro_batches = 0};
  const int32_t many = MakePlan(request)->micro_batches;
  request.profile = EqualLayers(8, 64, /*fixed=*/kUnit / 10);
  EXPECT_LT(MakePlan(request)->micro_batches, many);
}

TEST(JointPlan, ReplicasWhereThePipelineHasTooFewLayersAndSumsAreCheap) {
  PlanRequest request = Auto(8, 4, 64);
  request.pipeline.replicas = 0;
  const Plan cheap = *MakePlan(request);
  EXPECT_GT(cheap.replicas, 1);
  EXPECT_EQ(cheap.batch_size(), 64);
  for (const auto& rank : cheap.schedule.ranks) {
    EXPECT_TRUE(std::any_of(rank.begin(), rank.end(), [](const schedule::Action& action) {
      return action.kind == schedule::ActionKind::kReduce;
    }));
  }
  // A slow network makes the sums longer than what the replicas save.
  request.profile.transfer_bytes_per_second = 1e7;
  for (auto& [size, layers] : request.profile.layers) {
    for (LayerProfile& layer : layers) layer.output_bytes = 0;
  }
  EXPECT_EQ(MakePlan(request)->replicas, 1);
}

TEST(JointPlan, WhereFrozenWorkCoversTheBubbleTheLeastMemoryWins) {
  PlanRequest request = Auto(4, 16, 32);
  request.pipeline.stages = 0;
  request.pipeline.replicas = 1;
  request.pipeline.micro_batches = 8;
  const Plan plain = *MakePlan(request);
  // As much as the bubble of 1F1B on four ranks: r = (S - 1) / M.
  AddFrozen(3.0 / 8 * 16 * 3 * kUnit, 32, &request.profile);
  const PlanChoice filled = *ComparePlans(request);
  EXPECT_LE(PeakBytes(filled.plan), Row(filled, "1f1b").predicted.peak_bytes[0] * (1 + 1e-9));
  EXPECT_LT(PeakBytes(filled.plan), PeakBytes(plain) * 0.95) << plain.generator << " " << filled.plan.generator;
  EXPECT_TRUE(FrozenFlowOf(filled.plan).ok()) << FrozenFlowOf(filled.plan).status();
  EXPECT_EQ(filled.plan.schedule.frozen_pieces, static_cast<int32_t>(filled.plan.frozen.size()));
  EXPECT_LE(filled.plan.predicted.iteration_seconds, 1.04 * Row(filled, filled.plan.generator).bound_seconds);
  const auto simulated = schedule::Simulate(filled.plan.schedule, CostsOf(filled.plan, request.profile));
  ASSERT_TRUE(simulated.ok()) << simulated.status();
  EXPECT_LE(simulated->makespan_seconds, filled.plan.predicted.iteration_seconds * (1 + 1e-9));
  EXPECT_GE(simulated->makespan_seconds, filled.plan.predicted.iteration_seconds * 0.99);
  EXPECT_THAT(filled.plan.reason, HasSubstr(" % of it in bubbles; "));
  EXPECT_THAT(filled.plan.reason, Not(HasSubstr(" 0 % of it in bubbles")));
}

TEST(JointPlan, UnequalCostsAndHopsAreTheAdaptiveSchedulesGround) {
  PlanRequest request = Auto(4, 16, 32);
  request.pipeline.replicas = 1;
  request.pipeline.micro_batches = 8;
  for (auto& [size, layers] : request.profile.layers) {
    for (size_t i = 0; i < layers.size(); ++i) layers[i].input_gradient_seconds *= i % 3 == 0 ? 1.6 : 1.1;
  }
  request.profile.transfer_latency_seconds = 0.1 * kUnit;
  const PlanChoice choice = *ComparePlans(request);
  const Candidate& adaptive = choice.candidates.back();
  ASSERT_EQ(adaptive.schedule, "adaptive");
  EXPECT_LE(adaptive.predicted.iteration_seconds, Row(choice, "zbv").predicted.iteration_seconds);
  EXPECT_TRUE(schedule::Validate(choice.plan.schedule).ok());
}

TEST(JointPlan, FillNeverRunsFrozenWorkAfterTheFlush) {
  PlanRequest request = Auto(2, 8, 32);
  request.pipeline = {.schedule = "1f1b", .micro_batches = 4};
  AddFrozen(0.02, 32, &request.profile);
  const double filled = MakePlan(request)->predicted.iteration_seconds;
  request.pipeline.fill = "never";
  const Plan after = *MakePlan(request);
  EXPECT_GT(after.predicted.iteration_seconds, filled);
  for (const auto& rank : after.schedule.ranks) {
    const auto frozen = [](const schedule::Action& action) { return action.kind == schedule::ActionKind::kFrozen; };
    EXPECT_TRUE(std::is_partitioned(rank.begin(), rank.end(), [&](const auto& action) { return !frozen(action); }));
  }
}

TEST(JointPlan, AMemoryLimitIsKeptByRecomputingOrRefusedWithTheLeast) {
  PlanRequest request = Auto(4, 16, 32);
  request.pipeline = {.schedule = "1f1b", .micro_batches = 8};
  const Plan free = *MakePlan(request);
  EXPECT_TRUE(free.recomputed_layers.empty());

  const double fixed = 4 * 5e6;
  const double limit = fixed + (PeakBytes(free) - fixed) * 0.6;
  request.pipeline.memory = std::to_string(static_cast<int64_t>(limit));
  const auto tight = MakePlan(request);
  ASSERT_TRUE(tight.ok()) << tight.status();
  EXPECT_FALSE(tight->recomputed_layers.empty());
  EXPECT_LE(PeakBytes(*tight), limit);
  EXPECT_GT(tight->predicted.iteration_seconds, free.predicted.iteration_seconds);
  EXPECT_THAT(tight->reason, HasSubstr("layers are computed again to save memory"));

  request.pipeline.recompute = "never";
  EXPECT_EQ(ErrorReason(MakePlan(request).status()), "MEMORY_LIMIT");

  request.pipeline.recompute = "auto";
  request.pipeline.memory = "20MB";
  const absl::Status refused = MakePlan(request).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("pipeline.memory: expected at least"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("found 20000000"));
  // The least that it names is enough.
  const std::string message(refused.message());
  const size_t at = message.find("at least ") + 9;
  request.pipeline.memory = message.substr(at, message.find(' ', at) - at);
  EXPECT_TRUE(MakePlan(request).ok()) << message;
}

TEST(JointPlan, ReplicasNeedRoomToSumTheirGradients) {
  PlanRequest request = Auto(4, 8, 32);
  request.pipeline = {.schedule = "1f1b", .micro_batches = 4, .replicas = 2, .recompute = "never"};
  // Much more in parameters than in activations.
  request.profile.parameter_bytes.assign(8, 1e9);
  const Plan free = *MakePlan(request);
  const double held = 4 * 5e9;  // of four layers on a rank: weights, gradients, two moments and EMA
  EXPECT_GE(PeakBytes(free), held + 4 * 1e9);
  request.device_memory_bytes = held + 4.1e9;
  EXPECT_TRUE(MakePlan(request).ok()) << MakePlan(request).status();
  request.device_memory_bytes = held + 3.9e9;
  EXPECT_EQ(ErrorReason(MakePlan(request).status()), "MEMORY_LIMIT");
  request.pipeline = {.schedule = "1f1b", .stages = 2, .micro_batches = 4, .recompute = "never"};
  EXPECT_TRUE(MakePlan(request).ok()) << "one replica sums nothing";
}

TEST(JointPlan, RecomputeAlwaysChargesAForwardToEveryBackward) {
  PlanRequest request = Auto(2, 8, 32);
  request.pipeline = {.schedule = "1f1b", .micro_batches = 4};
  const Plan keep = *MakePlan(request);
  request.pipeline.recompute = "always";
  const Plan again = *MakePlan(request);
  EXPECT_EQ(again.recomputed_layers.size(), 8u);
  EXPECT_NEAR(again.predicted.iteration_seconds, keep.predicted.iteration_seconds * 4 / 3, 1e-9);
  EXPECT_LT(PeakBytes(again), PeakBytes(keep));
}

TEST(JointPlan, AMemoryLimitPicksASmallerSchedule) {
  PlanRequest request = Auto(4, 16, 32);
  request.pipeline.replicas = 1;
  request.pipeline.micro_batches = 8;
  request.pipeline.recompute = "never";
  const PlanChoice free = *ComparePlans(request);
  const double least = PeakBytes(free.plan);
  double smaller = least;
  for (const Candidate& row : free.candidates) {
    if (!row.predicted.peak_bytes.empty()) {
      smaller = std::min(smaller, *std::max_element(row.predicted.peak_bytes.begin(), row.predicted.peak_bytes.end()));
    }
  }
  ASSERT_LT(smaller, least);
  request.device_memory_bytes = (smaller + least) / 2;
  const PlanChoice limited = *ComparePlans(request);
  EXPECT_NE(limited.plan.generator, free.plan.generator);
  EXPECT_LE(PeakBytes(limited.plan), request.device_memory_bytes);
}

// A limit is used, whatever the placement: more memory never makes a step much longer.
TEST(JointPlan, MoreMemoryIsNotSlower) {
  for (const std::string_view name : {"1f1b", "interleaved-1f1b", "zb-h1", "zbv", "v-half"}) {
    PlanRequest request = Auto(4, 16, 32);
    request.pipeline.schedule = name;
    request.pipeline.micro_batches = 16;
    const auto unlimited = MakePlan(request);
    ASSERT_TRUE(unlimited.ok()) << unlimited.status();
    double before = std::numeric_limits<double>::infinity();
    for (int tenth = 5; tenth <= 10; ++tenth) {
      request.device_memory_bytes = 0.1 * tenth * PeakBytes(*unlimited);
      const auto plan = MakePlan(request);
      if (!plan.ok()) {
        EXPECT_EQ(ErrorReason(plan.status()), "MEMORY_LIMIT") << name << ": " << plan.status();
        continue;
      }
      EXPECT_LE(PeakBytes(*plan), request.device_memory_bytes) << name;
      EXPECT_LE(plan->predicted.iteration_seconds, 1.02 * before) << name << " at " << tenth << " tenths";
      before = plan->predicted.iteration_seconds;
    }
    EXPECT_DOUBLE_EQ(before, unlimited->predicted.iteration_seconds) << name;
  }
}

TEST(JointPlan, TheSearchIsBounded) {
  PlanRequest request = Auto(8, 30, 128);
  request.pipeline.replicas = 0;
  AddFrozen(0.2, 128, &request.profile);
  const auto choice = ComparePlans(request);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_LE(choice->plan.rank_count(), 8);
}

TEST(JointPlan, KeptOutputsNeedNoPieces) {
  PlanRequest request = Auto(2, 8, 32);
  request.pipeline = {.schedule = "1f1b", .frozen_cache = "always"};
  const Plan nothing_frozen = *MakePlan(request);
  EXPECT_FALSE(nothing_frozen.reads_frozen_cache);
  AddFrozen(0.02, 32, &request.profile);
  Plan plan = *MakePlan(request);
  EXPECT_TRUE(plan.reads_frozen_cache);
  EXPECT_TRUE(plan.frozen.empty());
  EXPECT_TRUE(plan.components.empty());
  EXPECT_EQ(plan.schedule, nothing_frozen.schedule);
  EXPECT_THAT(plan.reason, HasSubstr("computed once and kept, as asked for"));
  request.pipeline.frozen_cache = "never";
  request.frozen_inputs = {.rows = {1, 1}, .iterations = 1000000};
  plan = *MakePlan(request);
  EXPECT_FALSE(plan.reads_frozen_cache);
  EXPECT_FALSE(plan.frozen.empty());
  EXPECT_THAT(plan.reason, HasSubstr("computed in every iteration, as asked for"));
}

TEST(JointPlan, OutputsAreKeptWhereAPassSavesMoreThanItTakes) {
  PlanRequest request = Auto(2, 8, 32);
  request.pipeline = {.schedule = "1f1b", .micro_batches = 4, .fill = "never"};
  AddFrozen(0.064, 32, &request.profile);
  EXPECT_THAT(MakePlan(request)->reason, HasSubstr("how many inputs there are is not known"));
  // After the flush, and shared by two ranks: half of 2 ms per sample, 32 ms in each iteration.
  request.frozen_inputs = {.rows = {1000, 1000}, .iterations = 1000};
  const Plan plan = *MakePlan(request);
  EXPECT_TRUE(plan.reads_frozen_cache) << plan.reason;
  EXPECT_THAT(plan.reason, HasSubstr("computed once and kept: a pass over all inputs takes 1.02 s"));
  request.frozen_inputs.iterations = 10;
  EXPECT_FALSE(MakePlan(request)->reads_frozen_cache);
  EXPECT_THAT(MakePlan(request)->reason, HasSubstr("computed in every iteration: a pass over all inputs would"));
  request.frozen_inputs = {.rows = {1000, 1000}, .iterations = 1000, .storage_limit_bytes = 1};
  EXPECT_FALSE(MakePlan(request)->reads_frozen_cache);
}

TEST(JointPlan, OutputsAreKeptWhereComputingThemDoesNotFit) {
  PlanRequest request = Auto(2, 8, 32);
  request.pipeline = {.schedule = "1f1b", .micro_batches = 4};
  request.device_memory_bytes = 1.01 * PeakBytes(*MakePlan(request));
  AddFrozen(0.01, 32, &request.profile);
  for (FrozenComponentProfile& component : request.profile.frozen) {
    for (FrozenLayerProfile& layer : component.layers) layer.parameter_bytes = request.device_memory_bytes;
  }
  EXPECT_EQ(ErrorReason(MakePlan(request).status()), "MEMORY_LIMIT");
  request.frozen_inputs = {.rows = {1000, 1000}, .iterations = 1};
  const auto plan = MakePlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(plan->reads_frozen_cache);
  EXPECT_THAT(plan->reason, HasSubstr("does not fit the memory"));
}

TEST(JointPlan, AProfileOfOtherFrozenLayersIsRefused) {
  PlanRequest request = Auto(2, 8, 32);
  request.pipeline = {.schedule = "1f1b", .micro_batches = 4};
  AddFrozen(0.02, 32, &request.profile);
  request.components = {{.layers = 5, .to_first_stage = true}, {.layers = 4, .to_first_stage = true}};
  const absl::Status refused = MakePlan(request).status();
  EXPECT_EQ(ErrorReason(refused), "PROFILE_INVALID");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("expected 4 layers of frozen component 1 (text)"));
  request.components[1].layers = 5;
  EXPECT_TRUE(MakePlan(request).ok());
}

}  // namespace
}  // namespace atl::planner
