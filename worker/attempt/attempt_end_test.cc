#include "worker/attempt/attempt_end.h"

#include <gtest/gtest.h>

#include "common/base/errors.h"

namespace atl::worker {
namespace {

absl::Status Lost() {
  return MakeError(absl::StatusCode::kFailedPrecondition, "LOST_RANK", "rank 1");
}

TEST(AttemptEnd, TrainingIsSettledByHowItsRanksEnded) {
  const struct {
    const char* name;
    absl::Status status;
    int64_t step;
    bool revoked;
    Disposition disposition;
    bool permanent;
  } cases[] = {
      {"all steps done", absl::OkStatus(), 40, false, Disposition::kComplete, false},
      {"stopped early", absl::OkStatus(), 17, false, Disposition::kRelease, false},
      {"done, but another attempt was granted", absl::OkStatus(), 40, true, Disposition::kNothing, false},
      {"peer lost", absl::UnavailableError("closed"), 3, false, Disposition::kRelease, false},
      {"slow peer", absl::DeadlineExceededError("60 s"), 3, false, Disposition::kRelease, false},
      {"rank gone before the start", Lost(), 0, false, Disposition::kRelease, false},
      {"aborted", absl::AbortedError("x"), 3, false, Disposition::kRelease, false},
      {"impossible spec", absl::InvalidArgumentError("x"), 0, false, Disposition::kFail, true},
      {"broken shard", absl::DataLossError("x"), 0, false, Disposition::kFail, true},
      {"diverged", MakeError(absl::StatusCode::kInternal, "TRAINING_DIVERGED", "x"), 9, false, Disposition::kRollBack,
       false},
      {"diverged in a revoked attempt", MakeError(absl::StatusCode::kInternal, "TRAINING_DIVERGED", "x"), 9, true,
       Disposition::kNothing, false},
      {"damaged checkpoint", MakeError(absl::StatusCode::kDataLoss, "CHECKPOINT_UNREADABLE", "x"), 0, false,
       Disposition::kRollBack, false},
      {"checkpoint without a tensor", MakeError(absl::StatusCode::kDataLoss, "CHECKPOINT_DAMAGED", "x"), 0, false,
       Disposition::kRollBack, false},
      {"not a number", absl::InternalError("loss is nan"), 9, false, Disposition::kFail, false},
      {"out of memory", absl::ResourceExhaustedError("x"), 9, false, Disposition::kFail, false},
      {"error of a revoked attempt", absl::InternalError("x"), 9, true, Disposition::kNothing, false},
  };
  for (const auto& test : cases) {
    const AttemptEnd end = DecideTrainingEnd(test.status, test.step, 40, test.revoked);
    EXPECT_EQ(end.disposition, test.disposition) << test.name;
    EXPECT_EQ(end.permanent, test.permanent) << test.name;
  }
  EXPECT_EQ(DecideTrainingEnd(absl::OkStatus(), 17, 40, false).reason.message(), "stopped after step 17 of 40");
}

TEST(AttemptEnd, ATaskThatThisProcessCancelledIsReleased) {
  EXPECT_EQ(DecideTaskEnd(absl::OkStatus(), false, true).disposition, Disposition::kComplete);
  EXPECT_EQ(DecideTaskEnd(absl::AbortedError("x"), false, true).disposition, Disposition::kRelease);
  EXPECT_EQ(DecideTaskEnd(absl::AbortedError("x"), true, true).disposition, Disposition::kNothing);
  EXPECT_EQ(DecideTaskEnd(absl::AbortedError("x"), false, false).disposition, Disposition::kFail);
  EXPECT_TRUE(DecideTaskEnd(absl::DataLossError("x"), false, false).permanent);
  // A retry does not repair a checkpoint that publishing reads.
  EXPECT_TRUE(DecideTaskEnd(MakeError(absl::StatusCode::kDataLoss, "CHECKPOINT_DAMAGED", "x"), false, false).permanent);
  EXPECT_FALSE(DecideTaskEnd(absl::UnavailableError("x"), false, false).permanent);
}

TEST(AttemptEnd, AStoreThatFailsCostsTheTaskNothingForAWhile) {
  const absl::Status full = MakeError(absl::StatusCode::kResourceExhausted, "DISK_FULL", "x");
  const absl::Status away = MakeError(absl::StatusCode::kUnavailable, "STORE_UNAVAILABLE", "x");
  const absl::Status expired = MakeError(absl::StatusCode::kUnavailable, "STORAGE_GRANT_EXPIRED", "x");
  const absl::Status other = MakeError(absl::StatusCode::kFailedPrecondition, "BLOB_STORE_OTHER", "x");
  for (const absl::Status& status : {full, away, expired, other}) {
    EXPECT_TRUE(IsTheStoresFault(DecideTaskEnd(status, false, false))) << status;
    EXPECT_TRUE(IsTheStoresFault(DecideTrainingEnd(status, 40, 40, false))) << status;
    EXPECT_FALSE(IsTheStoresFault(DecideTrainingEnd(status, 40, 40, /*revoked=*/true))) << status;
    const AttemptEnd soon = DecideStoreEnd(DecideTaskEnd(status, false, false), /*too_long=*/false);
    EXPECT_EQ(soon.disposition, Disposition::kRelease);
    EXPECT_TRUE(soon.store_failed);
    EXPECT_EQ(soon.reason, status);
  }
  for (const absl::Status& status : {absl::ResourceExhaustedError("out of memory"), absl::UnavailableError("a peer"),
                                     absl::OkStatus(), absl::NotFoundError("x")}) {
    EXPECT_FALSE(IsTheStoresFault(DecideTrainingEnd(status, 3, 40, false))) << status;
    EXPECT_FALSE(IsTheStoresFault(DecideTaskEnd(status, false, false))) << status;
  }
  const AttemptEnd late = DecideStoreEnd(DecideTrainingEnd(away, 3, 40, false), /*too_long=*/true);
  EXPECT_EQ(late.disposition, Disposition::kFail);
  EXPECT_FALSE(late.permanent);
  EXPECT_TRUE(DecideStoreEnd(DecideTaskEnd(other, false, false), /*too_long=*/true).store_failed)
      << "the island ends then, and others may do it";
}

TEST(AttemptEnd, AStoreThatIsAwayOrFullMayTakeItLater) {
  const struct {
    absl::Status status;
    bool later;
  } cases[] = {
      {MakeError(absl::StatusCode::kResourceExhausted, "DISK_FULL", "x"), true},
      {MakeError(absl::StatusCode::kUnavailable, "STORE_UNAVAILABLE", "x"), true},
      {MakeError(absl::StatusCode::kUnavailable, "STORAGE_GRANT_EXPIRED", "x"), true},
      {absl::DeadlineExceededError("5 s"), true},
      {MakeError(absl::StatusCode::kPermissionDenied, "STORE_ACCESS_DENIED", "x"), false},
      {MakeError(absl::StatusCode::kFailedPrecondition, "STORAGE_NOT_GRANTED", "x"), false},
      {absl::NotFoundError("no such bucket"), false},
      {absl::OkStatus(), false},
  };
  for (const auto& test : cases) EXPECT_EQ(MayBeTakenLater(test.status), test.later) << test.status;
}

TEST(AttemptEnd, AnIslandThatIsSetUpWrongFailsNoTask) {
  for (const char* reason : {"GRANTS_UNSUPPORTED", "STORAGE_NOT_GRANTED", "BLOB_STORE_OTHER"}) {
    const absl::Status unfit = MakeError(absl::StatusCode::kFailedPrecondition, reason, "x");
    EXPECT_TRUE(IsTheIslandsFault(DecideTaskEnd(unfit, false, false))) << reason;
    EXPECT_TRUE(IsTheIslandsFault(DecideTrainingEnd(unfit, 3, 40, false))) << reason;
    EXPECT_FALSE(IsTheIslandsFault(DecideTrainingEnd(unfit, 3, 40, /*revoked=*/true))) << reason;
    EXPECT_FALSE(IsTheIslandsFault(BlameTheStore(DecideTaskEnd(absl::NotFoundError("x"), false, false), unfit)))
        << "the leader waits for its own store";
  }
  EXPECT_FALSE(IsTheIslandsFault(DecideTaskEnd(absl::FailedPreconditionError("x"), false, false)));
}

TEST(AttemptEnd, WithoutTheBlobStoreNothingIsTheTasksFault) {
  const absl::Status other = MakeError(absl::StatusCode::kFailedPrecondition, "BLOB_STORE_OTHER", "not mounted");
  for (const Disposition disposition : {Disposition::kComplete, Disposition::kRelease, Disposition::kRollBack,
                                        Disposition::kFail, Disposition::kNothing}) {
    const AttemptEnd end{.disposition = disposition, .permanent = true, .reason = absl::NotFoundError("x")};
    EXPECT_EQ(BlameTheStore(end, absl::OkStatus()).disposition, disposition);
    const bool blames = disposition == Disposition::kRollBack || disposition == Disposition::kFail;
    const AttemptEnd blamed = BlameTheStore(end, other);
    EXPECT_EQ(blamed.disposition, blames ? Disposition::kRelease : disposition);
    EXPECT_EQ(blamed.reason, blames ? other : end.reason);
    EXPECT_EQ(blamed.store_failed, blames);
  }
}

}  // namespace
}  // namespace atl::worker
