#include "worker/attempt/divergence_evidence.h"

#include <limits>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace atl::worker {
namespace {

TrainingInputs TwoShards(int32_t batch_size) {
  TrainingInputs inputs;
  inputs.options.seed = 5;
  inputs.options.training.batch_size = batch_size;
  inputs.partitions = {{{.uri = "a", .rows = 10}, {.uri = "b", .rows = 30}}};
  return inputs;
}

TEST(DivergenceEvidence, NamesTheSamplesOfTheStepsThatAreNotTrusted) {
  spec::TaskGrant grant;
  grant.token = {.task_id = "j/train_expert-0", .attempt = 3};
  grant.skipped = {{11, 2}};
  const Divergence divergence{
      .step = 5,
      .first_bad_step = 4,
      .cause = "LOSS_EXPLODED",
      .message = "m",
      .steps = {{3, 0.5, 1, 16}, {4, 9, 2, 24}, {5, std::numeric_limits<double>::infinity(), 3, 32}}};
  const auto json = nlohmann::json::parse(EvidenceJson(grant, TwoShards(8), planner::Plan{}, "b1", divergence));
  EXPECT_EQ(json["task_id"], "j/train_expert-0");
  EXPECT_EQ(json["attempt"], 3);
  EXPECT_EQ(json["first_bad_step"], 4);
  EXPECT_TRUE(json["resumed_from"].is_null());
  EXPECT_EQ(json["skipped"][0]["first_step"], 11);
  ASSERT_EQ(json["steps"].size(), 3u);
  EXPECT_EQ(json["steps"][1]["loss"], 9);
  EXPECT_TRUE(json["steps"][2]["loss"].is_null());
  ASSERT_EQ(json["samples"].size(), 16u);
  EXPECT_EQ(json["samples_left_out"], 0);
  // Samples 24 to 39 of the first epoch are 16 different rows, as the trainer's own order has them.
  const dataset::ShuffledOrder order(5, 40);
  std::set<int64_t> positions;
  for (int64_t i = 0; i < 16; ++i) {
    const auto& sample = json["samples"][static_cast<size_t>(i)];
    EXPECT_EQ(sample["step"], i < 8 ? 4 : 5);
    const int64_t row = sample["row"].get<int64_t>();
    const int64_t position = sample["shard"] == "a" ? row : row + 10;
    EXPECT_LT(row, sample["shard"] == "a" ? 10 : 30);
    EXPECT_EQ(position, order.At(24 + i));
    positions.insert(position);
  }
  EXPECT_EQ(positions.size(), 16u);
}

TEST(DivergenceEvidence, ListsAFewThousandSamplesAtMost) {
  const Divergence divergence{.step = 2, .first_bad_step = 1, .steps = {{1, 1, 1, 0}, {2, 1, 1, 4000}}};
  const auto json = nlohmann::json::parse(EvidenceJson({}, TwoShards(4000), planner::Plan{}, "b1", divergence));
  EXPECT_EQ(json["samples"].size(), static_cast<size_t>(kMaxEvidenceSamples));
  EXPECT_EQ(json["samples_left_out"], 8000 - kMaxEvidenceSamples);
}

TEST(DivergenceEvidence, LiesBelowTheAttemptsPrefix) {
  EXPECT_EQ(EvidenceUri("file:///b/jobs/t/1-2", 17), "file:///b/jobs/t/1-2/evidence/00000017.json");
}

}  // namespace
}  // namespace atl::worker
