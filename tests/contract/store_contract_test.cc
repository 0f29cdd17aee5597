// The guarantees of every store.
#include "tests/contract/store_contract.h"

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "gmock/gmock.h"

namespace atl::store {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class StoreContract : public testing::TestWithParam<StoreKind> {
 protected:
  void SetUp() override {
    const std::string missing = GetParam() == StoreKind::kPostgres ? testing_postgres::MissingPgServer() : "";
    ATOLL_REQUIRE_FACILITY(missing.empty(), missing);
    where_ = NewStore(GetParam(), folder_);
    Reopen();
    ASSERT_TRUE(store_->AdoptEpoch(1).ok());
  }

  void Reopen() {
    store_.reset();
    auto store = OpenStore(where_);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }

  absl::Status Insert(const jobs::JobRecord& record) {
    return store_->Write("insert", [&](Transaction& t) { return t.InsertJob(record); });
  }

  TemporaryFolder folder_;
  std::string where_;
  std::unique_ptr<Store> store_;
};

TEST_P(StoreContract, JobsComeBackAsTheyWereWritten) {
  jobs::JobRecord record = SmallJob("j-1");
  ASSERT_TRUE(Insert(record).ok());
  record.job.state = jobs::JobState::kRunning;
  record.job.message = "it's going";
  record.job.revision = 7;
  jobs::Task& task = record.tasks[0];
  task.state = jobs::TaskState::kSucceeded;
  task.attempt = 3;
  task.island_id = "a";
  task.committed_step = 50;
  task.attempt_committed = true;
  task.failures = 1;
  task.outputs = {{"pca", "file:///b/pca", 10, std::string(64, 'f'), 5}};
  ASSERT_TRUE(store_
                  ->Write("update",
                          [&](Transaction& t) -> absl::Status {
                            ATOLL_RETURN_IF_ERROR(t.UpdateJob(record.job));
                            return t.UpdateTask(task);
                          })
                  .ok());
  Reopen();
  const auto stored = store_->GetJob("j-1");
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_EQ(*stored, record);
  const auto unfinished = store_->UnfinishedJobs();
  ASSERT_TRUE(unfinished.ok());
  EXPECT_THAT(*unfinished, ElementsAre(record));
  EXPECT_EQ(store_->ArtifactUris()->at(0), "file:///b/pca");
  EXPECT_EQ(ErrorReason(store_->GetJob("j-2").status()), "JOB_UNKNOWN");
}

TEST_P(StoreContract, PagesOfJobsAreNewestFirstAndEnd) {
  for (int i = 1; i <= 5; ++i) ASSERT_TRUE(Insert(SmallJob("j-" + std::to_string(i))).ok());
  std::vector<std::string> ids;
  int64_t before = 0;
  int pages = 0;
  do {
    const auto page = store_->ListJobs(before, 2);
    ASSERT_TRUE(page.ok());
    for (const jobs::Job& job : page->jobs) ids.push_back(job.job_id);
    before = page->next;
  } while (before != 0 && ++pages < 10);
  EXPECT_THAT(ids, ElementsAre("j-5", "j-4", "j-3", "j-2", "j-1"));
}

TEST_P(StoreContract, PagesOfLongSpecsEndEarlier) {
  // About the largest that is taken: eight fit a page.
  for (int i = 1; i <= 10; ++i) {
    jobs::JobRecord record = SmallJob("j-" + std::to_string(i));
    record.job.spec.model_name = std::string(1'000'000, 'm');
    ASSERT_TRUE(Insert(record).ok());
  }
  std::vector<std::string> pages;
  int64_t before = 0;
  do {
    const auto page = store_->ListJobs(before, 1000);
    ASSERT_TRUE(page.ok()) << page.status();
    std::string& ids = pages.emplace_back();
    for (const jobs::Job& job : page->jobs) ids += job.job_id + " ";
    before = page->next;
  } while (before != 0 && pages.size() < 10);
  EXPECT_THAT(pages, ElementsAre("j-10 j-9 j-8 j-7 j-6 j-5 j-4 j-3 ", "j-2 j-1 "));
}

TEST_P(StoreContract, AFailedBodyLeavesNothing) {
  const absl::Status status = store_->Write("insert", [&](Transaction& t) -> absl::Status {
    ATOLL_RETURN_IF_ERROR(t.InsertJob(SmallJob("j-1")));
    return MakeError(absl::StatusCode::kAborted, "STALE_ATTEMPT", "no");
  });
  EXPECT_EQ(ErrorReason(status), "STALE_ATTEMPT");
  EXPECT_THAT(store_->UnfinishedJobs().value(), IsEmpty());
}

TEST_P(StoreContract, TheFenceLetsOnlyTheActiveAttemptThrough) {
  ASSERT_TRUE(Insert(SmallJob("j-1")).ok());
  const AttemptRow first = ActiveAttempt("j-1/cluster", 1, "a", 1);
  const AttemptRow second = ActiveAttempt("j-1/cluster", 2, "b", 1);
  ASSERT_TRUE(store_->Write("grant", [&](Transaction& t) { return t.InsertAttempt(first); }).ok());
  ASSERT_TRUE(store_->Write("check", [&](Transaction& t) { return t.CheckFence(TokenOf(first)); }).ok());
  ASSERT_TRUE(store_
                  ->Write("regrant",
                          [&](Transaction& t) -> absl::Status {
                            ATOLL_RETURN_IF_ERROR(t.EndAttempt(
                                {"j-1/cluster", 1, jobs::AttemptOutcome::kExpired, "late", "INTERNAL"}, kNow));
                            return t.InsertAttempt(second);
                          })
                  .ok());
  spec::LeaseToken guessed = TokenOf(second);
  guessed.attempt_secret = "guess";
  spec::LeaseToken hashed = TokenOf(second);
  hashed.attempt_secret = second.secret_sha256;
  spec::LeaseToken other_epoch = TokenOf(second);
  other_epoch.store_epoch = 2;
  for (const spec::LeaseToken& token : {TokenOf(first), guessed, hashed, other_epoch}) {
    const absl::Status status = store_->Write("check", [&](Transaction& t) { return t.CheckFence(token); });
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
    EXPECT_EQ(ErrorReason(status), "STALE_ATTEMPT") << status;
  }
  EXPECT_TRUE(store_->Write("check", [&](Transaction& t) { return t.CheckFence(TokenOf(second)); }).ok());
  ASSERT_EQ(store_->Attempts("j-1/cluster")->size(), 2u);
  EXPECT_EQ(store_->Attempts("j-1/cluster")->at(0).outcome, jobs::AttemptOutcome::kExpired);
  EXPECT_EQ(store_->Attempts("j-1/cluster")->at(0).code, "INTERNAL");
  EXPECT_THAT(store_->ActiveAttempts().value(), ElementsAre(second));
}

TEST_P(StoreContract, AReplacedSecretIsTheOnlyOneOfItsAttempt) {
  ASSERT_TRUE(Insert(SmallJob("j-1")).ok());
  AttemptRow attempt = ActiveAttempt("j-1/cluster", 1, "a", 1);
  ASSERT_TRUE(store_->Write("grant", [&](Transaction& t) { return t.InsertAttempt(attempt); }).ok());
  const auto replace = [&](std::string_view task_id, int64_t number) {
    return store_->Write(
        "replace", [&](Transaction& t) { return t.ReplaceSecret(task_id, number, leases::SecretHash("another")); });
  };
  EXPECT_EQ(ErrorReason(replace("j-1/cluster", 2)), "STORE_ERROR");
  EXPECT_EQ(ErrorReason(replace("j-1/publish", 1)), "STORE_ERROR");
  EXPECT_THAT(store_->ActiveAttempts().value(), ElementsAre(attempt));
  ASSERT_TRUE(replace("j-1/cluster", 1).ok());
  Reopen();
  const auto check = [&](const spec::LeaseToken& token) {
    return store_->Write("check", [&](Transaction& t) { return t.CheckFence(token); });
  };
  spec::LeaseToken token = TokenOf(attempt);
  EXPECT_EQ(ErrorReason(check(token)), "STALE_ATTEMPT");
  token.attempt_secret = "another";
  EXPECT_TRUE(check(token).ok());
  attempt.secret_sha256 = leases::SecretHash("another");
  EXPECT_THAT(store_->ActiveAttempts().value(), ElementsAre(attempt));
  ASSERT_TRUE(store_
                  ->Write("end",
                          [&](Transaction& t) {
                            return t.EndAttempt({"j-1/cluster", 1, jobs::AttemptOutcome::kExpired, "late", ""}, kNow);
                          })
                  .ok());
  EXPECT_EQ(ErrorReason(replace("j-1/cluster", 1)), "STORE_ERROR") << "an attempt that has ended keeps its own";
}

TEST_P(StoreContract, AHigherEpochVoidsEveryToken) {
  ASSERT_TRUE(Insert(SmallJob("j-1")).ok());
  const AttemptRow attempt = ActiveAttempt("j-1/cluster", 1, "a", 1);
  ASSERT_TRUE(store_->Write("grant", [&](Transaction& t) { return t.InsertAttempt(attempt); }).ok());
  EXPECT_EQ(ErrorReason(store_->AdoptEpoch(1)), "STORE_EPOCH_NOT_HIGHER");
  ASSERT_TRUE(store_->AdoptEpoch(5).ok());
  Reopen();
  EXPECT_EQ(store_->epoch(), 5);
  EXPECT_EQ(ErrorReason(store_->Write("check", [&](Transaction& t) { return t.CheckFence(TokenOf(attempt)); })),
            "STALE_ATTEMPT");
}

TEST_P(StoreContract, CommittedCheckpointsGoThroughDeleting) {
  ASSERT_TRUE(Insert(SmallJob("j-1")).ok());
  const CheckpointRow row{"j-1/train_expert-0",
                          1,
                          {100, "file:///b/100/manifest.json", std::string(64, 'a'), false},
                          CheckpointState::kCommitted,
                          kNow};
  ASSERT_TRUE(store_->Write("commit", [&](Transaction& t) { return t.InsertCheckpoint(row); }).ok());
  EXPECT_THAT(store_->Checkpoints("j-1/train_expert-0").value(), ElementsAre(row));
  const std::string& uri = row.checkpoint.manifest_uri;
  EXPECT_EQ(ErrorReason(store_->Write("delete", [&](Transaction& t) { return t.DeleteCheckpoint(uri); })),
            "CHECKPOINT_NOT_DELETING");
  ASSERT_TRUE(
      store_->Write("mark", [&](Transaction& t) { return t.MarkCheckpoint(uri, CheckpointState::kDeleting); }).ok());
  EXPECT_EQ(store_->Checkpoints("")->at(0).state, CheckpointState::kDeleting);
  ASSERT_TRUE(store_->Write("delete", [&](Transaction& t) { return t.DeleteCheckpoint(uri); }).ok());
  EXPECT_THAT(store_->Checkpoints("").value(), IsEmpty());
}

TEST_P(StoreContract, RollbacksComeBackWithTheirTaskAndGoWithTheirJob) {
  for (const char* job : {"j-1", "j-10", "j-2"}) ASSERT_TRUE(Insert(SmallJob(job)).ok());
  const jobs::Rollback first{.attempt = 2,
                             .from_step = 32,
                             .to_step = 20,
                             .skipped = {21, 12},
                             .reason = "LOSS_EXPLODED",
                             .message = "training diverged",
                             .evidence_uri = "file:///b/evidence/32.json",
                             .time = kNow};
  const jobs::Rollback second{.attempt = 10, .from_step = 20, .reason = "CHECKPOINT_DAMAGED", .time = kNow};
  ASSERT_TRUE(store_
                  ->Write("rollback",
                          [&](Transaction& t) -> absl::Status {
                            ATOLL_RETURN_IF_ERROR(t.InsertRollback("j-1/train_expert-0", second));
                            ATOLL_RETURN_IF_ERROR(t.InsertRollback("j-1/train_expert-0", first));
                            return t.InsertRollback("j-10/train_router", first);
                          })
                  .ok());
  Reopen();
  EXPECT_THAT(jobs::FindTask(*store_->GetJob("j-1"), "j-1/train_expert-0")->rollbacks, ElementsAre(first, second));
  EXPECT_THAT(jobs::FindTask(*store_->GetJob("j-1"), "j-1/train_router")->rollbacks, IsEmpty());
  EXPECT_THAT(jobs::FindTask(*store_->GetJob("j-10"), "j-10/train_router")->rollbacks, ElementsAre(first));
  EXPECT_THAT(jobs::FindTask(*store_->GetJob("j-2"), "j-2/train_router")->rollbacks, IsEmpty());
  const auto unfinished = store_->UnfinishedJobs();
  ASSERT_TRUE(unfinished.ok()) << unfinished.status();
  ASSERT_EQ(unfinished->size(), 3u);
  for (const jobs::JobRecord& record : *unfinished) EXPECT_EQ(record, *store_->GetJob(record.job.job_id));
  ASSERT_TRUE(store_->Write("delete", [&](Transaction& t) { return t.DeleteJob("j-1", kNow); }).ok());
  ASSERT_TRUE(Insert(SmallJob("j-1")).ok());
  EXPECT_THAT(jobs::FindTask(*store_->GetJob("j-1"), "j-1/train_expert-0")->rollbacks, IsEmpty());
}

TEST_P(StoreContract, ServingKeepsItsHistory) {
  for (int64_t generation = 1; generation <= 3; ++generation) {
    const std::string version = "v" + std::to_string(generation);
    ASSERT_TRUE(
        store_
            ->Write("publish",
                    [&](Transaction& t) -> absl::Status {
                      ATOLL_RETURN_IF_ERROR(t.InsertModelVersion({"m", version, "j", "file:///b/m", "d", 2, kNow}));
                      return t.PutServing({"m", version, generation, kNow, "published"});
                    })
            .ok());
  }
  Reopen();
  const auto model = store_->GetModel("m");
  ASSERT_TRUE(model.ok());
  EXPECT_EQ(model->serving.generation, 3);
  ASSERT_EQ(model->versions.size(), 3u);
  EXPECT_EQ(model->versions[0].version, "v3");
  EXPECT_EQ(store_->ServingHistory("m")->size(), 3u);
  EXPECT_EQ(store_->ListModels("", 10)->size(), 1u);
  EXPECT_THAT(store_->ListModels("m", 10).value(), IsEmpty());
  EXPECT_EQ(ErrorReason(store_->GetModel("n").status()), "MODEL_UNKNOWN");
}

TEST_P(StoreContract, AnswersAreKeptUntilTheirWeekIsOver) {
  const Answer answer{"alice", "SubmitJob", "r-1", "hash", std::string("\0bytes", 6), kNow};
  ASSERT_TRUE(store_->Write("answer", [&](Transaction& t) { return t.InsertAnswer(answer); }).ok());
  std::optional<Answer> found;
  const auto find = [&](std::string caller) {
    return store_->Write("find", [&](Transaction& t) -> absl::Status {
      ATOLL_ASSIGN_OR_RETURN(found, t.FindAnswer(caller, "SubmitJob", "r-1"));
      return absl::OkStatus();
    });
  };
  ASSERT_TRUE(find("alice").ok());
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->response, answer.response);
  ASSERT_TRUE(find("bob").ok());
  EXPECT_FALSE(found.has_value());
  ASSERT_TRUE(
      store_->Write("expire", [&](Transaction& t) { return t.DeleteAnswersBefore(kNow + absl::Hours(1)); }).ok());
  ASSERT_TRUE(find("alice").ok());
  EXPECT_FALSE(found.has_value());
}

TEST_P(StoreContract, DeletingAJobLeavesATombstoneAndTheModel) {
  ASSERT_TRUE(Insert(SmallJob("j-1")).ok());
  ASSERT_TRUE(store_
                  ->Write("seed",
                          [&](Transaction& t) -> absl::Status {
                            ATOLL_RETURN_IF_ERROR(t.InsertModelVersion({"m", "v", "j-1", "u", "d", 2, kNow}));
                            ATOLL_RETURN_IF_ERROR(t.PutServing({"m", "v", 1, kNow, "published"}));
                            return t.DeleteJob("j-1", kNow);
                          })
                  .ok());
  EXPECT_EQ(ErrorReason(store_->GetJob("j-1").status()), "JOB_UNKNOWN");
  ASSERT_EQ(store_->DeletedJobs()->size(), 1u);
  EXPECT_EQ(store_->GetModel("m")->versions[0].job_id, "j-1");
  ASSERT_TRUE(store_->Write("forget", [&](Transaction& t) { return t.ForgetDeletedJob("j-1"); }).ok());
  EXPECT_THAT(store_->DeletedJobs().value(), IsEmpty());
}

TEST_P(StoreContract, RevisionsGrowAcrossTransactionsAndRestarts) {
  int64_t first = 0;
  int64_t second = 0;
  const auto next = [&](int64_t* revision) {
    return store_->Write("revision", [revision](Transaction& t) -> absl::Status {
      ATOLL_ASSIGN_OR_RETURN(*revision, t.NextRevision());
      ATOLL_ASSIGN_OR_RETURN(const int64_t again, t.NextRevision());
      EXPECT_EQ(again, *revision) << "one revision for one transaction";
      return absl::OkStatus();
    });
  };
  ASSERT_TRUE(next(&first).ok());
  Reopen();
  ASSERT_TRUE(next(&second).ok());
  EXPECT_EQ(second, first + 1);
}

TEST_P(StoreContract, WhatOperatorsAskForIsKept) {
  const leases::Island island{"a", 1, "start-1", {}, {}, 0};
  jobs::JobRecord record = SmallJob("j-1");
  jobs::Task& task = record.tasks[0];
  const auto written = store_->Write("drain", [&](Transaction& t) -> absl::Status {
    ATOLL_RETURN_IF_ERROR(t.PutIsland(island, kNow));
    ATOLL_RETURN_IF_ERROR(t.SetIslandDrain("a", "new disk"));
    ATOLL_RETURN_IF_ERROR(t.PutIsland(island, kNow));
    ATOLL_RETURN_IF_ERROR(t.InsertJob(record));
    task.move = {"a", "b", kNow + absl::Minutes(10)};
    return t.UpdateTask(task);
  });
  ASSERT_TRUE(written.ok()) << written;
  Reopen();
  EXPECT_EQ(store_->Islands()->at(0).drain_reason, "new disk") << "a registration does not undrain";
  EXPECT_EQ(*jobs::FindTask(*store_->GetJob("j-1"), task.task_id), task);
  task.move = {};
  ASSERT_TRUE(store_
                  ->Write("undrain",
                          [&](Transaction& t) -> absl::Status {
                            ATOLL_RETURN_IF_ERROR(t.SetIslandDrain("a", ""));
                            return t.UpdateTask(task);
                          })
                  .ok());
  Reopen();
  EXPECT_EQ(store_->Islands()->at(0).drain_reason, "");
  EXPECT_EQ(*jobs::FindTask(*store_->GetJob("j-1"), task.task_id), task);
  EXPECT_EQ(ErrorReason(store_->Write("drain", [](Transaction& t) { return t.SetIslandDrain("none", "x"); })),
            "STORE_ERROR");
}

TEST_P(StoreContract, IslandsKeepTheirIncarnation) {
  leases::Island island{"a", 1, "start-1", {.build = "b", .ranks = 2, .labels = {{"zone", "x"}}}, {}, 0};
  ASSERT_TRUE(store_->Write("register", [&](Transaction& t) { return t.PutIsland(island, kNow); }).ok());
  island.incarnation = 2;
  island.request_id = "start-2";
  ASSERT_TRUE(
      store_->Write("register", [&](Transaction& t) { return t.PutIsland(island, kNow + absl::Hours(1)); }).ok());
  Reopen();
  const auto islands = store_->Islands();
  ASSERT_TRUE(islands.ok());
  ASSERT_EQ(islands->size(), 1u);
  EXPECT_EQ(islands->at(0).incarnation, 2);
  EXPECT_EQ(islands->at(0).request_id, "start-2");
  EXPECT_EQ(islands->at(0).capabilities, island.capabilities);
  EXPECT_EQ(islands->at(0).register_time, kNow + absl::Hours(1));
  ASSERT_TRUE(store_->Write("forget", [](Transaction& t) { return t.DeleteIsland("a"); }).ok());
  Reopen();
  EXPECT_TRUE(store_->Islands()->empty());
}

TEST_P(StoreContract, NamesAreSortedByTheirBytes) {
  for (const char* name : {"b", "B", "a-1", "a", "Z", "ä"}) {
    ASSERT_TRUE(store_->Write("publish",
                              [&](Transaction& t) {
                                return t.PutServing({name, "v", 1, kNow, "published"});
                              })
                    .ok());
  }
  std::vector<std::string> names;
  std::string after;
  for (int page = 0; page < 3; ++page) {
    const auto models = store_->ListModels(after, 2);
    ASSERT_TRUE(models.ok()) << models.status();
    for (const Model& model : *models) names.push_back(model.name);
    after = names.back();
  }
  EXPECT_THAT(names, ElementsAre("B", "Z", "a", "a-1", "b", "ä"));
}

TEST_P(StoreContract, AStoreThatWasRestoredSaysSoUntilItHasItsEpoch) {
  const std::string before = store_->store_id();
  EXPECT_FALSE(store_->restored());
  ASSERT_TRUE(store_->MarkRestored().ok());
  EXPECT_NE(store_->store_id(), before);
  Reopen();
  EXPECT_TRUE(store_->restored());
  EXPECT_NE(store_->store_id(), before);
  ASSERT_TRUE(store_->AdoptEpoch(7).ok());
  Reopen();
  EXPECT_FALSE(store_->restored());
  EXPECT_EQ(store_->restored_epoch(), 7);
  EXPECT_TRUE(store_->collection_held());
  ASSERT_TRUE(store_->ReleaseCollection().ok());
  Reopen();
  EXPECT_FALSE(store_->collection_held());
}

TEST_P(StoreContract, ALeaseIsGrantedOnceWhateverTheBodyBelieved) {
  ASSERT_TRUE(Insert(SmallJob("j-1")).ok());
  const AttemptRow first = ActiveAttempt("j-1/cluster", 1, "a", 1);
  ASSERT_TRUE(store_->Write("grant", [&](Transaction& t) { return t.InsertAttempt(first); }).ok());
  const AttemptRow second = ActiveAttempt("j-1/cluster", 2, "b", 1);
  EXPECT_EQ(ErrorReason(store_->Write("grant", [&](Transaction& t) { return t.InsertAttempt(second); })),
            "STORE_ERROR");
  EXPECT_THAT(store_->Attempts("j-1/cluster").value(), ElementsAre(first));
  EXPECT_TRUE(Insert(SmallJob("j-2")).ok()) << "the error of one transaction is not the next one's";
}

INSTANTIATE_TEST_SUITE_P(EveryStore, StoreContract, testing::Values(StoreKind::kSqlite, StoreKind::kPostgres), NameOf);

}  // namespace
}  // namespace atl::store
