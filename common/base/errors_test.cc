#include "common/base/errors.h"

#include "common/base/explain.h"

#include "gtest/gtest.h"

namespace atl {
namespace {

TEST(ErrorsTest, FieldErrorCarriesPathReasonAndMessage) {
  const absl::Status status = FieldError("training.steps", "OUT_OF_RANGE", "expected at least 1, found 0");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "training.steps: expected at least 1, found 0");
  EXPECT_EQ(ErrorReason(status), "OUT_OF_RANGE");
  EXPECT_EQ(ErrorField(status), "training.steps");
}

TEST(ErrorsTest, WhatIsPrintedEndsWithTheReason) {
  EXPECT_EQ(Explain(MakeError(absl::StatusCode::kDataLoss, "STORE_CORRUPT", "store s.db: page 2")),
            "store s.db: page 2 [STORE_CORRUPT]");
  EXPECT_EQ(Explain(absl::UnknownError("no reason")), "no reason");
}

TEST(ErrorsTest, ContextKeepsCodeReasonAndField) {
  const absl::Status status = WithContext(FieldError("a.b", "UNKNOWN_FIELD", "what"), "job.yaml");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "job.yaml: a.b: what");
  EXPECT_EQ(ErrorReason(status), "UNKNOWN_FIELD");
  EXPECT_EQ(ErrorField(status), "a.b");
  EXPECT_TRUE(WithContext(absl::OkStatus(), "x").ok());
}

}  // namespace
}  // namespace atl
