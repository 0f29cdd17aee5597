// Creating an object once over S3: by the server's condition where it has one, by claims where it has none.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "absl/synchronization/barrier.h"
#include "absl/time/clock.h"
#include "common/base/errors.h"
#include "common/storage/blob_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/s3/fault_proxy.h"
#include "tests/s3/s3_server.h"

namespace atl::testing_s3 {
namespace {

using storage::BlobStore;

constexpr char kKeys[] = "ATOLLTESTKEY:atolltestsecret";
constexpr char kChoice[] = ".atoll/create-once";

storage::RemoteOptions Quick() {
  return {.stall_timeout = absl::Seconds(1),
          .tries = 5,
          .unreachable_tries = 3,
          .backoff = {.first = absl::Milliseconds(5), .longest = absl::Milliseconds(20)}};
}

class S3CreateOnceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ATOLL_REQUIRE_S3_SERVER();
    server_ = std::make_unique<S3Server>();
    proxy_ = std::make_unique<FaultProxy>(server_->port());
  }

  // As another process would.
  std::unique_ptr<BlobStore> Open(int port) {
    auto store = BlobStore::Open(S3Server::Uri("once", port, kKeys), Quick());
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }

  std::unique_ptr<S3Server> server_;
  std::unique_ptr<FaultProxy> proxy_;
};

TEST_F(S3CreateOnceTest, OfSeveralStoresOneWinsEveryRace) {
  constexpr int kStores = 4;
  constexpr int kRaces = 200;
  std::vector<std::unique_ptr<BlobStore>> stores;
  for (int i = 0; i < kStores; ++i) stores.push_back(Open(server_->port()));
  // The status of each store in each race; the first race is for the choice too.
  std::vector<std::vector<absl::Status>> results(kRaces, std::vector<absl::Status>(kStores));
  std::vector<std::unique_ptr<absl::Barrier>> starts;
  for (int race = 0; race < kRaces; ++race) starts.push_back(std::make_unique<absl::Barrier>(kStores));
  std::vector<std::thread> threads;
  for (int i = 0; i < kStores; ++i) {
    threads.emplace_back([&, i] {
      for (int race = 0; race < kRaces; ++race) {
        // Whoever leaves last may delete it.
        if (starts[race]->Block()) starts[race].reset();
        results[race][i] =
            stores[i]->CreateOnce(stores[i]->UriOf(fmt::format("race/{}", race)), fmt::format("{}", i)).status();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int race = 0; race < kRaces; ++race) {
    const std::string content = stores[0]->Read(stores[0]->UriOf(fmt::format("race/{}", race))).value();
    for (int i = 0; i < kStores; ++i) {
      EXPECT_EQ(results[race][i].code(),
                content == fmt::format("{}", i) ? absl::StatusCode::kOk : absl::StatusCode::kAlreadyExists)
          << race << ": " << results[race][i];
    }
  }
  EXPECT_EQ(stores[0]->Read(stores[0]->UriOf(kChoice)).value(), "conditional put");
  EXPECT_EQ(stores[0]->List(stores[0]->root())->size(), kRaces) << "what stores agree on is not listed";
}

TEST_F(S3CreateOnceTest, ALostAnswerIsNotTakenForAnother) {
  const auto store = Open(proxy_->port());
  ASSERT_TRUE(store->CreateOnce(store->UriOf("first"), "1").ok());
  proxy_->Add({.kind = Fault::Kind::kCutAnswer, .method = "PUT", .target = "/mine"});
  const auto mine = store->CreateOnce(store->UriOf("mine"), "2");
  EXPECT_TRUE(mine.ok()) << mine.status();
  EXPECT_EQ(proxy_->Requests("/mine"), 3) << "written, refused, looked at";
  // The same bytes of another writer are another's.
  proxy_->Add({.kind = Fault::Kind::kCutAnswer, .method = "PUT", .target = "/first"});
  EXPECT_EQ(store->CreateOnce(store->UriOf("first"), "1").status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(store->Read(store->UriOf("mine")).value(), "2");
}

TEST_F(S3CreateOnceTest, ErrorsOfTheServerHaveTheirCodes) {
  const auto store = Open(proxy_->port());
  ASSERT_TRUE(store->CreateOnce(store->UriOf("first"), "1").ok());
  proxy_->Add({.method = "PUT", .target = "/busy", .times = 2});
  EXPECT_TRUE(store->CreateOnce(store->UriOf("busy"), "1").ok());
  proxy_->Add(
      {.method = "PUT", .target = "/conflict", .times = 1, .status = 409, .code = "ConditionalRequestConflict"});
  EXPECT_TRUE(store->CreateOnce(store->UriOf("conflict"), "1").ok());
  proxy_->Add({.method = "PUT", .target = "/down", .times = -1});
  EXPECT_EQ(store->CreateOnce(store->UriOf("down"), "1").status().code(), absl::StatusCode::kUnavailable);
  proxy_->Add({.method = "PUT", .target = "/refused", .times = -1, .status = 403, .code = "AccessDenied"});
  const auto refused = store->CreateOnce(store->UriOf("refused"), "1");
  EXPECT_EQ(ErrorReason(refused.status()), "STORE_ACCESS_DENIED") << refused.status();
  proxy_->Add({.kind = Fault::Kind::kSilence, .method = "PUT", .target = "/mute", .times = -1});
  EXPECT_EQ(store->CreateOnce(store->UriOf("mute"), "1").status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(S3CreateOnceTest, NamesAreWrittenAsTheyAre) {
  const auto store = Open(server_->port());
  const std::string uri = store->UriOf("a b/c=1+2%41/ü~'()!");
  ASSERT_TRUE(store->CreateOnce(uri, "x").ok());
  EXPECT_EQ(store->Read(uri).value(), "x");
  EXPECT_EQ(store->CreateOnce(uri, "y").status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(S3CreateOnceTest, AServerWithoutTheConditionIsServedThroughClaimsByAll) {
  proxy_->Add({.method = "PUT", .target = "/.atoll/probe", .times = -1, .status = 501, .code = "NotImplemented"});
  const auto first = Open(proxy_->port());
  ASSERT_TRUE(first->CreateOnce(first->UriOf("x"), "1").ok());
  EXPECT_EQ(first->Read(first->UriOf(kChoice)).value(), "claims");
  EXPECT_GT(proxy_->Requests(".claims/"), 0);
  // This one could, but does as the others do.
  const FaultProxy other_proxy(server_->port());
  const auto second = Open(other_proxy.port());
  EXPECT_EQ(second->CreateOnce(second->UriOf("x"), "2").status().code(), absl::StatusCode::kAlreadyExists);
  ASSERT_TRUE(second->CreateOnce(second->UriOf("y"), "2").ok());
  EXPECT_GT(other_proxy.Requests(".claims/"), 0);
}

TEST_F(S3CreateOnceTest, AnUnknownAgreementIsRefused) {
  const auto store = Open(server_->port());
  ASSERT_TRUE(store->Write(store->UriOf(kChoice), "votes").ok());
  const auto created = store->CreateOnce(store->UriOf("x"), "1");
  EXPECT_EQ(ErrorReason(created.status()), "FORMAT_UNSUPPORTED");
  EXPECT_THAT(std::string(created.status().message()), ::testing::HasSubstr("found 'votes'"));
}

}  // namespace
}  // namespace atl::testing_s3
