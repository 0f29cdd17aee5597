#include <functional>

#include "common/base/errors.h"
#include "common/spec/spec_io.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::spec {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

JobSpec Good() {
  JobSpec spec;
  spec.model_name = "digits";
  spec.dataset = "digits";
  spec.experts = 4;
  spec.training.steps = 400;
  spec.router_training = spec.training;
  return spec;
}

DatasetFacts Digits() {
  return {.training_samples = 1617, .classes = 10, .channels = 1, .height = 8, .width = 8, .columns = {"embedding"}};
}

TEST(ParseMemory, BytesAloneOrWithAUnit) {
  const std::vector<std::pair<const char*, int64_t>> cases = {
      {"auto", 0},    {"1", 1},          {"24GB", 24'000'000'000},
      {"3kB", 3'000}, {"2MiB", 2 << 20}, {"24000000000", 24'000'000'000}};
  for (const auto& [text, bytes] : cases) EXPECT_EQ(*ParseMemory("m", text), bytes) << text;
}

TEST(ValidateTest, AGoodSpecIsOkWithAndWithoutItsDataset) {
  const DatasetFacts facts = Digits();
  EXPECT_TRUE(Validate(Good(), nullptr).ok());
  EXPECT_TRUE(Validate(Good(), &facts).ok()) << Validate(Good(), &facts);
  JobSpec column = Good();
  column.features.kind = "column";
  column.features.column = "embedding";
  column.training.precision.compute = "bfloat16";
  column.pipeline.stages = 6;
  EXPECT_TRUE(Validate(column, &facts).ok()) << Validate(column, &facts);
}

TEST(ValidateTest, RandomClustersNeedNoCentroids) {
  JobSpec spec = Good();
  spec.clustering.method = "random";
  spec.clustering.fine_centroids = 1;
  EXPECT_TRUE(Validate(spec, nullptr).ok());
}

struct BadSpec {
  std::function<void(JobSpec&)> change;
  std::string field;
  std::string reason;
  std::string message;
};

std::vector<BadSpec> BadSpecs() {
  return {
      {[](JobSpec& s) { s.model_name = ""; }, "model_name", "REQUIRED_FIELD", "found none"},
      {[](JobSpec& s) { s.model_name = "Digits"; }, "model_name", "INVALID_NAME", "found 'Digits'"},
      {[](JobSpec& s) { s.model_name = "a-"; }, "model_name", "INVALID_NAME", ""},
      {[](JobSpec& s) { s.model_name = std::string(64, 'a'); }, "model_name", "INVALID_NAME", ""},
      {[](JobSpec& s) { s.dataset = ""; }, "dataset", "REQUIRED_FIELD", ""},
      {[](JobSpec& s) { s.dataset = "../x"; }, "dataset", "INVALID_NAME", ""},
      {[](JobSpec& s) { s.dataset = "a_b"; }, "dataset", "INVALID_NAME", "found 'a_b'"},  // no import makes it
      {[](JobSpec& s) { s.experts = 0; }, "experts", "REQUIRED_FIELD", ""},
      {[](JobSpec& s) { s.experts = -1; }, "experts", "OUT_OF_RANGE", "found -1"},
      {[](JobSpec& s) { s.experts = 8193; }, "experts", "OUT_OF_RANGE", "between 1 and 8192"},
      {[](JobSpec& s) { s.experts = 1618; }, "experts", "OUT_OF_RANGE", "training samples (1617), found 1618"},
      {[](JobSpec& s) { s.features.kind = "pixel_pca"; }, "features.kind", "UNKNOWN_VALUE",
       "did you mean 'pixels_pca'"},
      {[](JobSpec& s) { s.features.kind = "column"; }, "features.column", "REQUIRED_FIELD", ""},
      {[](JobSpec& s) { s.features = {.kind = "column", .column = "clip"}; }, "features.column", "UNKNOWN_COLUMN",
       "(embedding), found 'clip'"},
      {[](JobSpec& s) { s.features.kind = "torchscript"; }, "features.encoder_uri", "REQUIRED_FIELD", ""},
      {[](JobSpec& s) { s.features = {.kind = "torchscript", .encoder_uri = "s3://b/e.pt", .encoder_sha256 = "12"}; },
       "features.encoder_sha256", "INVALID_SHA256", "expected 64 lower-case hex digits, found '12'"},
      {[](JobSpec& s) { s.features = {.kind = "torchscript", .encoder_uri = "s3://KEY:SEKRET@bucket/x.pt"}; },
       "features.encoder_uri", "CREDENTIALS_IN_URI", "before an '@'"},
      {[](JobSpec& s) { s.features.encoder_uri = "s3://KEY:SEKRET@bucket/x.pt"; }, "features.encoder_uri",
       "CREDENTIALS_IN_URI", "islands have their own"},
      {[](JobSpec& s) { s.features.encoder_uri = "s3://KEY:SEK/SEKRET@bucket/x.pt"; }, "features.encoder_uri",
       "CREDENTIALS_IN_URI", ""},
      {[](JobSpec& s) {
         s.frozen = {{.name = "a", .layers = {{.kind = "mean"}}, .weights = "s3://KEY:SEKRET@bucket/x.safetensors"}};
       },
       "frozen[0].weights", "CREDENTIALS_IN_URI", ""},
      {[](JobSpec& s) { s.features.encoder_uri = "s3://bucket/x.pt?access_key=KEY&secret_key=SEKRET"; },
       "features.encoder_uri", "CREDENTIALS_IN_URI", "found parameters after a '?'"},
      // Also where there is more to say of it.
      {[](JobSpec& s) {
         s.frozen = {{.name = "a", .torchscript = {"a.pt"}, .weights = "s3://KEY:SEKRET@bucket/x.safetensors"}};
       },
       "frozen[0].weights", "CREDENTIALS_IN_URI", ""},
      {[](JobSpec& s) { s.features.components = 0; }, "features.components", "OUT_OF_RANGE", ""},
      {[](JobSpec& s) { s.features.components = 65; }, "features.components", "OUT_OF_RANGE", "pixels (64)"},
      {[](JobSpec& s) { s.clustering.method = "x"; }, "clustering.method", "UNKNOWN_VALUE",
       "kmeans, random; found 'x'"},
      {[](JobSpec& s) { s.clustering.fine_centroids = 3; }, "clustering.fine_centroids", "OUT_OF_RANGE", "experts (4)"},
      {[](JobSpec& s) { s.clustering.fine_centroids = 1618; }, "clustering.fine_centroids", "OUT_OF_RANGE", "1617"},
      {[](JobSpec& s) { s.clustering.fine_iterations = 0; }, "clustering.fine_iterations", "OUT_OF_RANGE", ""},
      {[](JobSpec& s) { s.clustering.coarse_iterations = 0; }, "clustering.coarse_iterations", "OUT_OF_RANGE", ""},
      {[](JobSpec& s) { s.clustering.batch_size = 0; }, "clustering.batch_size", "OUT_OF_RANGE", ""},
      {[](JobSpec& s) { s.model.patch = 0; }, "model.patch", "OUT_OF_RANGE", ""},
      {[](JobSpec& s) { s.model.patch = 3; }, "model.patch", "NOT_DIVISIBLE", "8 x 8"},
      {[](JobSpec& s) { s.model.width = 97; }, "model.width", "NOT_DIVISIBLE", "model.heads (4), found 97"},
      {[](JobSpec& s) { s.model.width = 6, s.model.heads = 2; }, "model.width", "NOT_DIVISIBLE",
       "position embedding (4), found 6"},
      {[](JobSpec& s) { s.router_model.width = 3, s.router_model.heads = 1; }, "router_model.width", "NOT_DIVISIBLE",
       "position embedding (4), found 3"},
      {[](JobSpec& s) {
         s.frozen = {{.name = "a", .output = "latent", .torchscript = {"a.pt"}, .shape = {4097, 8, 8}}};
       },
       "model", "OUT_OF_RANGE", "at most 4096 channels, found 4097"},
      {[](JobSpec& s) { s.model.depth = 0; }, "model.depth", "OUT_OF_RANGE", ""},
      {[](JobSpec& s) { s.model.heads = 0; }, "model.heads", "OUT_OF_RANGE", ""},
      {[](JobSpec& s) { s.model.mlp_ratio = 0; }, "model.mlp_ratio", "OUT_OF_RANGE", ""},
      {[](JobSpec& s) { s.model.mlp_ratio = 0.001; }, "model.mlp_ratio", "OUT_OF_RANGE", "at least 1"},
      {[](JobSpec& s) { s.training.steps = 0; }, "training.steps", "REQUIRED_FIELD", ""},
      {[](JobSpec& s) { s.training.steps = -5; }, "training.steps", "OUT_OF_RANGE", ""},
      {[](JobSpec& s) { s.training.batch_size = 0; }, "training.batch_size", "OUT_OF_RANGE", ""},
      {[](JobSpec& s) { s.training.self_conditioning_rate = 1.5; }, "training.self_conditioning_rate", "OUT_OF_RANGE",
       ""},
      {[](JobSpec& s) { s.router_model.self_conditioning = true; }, "router_model.self_conditioning", "OUT_OF_RANGE",
       ""},
      {[](JobSpec& s) { s.training.learning_rate = 0; }, "training.learning_rate", "OUT_OF_RANGE", "(0, 100]"},
      {[](JobSpec& s) { s.training.learning_rate = std::nan(""); }, "training.learning_rate", "OUT_OF_RANGE", ""},
      {[](JobSpec& s) { s.training.warmup_steps = 401; }, "training.warmup_steps", "OUT_OF_RANGE", "steps (400)"},
      {[](JobSpec& s) { s.training.learning_rate_schedule = "cosin"; }, "training.learning_rate_schedule",
       "UNKNOWN_VALUE", "did you mean 'cosine'"},
      {[](JobSpec& s) { s.training.weight_decay = -1; }, "training.weight_decay", "OUT_OF_RANGE", ""},
      {[](JobSpec& s) { s.training.beta1 = 1; }, "training.beta1", "OUT_OF_RANGE", "[0, 1)"},
      {[](JobSpec& s) { s.training.beta2 = -0.1; }, "training.beta2", "OUT_OF_RANGE", ""},
      {[](JobSpec& s) { s.training.epsilon = 0; }, "training.epsilon", "OUT_OF_RANGE", ""},
      {[](JobSpec& s) { s.training.clip_norm = -1; }, "training.clip_norm", "OUT_OF_RANGE", ""},
      {[](JobSpec& s) { s.training.ema_decay = 1; }, "training.ema_decay", "OUT_OF_RANGE", ""},
      {[](JobSpec& s) { s.training.class_dropout = 1.5; }, "training.class_dropout", "OUT_OF_RANGE", "[0, 1]"},
      {[](JobSpec& s) { s.training.checkpoint_every = 0; }, "training.checkpoint_every", "OUT_OF_RANGE", ""},
      {[](JobSpec& s) { s.training.keep_checkpoints = 0; }, "training.keep_checkpoints", "OUT_OF_RANGE", ""},
      {[](JobSpec& s) { s.training.explosion_factor = 1; }, "training.explosion_factor", "OUT_OF_RANGE", "expected 0"},
      {[](JobSpec& s) { s.training.explosion_factor = std::nan(""); }, "training.explosion_factor", "OUT_OF_RANGE", ""},
      {[](JobSpec& s) { s.training.milestone_every = -1; }, "training.milestone_every", "OUT_OF_RANGE", ""},
      {[](JobSpec& s) { s.training.precision.compute = "bf16"; }, "training.precision.compute", "UNKNOWN_VALUE",
       "float32, bfloat16; found 'bf16'"},
      {[](JobSpec& s) { s.training.precision.params = "bfloat16"; }, "training.precision.params", "UNKNOWN_VALUE", ""},
      {[](JobSpec& s) { s.router_model.heads = 3; }, "router_model.width", "NOT_DIVISIBLE", ""},
      {[](JobSpec& s) { s.router_training.steps = 0; }, "router_training.steps", "REQUIRED_FIELD", ""},
      {[](JobSpec& s) { s.pipeline.schedule = "1f2b"; }, "pipeline.schedule", "UNKNOWN_VALUE", "did you mean '1f1b'"},
      {[](JobSpec& s) { s.pipeline.stages = -1; }, "pipeline.stages", "OUT_OF_RANGE", ""},
      {[](JobSpec& s) { s.pipeline.schedule = "v-half", s.pipeline.stages = 5; }, "pipeline.stages", "OUT_OF_RANGE",
       "multiple of 2, the stages that v-half puts on every rank, found 5"},
      {[](JobSpec& s) { s.pipeline.stages = 9; }, "pipeline.stages", "OUT_OF_RANGE", "layers of model (8"},
      {[](JobSpec& s) { s.pipeline.stages = 7; }, "pipeline.stages", "OUT_OF_RANGE", "layers of router_model (6"},
      {[](JobSpec& s) { s.pipeline.micro_batches = -1; }, "pipeline.micro_batches", "OUT_OF_RANGE", ""},
      {[](JobSpec& s) { s.pipeline.memory = "0"; }, "pipeline.memory", "INVALID_MEMORY", "such as 24000000000"},
      {[](JobSpec& s) { s.pipeline.memory = "-3GB"; }, "pipeline.memory", "INVALID_MEMORY", ""},
      {[](JobSpec& s) { s.pipeline.memory = "24 GB"; }, "pipeline.memory", "INVALID_MEMORY", "found '24 GB'"},
      {[](JobSpec& s) { s.pipeline.memory = "9000000TiB"; }, "pipeline.memory", "INVALID_MEMORY", ""},
      {[](JobSpec& s) { s.pipeline.memory = ""; }, "pipeline.memory", "INVALID_MEMORY", ""},
      {[](JobSpec& s) { s.pipeline.replicas = -1; }, "pipeline.replicas", "OUT_OF_RANGE", ""},
      {[](JobSpec& s) { s.pipeline.recompute = "some"; }, "pipeline.recompute", "UNKNOWN_VALUE", "auto, never, always"},
      {[](JobSpec& s) { s.pipeline.fill = "yes"; }, "pipeline.fill", "UNKNOWN_VALUE", "auto, never"},
      {[](JobSpec& s) { s.pipeline.frozen_cache = "on"; }, "pipeline.frozen_cache", "UNKNOWN_VALUE", ""},
      {[](JobSpec& s) { s.pipeline.replicas = 3; }, "training.batch_size", "NOT_DIVISIBLE",
       "multiple of pipeline.micro_batches x pipeline.replicas (12), found 64"},
      {[](JobSpec& s) { s.pipeline.micro_batches = 5; }, "training.batch_size", "NOT_DIVISIBLE",
       "multiple of pipeline.micro_batches (5), found 64"},
      {[](JobSpec& s) { s.router_training.batch_size = 30; }, "router_training.batch_size", "NOT_DIVISIBLE",
       "found 30"},
      {[](JobSpec& s) { s.requirements.min_ranks = 0; }, "requirements.min_ranks", "OUT_OF_RANGE", ""},
      {[](JobSpec& s) { s.requirements.device_kind = "tpu"; }, "requirements.device_kind", "UNKNOWN_VALUE",
       "cpu, cuda"},
      {[](JobSpec& s) { s.requirements.min_memory_bytes = -1; }, "requirements.min_memory_bytes", "OUT_OF_RANGE", ""},
      {[](JobSpec& s) {
         s.requirements.labels = {{"zone", std::string(4093, 'z')}};
       },
       "requirements.labels", "OUT_OF_RANGE",
       "at most 4096 bytes of names and values, as islands may have, found 4097"},
      {[](JobSpec& s) { s.priority = 2'000'000; }, "priority", "OUT_OF_RANGE", ""},
      {[](JobSpec& s) { s.failure_budget = 0; }, "failure_budget", "OUT_OF_RANGE", ""},
  };
}

TEST(ValidateTest, NamesThatWouldLeaveTheFolderAreRefused) {
  for (const char* good : {"digits", "cifar-10", "a", "0-b"}) EXPECT_TRUE(ValidateName("dataset", good).ok()) << good;
  for (const char* bad : {"", "..", ".hidden", "a/b", "A", "a b", "-a", "a-", "a_b", "a.b", "\xc3\xa4"}) {
    EXPECT_EQ(ValidateName("dataset", bad).code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_FALSE(ValidateName("dataset", std::string(64, 'a')).ok());
}

TEST(ValidateTest, EveryRuleNamesItsField) {
  const DatasetFacts facts = Digits();
  for (const BadSpec& bad : BadSpecs()) {
    JobSpec spec = Good();
    bad.change(spec);
    const absl::Status status = Validate(spec, &facts);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.field;
    EXPECT_EQ(ErrorField(status), bad.field) << status;
    EXPECT_EQ(ErrorReason(status), bad.reason) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.message));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("SEKRET")));
  }
}

TEST(ValidateTest, EveryReplicaNeedsARank) {
  JobSpec spec = Good();
  EXPECT_EQ(LeastRanks(spec), 1);
  spec.pipeline.replicas = 4;
  EXPECT_EQ(LeastRanks(spec), 4);
  spec.requirements.min_ranks = 6;
  EXPECT_EQ(LeastRanks(spec), 6);
  spec.pipeline.replicas = 0;  // as many as there is room for
  EXPECT_EQ(LeastRanks(spec), 6);
}

TEST(ValidateTest, LayersAreEmbeddingBlocksAndHead) {
  EXPECT_EQ(LayerCount(ModelSpec{.depth = 6}), 8);
}

}  // namespace
}  // namespace atl::spec
