// A store that is restored from a copy of the past: what was committed since is neither deleted nor lost.
#include <filesystem>
#include <fstream>

#include "common/base/errors.h"
#include "coordinator/blobs/adoption.h"
#include "coordinator/core/epoch.h"
#include "coordinator/service/test_support.h"
#include "coordinator/store/sqlite_store.h"
#include "gmock/gmock.h"

namespace atl::coordinator {
namespace {

using ::testing::HasSubstr;

class AdoptionTest : public CoordinatorFixture {
 protected:
  // A job with a running first training task whose step 10 is committed; then the store is copied away.
  void SetUp() override {
    const auto job = Submit(SubmitRequest());
    ASSERT_TRUE(job.ok()) << job.status();
    job_id_ = job->job_id();
    ASSERT_TRUE(Register("a").ok());
    for (int task = 0; task < 4; ++task) FinishNext("a");
    const auto claim = Claim("a");
    ASSERT_TRUE(claim.ok() && claim->has_grant());
    grant_ = claim->grant();
    const auto manifest = Commit(grant_, 10);
    ASSERT_TRUE(manifest.ok()) << manifest.status();
    backed_up_ = manifest->uri;
    coordinator_.reset();
    std::filesystem::copy_file(folder_.File("store.db"), folder_.File("copy.db"));
    StartCoordinator();
  }

  // The coordinator starts again on the copy.
  void Restore(bool adopt) {
    coordinator_.reset();
    std::filesystem::copy_file(folder_.File("store.db"), folder_.File("replaced.db"));
    std::filesystem::copy_file(folder_.File("copy.db"), folder_.File("store.db"),
                               std::filesystem::copy_options::overwrite_existing);
    StartCoordinator(/*restored=*/true, adopt);
  }

  void Restart(bool adopt) {
    coordinator_.reset();
    StartCoordinator(/*restored=*/false, adopt);
  }

  // Commits `step` of the attempt that the copy knows; returns its manifest.
  std::string CommitSince(int64_t step) {
    const auto manifest = Commit(grant_, step);
    EXPECT_TRUE(manifest.ok()) << manifest.status();
    return manifest.ok() ? manifest->uri : "";
  }

  // The attempt that the copy knows diverges at `step`; returns the one that its task goes back to, -1 after an error.
  int64_t DivergeFrom(int64_t step) {
    atlpb::island::v1::RollbackTaskRequest request;
    *request.mutable_token() = grant_.token();
    request.set_before_step(step);
    request.set_through_step(step + 10);
    request.set_reason("LOSS_EXPLODED");
    request.set_message("training diverged: script");
    atlpb::island::v1::RollbackTaskResponse response;
    const absl::Status status =
        Call(*islands_, &atlpb::island::v1::IslandService::Stub::RollbackTask, request, &response);
    EXPECT_TRUE(status.ok()) << status;
    return status.ok() ? response.rollback().to_step() : -1;
  }

  absl::Status Collect() { return coordinator_->collector().CollectOnce(); }
  bool Exists(const std::string& uri) { return blobs_->Exists(uri).value(); }
  std::string TensorsOf(const std::string& manifest) const { return jobs::FolderOf(manifest) + "stage-0.safetensors"; }

  // The grant that an island gets of the training task after the restore.
  atlpb::island::v1::TaskGrant ClaimAgain() {
    EXPECT_TRUE(Register("b").ok());
    const auto claim = Claim("b");
    EXPECT_TRUE(claim.ok() && claim->has_grant()) << claim.status();
    if (!claim.ok()) return {};
    EXPECT_EQ(claim->grant().token().task_id(), grant_.token().task_id());
    return claim->grant();
  }

  std::string job_id_;
  atlpb::island::v1::TaskGrant grant_;
  std::string backed_up_;
};

TEST_F(AdoptionTest, NothingIsDeletedFromARestoreUntilAdoptionAndEvenAfterRestarts) {
  const std::string twenty = CommitSince(20);
  const std::string thirty = CommitSince(30);
  Restore(/*adopt=*/false);
  EXPECT_EQ(ErrorReason(Collect()), "COLLECTION_HELD");
  EXPECT_THAT(std::string(Collect().message()), HasSubstr("--adopt"));
  EXPECT_THAT(coordinator_->registry().Text(), HasSubstr("atoll_coordinator_collection_held 1"));
  Restart(/*adopt=*/false);
  EXPECT_EQ(ErrorReason(Collect()), "COLLECTION_HELD");
  for (const std::string& manifest : {backed_up_, twenty, thirty}) {
    EXPECT_TRUE(Exists(manifest));
    EXPECT_TRUE(Exists(TensorsOf(manifest)));
  }
  EXPECT_EQ(ClaimAgain().resume_from().step(), 10) << "what the copy knows";
}

TEST_F(AdoptionTest, WholeCheckpointsNewerThanTheCopyAreTakenBack) {
  CommitSince(20);
  ASSERT_TRUE(Collect().ok());
  ASSERT_FALSE(Exists(backed_up_)) << "the copy's only checkpoint is gone: the job keeps one";
  const std::string thirty = CommitSince(30);
  Restore(/*adopt=*/true);
  EXPECT_THAT(coordinator_->registry().Text(), HasSubstr("atoll_coordinator_collection_held 0"));
  ASSERT_TRUE(Collect().ok());
  EXPECT_TRUE(Exists(thirty));
  const auto grant = ClaimAgain();
  EXPECT_EQ(grant.resume_from().step(), 30);
  EXPECT_EQ(grant.resume_from().manifest_uri(), thirty);
  EXPECT_GT(grant.token().store_epoch(), grant_.token().store_epoch());
  EXPECT_GT(grant.token().attempt(), grant_.token().attempt());
  EXPECT_EQ(ErrorReason(Commit(grant_, 40).status()), "STALE_ATTEMPT");
  ASSERT_TRUE(Commit(grant, 50).ok());
  ASSERT_TRUE(Collect().ok());
  EXPECT_FALSE(Exists(thirty)) << "has a row like any other, and the job keeps one";
}

TEST_F(AdoptionTest, ADamagedOrUnfinishedCheckpointIsNotTakenBackAndNotDeletedEither) {
  const std::string twenty = CommitSince(20);
  const std::string thirty = CommitSince(30);
  ASSERT_TRUE(blobs_->Write(TensorsOf(thirty), "tensorz").ok());
  const std::string unfinished = grant_.storage().write_prefix() + "/40-x/stage-0.safetensors";
  ASSERT_TRUE(blobs_->Write(unfinished, "no manifest yet").ok());
  Restore(/*adopt=*/true);
  ASSERT_TRUE(Collect().ok());
  const auto grant = ClaimAgain();
  EXPECT_EQ(grant.resume_from().manifest_uri(), twenty);
  EXPECT_TRUE(Exists(thirty));
  EXPECT_TRUE(Exists(unfinished));
  const auto last = Commit(grant, 100);
  ASSERT_TRUE(last.ok()) << last.status();
  ASSERT_TRUE(Complete(grant, "checkpoint", *last).ok());
  ASSERT_TRUE(Collect().ok());
  EXPECT_FALSE(Exists(unfinished)) << "its task is over";
}

TEST_F(AdoptionTest, WithoutAnyWholeCheckpointTheTaskStartsAgain) {
  CommitSince(20);
  ASSERT_TRUE(Collect().ok());
  ASSERT_FALSE(Exists(backed_up_));
  ASSERT_TRUE(blobs_->DeleteTree(grant_.storage().write_prefix()).ok());
  Restore(/*adopt=*/true);
  const auto grant = ClaimAgain();
  EXPECT_FALSE(grant.has_resume_from());
  EXPECT_TRUE(Commit(grant, 5).ok());
}

TEST_F(AdoptionTest, AdoptionLaterEndsAnAttemptThatWentOnFromAnOlderStep) {
  const std::string thirty = CommitSince(30);
  Restore(/*adopt=*/false);
  const auto older = ClaimAgain();
  ASSERT_EQ(older.resume_from().step(), 10);
  Restart(/*adopt=*/true);
  EXPECT_EQ(ErrorReason(Commit(older, 20).status()), "STALE_ATTEMPT");
  const auto claim = Claim("b");
  ASSERT_TRUE(claim.ok() && claim->has_grant());
  EXPECT_EQ(claim->grant().resume_from().manifest_uri(), thirty);
  absl::StatusOr<JobView> job = absl::UnknownError("the core was not asked");
  ASSERT_TRUE(coordinator_->WithCore([&](Core& core) { job = core.GetJob(job_id_); }));
  ASSERT_TRUE(job.ok()) << job.status();
  for (const jobs::Task& task : job->record.tasks) EXPECT_EQ(task.failures, 0) << task.task_id;
}

TEST_F(AdoptionTest, AnAttemptThatIsAheadOfTheOldCheckpointsGoesOn) {
  const std::string thirty = CommitSince(30);
  Restore(/*adopt=*/false);
  const auto grant = ClaimAgain();
  ASSERT_TRUE(Commit(grant, 60).ok());
  Restart(/*adopt=*/true);
  EXPECT_TRUE(Commit(grant, 70).ok()) << "nothing newer was found";
  ASSERT_TRUE(Collect().ok());
  EXPECT_TRUE(Exists(thirty)) << "stays until its task is over";
}

TEST_F(AdoptionTest, TheStoreThatWasReplacedFindsOut) {
  CommitSince(20);
  Restore(/*adopt=*/true);
  coordinator_.reset();
  std::filesystem::copy_file(folder_.File("replaced.db"), folder_.File("store.db"),
                             std::filesystem::copy_options::overwrite_existing);
  CoordinatorOptions options;
  options.store = folder_.File("store.db");
  options.blob_store = "file://" + folder_.File("blobs");
  EXPECT_EQ(ErrorReason(Coordinator::Start(options).status()), "STORE_SUPERSEDED");
}

TEST_F(AdoptionTest, WhatTheTaskDivergedInIsNotTakenBack) {
  // Written, and never committed.
  auto stranger = grant_;
  stranger.mutable_token()->set_attempt_secret("another");
  EXPECT_EQ(ErrorReason(Commit(stranger, 20).status()), "STALE_ATTEMPT");
  ASSERT_EQ(DivergeFrom(15), 10);
  coordinator_.reset();
  std::filesystem::copy_file(folder_.File("store.db"), folder_.File("copy.db"),
                             std::filesystem::copy_options::overwrite_existing);
  StartCoordinator();
  const auto next = Claim("a");
  ASSERT_TRUE(next.ok() && next->has_grant());
  const auto since = Commit(next->grant(), 12);
  ASSERT_TRUE(since.ok()) << since.status();
  Restore(/*adopt=*/true);
  EXPECT_EQ(ClaimAgain().resume_from().manifest_uri(), since->uri) << "of the attempt that left out what broke";
}

TEST_F(AdoptionTest, WhatALaterAttemptBeganBelowIsNotTakenBack) {
  ASSERT_TRUE(Commit(grant_, 20).ok());
  ASSERT_EQ(DivergeFrom(15), 0) << "the task keeps one checkpoint";
  const auto next = Claim("a");
  ASSERT_TRUE(next.ok() && next->has_grant());
  const auto since = Commit(next->grant(), 12);
  ASSERT_TRUE(since.ok()) << since.status();
  // The copy was made before the task went back, and knows nothing of it.
  Restore(/*adopt=*/true);
  EXPECT_EQ(ClaimAgain().resume_from().manifest_uri(), since->uri);
}

TEST_F(AdoptionTest, OneThatIsToldToEndMeanwhileGoesOnAtTheNextStart) {
  const std::string thirty = CommitSince(30);
  coordinator_.reset();
  std::filesystem::copy_file(folder_.File("copy.db"), folder_.File("store.db"),
                             std::filesystem::copy_options::overwrite_existing);
  CoordinatorOptions options;
  options.store = folder_.File("store.db");
  options.blob_store = "file://" + folder_.File("blobs");
  options.restored = true;
  options.adopt = true;
  options.keep_waiting = [](absl::Duration) { return false; };
  EXPECT_EQ(ErrorReason(Coordinator::Start(options).status()), "COORDINATOR_STOPPING");
  Restart(/*adopt=*/true);
  EXPECT_EQ(ClaimAgain().resume_from().manifest_uri(), thirty);
}

// As for one that waits for the store of another: whoever waits for signals has taken the one that says so.
TEST_F(AdoptionTest, AnAuditLogThatIsMovedAwayMeanwhileIsOpenedAgain) {
  CommitSince(30);
  coordinator_.reset();
  std::filesystem::copy_file(folder_.File("copy.db"), folder_.File("store.db"),
                             std::filesystem::copy_options::overwrite_existing);
  CoordinatorOptions options;
  options.store = folder_.File("store.db");
  options.blob_store = "file://" + folder_.File("blobs");
  options.restored = true;
  options.adopt = true;
  options.audit_log = folder_.File("moved.log");
  const std::string path = options.audit_log;
  int asked = 0;
  options.keep_waiting = [&](absl::Duration) {
    if (asked++ == 0) std::filesystem::rename(path, path + ".1");
    return true;
  };
  const auto coordinator = Coordinator::Start(options);
  ASSERT_TRUE(coordinator.ok()) << coordinator.status();
  EXPECT_GT(asked, 0);
  EXPECT_TRUE(std::filesystem::exists(path));
}

TEST_F(AdoptionTest, AProcessThatDiesBeforeItHasItsEpochIsARestoredOneAtItsNextStart) {
  CommitSince(20);
  coordinator_.reset();
  std::string first_id;
  {
    auto store = store::SqliteStore::Open({.path = folder_.File("copy.db")});
    ASSERT_TRUE(store.ok()) << store.status();
    first_id = (*store)->store_id();
    ASSERT_TRUE((*store)->MarkRestored().ok());
    EXPECT_NE((*store)->store_id(), first_id);
    EXPECT_FALSE((*store)->collection_held());
  }
  auto store = store::SqliteStore::Open({.path = folder_.File("copy.db")});
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_TRUE((*store)->restored());
  const int64_t before = (*store)->epoch();
  ASSERT_TRUE(EstablishEpoch(*blobs_, **store, /*restored=*/false).ok());
  EXPECT_EQ((*store)->epoch(), before + 1);
  EXPECT_EQ((*store)->restored_epoch(), before + 1);
  EXPECT_TRUE((*store)->collection_held());
  EXPECT_FALSE((*store)->restored());
}

}  // namespace
}  // namespace atl::coordinator
