#include "worker/attempt/training_inputs.h"

#include <gtest/gtest.h>

#include "common/base/errors.h"
#include "common/dataset/dataset.h"
#include "common/schedule/self_conditioning.h"
#include "common/storage/testing.h"

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

// A router network reads the files of the latent alone; whatever is read is checked.
TEST(TrainingInputsTest, FrozenFilesThatAreNotTheOnesSubmittedAreDataLoss) {
  storage::TemporaryStore store;
  const storage::WrittenFile latent = *store->Write(store->UriOf("latent.pt"), "latent");
  const storage::WrittenFile labels = *store->Write(store->UriOf("labels.pt"), "labels");
  dataset::DatasetManifest dataset{.name = "digits", .channels = 1, .height = 8, .width = 8, .classes = {"0", "1"}};
  dataset.shards = {{store->UriOf("datasets/digits/0.parquet"), "train", 10, 1, std::string(64, 'a')}};
  spec::TaskGrant grant;
  grant.kind = spec::TaskKind::kTrainRouter;
  grant.dataset_manifest_uri = dataset::DatasetManifestUri(*store.get(), "digits");
  ASSERT_TRUE(store->Write(grant.dataset_manifest_uri, dataset::ToJson(dataset)).ok());
  grant.spec.experts = 1;
  grant.spec.frozen = {
      {.name = "labels", .input = "label", .output = "condition", .torchscript = {labels.uri}, .shape = {96}},
      {.name = "latent", .output = "latent", .torchscript = {latent.uri}, .shape = {4, 4, 4}}};
  grant.spec.frozen[0].file_sha256 = {labels.sha256};
  grant.spec.frozen[1].file_sha256 = {latent.sha256};
  grant.inputs = {{.kind = spec::TaskKind::kPartition,
                   .index = 0,
                   .artifacts = {{"partition/0", store->UriOf("p.parquet"), 1, std::string(64, 'b'), 10}}}};
  ASSERT_TRUE(store->Write(labels.uri, "Labels").ok());
  const auto router = ReadTrainingInputs(store.get(), grant);
  ASSERT_TRUE(router.ok()) << router.status();
  EXPECT_EQ(*router->options.frozen_files, (std::map<std::string, std::string>{{latent.uri, "latent"}}));

  grant.kind = spec::TaskKind::kTrainExpert;
  const absl::Status status = ReadTrainingInputs(store.get(), grant).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_EQ(std::string(status.message()), "frozen[0].torchscript[0]: " + labels.uri + ": expected SHA-256 " +
                                               labels.sha256 + ", found " + storage::Sha256("Labels"));
}

}  // namespace
}  // namespace atl::worker
