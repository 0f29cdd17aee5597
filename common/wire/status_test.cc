#include "common/wire/status.h"

#include "common/base/errors.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "gtest/gtest.h"

namespace atl::rpc {
namespace {

TEST(RpcStatusTest, ReasonFieldCodeAndMessageSurviveTheWire) {
  const absl::Status status = FieldError("training.steps", "OUT_OF_RANGE", "expected at least 1, found 0");
  const absl::Status back = FromGrpc(ToGrpc(status));
  EXPECT_EQ(back, status);
  EXPECT_EQ(ErrorReason(back), "OUT_OF_RANGE");
  EXPECT_EQ(ErrorField(back), "training.steps");
}

TEST(RpcStatusTest, AReasonThatLeadsTheMessageIsTakenWhereThereAreNoDetails) {
  const absl::Status back = FromGrpc({grpc::StatusCode::UNAUTHENTICATED, "[TOKEN_EXPIRED] it is over"});
  EXPECT_EQ(ErrorReason(back), "TOKEN_EXPIRED");
  EXPECT_EQ(back.message(), "it is over");
  for (const char* message : {"[lower] case", "[] none", "[NO_SPACE]", "x [LATER] on", "[UNCLOSED"}) {
    const absl::Status other = FromGrpc({grpc::StatusCode::UNAUTHENTICATED, message});
    EXPECT_EQ(ErrorReason(other), "UNAUTHENTICATED") << message;
    EXPECT_EQ(other.message(), message);
  }
}

TEST(RpcStatusTest, ExactlyOneErrorInfoOfDomainAtoll) {
  const grpc::Status wire = ToGrpc(absl::NotFoundError("no job 'x'"));
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(wire.error_details()));
  ASSERT_EQ(details.details_size(), 1);
  google::rpc::ErrorInfo info;
  ASSERT_TRUE(details.details(0).UnpackTo(&info));
  EXPECT_EQ(info.reason(), "NOT_FOUND");
  EXPECT_EQ(info.domain(), "atoll");
  EXPECT_TRUE(info.metadata().empty());
}

TEST(RpcStatusTest, EveryCodeHasADefaultReason) {
  EXPECT_TRUE(ToGrpc(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpc(grpc::Status::OK).ok());
  for (int code = 1; code <= 16; ++code) {
    const absl::Status back = FromGrpc(grpc::Status(static_cast<grpc::StatusCode>(code), "m"));
    EXPECT_EQ(static_cast<int>(back.code()), code);
    EXPECT_EQ(ErrorReason(back), absl::StatusCodeToString(back.code())) << code;
  }
}

TEST(RpcStatusTest, DetailsThatAreGarbageKeepCodeAndMessage) {
  const absl::Status back = FromGrpc(grpc::Status(grpc::StatusCode::ABORTED, "stale", "\xff\xff garbage"));
  EXPECT_EQ(back.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(back.message(), "stale");
  EXPECT_EQ(ErrorReason(back), "ABORTED");
}

TEST(RpcStatusTest, LongMessagesAreCutBetweenLetters) {
  std::string message;
  for (int i = 0; i < 5000; ++i) message += "ü";
  const grpc::Status wire = ToGrpc(absl::InternalError(message));
  EXPECT_LE(wire.error_message().size(), 4100u);
  EXPECT_EQ(wire.error_message().substr(4096), "…");
}

TEST(RpcStatusTest, NamesOfStrangersMakeNoLines) {
  const grpc::Status wire = ToGrpc(absl::NotFoundError("there is no job 'a\nERROR: \x1b[2Jü'"));
  EXPECT_EQ(wire.error_message(), "there is no job 'a\\nERROR: \\x1b[2Jü'");
}

TEST(RpcStatusTest, OnlyUnavailableIsRetryable) {
  EXPECT_TRUE(IsRetryable(absl::UnavailableError("")));
  EXPECT_FALSE(IsRetryable(absl::DeadlineExceededError("")));
  EXPECT_FALSE(IsRetryable(absl::DataLossError("")));
}

}  // namespace
}  // namespace atl::rpc
