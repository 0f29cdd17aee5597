// Creating an object once over S3 and Google's storage: by the server's condition, without which a store is refused.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "absl/synchronization/barrier.h"
#include "absl/time/clock.h"
#include "common/base/errors.h"
#include "common/storage/blob_store.h"
#include "common/storage/google_token.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/multiproc/process.h"
#include "tests/s3/fault_proxy.h"
#include "tests/s3/s3_server.h"

namespace atl::testing_s3 {
namespace {

using storage::BlobStore;

constexpr char kKeys[] = "ATOLLTESTKEY:atolltestsecret";

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
  // The status of each store in each race; the first race is for the trial of the condition too.
  std::vector<std::vector<absl::Status>> results(kRaces, std::vector<absl::Status>(kStores));
  std::vector<std::unique_ptr<absl::Barrier>> starts;
  for (int race = 0; race < kRaces; ++race) starts.push_back(std::make_unique<absl::Barrier>(kStores));
  std::vector<std::thread> threads;
  for (int i = 0; i < kStores; ++i) {
    threads.emplace_back([&, i] {
      for (int race = 0; race < kRaces; ++race) {
        // Block returns true for the last thread that leaves, which may delete the barrier.
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
  EXPECT_EQ(stores[0]->List(stores[0]->root())->size(), kRaces) << "the object of the trial is not listed";
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

// The first server ignores the condition and writes; the others refuse its header.
TEST_F(S3CreateOnceTest, AServerWithoutTheConditionIsRefusedByName) {
  for (const int status : {200, 400, 501}) {
    FaultProxy proxy(server_->port());
    proxy.Add({.method = "PUT", .target = "/.atoll/probe", .times = -1, .status = status, .code = "NotImplemented"});
    const auto store = Open(proxy.port());
    for (int times = 0; times < 2; ++times) {
      const auto created = store->CreateOnce(store->UriOf("x"), "1");
      EXPECT_EQ(created.status().code(), absl::StatusCode::kFailedPrecondition) << status << ": " << created.status();
      EXPECT_EQ(ErrorReason(created.status()), "CREATE_ONCE_UNSUPPORTED");
      EXPECT_THAT(std::string(created.status().message()), ::testing::HasSubstr(store->root()));
    }
    EXPECT_THAT(store->List(store->root()).value(), ::testing::IsEmpty());
  }
}

TEST_F(S3CreateOnceTest, ACoordinatorDoesNotStartOnAServerWithoutTheCondition) {
  proxy_->Add({.method = "PUT", .target = "/.atoll/probe", .times = -1, .status = 200});
  const std::string folder = ::testing::TempDir() + fmt::format("atoll_unconditional_{}", getpid());
  std::filesystem::create_directory(folder);
  testing_cluster::Process coordinator(
      {std::getenv("ATOLL_BINARY_DIR") + std::string("/bin/atoll-coordinator"), "--listen", "127.0.0.1:0", "--store",
       folder + "/s.db", "--blob-store", S3Server::Uri("once", proxy_->port(), kKeys)},
      folder + "/log");
  EXPECT_EQ(coordinator.Wait(absl::Seconds(60)), 1);
  EXPECT_THAT(coordinator.Log(), ::testing::HasSubstr("CREATE_ONCE_UNSUPPORTED"));
  std::filesystem::remove_all(folder);
}

// Google's storage, as far as its documentation says: it was not run against Google.
TEST(GoogleCreateOnceTest, TheHeaderOfItsXmlApiIsTheCondition) {
  FaultProxy google(/*port=*/1);
  google.Add({.method = "GET", .times = -1, .status = 200, .body = "{}"});
  for (const char* target : {"/bucket/once/.atoll/probe", "/bucket/once/there"}) {
    google.Add({.method = "PUT", .target = target, .times = -1, .status = 412, .code = "PreconditionFailed"});
  }
  google.Add({.method = "PUT", .target = "/bucket/once/new", .times = -1, .status = 200});
  const auto store = BlobStore::Open(
      fmt::format("gs://anonymous@bucket/once?scheme=http&retry_limit_seconds=1&endpoint_override=127.0.0.1%3A{}",
                  google.port()),
      Quick());
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ((*store)->CreateOnce((*store)->UriOf("there"), "1").status().code(), absl::StatusCode::kAlreadyExists);
  const auto created = (*store)->CreateOnce((*store)->UriOf("new"), "1");
  EXPECT_TRUE(created.ok()) << created.status();
  EXPECT_EQ(google.Requests("PUT /bucket/"), 3);
  EXPECT_EQ(google.Requests("x-goog-if-generation-match: 0"), 3);
  EXPECT_EQ(google.Requests("x-goog-meta-atoll-writer: "), 3);
  EXPECT_EQ(google.Requests("x-amz"), 0);
  EXPECT_EQ(google.Requests("Authorization"), 0);
}

TEST(GoogleTokenTest, ComesFromTheMetadataServerOrForAKeyFile) {
  FaultProxy google(/*port=*/1);
  google.Add(
      {.method = "GET", .target = "/service-accounts/default/token", .status = 200, .body = R"({"access_token":"m"})"});
  google.Add({.method = "GET", .target = "/service-accounts/default/token", .times = -1, .status = 404});
  google.Add({.method = "POST", .target = "/token", .status = 200, .body = R"({"access_token":"k"})"});
  setenv("GCE_METADATA_HOST", fmt::format("127.0.0.1:{}", google.port()).c_str(), 1);
  unsetenv("GOOGLE_APPLICATION_CREDENTIALS");
  EXPECT_EQ(storage::GoogleToken(Quick()).value(), "m");
  EXPECT_EQ(google.Requests("Metadata-Flavor: Google"), 1);
  EXPECT_EQ(ErrorReason(storage::GoogleToken(Quick()).status()), "STORE_UNAVAILABLE");

  const std::string path = ::testing::TempDir() + fmt::format("atoll_key_{}.json", getpid());
  setenv("GOOGLE_APPLICATION_CREDENTIALS", path.c_str(), 1);
  EXPECT_EQ(ErrorReason(storage::GoogleToken(Quick()).status()), "GOOGLE_CREDENTIALS") << "no file";
  ASSERT_EQ(std::system(fmt::format("openssl genrsa -out {}.pem 2048 2>/dev/null", path).c_str()), 0);
  std::ifstream pem(path + ".pem");
  nlohmann::json key = {{"type", "service_account"},
                        {"client_email", "atoll@example"},
                        {"private_key", std::string(std::istreambuf_iterator<char>(pem), {})},
                        {"token_uri", fmt::format("http://127.0.0.1:{}/token", google.port())}};
  std::ofstream(path) << key.dump();
  const auto token = storage::GoogleToken(Quick());
  ASSERT_TRUE(token.ok()) << token.status();
  EXPECT_EQ(*token, "k");
  key["type"] = "authorized_user";
  std::ofstream(path) << key.dump();
  EXPECT_THAT(std::string(storage::GoogleToken(Quick()).status().message()),
              ::testing::HasSubstr("found type 'authorized_user'"));
  for (const char* suffix : {"", ".pem"}) std::filesystem::remove(path + suffix);
  unsetenv("GOOGLE_APPLICATION_CREDENTIALS");
  unsetenv("GCE_METADATA_HOST");
}

}  // namespace
}  // namespace atl::testing_s3
