#include "coordinator/jobs/retention.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::jobs {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const absl::Time kNow = absl::FromUnixSeconds(1'700'000'000);
constexpr AttemptFacts kOver{.known = true, .task_over = true};
constexpr AttemptFacts kSuperseded{.known = true, .superseded = true};
constexpr AttemptFacts kRunning{.known = true};
constexpr AttemptFacts kDeleted{.known = true, .job_deleted = true};
constexpr AttemptFacts kForeign{};

std::vector<int64_t> Steps(const std::vector<RetainedCheckpoint>& checkpoints) {
  std::vector<int64_t> steps;
  for (const RetainedCheckpoint& checkpoint : checkpoints) steps.push_back(checkpoint.step);
  return steps;
}

TEST(RetentionTest, NewestAndMilestonesStay) {
  const std::vector<RetainedCheckpoint> committed = {
      {1, 100, "a", false}, {1, 200, "b", true}, {2, 400, "d", false}, {2, 500, "e", false}};
  EXPECT_THAT(Steps(SupersededCheckpoints(committed, 2)), ElementsAre(100));
  EXPECT_THAT(Steps(SupersededCheckpoints(committed, 1)), ElementsAre(100, 400));
  EXPECT_THAT(Steps(SupersededCheckpoints(committed, 0)), ElementsAre(100, 400)) << "the newest always stays";
  EXPECT_THAT(Steps(SupersededCheckpoints(committed, 5)), IsEmpty());
}

TEST(RetentionTest, OnlyOldFilesThatNothingNeedsAreCollectable) {
  struct Case {
    std::string what;
    AttemptFacts attempt;
    absl::Duration age;
    std::string uri;
    bool collectable;
  };
  const Case cases[] = {
      {"task over", kOver, absl::Hours(25), "f/x", true},
      {"attempt superseded", kSuperseded, absl::Hours(25), "f/x", true},
      {"attempt still valid", kRunning, absl::Hours(25), "f/x", false},
      {"too young", kOver, absl::Hours(23), "f/x", false},
      {"job of another store", kForeign, absl::Hours(25), "f/x", false},
      {"an artifact", kOver, absl::Hours(25), "f/artifact", false},
      {"in a checkpoint's folder", kOver, absl::Hours(25), "f/ckpt/stage0.safetensors", false},
      {"evidence", kOver, absl::Hours(25), "f/evidence/12.json", false},
      {"evidence of a deleted job", kDeleted, absl::Hours(25), "f/evidence/12.json", true},
      {"artifact of a deleted job", kDeleted, absl::Hours(25), "f/artifact", true},
      {"young file of a deleted job", kDeleted, absl::Hours(1), "f/artifact", false},
  };
  for (const Case& c : cases) {
    const auto collectable =
        CollectableFiles({{c.uri, kNow - c.age, c.attempt}}, {"f/artifact"}, {"f/ckpt/"}, kNow, absl::Hours(24));
    EXPECT_EQ(!collectable.empty(), c.collectable) << c.what;
  }
}

TEST(RetentionTest, NoManifestIsLeftWithoutTheFilesThatItNames) {
  const auto collectable = [](absl::Duration age_of_manifest) {
    std::vector<std::string> uris;
    const std::vector<StoredFile> files = {{"f/5-a/expert.safetensors", kNow - absl::Hours(25), kOver},
                                           {"f/5-a/manifest.json", kNow - age_of_manifest, kOver},
                                           {"f/9-b/expert.safetensors", kNow - absl::Hours(25), kOver}};
    for (const Collection& file : CollectableFiles(files, {}, {}, kNow, absl::Hours(24))) uris.push_back(file.uri);
    return uris;
  };
  EXPECT_THAT(collectable(absl::Hours(25)),
              ElementsAre("f/5-a/manifest.json", "f/5-a/expert.safetensors", "f/9-b/expert.safetensors"));
  EXPECT_THAT(collectable(absl::Hours(23)), ElementsAre("f/9-b/expert.safetensors"));
}

TEST(RetentionTest, AttemptFoldersAreParsedStrictly) {
  AttemptFolder folder;
  ASSERT_TRUE(ParseAttemptFolder("file:///b/jobs/", "file:///b/jobs/j/train_expert-0/2-7/100-ab/m.json", &folder));
  EXPECT_EQ(folder.task_id, "j/train_expert-0");
  EXPECT_EQ(folder.store_epoch, 2);
  EXPECT_EQ(folder.attempt, 7);
  for (const char* bad :
       {"file:///b/models/m/v/x", "file:///b/jobs/j", "file:///b/jobs/j/t/7/x", "file:///b/jobs/j/t/a-7/x",
        "file:///b/jobs/j/t/0-7/x", "file:///b/jobs/j/t/1-/x", "file:///b/jobs/j/t/1-2",
        "file:///b/jobs/j/t/1-9223372036854775807/x", "file:///b/jobs/j/t/9223372036854775807-1/x"}) {
    EXPECT_FALSE(ParseAttemptFolder("file:///b/jobs/", bad, &folder)) << bad;
  }
}

}  // namespace
}  // namespace atl::jobs
