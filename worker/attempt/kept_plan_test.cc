#include "worker/attempt/kept_plan.h"

#include <cstdlib>
#include <filesystem>

#include <gtest/gtest.h>

#include "common/base/errors.h"

namespace atl::worker {
namespace {

TEST(KeptPlanTest, BelongsToATaskAndANumberOfRanks) {
  std::string folder = testing::TempDir() + "atoll_plans_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const auto store = *storage::BlobStore::Open("file://" + folder);
  planner::PlanRequest request{.batch_size = 64, .ranks = 2};
  request.profile = planner::CountedProfile(spec::ModelSpec{}, /*tokens=*/16, /*channels=*/1);
  request.profile.frozen = planner::CountedFrozen(
      {{.name = "e", .output = "latent", .layers = {{.kind = "convolution", .width = 1}}}}, {1, 8, 8}, 2, 64);
  const planner::Plan plan = *planner::MakePlan(request);
  ASSERT_FALSE(plan.frozen.empty());

  spec::TaskGrant grant;
  grant.token.task_id = "j/train_expert/0";
  EXPECT_TRUE(absl::IsNotFound(ReadKeptPlan(store.get(), grant, 2).status()));
  ASSERT_TRUE(KeepPlan(store.get(), grant, 2, plan).ok());
  const auto kept = ReadKeptPlan(store.get(), grant, 2);
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->frozen, plan.frozen);
  EXPECT_EQ(kept->schedule, plan.schedule);
  EXPECT_EQ(kept->components, plan.components);
  EXPECT_TRUE(absl::IsNotFound(ReadKeptPlan(store.get(), grant, 3).status()));
  grant.token.task_id = "j/train_expert/1";
  EXPECT_TRUE(absl::IsNotFound(ReadKeptPlan(store.get(), grant, 2).status()));

  grant.token.task_id = "j/train_expert/0";
  for (const auto& entry : std::filesystem::directory_iterator(folder + "/plans")) {
    const std::string uri = "file://" + entry.path().string();
    std::string changed = store->Read(uri).value();
    changed.back() = static_cast<char>(changed.back() ^ 1);
    ASSERT_TRUE(store->Write(uri, changed).ok());
  }
  EXPECT_EQ(ErrorReason(ReadKeptPlan(store.get(), grant, 2).status()), "HASH_MISMATCH");
  for (const auto& entry : std::filesystem::directory_iterator(folder + "/plans")) {
    ASSERT_TRUE(store->Write("file://" + entry.path().string(), "no plan").ok());
  }
  EXPECT_EQ(ErrorReason(ReadKeptPlan(store.get(), grant, 2).status()), "FILE_MALFORMED");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace atl::worker
