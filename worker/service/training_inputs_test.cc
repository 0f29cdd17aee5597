#include "worker/service/training_inputs.h"

#include <gtest/gtest.h>

#include "common/schedule/self_conditioning.h"

namespace atl::worker {
namespace {

TrainingInputs Digits() {
  TrainingInputs inputs;
  inputs.options.model = {.patch = 2, .width = 32, .depth = 6, .heads = 4};
  inputs.options.training.batch_size = 16;
  inputs.options.channels = 1;
  inputs.options.height = inputs.options.width = 8;
  return inputs;
}

struct Fitted {
  spec::PipelineSpec pipeline;
  int32_t ranks;
  size_t stages;
  int32_t replicas;
};

// A job is written for the island that it hopes for.
TEST(TrainingPlanTest, StagesAreNoMoreThanFitTheRanksOfOneReplica) {
  for (const Fitted& c :
       {Fitted{{.stages = 2}, 1, 1, 1}, Fitted{{.stages = 2}, 4, 2, 1}, Fitted{{.stages = 20}, 20, 8, 1},
        Fitted{{.schedule = "zbv", .stages = 6}, 2, 4, 1}, Fitted{{.stages = 2, .replicas = 2}, 4, 2, 2},
        Fitted{{.stages = 2, .replicas = 2}, 2, 1, 2}, Fitted{{.schedule = "zbv", .stages = 4, .replicas = 2}, 3, 2, 2},
        Fitted{{.schedule = "auto", .stages = 3}, 2, 2, 1}, Fitted{{.schedule = "auto", .stages = 4}, 2, 4, 1}}) {
    SCOPED_TRACE(testing::Message() << c.pipeline.schedule << ", " << c.pipeline.stages << " stages, "
                                    << c.pipeline.replicas << " replicas, " << c.ranks << " ranks");
    const TrainingInputs inputs = Digits();
    const auto plan = MakeTrainingPlan(inputs, c.pipeline, {.ranks = c.ranks}, *CountedProfileOf(inputs));
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->stages.size(), c.stages);
    EXPECT_EQ(plan->replicas, c.replicas);
    EXPECT_EQ(plan->batch_size(), 16);
  }
}

// A self-conditioned expert trains by two schedules; with another objective the model reads no estimate.
TEST(TrainingPlanTest, ExpertsThatAreSelfConditionedHaveASecondSchedule) {
  TrainingInputs inputs = Digits();
  inputs.options.frozen = {{.name = "encoder", .output = "condition", .layers = {{.kind = "norm"}}}};
  const auto plan = [&] {
    const auto made = MakeTrainingPlan(inputs, {.stages = 2}, {.ranks = 2}, *CountedProfileOf(Digits()));
    EXPECT_TRUE(made.ok()) << made.status();
    return made.value_or(planner::Plan{});
  };
  EXPECT_FALSE(plan().is_self_conditioned());
  inputs.options.model.self_conditioning = true;
  const planner::Plan made = plan();
  ASSERT_TRUE(made.is_self_conditioned());
  EXPECT_TRUE(schedule::CheckSelfConditioned(made.self_conditioned, made.schedule).ok());
  EXPECT_EQ(made.self_conditioned.frozen_pieces, 2);
  EXPECT_TRUE(schedule::Validate(made.self_conditioned).ok()) << schedule::Validate(made.self_conditioned);
  inputs.options.objective = trainer::Objective::kCluster;
  EXPECT_FALSE(plan().is_self_conditioned());
}

}  // namespace
}  // namespace atl::worker
