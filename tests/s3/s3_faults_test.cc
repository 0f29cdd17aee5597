// The blob store's handling of an S3 server that is busy, broken, silent, or rejects its address or keys.
#include <cstdlib>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "common/base/errors.h"
#include "common/storage/blob_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/s3/fault_proxy.h"
#include "tests/s3/s3_server.h"

namespace atl::testing_s3 {
namespace {

using storage::BlobStore;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kKeys[] = "ATOLLTESTKEY:atolltestsecret";

// As patient as the tests are.
storage::RemoteOptions Quick() {
  return {.connect_timeout = absl::Seconds(5),
          .stall_timeout = absl::Seconds(1),
          .tries = 5,
          .unreachable_tries = 3,
          .backoff = {.first = absl::Milliseconds(10), .longest = absl::Milliseconds(40)}};
}

class S3FaultsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ATOLL_REQUIRE_S3_SERVER();
    server_ = std::make_unique<S3Server>();
    proxy_ = std::make_unique<FaultProxy>(server_->port());
    auto store = BlobStore::Open(S3Server::Uri("faults", proxy_->port(), kKeys), Quick());
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }

  std::string Uri(std::string_view name) const { return store_->UriOf(name); }

  std::unique_ptr<S3Server> server_;
  std::unique_ptr<FaultProxy> proxy_;
  std::unique_ptr<BlobStore> store_;
};

TEST_F(S3FaultsTest, AServerThatIsBusyIsAskedAgain) {
  proxy_->Add({.method = "PUT", .times = 3});
  const auto written = store_->Write(Uri("a"), "hello");
  ASSERT_TRUE(written.ok()) << written.status();
  EXPECT_EQ(proxy_->Requests("PUT"), 4);
  proxy_->Add({.method = "GET", .times = 2, .status = 500, .code = "InternalError"});
  EXPECT_EQ(store_->ReadVerified(Uri("a"), written->sha256).value(), "hello");
}

TEST_F(S3FaultsTest, AServerThatStaysBusyIsGivenUpInTheEnd) {
  proxy_->Add({.method = "PUT", .times = -1});
  const auto written = store_->Write(Uri("a"), "hello");
  EXPECT_EQ(written.status().code(), absl::StatusCode::kUnavailable) << written.status();
  EXPECT_EQ(ErrorReason(written.status()), "STORE_UNAVAILABLE");
  EXPECT_THAT(std::string(written.status().message()), HasSubstr("faults/a"));
  EXPECT_EQ(proxy_->Requests("PUT"), 5);
}

TEST_F(S3FaultsTest, AnUploadThatBreaksIsMadeAgainOrLeavesNothing) {
  const std::string large(12'000'000, 'x');
  proxy_->Add({.kind = Fault::Kind::kCutRequest, .method = "PUT", .bytes = 1'000'000});
  const auto written = store_->Write(Uri("large"), large);
  ASSERT_TRUE(written.ok()) << written.status();
  EXPECT_EQ(store_->ReadVerified(Uri("large"), written->sha256).value().size(), large.size());

  proxy_->Add({.kind = Fault::Kind::kCutRequest, .method = "PUT", .times = -1, .bytes = 1'000'000});
  EXPECT_EQ(store_->Write(Uri("never"), large).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(store_->Write(Uri("large"), large + "y").status().code(), absl::StatusCode::kUnavailable);
  proxy_->Heal();
  EXPECT_FALSE(store_->Exists(Uri("never")).value());
  EXPECT_EQ(store_->ReadVerified(Uri("large"), written->sha256).value().size(), large.size());
}

TEST_F(S3FaultsTest, AnAnswerThatBreaksIsNeverTakenForTheWholeFile) {
  const std::string content(3'000'000, 'q');
  const auto written = store_->Write(Uri("a"), content);
  ASSERT_TRUE(written.ok()) << written.status();
  for (const int64_t bytes : {int64_t{0}, int64_t{100}, int64_t{1'000'000}}) {
    proxy_->Add({.kind = Fault::Kind::kCutAnswer, .method = "GET", .bytes = bytes});
    const auto read = store_->Read(Uri("a"));
    if (read.ok()) {
      EXPECT_EQ(*read, content);
    } else {
      EXPECT_THAT(read.status().code(), AnyOf(absl::StatusCode::kUnavailable, absl::StatusCode::kDataLoss));
    }
    EXPECT_EQ(store_->LocalPath(Uri("a"), written->sha256).status().code(), absl::StatusCode::kOk);
  }
}

TEST_F(S3FaultsTest, AServerThatSaysNothingIsGivenUp) {
  proxy_->Add({.kind = Fault::Kind::kSilence, .times = -1});
  EXPECT_EQ(store_->Read(Uri("a")).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(S3FaultsTest, WhatIsMissingOrRefusedSaysSoAndKeepsSecretsToItself) {
  struct Case {
    int port;
    std::string keys;
    std::string bucket;
    absl::StatusCode code;
    std::string reason;
  };
  FaultProxy refusing(server_->port());
  refusing.Add({.times = -1, .status = 403, .code = "InvalidAccessKeyId"});
  const int nobody = [] { return FaultProxy(1).port(); }();
  const Case cases[] = {
      {server_->port(), kKeys, S3Server::kBucket, absl::StatusCode::kOk, ""},
      {server_->port(), kKeys, "absent", absl::StatusCode::kNotFound, "BUCKET_NOT_FOUND"},
      {server_->port(), "ATOLLTESTKEY:wrongsecret", S3Server::kBucket, absl::StatusCode::kPermissionDenied,
       "STORE_ACCESS_DENIED"},
      {refusing.port(), "WRONGKEY:atolltestsecret", S3Server::kBucket, absl::StatusCode::kPermissionDenied,
       "STORE_ACCESS_DENIED"},
      {nobody, kKeys, S3Server::kBucket, absl::StatusCode::kUnavailable, "STORE_UNAVAILABLE"},
  };
  for (const Case& c : cases) {
    const std::string uri = S3Server::Uri("p", c.port, c.keys, c.bucket);
    const auto store = BlobStore::Open(uri, Quick());
    EXPECT_EQ(store.status().code(), c.code) << uri << ": " << store.status();
    if (store.ok()) continue;
    EXPECT_EQ(ErrorReason(store.status()), c.reason) << store.status();
    const std::string message(store.status().message());
    EXPECT_THAT(message, HasSubstr(c.bucket + "/p"));
    for (const char* secret : {"atolltestsecret", "wrongsecret", "ATOLLTESTKEY", "WRONGKEY"}) {
      EXPECT_THAT(message, Not(HasSubstr(secret)));
    }
  }
}

TEST_F(S3FaultsTest, KeysMayComeFromTheEnvironment) {
  for (const std::string& variable : S3Server::Environment()) {
    const size_t equals = variable.find('=');
    setenv(variable.substr(0, equals).c_str(), variable.substr(equals + 1).c_str(), 1);
  }
  const auto store = BlobStore::Open(S3Server::Uri("faults", server_->port(), ""), Quick());
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_TRUE((*store)->Write((*store)->UriOf("x"), "y").ok());
  for (const std::string& variable : S3Server::Environment()) unsetenv(variable.substr(0, variable.find('=')).c_str());
}

}  // namespace
}  // namespace atl::testing_s3
