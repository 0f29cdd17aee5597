// IslandService, collection and epochs over real gRPC and a real blob store.
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>

#include "absl/cleanup/cleanup.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/base/errors.h"
#include "common/base/failpoint.h"
#include "coordinator/core/epoch.h"
#include "coordinator/service/test_support.h"
#include "coordinator/store/sqlite_backup.h"
#include "coordinator/store/sqlite_store.h"
#include "gmock/gmock.h"

namespace atl::coordinator {
namespace {

using atlpb::island::v1::IslandService;
using ::testing::HasSubstr;
using ::testing::Not;

class IslandServiceTest : public CoordinatorFixture {
 protected:
  // Until the core has as many waiting claims; whether it came so.
  bool AwaitWaitingClaims(size_t expected) {
    for (int tries = 0; tries < 2000; ++tries) {
      size_t found = 0;
      coordinator_->WithCore([&](Core& core) { found = core.waiting_claims(); });
      if (found == expected) return true;
      absl::SleepFor(absl::Milliseconds(5));
    }
    return false;
  }

  // Names of the files, of the store, the blob store and the audit log, that have `bytes` in them.
  std::vector<std::string> FilesWith(const std::string& bytes) const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path())) {
      if (!entry.is_regular_file()) continue;
      std::ifstream file(entry.path(), std::ios::binary);
      const std::string content{std::istreambuf_iterator<char>(file), {}};
      if (content.find(bytes) != std::string::npos) found.push_back(entry.path().filename());
    }
    return found;
  }
};

TEST_F(IslandServiceTest, AClaimWaitsUntilAJobIsSubmitted) {
  ASSERT_TRUE(Register("a").ok());
  auto claim = std::async(std::launch::async, [this] { return Claim("a", absl::Seconds(15)); });
  ASSERT_TRUE(AwaitWaitingClaims(1));
  const auto job = Submit(SubmitRequest());
  ASSERT_TRUE(job.ok());
  const auto answer = claim.get();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->grant().token().task_id(), job->job_id() + "/fit_features");
  EXPECT_EQ(answer->grant().token().attempt_secret().size(), 16u);
  EXPECT_EQ(answer->grant().storage().write_prefix(), blobs_->UriOf("jobs/" + job->job_id() + "/fit_features/1-1"));
}

TEST_F(IslandServiceTest, TrainingWaitsForAnIslandWithARankForEveryReplica) {
  auto request = SubmitRequest();
  request.mutable_spec()->mutable_pipeline()->set_replicas(2);
  const auto job = Submit(request);
  ASSERT_TRUE(job.ok()) << job.status();
  ASSERT_TRUE(Register("a").ok());
  for (const char* task : {"/fit_features", "/featurize-0", "/cluster", "/partition-0"}) {
    EXPECT_EQ(FinishNext("a"), job->job_id() + task);
  }
  const auto claim = Claim("a");
  ASSERT_TRUE(claim.ok()) << claim.status();
  EXPECT_FALSE(claim->has_grant()) << claim->grant().token().task_id();
  ASSERT_GT(claim->unmet_size(), 0);
  EXPECT_THAT(claim->unmet(0), HasSubstr("needs 2 ranks, the island has 1"));
}

TEST_F(IslandServiceTest, IslandsLearnOfAFileInTheBlobStore) {
  atlpb::island::v1::RegisterIslandRequest request;
  request.set_island_id("a");
  request.set_request_id("start");
  for (auto* range :
       {request.mutable_capabilities()->mutable_protocol(), request.mutable_capabilities()->mutable_format()}) {
    range->set_min(1);
    range->set_max(1);
  }
  request.mutable_capabilities()->set_ranks(1);
  request.mutable_capabilities()->set_device_kind("cpu");
  atlpb::island::v1::RegisterIslandResponse response;
  ASSERT_TRUE(Call(*islands_, &IslandService::Stub::RegisterIsland, request, &response).ok());
  const auto there = blobs_->Exists(response.epoch_uri());
  ASSERT_TRUE(there.ok()) << there.status();
  EXPECT_TRUE(*there) << response.epoch_uri();
}

TEST_F(IslandServiceTest, WhatTheBlobStoreBrokeCostsNothingOfTheBudget) {
  const auto job = Submit(SubmitRequest());
  ASSERT_TRUE(job.ok());
  ASSERT_TRUE(Register("a").ok());
  // The budget is three attempts.
  for (int attempt = 1; attempt <= 8; ++attempt) {
    const auto claim = Claim("a");
    ASSERT_TRUE(claim.ok() && claim->has_grant()) << attempt << ": " << claim.status();
    atlpb::island::v1::ReleaseTaskRequest request;
    *request.mutable_token() = claim->grant().token();
    request.set_reason("STORE_UNAVAILABLE");
    request.set_store_failed(attempt <= 5);
    atlpb::island::v1::ReleaseTaskResponse response;
    ASSERT_TRUE(Call(*islands_, &IslandService::Stub::ReleaseTask, request, &response).ok());
  }
  const auto claim = Claim("a");
  ASSERT_TRUE(claim.ok());
  EXPECT_FALSE(claim->has_grant()) << "the other three were counted, and the job has failed";
}

TEST_F(IslandServiceTest, ACancelledClaimLeavesNoWaiter) {
  ASSERT_TRUE(Register("a").ok());
  grpc::ClientContext context;
  rpc::SetTimeout(&context, absl::Seconds(20));
  auto claim = std::async(std::launch::async, [&] {
    atlpb::island::v1::ClaimTaskResponse response;
    return islands_->ClaimTask(&context, ClaimRequestOf("a", absl::Seconds(15)), &response);
  });
  ASSERT_TRUE(AwaitWaitingClaims(1));
  context.TryCancel();
  EXPECT_EQ(claim.get().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(AwaitWaitingClaims(0));
}

TEST_F(IslandServiceTest, ACallWithoutDeadlineIsServed) {
  grpc::ClientContext context;
  atlpb::job::v1::ListJobsResponse response;
  EXPECT_TRUE(jobs_->ListJobs(&context, {}, &response).ok());
}

TEST_F(IslandServiceTest, StaleTokensAreAbortedWithTheirReason) {
  ASSERT_TRUE(Submit(SubmitRequest()).ok());
  ASSERT_TRUE(Register("a").ok());
  const auto claim = Claim("a");
  ASSERT_TRUE(claim.ok() && claim->has_grant());
  ASSERT_EQ(Register("a", "second start").value(), 2);
  const auto committed = Commit(claim->grant(), 10);
  EXPECT_EQ(committed.status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(ErrorReason(committed.status()), "STALE_ATTEMPT");
  EXPECT_EQ(ErrorReason(Claim("a").status()), "STALE_INCARNATION");
  EXPECT_EQ(ErrorReason(Claim("b").status()), "ISLAND_UNKNOWN");
}

TEST_F(IslandServiceTest, ResultsOutsideTheWritePrefixAreRefused) {
  ASSERT_TRUE(Submit(SubmitRequest()).ok());
  ASSERT_TRUE(Register("a").ok());
  const auto claim = Claim("a");
  ASSERT_TRUE(claim.ok() && claim->has_grant());
  const std::string prefix = claim->grant().storage().write_prefix();
  for (const std::string& uri : {blobs_->UriOf("datasets/digits/manifest.json"), prefix + "/../x", prefix, prefix + "/",
                                 prefix + "//x", prefix + "/./x", prefix + "/x/..", prefix + "/x/."}) {
    const absl::Status status = Complete(claim->grant(), "pca", {uri, 1, std::string(64, 'a')});
    EXPECT_EQ(ErrorReason(status), "OUTSIDE_WRITE_PREFIX") << uri;
    EXPECT_THAT(std::string(status.message()), HasSubstr(prefix));
  }
}

TEST_F(IslandServiceTest, TheLastProgressOfATaskStaysWithIt) {
  const auto job = Submit(SubmitRequest());
  ASSERT_TRUE(job.ok());
  ASSERT_TRUE(Register("a").ok());
  const std::string task_id = FinishNext("a");
  coordinator_.reset();
  StartCoordinator();
  atlpb::job::v1::GetJobRequest request;
  request.set_job_id(job->job_id());
  atlpb::job::v1::GetJobResponse response;
  ASSERT_TRUE(Call(*jobs_, &atlpb::job::v1::JobService::Stub::GetJob, request, &response).ok());
  ASSERT_EQ(response.job().tasks(0).task_id(), task_id);
  EXPECT_EQ(response.job().tasks(0).state(), atlpb::job::v1::Task::STATE_SUCCEEDED);
  EXPECT_EQ(response.job().tasks(0).progress().step(), 40);
  EXPECT_EQ(response.job().tasks(0).progress().loss(), 0.25);
}

TEST_F(IslandServiceTest, AnAttemptsSecretIsInNoFile) {
  ASSERT_TRUE(Submit(SubmitRequest()).ok());
  ASSERT_TRUE(Register("a").ok());
  const auto claim = Claim("a");
  ASSERT_TRUE(claim.ok() && claim->has_grant());
  const std::string secret = claim->grant().token().attempt_secret();
  EXPECT_EQ(FilesWith(secret), std::vector<std::string>());
  ASSERT_TRUE(store::BackUpStore(folder_.File("store.db"), folder_.File("backup.db")).ok());
  coordinator_.reset();
  EXPECT_EQ(FilesWith(secret), std::vector<std::string>()) << "also once the store's log is part of its file";
  ASSERT_TRUE(blobs_->Write(blobs_->UriOf("control"), "before " + secret).ok());
  EXPECT_EQ(FilesWith(secret), std::vector<std::string>{"control"}) << "the search finds what is there";
}

TEST_F(IslandServiceTest, ASecretOutlivesRestartsUntilTheTaskIsClaimedAgain) {
  ASSERT_TRUE(Submit(SubmitRequest()).ok());
  ASSERT_TRUE(Register("a").ok());
  const auto first = Claim("a");
  ASSERT_TRUE(first.ok() && first->has_grant());
  const auto repeated = Claim("a");
  ASSERT_TRUE(repeated.ok() && repeated->has_grant());
  EXPECT_EQ(repeated->grant().token().attempt_secret(), first->grant().token().attempt_secret());

  coordinator_.reset();
  StartCoordinator();
  EXPECT_TRUE(Commit(first->grant(), 10).ok()) << "an island goes on with what it has";
  // An island that claims again did not get the first answer, or forgot it.
  const auto again = Claim("a");
  ASSERT_TRUE(again.ok() && again->has_grant()) << again.status();
  EXPECT_EQ(again->grant().token().task_id(), first->grant().token().task_id());
  EXPECT_EQ(again->grant().token().attempt(), 1);
  EXPECT_EQ(again->grant().token().attempt_secret().size(), 16u);
  EXPECT_NE(again->grant().token().attempt_secret(), first->grant().token().attempt_secret());
  EXPECT_EQ(ErrorReason(Commit(first->grant(), 20).status()), "STALE_ATTEMPT");
  EXPECT_TRUE(Commit(again->grant(), 30).ok());

  coordinator_.reset();
  StartCoordinator();
  const auto result = blobs_->Write(first->grant().storage().write_prefix() + "/result", "result");
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(ErrorReason(Complete(first->grant(), "pca", *result)), "STALE_ATTEMPT") << "also over restarts";
  EXPECT_TRUE(Complete(again->grant(), "pca", *result).ok());
  EXPECT_TRUE(Complete(again->grant(), "pca", *result).ok()) << "its answer was lost";
  EXPECT_EQ(ErrorReason(Complete(first->grant(), "pca", *result)), "STALE_ATTEMPT");
}

TEST_F(IslandServiceTest, CollectionDeletesWhatNothingNeedsAndNothingElse) {
  const auto job = Submit(SubmitRequest());
  ASSERT_TRUE(job.ok());
  ASSERT_TRUE(Register("a").ok());
  for (int task = 0; task < 4; ++task) FinishNext("a");
  const auto claim = Claim("a");  // train_expert-0, keeps one checkpoint
  ASSERT_TRUE(claim.ok() && claim->has_grant());
  const auto old_checkpoint = Commit(claim->grant(), 10);
  const auto kept_checkpoint = Commit(claim->grant(), 20);
  ASSERT_TRUE(old_checkpoint.ok() && kept_checkpoint.ok());
  const std::string uncommitted = claim->grant().storage().write_prefix() + "/30-y/stage-0.safetensors";
  ASSERT_TRUE(blobs_->Write(uncommitted, "on its way").ok());
  const std::string foreign = blobs_->UriOf("jobs/of-another-store/train_expert-0/1-1/10-z/manifest.json");
  ASSERT_TRUE(blobs_->Write(foreign, "not ours").ok());

  ASSERT_TRUE(coordinator_->collector().CollectOnce().ok());
  EXPECT_FALSE(blobs_->Exists(old_checkpoint->uri).value()) << "no longer kept";
  EXPECT_TRUE(blobs_->Exists(kept_checkpoint->uri).value());
  EXPECT_TRUE(blobs_->Exists(uncommitted).value()) << "its attempt is still valid";
  EXPECT_TRUE(blobs_->Exists(foreign).value());
  EXPECT_TRUE(blobs_->Exists(blobs_->UriOf("jobs/" + job->job_id() + "/fit_features/1-1/result")).value());

  ASSERT_TRUE(Complete(claim->grant(), "checkpoint", *kept_checkpoint).ok());
  ASSERT_TRUE(coordinator_->collector().CollectOnce().ok());
  EXPECT_FALSE(blobs_->Exists(uncommitted).value()) << "its task is over and no row names it";
  EXPECT_TRUE(blobs_->Exists(kept_checkpoint->uri).value());

  for (int task = 0; task < 2; ++task) FinishNext("a");
  atlpb::job::v1::DeleteJobRequest request;
  request.set_job_id(job->job_id());
  atlpb::job::v1::DeleteJobResponse response;
  ASSERT_TRUE(Call(*jobs_, &atlpb::job::v1::JobService::Stub::DeleteJob, request, &response).ok());
  ASSERT_TRUE(coordinator_->collector().CollectOnce().ok());
  EXPECT_FALSE(blobs_->Exists(kept_checkpoint->uri).value()) << "its job was deleted";
  EXPECT_TRUE(blobs_->Exists(blobs_->UriOf("models/digits/" + job->job_id() + "/model_index.json")).value());
  EXPECT_TRUE(blobs_->Exists(foreign).value());
}

TEST_F(IslandServiceTest, CollectionThatIsStoppedDeletesNothingMore) {
  ASSERT_TRUE(Submit(SubmitRequest()).ok());
  ASSERT_TRUE(Register("a").ok());
  for (int task = 0; task < 4; ++task) FinishNext("a");
  const auto claim = Claim("a");  // train_expert-0, keeps one checkpoint
  ASSERT_TRUE(claim.ok() && claim->has_grant());
  const auto first = Commit(claim->grant(), 10);
  const auto second = Commit(claim->grant(), 20);
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_TRUE(Commit(claim->grant(), 30).ok());
  const auto left = [&] { return blobs_->Exists(first->uri).value() + blobs_->Exists(second->uri).value(); };

  const auto holder = NewestEpoch(*blobs_);
  ASSERT_TRUE(holder.ok());
  const auto registry = metrics::Registry::Create("collection");
  CoreMetrics core_metrics(registry.get());
  Collector* stopped = nullptr;
  const auto with_core = [&](const std::function<void(Core&)>& function) {
    if (left() == 1) stopped->Stop();
    return coordinator_->WithCore(function);
  };
  Collector collector(blobs_.get(), Clock::Real(), with_core, holder->store_id, &core_metrics,
                      {.min_age = absl::ZeroDuration()});
  stopped = &collector;
  EXPECT_EQ(ErrorReason(collector.CollectOnce()), "COORDINATOR_STOPPING");
  EXPECT_EQ(left(), 1);
  ASSERT_TRUE(coordinator_->collector().CollectOnce().ok());
  EXPECT_EQ(left(), 0) << "the next round goes on";
}

TEST_F(IslandServiceTest, ASecondCoordinatorOnATakenPortLeavesNoStore) {
  CoordinatorOptions options;
  options.listen = coordinator_->address();
  options.store = folder_.File("second.db");
  options.blob_store = "file://" + folder_.File("second_blobs");
  EXPECT_EQ(ErrorReason(Coordinator::Start(options).status()), "CANNOT_LISTEN");
  EXPECT_FALSE(std::filesystem::exists(options.store));
  EXPECT_FALSE(std::filesystem::exists(folder_.File("second_blobs")));
}

TEST_F(IslandServiceTest, AFailedTaskTellsItsMessageWithoutItsCode) {
  const auto job = Submit(SubmitRequest());
  ASSERT_TRUE(job.ok());
  ASSERT_TRUE(Register("a").ok());
  const auto claim = Claim("a");
  ASSERT_TRUE(claim.ok() && claim->has_grant());
  atlpb::island::v1::FailTaskRequest request;
  *request.mutable_token() = claim->grant().token();
  request.set_code("INVALID_ARGUMENT");
  request.set_message("features.components: expected at most 64, found 99");
  request.set_permanent(true);
  atlpb::island::v1::FailTaskResponse response;
  ASSERT_TRUE(Call(*islands_, &IslandService::Stub::FailTask, request, &response).ok());
  atlpb::job::v1::GetJobRequest get;
  get.set_job_id(job->job_id());
  atlpb::job::v1::GetJobResponse got;
  ASSERT_TRUE(Call(*jobs_, &atlpb::job::v1::JobService::Stub::GetJob, get, &got).ok());
  EXPECT_THAT(got.job().message(), HasSubstr(request.message()));
  EXPECT_THAT(got.job().message(), Not(HasSubstr("INVALID_ARGUMENT")));
}

TEST_F(IslandServiceTest, AMessageThatIsCutWithinALetterLeavesAJobThatCanBeRead) {
  const auto job = Submit(SubmitRequest());
  ASSERT_TRUE(job.ok());
  ASSERT_TRUE(Register("a").ok());
  const auto claim = Claim("a");
  ASSERT_TRUE(claim.ok() && claim->has_grant());
  atlpb::island::v1::FailTaskRequest request;
  *request.mutable_token() = claim->grant().token();
  request.set_code(std::string(63, 'C') + "\u00e9");
  request.set_message(std::string(4095, 'x') + "\u00e9");
  request.set_permanent(true);
  atlpb::island::v1::FailTaskResponse response;
  ASSERT_TRUE(Call(*islands_, &IslandService::Stub::FailTask, request, &response).ok());
  atlpb::job::v1::GetJobRequest get;
  get.set_job_id(job->job_id());
  atlpb::job::v1::GetJobResponse got;
  const absl::Status status = Call(*jobs_, &atlpb::job::v1::JobService::Stub::GetJob, get, &got);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(got.job().tasks(0).last_errors_size(), 1);
  EXPECT_EQ(got.job().tasks(0).last_errors(0).message(), std::string(4095, 'x'));
  EXPECT_EQ(got.job().tasks(0).last_errors(0).code(), std::string(63, 'C'));
}

TEST_F(IslandServiceTest, ATaskGoesBackTwiceAndThenFailsWithItsLastErrors) {
  ASSERT_TRUE(Register("a").ok());
  const auto job = Submit(SubmitRequest());
  ASSERT_TRUE(job.ok());
  for (const char* task : {"/fit_features", "/featurize-0", "/cluster", "/partition-0"}) {
    EXPECT_EQ(FinishNext("a"), job->job_id() + task);
  }
  const auto roll_back = [&](const atlpb::island::v1::TaskGrant& grant, const std::string& evidence,
                             atlpb::island::v1::RollbackTaskResponse* response) {
    atlpb::island::v1::RollbackTaskRequest request;
    *request.mutable_token() = grant.token();
    request.set_before_step(12);
    request.set_through_step(12);
    request.set_reason("LOSS_EXPLODED");
    request.set_message("training diverged: script");
    request.set_evidence_uri(evidence);
    response->Clear();
    return Call(*islands_, &IslandService::Stub::RollbackTask, request, response);
  };
  std::string evidence;
  for (int attempt = 1; attempt <= 3; ++attempt) {
    const auto claim = Claim("a", absl::Seconds(10));
    ASSERT_TRUE(claim.ok() && claim->has_grant()) << claim.status();
    ASSERT_EQ(claim->grant().token().task_id(), job->job_id() + "/train_expert-0");
    EXPECT_EQ(claim->grant().skipped_size(), attempt - 1);
    if (attempt == 1) {
      ASSERT_TRUE(Commit(claim->grant(), 10).ok());
    } else {
      EXPECT_EQ(claim->grant().resume_from().step(), 10);
      EXPECT_EQ(claim->grant().skipped(0).first_step(), 11);
      EXPECT_EQ(claim->grant().skipped(0).steps(), 2);
    }
    atlpb::island::v1::RollbackTaskResponse response;
    EXPECT_EQ(ErrorReason(roll_back(claim->grant(), blobs_->UriOf("elsewhere.json"), &response)),
              "OUTSIDE_WRITE_PREFIX");
    evidence = claim->grant().storage().write_prefix() + "/evidence/00000012.json";
    for (int repeated = 0; repeated < 2; ++repeated) {
      const absl::Status told = roll_back(claim->grant(), evidence, &response);
      ASSERT_TRUE(told.ok()) << told;
      ASSERT_EQ(response.has_rollback(), attempt < 3);
      if (attempt == 3) continue;
      EXPECT_EQ(response.rollback().to_step(), 10);
      EXPECT_EQ(response.rollback().skipped_first_step(), attempt == 1 ? 11 : 13);
      EXPECT_EQ(response.rollback().evidence_uri(), evidence);
    }
  }
  atlpb::job::v1::GetJobRequest request;
  request.set_job_id(job->job_id());
  atlpb::job::v1::GetJobResponse response;
  ASSERT_TRUE(Call(*jobs_, &atlpb::job::v1::JobService::Stub::GetJob, request, &response).ok());
  EXPECT_EQ(response.job().state(), atlpb::job::v1::Job::STATE_FAILED);
  EXPECT_THAT(response.job().message(), HasSubstr("task " + job->job_id() + "/train_expert-0 failed"));
  EXPECT_THAT(response.job().message(), HasSubstr(evidence));
  const auto& task = response.job().tasks(4);
  EXPECT_EQ(task.rollbacks_size(), 2);
  ASSERT_EQ(task.last_errors_size(), 3);
  EXPECT_EQ(task.last_errors(0).attempt(), 3);
  EXPECT_EQ(task.last_errors(0).island_id(), "a");
  EXPECT_EQ(task.last_errors(0).code(), "LOSS_EXPLODED");
  EXPECT_EQ(task.last_errors(0).message(), "training diverged: script");
  EXPECT_GT(task.last_errors(0).time().seconds(), 0);
}

TEST_F(IslandServiceTest, EpochsGoToTheNewestStoreAndOldOnesFindOut) {
  const auto open = [&](const std::string& name) {
    auto store = store::SqliteStore::Open({.path = folder_.File(name)});
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  };
  const auto first = open("first.db");
  EXPECT_EQ(ErrorReason(EstablishEpoch(*blobs_, *first, false)), "STORE_EMPTY");
  EXPECT_EQ(first->epoch(), 0);
  ASSERT_TRUE(EstablishEpoch(*blobs_, *first, true).ok());
  EXPECT_EQ(first->epoch(), 2) << "the fixture's coordinator has epoch 1";
  ASSERT_TRUE(EstablishEpoch(*blobs_, *first, false).ok());
  EXPECT_EQ(first->epoch(), 2) << "a restart keeps it";
  const auto second = open("second.db");
  ASSERT_TRUE(EstablishEpoch(*blobs_, *second, true).ok());
  EXPECT_EQ(second->epoch(), 3);
  const absl::Status superseded = EstablishEpoch(*blobs_, *first, false);
  EXPECT_EQ(ErrorReason(superseded), "STORE_SUPERSEDED");
  EXPECT_THAT(std::string(superseded.message()), HasSubstr("--restored"));
  ASSERT_TRUE(EstablishEpoch(*blobs_, *first, true).ok());
  EXPECT_EQ(first->epoch(), 4);
  EXPECT_EQ(ErrorReason(coordinator_->collector().CollectOnce()), "STORE_SUPERSEDED") << "epoch 1 deletes nothing";
  {
    const auto registry = metrics::Registry::Create("collection");
    CoreMetrics core_metrics(registry.get());
    absl::Notification told;
    absl::Status why;
    const auto take = [&](const absl::Status& status) {
      if (told.HasBeenNotified()) return;
      why = status;
      told.Notify();
    };
    Collector collector(blobs_.get(), Clock::Real(), [](const auto&) { return false; }, second->store_id(),
                        &core_metrics, {.interval = absl::Milliseconds(5), .superseded = take});
    told.WaitForNotification();
    EXPECT_EQ(ErrorReason(why), "STORE_SUPERSEDED");
  }

  // A blob store that the files of its jobs do not lie in, as when --blob-store is mistyped or not mounted.
  storage::TemporaryStore other;
  const absl::Status unknown = EstablishEpoch(*other.get(), *first, false);
  EXPECT_EQ(ErrorReason(unknown), "BLOB_STORE_UNKNOWN");
  EXPECT_THAT(std::string(unknown.message()), HasSubstr(other->root()));
  EXPECT_EQ(first->epoch(), 4);
  EXPECT_EQ(ErrorReason(CheckRanHere(*other.get(), *first)), "BLOB_STORE_UNKNOWN") << "nothing is given up there";
  EXPECT_TRUE(CheckRanHere(*blobs_, *first).ok());
  EXPECT_TRUE(CheckRanHere(*other.get(), *open("new.db")).ok());
  ASSERT_TRUE(EstablishEpoch(*other.get(), *first, true).ok()) << "whoever says that they were moved is believed";
  EXPECT_EQ(first->epoch(), 5);
  EXPECT_TRUE(CheckRanHere(*other.get(), *first).ok());
}

TEST_F(IslandServiceTest, EveryWriteThatTheStoreRefusesIsCounted) {
  const absl::Cleanup mend = [] { ASSERT_TRUE(SetFailpoints("").ok()); };
  ASSERT_TRUE(SetFailpoints("store.submit_job.before_commit=error;store.register.before_commit=error").ok());
  EXPECT_EQ(ErrorReason(Submit(SubmitRequest()).status()), "FAILPOINT");
  EXPECT_EQ(ErrorReason(Register("a").status()), "FAILPOINT");
  EXPECT_THAT(coordinator_->registry().Text(), HasSubstr("atoll_coordinator_store_write_failures_total 2"));
  ASSERT_TRUE(SetFailpoints("").ok());
  EXPECT_TRUE(Submit(SubmitRequest()).ok());
  EXPECT_TRUE(Register("a").ok());
  EXPECT_THAT(coordinator_->registry().Text(), HasSubstr("atoll_coordinator_store_write_failures_total 2"));
}

TEST_F(IslandServiceTest, MetricsCountWhatHappened) {
  ASSERT_TRUE(Submit(SubmitRequest()).ok());
  ASSERT_TRUE(Register("a").ok());
  FinishNext("a");
  const std::string text = coordinator_->registry().Text();
  EXPECT_THAT(text, HasSubstr("atoll_coordinator_grants_total 1"));
  EXPECT_THAT(text, HasSubstr("atoll_coordinator_attempts_ended_total{outcome=\"succeeded\"} 1"));
  EXPECT_THAT(text, HasSubstr("atoll_coordinator_requests_total{method=\"SubmitJob\"} 1"));
  EXPECT_THAT(text, HasSubstr("atoll_coordinator_store_epoch 1"));
}

}  // namespace
}  // namespace atl::coordinator
