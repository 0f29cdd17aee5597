#include "coordinator/jobs/task_graph.h"

#include <map>
#include <set>

#include "common/base/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::jobs {
namespace {

using spec::TaskKind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAreArray;

spec::JobSpec SmallSpec() {
  spec::JobSpec spec;
  spec.model_name = "digits";
  spec.dataset = "digits";
  spec.experts = 2;
  return spec;
}

std::vector<std::string> Ids(const std::vector<Task>& tasks) {
  std::vector<std::string> ids;
  for (const Task& task : tasks) ids.push_back(task.task_id);
  return ids;
}

spec::Artifact ArtifactNamed(std::string name) {
  return {name, "file:///b/" + name, 1, std::string(64, 'a'), 1};
}

TEST(TaskGraphTest, PixelFeaturesMakeTheWholeGraphInOrder) {
  const std::vector<Task> tasks = ExpandTasks("j", SmallSpec(), 2);
  EXPECT_THAT(Ids(tasks),
              ElementsAre("j/fit_features", "j/featurize-0", "j/featurize-1", "j/cluster", "j/partition-0",
                          "j/partition-1", "j/train_expert-0", "j/train_expert-1", "j/train_router", "j/publish"));
  EXPECT_THAT(tasks[1].depends_on, ElementsAre("j/fit_features"));
  EXPECT_THAT(tasks[3].depends_on, ElementsAre("j/featurize-0", "j/featurize-1"));
  EXPECT_THAT(tasks[5].depends_on, ElementsAre("j/featurize-1", "j/cluster"));
  EXPECT_THAT(tasks[7].depends_on, ElementsAre("j/partition-0", "j/partition-1"));
}

TEST(TaskGraphTest, OnlyTasksThatWaitForNothingAreReady) {
  struct Case {
    std::string features;
    std::set<std::string> ready;
  };
  for (const Case& c : {Case{"pixels_pca", {"j/fit_features"}}, Case{"column", {"j/featurize-0", "j/featurize-1"}},
                        Case{"torchscript", {"j/featurize-0", "j/featurize-1"}}}) {
    spec::JobSpec spec = SmallSpec();
    spec.features.kind = c.features;
    std::set<std::string> ready;
    for (const Task& task : ExpandTasks("j", spec, 2)) {
      if (task.state == TaskState::kReady) ready.insert(task.task_id);
    }
    EXPECT_EQ(ready, c.ready) << c.features;
  }
}

TEST(TaskGraphTest, EveryDependencyStandsBeforeItsDependent) {
  for (const int32_t shards : {1, 3, 17}) {
    std::set<std::string> seen;
    for (const Task& task : ExpandTasks("job-1", SmallSpec(), shards)) {
      for (const std::string& id : task.depends_on) EXPECT_TRUE(seen.contains(id)) << task.task_id << " before " << id;
      EXPECT_TRUE(seen.insert(task.task_id).second) << task.task_id;
      EXPECT_EQ(JobIdOf(task.task_id), "job-1");
    }
  }
}

TEST(TaskGraphTest, AJobWhoseFilesNoGrantCanNameIsTooLarge) {
  struct Case {
    int32_t experts;
    int32_t shards;
    bool fits;
  };
  for (const Case& c : {Case{2, 75'000, true}, Case{2, 75'001, false}, Case{1, 150'000, true}, Case{8192, 18, true},
                        Case{8192, 2'000'000'000, false}}) {
    spec::JobSpec spec = SmallSpec();
    spec.experts = c.experts;
    const absl::Status status = CheckSize(spec, c.shards);
    EXPECT_EQ(status.ok(), c.fits) << c.experts << " x " << c.shards;
    if (c.fits) continue;
    EXPECT_EQ(ErrorReason(status), "JOB_TOO_LARGE");
    EXPECT_EQ(ErrorField(status), "experts");
  }
}

TEST(TaskGraphTest, AnExpertReadsItsOwnClusterOnly) {
  JobRecord record;
  record.tasks = ExpandTasks("j", SmallSpec(), 2);
  for (const char* id : {"j/partition-0", "j/partition-1"}) {
    FindTask(record, id)->outputs = {ArtifactNamed("partition/0"), ArtifactNamed("partition/1")};
  }
  const auto inputs = InputsOf(record, *FindTask(record, "j/train_expert-1"));
  ASSERT_EQ(inputs.size(), 2u);
  for (const spec::TaskInput& input : inputs) {
    EXPECT_EQ(input.kind, TaskKind::kPartition);
    ASSERT_EQ(input.artifacts.size(), 1u);
    EXPECT_EQ(input.artifacts[0].name, "partition/1");
  }
  EXPECT_EQ(InputsOf(record, *FindTask(record, "j/train_router"))[0].artifacts.size(), 2u);
  // The same by their URIs alone.
  const PartitionUris partitions = PartitionUrisOf(record);
  for (const Task& task : record.tasks) {
    if (!IsTraining(task.kind)) continue;
    std::vector<std::string> expected;
    for (const spec::TaskInput& input : InputsOf(record, task)) {
      for (const spec::Artifact& artifact : input.artifacts) expected.push_back(artifact.uri);
    }
    EXPECT_THAT(InputUrisOf(partitions, task), UnorderedElementsAreArray(expected)) << task.task_id;
  }
  EXPECT_THAT(InputUrisOf(PartitionUrisOf({}), *FindTask(record, "j/train_expert-1")), IsEmpty());
}

TEST(TaskGraphTest, OutputsAreCheckedByKind) {
  struct Case {
    TaskKind kind;
    std::vector<spec::Artifact> outputs;
    std::string error;  // empty: fine
  };
  spec::Artifact no_hash = ArtifactNamed("pca");
  no_hash.sha256 = "abc";
  spec::Artifact no_uri = ArtifactNamed("pca");
  no_uri.uri = "";
  const Case cases[] = {
      {TaskKind::kFitFeatures, {ArtifactNamed("pca")}, ""},
      {TaskKind::kFitFeatures, {}, "expected an artifact named 'pca'"},
      {TaskKind::kFitFeatures, {no_hash}, "64 lower-case hex digits, found 'abc'"},
      {TaskKind::kFitFeatures, {no_uri}, "has no uri"},
      {TaskKind::kFitFeatures, {ArtifactNamed("pca"), ArtifactNamed("pca")}, "twice"},
      {TaskKind::kPartition, {}, ""},
      {TaskKind::kTrainExpert, {ArtifactNamed("weights")}, "named 'checkpoint'"},
      {TaskKind::kPublish, {ArtifactNamed("model_index")}, ""},
  };
  for (const Case& c : cases) {
    Task task;
    task.task_id = "j/t";
    task.kind = c.kind;
    const absl::Status status = CheckOutputs(task, c.outputs);
    if (c.error.empty()) {
      EXPECT_TRUE(status.ok()) << status;
    } else {
      EXPECT_EQ(ErrorReason(status), "INVALID_OUTPUTS");
      EXPECT_THAT(std::string(status.message()), HasSubstr(c.error));
    }
  }
}

}  // namespace
}  // namespace atl::jobs
