// Keys in the answers to claims and renewals, over real gRPC; the program is a line of shell.
#include "coordinator/blobs/storage_grants.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <future>

#include "absl/time/clock.h"
#include "common/base/errors.h"
#include "common/wire/task_wire.h"
#include "coordinator/service/test_support.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace atl::coordinator {
namespace {

using atlpb::island::v1::IslandService;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kSecret[] = "granted-secret-of-this-test";

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class StorageGrantsTest : public CoordinatorFixture {
 protected:
  // Prints keys that are good until `expiration`, once `good` exists; what it is asked is left in `asked`.
  StorageGrantsTest() {
    Restart("cat > " + asked_ + "; test -e " + good_ + " || { echo leaked >&2; exit 3; }; " + PrintKeys());
  }

  static std::string PrintKeys() {
    return std::string(R"(echo '{"Version": 1, "AccessKeyId": "K", "SecretAccessKey": ")") + kSecret +
           R"(", "SessionToken": "T", "Expiration": "2100-01-01T00:00:00Z"}')";
  }

  void Restart(const std::string& command) {
    storage_grants_.command = command;
    coordinator_.reset();
    StartCoordinator();
    const auto job = Submit(SubmitRequest());
    ASSERT_TRUE(job.ok()) << job.status();
    job_id_ = job->job_id();
    ASSERT_TRUE(Register("a").ok());
  }
  void MakeGood() { std::ofstream(good_) << "\n"; }
  absl::StatusOr<atlpb::island::v1::RenewStorageResponse> Renew(const atlpb::island::v1::LeaseToken& token) {
    atlpb::island::v1::RenewStorageRequest request;
    *request.mutable_token() = token;
    atlpb::island::v1::RenewStorageResponse response;
    const absl::Status status = Call(*islands_, &IslandService::Stub::RenewStorage, request, &response);
    if (!status.ok()) return status;
    return response;
  }
  // "METHOD CODE" of what the audit log says of islands' tasks.
  std::vector<std::string> Audited() {
    std::vector<std::string> lines;
    std::ifstream file(audit_log());
    for (std::string line; std::getline(file, line);) {
      const nlohmann::json entry = nlohmann::json::parse(line);
      if (entry["resource"] != job_id_ + "/fit_features") continue;
      lines.push_back(entry["method"].get<std::string>() + " " + entry["code"].get<std::string>());
    }
    return lines;
  }

  const std::string asked_ = folder_.File("asked");
  const std::string good_ = folder_.File("good");
  std::string job_id_;
};

TEST_F(StorageGrantsTest, AClaimBringsKeysForItsTaskAlone) {
  MakeGood();
  const auto claim = Claim("a");
  ASSERT_TRUE(claim.ok()) << claim.status();
  const atlpb::island::v1::StorageGrant& storage = claim->grant().storage();
  const std::string prefix = blobs_->UriOf("jobs/" + job_id_ + "/fit_features/1-1");
  EXPECT_EQ(storage.write_prefix(), prefix);
  EXPECT_THAT(storage.write_prefixes(), ElementsAre(prefix + "/"));
  EXPECT_EQ(storage.credentials().at("access_key_id"), "K");
  EXPECT_EQ(storage.credentials().at("secret_access_key"), kSecret);
  EXPECT_EQ(storage.credentials().at("session_token"), "T");
  EXPECT_EQ(wire::FromProto(storage.expire_time()), absl::FromUnixSeconds(4'102'444'800));
  const nlohmann::json asked = nlohmann::json::parse(ReadFile(asked_));
  EXPECT_EQ(asked["task_id"], job_id_ + "/fit_features");
  EXPECT_EQ(asked["kind"], "fit_features");
  EXPECT_EQ(asked["blob_store"], blobs_->root());
  EXPECT_EQ(asked["write_prefixes"], nlohmann::json({prefix + "/"}));
  EXPECT_EQ(asked["read_prefixes"].size(), 3u);
  EXPECT_EQ(asked["lifetime_seconds"], 3600);

  // An answer that was lost is made again.
  std::filesystem::remove(asked_);
  const auto again = Claim("a");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->grant().token().attempt(), 1);
  EXPECT_EQ(again->grant().storage().credentials().at("secret_access_key"), kSecret);
  EXPECT_TRUE(std::filesystem::exists(asked_)) << "keys are kept nowhere";

  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path())) {
    if (entry.is_regular_file()) EXPECT_THAT(ReadFile(entry.path()), Not(HasSubstr(kSecret))) << entry.path();
  }
}

TEST_F(StorageGrantsTest, AProgramThatFailsCostsNoAttempt) {
  for (int i = 0; i < 4; ++i) {  // more often than a task may fail
    const absl::Status failed = Claim("a").status();
    EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(ErrorReason(failed), "STORAGE_GRANT_FAILED");
    EXPECT_THAT(std::string(failed.message()),
                HasSubstr("task " + job_id_ + "/fit_features: the storage grant command exited with code 3"));
    EXPECT_THAT(std::string(failed.message()), Not(HasSubstr("leaked")));
  }
  MakeGood();
  const auto claim = Claim("a");
  ASSERT_TRUE(claim.ok()) << claim.status();
  EXPECT_EQ(claim->grant().token().attempt(), 1);
  EXPECT_THAT(Audited(), ElementsAre("ClaimTask UNAVAILABLE", "ClaimTask UNAVAILABLE", "ClaimTask UNAVAILABLE",
                                     "ClaimTask UNAVAILABLE", "ClaimTask OK"));
}

TEST_F(StorageGrantsTest, KeysAreRenewedForWhoHoldsTheTask) {
  MakeGood();
  const auto claim = Claim("a");
  ASSERT_TRUE(claim.ok()) << claim.status();
  const auto renewed = Renew(claim->grant().token());
  ASSERT_TRUE(renewed.ok()) << renewed.status();
  EXPECT_EQ(renewed->storage().write_prefix(), claim->grant().storage().write_prefix());
  EXPECT_EQ(wire::FromProto(renewed->storage()), wire::FromProto(claim->grant().storage()));
  EXPECT_EQ(wire::FromProto(renewed->storage()).secret_key, kSecret);
  coordinator_.reset();
  StartCoordinator();
  const auto after_restart = Renew(claim->grant().token());
  ASSERT_TRUE(after_restart.ok()) << after_restart.status();
  EXPECT_EQ(wire::FromProto(after_restart->storage()), wire::FromProto(claim->grant().storage()));
  atlpb::island::v1::LeaseToken stale = claim->grant().token();
  stale.set_attempt_secret("another");
  std::filesystem::remove(asked_);
  EXPECT_EQ(ErrorReason(Renew(stale).status()), "STALE_ATTEMPT");
  EXPECT_FALSE(std::filesystem::exists(asked_)) << "nobody asks for keys that nobody may have";
  std::filesystem::remove(good_);
  EXPECT_EQ(ErrorReason(Renew(claim->grant().token()).status()), "STORAGE_GRANT_FAILED");
  EXPECT_THAT(Audited(), ElementsAre("ClaimTask OK", "RenewStorage OK", "RenewStorage OK", "RenewStorage ABORTED",
                                     "RenewStorage UNAVAILABLE"));
}

class SlowKeysTest : public StorageGrantsTest {
 protected:
  // Leaves a line in `asked`, and prints keys once `good` exists.
  SlowKeysTest() {
    const std::string oldest = job_id_;
    Restart("cat > /dev/null; echo >> " + asked_ + "; until test -e " + good_ + "; do sleep 0.02; done; " +
            PrintKeys());
    job_id_ = oldest;  // whose task is granted first
  }

  static bool Becomes(const std::function<bool()>& so) {
    for (int tries = 0; tries < 4000 && !so(); ++tries) absl::SleepFor(absl::Milliseconds(5));
    return so();
  }
  bool IsAskedTimes(size_t times) {
    return Becomes([&] { return ReadFile(asked_).size() == times; });
  }
  // Claims as island `a` and gives up when the keys are being made; returns when the coordinator knows.
  void ClaimAndGoAway() {
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(20));
    auto claim = std::async(std::launch::async, [&] {
      atlpb::island::v1::ClaimTaskResponse response;
      return islands_->ClaimTask(&context, ClaimRequestOf("a", absl::ZeroDuration()), &response);
    });
    EXPECT_TRUE(IsAskedTimes(1));
    context.TryCancel();
    EXPECT_EQ(claim.get().error_code(), grpc::StatusCode::CANCELLED);
    EXPECT_TRUE(Becomes([&] {
      const std::string ended = "atoll_coordinator_requests_total{method=\"ClaimTask\"} 1";
      return coordinator_->registry().Text().find(ended) != std::string::npos;
    }));
  }
  atlpb::job::v1::Task::State State() {
    atlpb::job::v1::GetJobRequest request;
    request.set_job_id(job_id_);
    atlpb::job::v1::GetJobResponse response;
    EXPECT_TRUE(Call(*jobs_, &atlpb::job::v1::JobService::Stub::GetJob, request, &response).ok());
    return response.job().tasks(0).state();
  }
};

TEST_F(SlowKeysTest, ATaskIsFreeAtOnceWhereItsIslandIsGoneBeforeItHasItsKeys) {
  ClaimAndGoAway();
  EXPECT_EQ(State(), atlpb::job::v1::Task::STATE_LEASED);
  MakeGood();
  // A lease that only runs out leaves its task LEASED.
  EXPECT_TRUE(Becomes([&] { return State() == atlpb::job::v1::Task::STATE_READY; }));
  ASSERT_TRUE(Register("b").ok());
  const auto claim = Claim("b");
  ASSERT_TRUE(claim.ok()) << claim.status();
  EXPECT_EQ(claim->grant().token().attempt(), 2);
}

TEST_F(SlowKeysTest, AnIslandThatClaimsAgainMeanwhileKeepsItsTask) {
  ClaimAndGoAway();
  auto again = std::async(std::launch::async, [this] { return Claim("a"); });
  EXPECT_TRUE(IsAskedTimes(2));
  MakeGood();
  const auto claim = again.get();
  ASSERT_TRUE(claim.ok()) << claim.status();
  EXPECT_EQ(claim->grant().token().attempt(), 1);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(Renew(claim->grant().token()).ok());
  EXPECT_EQ(State(), atlpb::job::v1::Task::STATE_LEASED);
}

TEST_F(StorageGrantsTest, WithoutAProgramIslandsUseTheirOwnKeys) {
  Restart("");
  const auto claim = Claim("a");
  ASSERT_TRUE(claim.ok()) << claim.status();
  EXPECT_TRUE(claim->grant().storage().credentials().empty());
  EXPECT_FALSE(claim->grant().storage().has_expire_time());
  EXPECT_FALSE(claim->grant().storage().write_prefixes().empty());
  const auto renewed = Renew(claim->grant().token());
  ASSERT_TRUE(renewed.ok()) << renewed.status();
  EXPECT_TRUE(renewed->storage().credentials().empty());
}

TEST_F(StorageGrantsTest, ACoordinatorThatEndsWaitsForNoProgram) {
  Restart("echo > " + good_ + "; sleep 600");
  auto claim = std::async(std::launch::async, [this] { return Claim("a").status(); });
  for (int tries = 0; tries < 2000 && !std::filesystem::exists(good_); ++tries) absl::SleepFor(absl::Milliseconds(5));
  ASSERT_TRUE(std::filesystem::exists(good_));
  coordinator_->Stop(absl::Seconds(20));
  EXPECT_THAT(std::string(claim.get().message()), HasSubstr("was stopped: the coordinator ends"));
}

TEST(CheckStorageGrantsTest, KeysAreForObjectStoresAndStayUnderTls) {
  struct Row {
    std::string command;
    std::string blob_store;
    std::string listen;
    std::string reason;
  };
  for (const Row& row : std::vector<Row>{
           {"", "file:///data", "0.0.0.0:7000", ""},
           {"keys", "s3://b/p", "127.0.0.1:7000", ""},
           {"keys", "file:///data", "127.0.0.1:7000", "GRANTS_UNSUPPORTED"},
           {"keys", "gs://b/p", "127.0.0.1:7000", "GRANTS_UNSUPPORTED"},
           {"keys", "s3://b/p", "0.0.0.0:7000", "STORAGE_GRANT_NEEDS_TLS"},
       }) {
    CoordinatorOptions options;
    options.storage_grants.command = row.command;
    options.blob_store = row.blob_store;
    options.listen = row.listen;
    const absl::Status status = CheckStorageGrants(options);
    EXPECT_EQ(ErrorReason(status), row.reason) << row.blob_store << " " << row.listen;
    EXPECT_EQ(status.ok(), row.reason.empty());
  }
}

}  // namespace
}  // namespace atl::coordinator
