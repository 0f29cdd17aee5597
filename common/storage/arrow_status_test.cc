#include "common/storage/arrow_status.h"

#include <string>
#include <utility>

#include "arrow/status.h"
#include "common/base/errors.h"
#include "common/storage/remote_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::storage {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ArrowStatusTest, WhatAnS3ServerSaysHasItsOwnCode) {
  struct Case {
    const char* arrow;
    absl::StatusCode code;
    const char* reason;
    const char* message;
  };
  const Case cases[] = {
      {"When reading information for key 'p/x' in bucket 'b': AWS Error ACCESS_DENIED during HeadObject operation: No "
       "response body.",
       absl::StatusCode::kPermissionDenied, "STORE_ACCESS_DENIED",
       "cannot read x: the S3 server refuses: ACCESS_DENIED"},
      {"AWS Error SIGNATURE_DOES_NOT_MATCH during PutObject operation: StringToSign hush",
       absl::StatusCode::kPermissionDenied, "STORE_ACCESS_DENIED", "SIGNATURE_DOES_NOT_MATCH"},
      {"AWS Error REQUEST_TIME_TOO_SKEWED during HeadObject operation: hush", absl::StatusCode::kPermissionDenied,
       "STORE_ACCESS_DENIED", "this machine's clock is wrong"},
      {"AWS Error UNKNOWN (HTTP status 403) during HeadObject operation: No response body.",
       absl::StatusCode::kPermissionDenied, "STORE_ACCESS_DENIED", "HTTP status 403"},
      {"AWS Error NO_SUCH_BUCKET during ListObjectsV2 operation: The bucket", absl::StatusCode::kNotFound,
       "BUCKET_NOT_FOUND", "the bucket is not there"},
      {"AWS Error NO_SUCH_KEY during GetObject operation: The key", absl::StatusCode::kNotFound, "BLOB_NOT_FOUND",
       "cannot read x: it is not there"},
      {"AWS Error SLOW_DOWN during PutObject operation: Please reduce your rate.", absl::StatusCode::kUnavailable,
       "STORE_UNAVAILABLE", "cannot read x: SLOW_DOWN: Please reduce your rate."},
      {"AWS Error UNKNOWN (HTTP status 503) during PutObject operation: gone", absl::StatusCode::kUnavailable,
       "STORE_UNAVAILABLE", "cannot read x: HTTP status 503: gone"},
      {"AWS Error ", absl::StatusCode::kUnavailable, "STORE_UNAVAILABLE", "cannot read x"},
  };
  for (const Case& c : cases) {
    const absl::Status status = FromArrow(arrow::Status::IOError(c.arrow), "cannot read x");
    EXPECT_EQ(status.code(), c.code) << c.arrow;
    EXPECT_EQ(ErrorReason(status), c.reason) << c.arrow;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("hush"))) << "what was signed stays out";
  }
  EXPECT_EQ(FromS3("SlowDown", 503, "x", "").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(FromS3("AccessDenied", 403, "x", "").code(), absl::StatusCode::kPermissionDenied);
}

TEST(PublicUriTest, HasNeitherCredentialsNorOptions) {
  const std::pair<const char*, const char*> cases[] = {
      {"s3://bucket/prefix", "s3://bucket/prefix"},
      {"s3://KEY:hush@bucket/prefix/?region=x", "s3://bucket/prefix"},
      {"s3://KEY:hu/sh@bucket/prefix", "s3://bucket/prefix"},
      {"s3://KEY:hu@sh@bucket", "s3://bucket"},
      {"s3://bucket/of@me/x", "s3://bucket/of@me/x"},
      {"s3a://KEY:hush@bucket", "s3a://bucket"},
      {"gs://anonymous@bucket/x", "gs://bucket/x"},
      {"file:///data/of@me", "file:///data/of@me"},
      {"ftp", "ftp"},
      {"", ""},
  };
  for (const auto& [uri, shown] : cases) EXPECT_EQ(PublicUri(uri), shown);
}

TEST(RetryDelayTest, GrowsWithJitterAndEnds) {
  const RemoteOptions options{.tries = 6,
                              .unreachable_tries = 2,
                              .backoff = {.first = absl::Milliseconds(100), .longest = absl::Milliseconds(500)}};
  EXPECT_EQ(RetryDelay(options, false, 1, 0), absl::Milliseconds(100));
  EXPECT_EQ(RetryDelay(options, false, 2, 0), absl::Milliseconds(200));
  EXPECT_EQ(RetryDelay(options, false, 2, 0.5), absl::Milliseconds(150));
  EXPECT_EQ(RetryDelay(options, false, 5, 0), absl::Milliseconds(500));
  EXPECT_FALSE(RetryDelay(options, false, 6, 0).has_value());
  EXPECT_TRUE(RetryDelay(options, true, 1, 0).has_value());
  EXPECT_FALSE(RetryDelay(options, true, 2, 0).has_value());
  EXPECT_EQ(RetryDelay({}, false, 10, 0), absl::Seconds(10));
}

}  // namespace
}  // namespace atl::storage
