#include "common/base/errors.h"
#include "common/spec/spec_io.h"
#include "common/spec/task.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::spec {
namespace {

using ::testing::HasSubstr;

constexpr char kMinimal[] = "model_name: digits\ndataset: digits\nexperts: 4\ntraining: {steps: 400}\n";

TEST(ParseJobSpecTest, MinimalSpecKeepsDefaults) {
  const auto spec = ParseJobSpec(kMinimal);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->model_name, "digits");
  EXPECT_EQ(spec->experts, 4);
  EXPECT_EQ(spec->training.batch_size, 64);
  EXPECT_EQ(spec->router_model.width, 64);
  EXPECT_EQ(spec->pipeline.schedule, "1f1b");
}

TEST(ParseJobSpecTest, RouterTrainingTakesWhatItDoesNotGiveFromTraining) {
  const auto spec = ParseJobSpec(
      "router_training: {learning_rate: 0.002}\ntraining: {steps: 400, batch_size: 32, precision: {compute: "
      "bfloat16}}\n");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->router_training.steps, 400);
  EXPECT_EQ(spec->router_training.batch_size, 32);
  EXPECT_EQ(spec->router_training.precision.compute, "bfloat16");
  EXPECT_EQ(spec->router_training.learning_rate, 0.002);
  EXPECT_EQ(spec->training.learning_rate, 1e-3);
}

TEST(ParseJobSpecTest, EveryTypeIsRead) {
  const auto spec = ParseJobSpec(
      "seed: 18446744073709551615\npriority: -3\nmodel: {mlp_ratio: 2}\nclustering: {normalize: true}\n"
      "features: {column: \"a b\"}\nrequirements: {min_memory_bytes: 8589934592, labels: {zone: eu, gpu: '8'}}\n"
      "training:\n");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->seed, 18446744073709551615u);
  EXPECT_EQ(spec->priority, -3);
  EXPECT_EQ(spec->model.mlp_ratio, 2.0);
  EXPECT_TRUE(spec->clustering.normalize);
  EXPECT_EQ(spec->features.column, "a b");
  EXPECT_EQ(spec->requirements.min_memory_bytes, 8589934592);
  EXPECT_EQ(spec->requirements.labels, (std::map<std::string, std::string>{{"zone", "eu"}, {"gpu", "8"}}));
}

// Returns a spec whose values a careless writer or reader would change.
JobSpec TrickySpec() {
  JobSpec spec;
  spec.model_name = "a \"quoted\"\nname: #x";
  spec.dataset = "true";
  spec.experts = 7;
  spec.seed = ~uint64_t{0};
  spec.features.column = "";
  spec.training.learning_rate = 1.0 / 3.0;
  spec.training.epsilon = 1e-300;
  spec.router_training.steps = 5;
  spec.frozen = {{.name = "encoder",
                  .output = "latent",
                  .layers = {{.kind = "convolution", .width = 4, .stride = 2, .activation = "silu"}, {.kind = "norm"}},
                  .shape = {4, 4, 4}},
                 {.name = "labels", .input = "label", .output = "condition", .torchscript = {"file:///a.pt", "b"}}};
  spec.requirements.labels = {{"null", "~"}, {"ü", "12"}};
  return spec;
}

TEST(ParseJobSpecTest, YamlThatIsWrittenReadsBackEqual) {
  const JobSpec spec = TrickySpec();
  const std::string yaml = ToYaml(spec);
  const auto again = ParseJobSpec(yaml);
  ASSERT_TRUE(again.ok()) << again.status() << yaml;
  EXPECT_EQ(*again, spec) << yaml;
  const auto defaults = ParseJobSpec(ToYaml(JobSpec{}));
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_EQ(*defaults, JobSpec{});
}

TEST(ParseJobSpecTest, StoredTextReadsBackEqual) {
  for (const JobSpec& spec : {TrickySpec(), JobSpec{}}) {
    const std::string json = ToJson(spec);
    EXPECT_EQ(json.find('\n'), std::string::npos) << json;
    const auto stored = ParseStoredJobSpec(json, "stored");
    ASSERT_TRUE(stored.ok()) << stored.status() << json;
    EXPECT_EQ(*stored, spec) << json;
    const auto yaml = ParseJobSpec(json);
    ASSERT_TRUE(yaml.ok()) << yaml.status() << json;
    EXPECT_EQ(*yaml, spec) << json;
  }
}

TEST(ParseJobSpecTest, StoredTextThatIsDamagedSaysWhere) {
  std::string deep;
  for (int i = 0; i < 100; ++i) deep += R"({"model":)";
  for (const std::string& text : {std::string(R"({"experts":"many"})"), std::string(R"({"expert":1})"),
                                  std::string(R"({"experts":1,"experts":2})"), std::string(R"({"experts":)"), deep}) {
    const auto stored = ParseStoredJobSpec(text, "stored spec of job j");
    ASSERT_FALSE(stored.ok()) << text;
    EXPECT_EQ(stored.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(stored.status().message()), HasSubstr("stored spec of job j")) << text;
  }
}

TEST(ParseJobSpecTest, TextThatIsNotUtf8IsRefusedWithItsLine) {
  // A stray byte, a cut sequence, an overlong form, a surrogate, no character at all.
  for (const char* text : {"\xff", "\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xef\xbf\xbf"}) {
    const auto spec = ParseJobSpec(std::string(kMinimal) + "requirements: {labels: {a: \"x" + text + "\"}}\n");
    EXPECT_EQ(ErrorReason(spec.status()), "INVALID_YAML") << text;
    EXPECT_THAT(std::string(spec.status().message()), HasSubstr("line 5")) << text;
  }
  EXPECT_TRUE(ParseJobSpec(std::string(kMinimal) + "requirements: {labels: {\"ü€𝄞\": b}}\n").ok());
}

TEST(ParseJobSpecTest, OverridesLieOverTheFile) {
  const auto spec = ParseJobSpec(
      kMinimal, "job.yaml", {{"training.steps", "20"}, {"pipeline.stages", "2"}, {"requirements.labels", "{a: b}"}});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->training.steps, 20);
  EXPECT_EQ(spec->router_training.steps, 20);
  EXPECT_EQ(spec->pipeline.stages, 2);
  EXPECT_EQ(spec->requirements.labels.at("a"), "b");
}

TEST(ParseJobSpecTest, OverrideOfAnAliasedMappingLeavesItsOriginalAlone) {
  const auto spec = ParseJobSpec("model: &m {depth: 3}\nrouter_model: *m\n", "job.yaml", {{"router_model.depth", "9"}});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->model.depth, 3);
  EXPECT_EQ(spec->router_model.depth, 9);
}

struct BadCase {
  std::string yaml;
  std::string reason;
  std::string field;
  std::string message;
};

TEST(ParseJobSpecTest, EveryErrorNamesFieldExpectedFoundAndLine) {
  std::string deep;
  for (int i = 0; i < 40; ++i) deep += "[";
  deep += std::string(40, ']');
  std::string bomb = "labels0: &a0 x\n";
  for (int i = 0; i < 200; ++i) bomb += "k" + std::to_string(i) + ": *a0\n";
  const std::vector<BadCase> cases = {
      {"experts: 4\ntraning:\n  steps: 3\n", "UNKNOWN_FIELD", "traning", "did you mean 'training'? (job.yaml, line 3)"},
      {"training:\n  step: 3\n", "UNKNOWN_FIELD", "training.step", "did you mean 'steps'? (job.yaml, line 2)"},
      {"zzzzzz: 3\n", "UNKNOWN_FIELD", "zzzzzz", "expected one of model_name, dataset"},
      {"training: {precision: {comptue: x}}\n", "UNKNOWN_FIELD", "training.precision.comptue", "'compute'"},
      {"experts: 4\nexperts: 5\n", "DUPLICATE_FIELD", "", "'experts' is given twice (job.yaml, line 2)"},
      {"experts: four\n", "WRONG_TYPE", "experts", "expected a whole number, found 'four' (job.yaml, line 1)"},
      {"experts: 4.5\n", "WRONG_TYPE", "experts", "expected a whole number, found '4.5'"},
      {"experts: '4'\n", "WRONG_TYPE", "experts", "found the text \"4\""},
      {"experts:\n", "WRONG_TYPE", "experts", "found nothing"},
      {"experts: [4]\n", "WRONG_TYPE", "experts", "found a list"},
      {"experts: 5000000000\n", "OUT_OF_RANGE", "experts", "between -2147483648 and 2147483647"},
      {"seed: -1\n", "WRONG_TYPE", "seed", "whole number"},
      {"model: {mlp_ratio: .nan}\n", "WRONG_TYPE", "model.mlp_ratio", "number"},
      {"model: {mlp_ratio: inf}\n", "WRONG_TYPE", "model.mlp_ratio", "finite"},
      {"model: {mlp_ratio: 1e999}\n", "OUT_OF_RANGE", "model.mlp_ratio", "found '1e999'"},
      {"training: {flip: yes}\n", "WRONG_TYPE", "training.flip", "expected true or false, found 'yes'"},
      {"model: 3\n", "WRONG_TYPE", "model", "expected a mapping"},
      {"model: {patch: {}}\n", "WRONG_TYPE", "model.patch", "found a mapping"},
      {"dataset: [a]\n", "WRONG_TYPE", "dataset", "expected text, found a list"},
      {"requirements: {labels: [a]}\n", "WRONG_TYPE", "requirements.labels", "mapping of names to text"},
      {"requirements: {labels: {a: [b]}}\n", "WRONG_TYPE", "requirements.labels.a", "expected text"},
      {"[1, 2]\n", "WRONG_TYPE", "", "expected a mapping of field names to values, found a list"},
      {"just words\n", "WRONG_TYPE", "", "found 'just words'"},
      {"experts: [4\n", "INVALID_YAML", "", "job.yaml, line"},
      {"a: 1\n---\nb: 2\n", "INVALID_YAML", "", "one YAML document"},
      {"{[1]: 2}\n", "INVALID_YAML", "", "expected a field name"},
      {"a: &x [*x]\n", "INVALID_YAML", "", "inside what it names"},
      {"a: *x\n", "INVALID_YAML", "", ""},
      {deep, "SPEC_TOO_LARGE", "", "nesting of at most 32"},
      {bomb, "SPEC_TOO_LARGE", "", "at most 100 aliases"},
      {std::string((1 << 20) + 1, ' '), "SPEC_TOO_LARGE", "", "expected at most 1048576 bytes"},
  };
  for (const BadCase& bad : cases) {
    SCOPED_TRACE(bad.yaml.substr(0, 60));
    const auto spec = ParseJobSpec(bad.yaml, "job.yaml");
    ASSERT_FALSE(spec.ok());
    EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ErrorReason(spec.status()), bad.reason) << spec.status();
    EXPECT_EQ(ErrorField(spec.status()), bad.field) << spec.status();
    EXPECT_THAT(std::string(spec.status().message()), HasSubstr(bad.message));
  }
}

TEST(ParseJobSpecTest, AnEmptyDocumentIsASpecOfDefaults) {
  const auto spec = ParseJobSpec("");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(*spec, JobSpec{});
}

TEST(ParseJobSpecTest, BadOverridesNameTheFlag) {
  const std::vector<std::tuple<Override, std::string, std::string>> cases = {
      {{"training.steps", "many"}, "training.steps", "(--set training.steps)"},
      {{"dataset", ""}, "dataset", "expected text, found nothing (--set dataset)"},
      {{"training.step", "1"}, "training.step", "did you mean 'steps'"},
      {{"experts.x", "1"}, "experts.x", "expected a mapping before 'x'"},
      {{"a..b", "1"}, "a..b", "expected a field path"},
      {{"", "1"}, "", "expected a field path"},
      {{"experts", "[1"}, "", "--set experts"},
  };
  for (const auto& [override, field, message] : cases) {
    const auto spec = ParseJobSpec(kMinimal, "job.yaml", {override});
    ASSERT_FALSE(spec.ok()) << override.path;
    EXPECT_EQ(ErrorField(spec.status()), field);
    EXPECT_THAT(std::string(spec.status().message()), HasSubstr(message));
  }
}

TEST(TaskKindTest, EveryKindHasAName) {
  EXPECT_EQ(ToString(TaskKind::kFitFeatures), "fit_features");
  EXPECT_EQ(ToString(TaskKind::kTrainExpert), "train_expert");
  EXPECT_EQ(ToString(TaskKind::kPublish), "publish");
}

}  // namespace
}  // namespace atl::spec
