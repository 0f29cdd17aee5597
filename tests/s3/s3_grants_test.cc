// Storage grants against a real S3 server, which gives every account what the bucket's policy says of it and no more:
// keys of one task open no other job's files, and a whole job is trained by an island that has no keys of its own.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "common/base/errors.h"
#include "common/storage/blob_store.h"
#include "coordinator/jobs/storage_access.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/multiproc/cluster.h"
#include "tests/s3/s3_server.h"

namespace atl::testing_s3 {
namespace {

namespace job = atlpb::job::v1;
using nlohmann::json;
using storage::BlobStore;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing_cluster::Cluster;

constexpr char kPrefix[] = "grants";

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void SetVariables(const std::vector<std::string>& environment) {
  for (const std::string& variable : environment) {
    const size_t equals = variable.find('=');
    setenv(variable.substr(0, equals).c_str(), variable.substr(equals + 1).c_str(), 1);
  }
}

// A machine without keys, whatever the one of the test has.
std::vector<std::string> NoKeys() {
  return {"AWS_ACCESS_KEY_ID=",
          "AWS_SECRET_ACCESS_KEY=",
          "AWS_SESSION_TOKEN=",
          "AWS_CONFIG_FILE=/dev/null",
          "AWS_EC2_METADATA_DISABLED=true",
          "AWS_SHARED_CREDENTIALS_FILE=/dev/null",
          "ROOT_ACCESS_KEY=",
          "ROOT_SECRET_KEY="};
}

class S3GrantsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ATOLL_REQUIRE_S3_SERVER();
    folder_ = testing::TempDir() + "atoll_grants_XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    server_ = std::make_unique<S3Server>(/*accounts=*/true);
    SetVariables(S3Server::Environment());
    SetVariables(server_->GrantEnvironment());
  }
  void TearDown() override {
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }

  std::string Command() const {
    return fmt::format("python3 {}/tests/s3/grant_keys.py {}", std::getenv("ATOLL_SOURCE_DIR"), folder_);
  }
  std::string Uri() const { return S3Server::Uri(kPrefix, server_->port(), ""); }

  // Returns the requests for grants and their answers, in order.
  std::vector<json> Grants() const {
    std::vector<json> grants;
    std::ifstream lines(folder_ + "/grants.jsonl");
    for (std::string line; std::getline(lines, line);) grants.push_back(json::parse(line));
    return grants;
  }
  static storage::GrantedKeys KeysOf(const json& grant, absl::Time expires) {
    return {
        .access_key = grant["keys"]["AccessKeyId"], .secret_key = grant["keys"]["SecretAccessKey"], .expires = expires};
  }
  // Keys for these prefixes, as the coordinator's program makes them.
  storage::GrantedKeys Make(const std::string& root, const std::vector<std::string>& reads,
                            const std::vector<std::string>& writes) {
    std::ofstream(folder_ + "/request") << json(
        {{"blob_store", root}, {"read_prefixes", reads}, {"write_prefixes", writes}, {"lifetime_seconds", 3600}});
    EXPECT_EQ(std::system(fmt::format("{} < {}/request > /dev/null", Command(), folder_).c_str()), 0);
    return KeysOf(Grants().back(), absl::Now() + absl::Hours(1));
  }

  std::string folder_;
  std::unique_ptr<S3Server> server_;
};

void ExpectDenied(const absl::Status& status, const std::string& uri) {
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
  EXPECT_EQ(ErrorReason(status), "STORE_ACCESS_DENIED");
  EXPECT_THAT(std::string(status.message()), HasSubstr(uri));
  EXPECT_THAT(std::string(status.message()), HasSubstr("the S3 server refuses: "));
}

TEST_F(S3GrantsTest, KeysOpenTheirOwnPrefixesAlone) {
  const auto all = BlobStore::Open(Uri());
  ASSERT_TRUE(all.ok()) << all.status();
  BlobStore& owner = **all;
  for (const char* path : {"datasets/d/shard", "jobs/b/secret", "models/m/1/weights"}) {
    ASSERT_TRUE(owner.Write(owner.UriOf(path), path).ok());
  }

  const auto opened = BlobStore::OpenForGrants(Uri());
  ASSERT_TRUE(opened.ok()) << opened.status();
  BlobStore& store = **opened;
  EXPECT_EQ(ErrorReason(store.Read(store.UriOf("datasets/d/shard")).status()), "STORAGE_NOT_GRANTED");

  const storage::GrantedKeys keys = Make(store.root(), {store.UriOf("datasets/d/")}, {store.UriOf("jobs/a/")});
  ASSERT_TRUE(store.UseKeys(keys).ok());
  const std::string own = store.UriOf("jobs/a/train/1-1/manifest.json");
  EXPECT_EQ(store.Read(store.UriOf("datasets/d/shard")).value(), "datasets/d/shard");
  ASSERT_TRUE(store.Write(store.UriOf("jobs/a/train/1-1/x"), std::string(20 << 20, 'x')).ok()) << "in parts";
  const auto created = store.CreateOnce(own, "once");
  ASSERT_TRUE(created.ok()) << created.status();
  EXPECT_EQ(store.CreateOnce(own, "twice").status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(store.Exists(store.UriOf("jobs/a/absent")).value(), false);
  EXPECT_EQ(store.Read(store.UriOf("jobs/a/absent")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store.List(store.UriOf("jobs/a/train")).value().size(), 2u);

  const std::string other = store.UriOf("jobs/b/secret");
  ExpectDenied(store.Write(other, "overwritten").status(), other);
  ExpectDenied(store.CreateOnce(store.UriOf("jobs/b/new"), "new").status(), store.UriOf("jobs/b/new"));
  ExpectDenied(store.Read(other).status(), other);
  ExpectDenied(store.Delete(other), other);
  EXPECT_FALSE(store.DeleteTree(store.UriOf("jobs/b")).ok());
  // A name that begins alike.
  ExpectDenied(store.Write(store.UriOf("jobs/ab/x"), "x").status(), store.UriOf("jobs/ab/x"));
  ExpectDenied(store.Write(store.UriOf("datasets/d/shard"), "overwritten").status(), store.UriOf("datasets/d/shard"));
  ExpectDenied(store.Read(store.UriOf("models/m/1/weights")).status(), store.UriOf("models/m/1/weights"));
  EXPECT_EQ(owner.Read(other).value(), "jobs/b/secret");
  EXPECT_EQ(owner.Read(owner.UriOf("datasets/d/shard")).value(), "datasets/d/shard");

  // Other keys from now on, and what they open.
  ASSERT_TRUE(store.UseKeys(Make(store.root(), {}, {store.UriOf("jobs/b/")})).ok());
  EXPECT_TRUE(store.Write(other, "of b").ok());
  ExpectDenied(store.Write(own, "of b").status(), own);
  storage::GrantedKeys wrong = keys;
  wrong.secret_key = "wrong";
  ASSERT_TRUE(store.UseKeys(wrong).ok());
  ExpectDenied(store.Read(own).status(), own);
  storage::GrantedKeys expired = keys;
  expired.expires = absl::Now() - absl::Seconds(1);
  ASSERT_TRUE(store.UseKeys(expired).ok());
  const absl::Status late = store.Read(own).status();
  EXPECT_EQ(late.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReason(late), "STORAGE_GRANT_EXPIRED");
  EXPECT_THAT(std::string(late.message()), HasSubstr("the granted keys expired at 20"));
  // The owner's keys are its own again.
  ASSERT_TRUE(owner.UseKeys(keys).ok());
  ExpectDenied(owner.Read(owner.UriOf("models/m/1/weights")).status(), owner.UriOf("models/m/1/weights"));
  ASSERT_TRUE(owner.UseKeys(std::nullopt).ok());
  EXPECT_TRUE(owner.Read(owner.UriOf("models/m/1/weights")).ok());
}

// A job's keys give access to inputs and to no files of other jobs, whatever the job names.
TEST_F(S3GrantsTest, NoNameInAJobOpensFilesOfOthers) {
  const auto all = BlobStore::Open(Uri());
  ASSERT_TRUE(all.ok()) << all.status();
  BlobStore& owner = **all;
  const std::vector<std::string> others = {"jobs/b/train_expert-0/1-1/stage-0-of-1.safetensors", "models/m/1/weights",
                                           "datasets/e/shard", "inputs/of-others.pt"};
  for (const std::string& path : others) ASSERT_TRUE(owner.Write(owner.UriOf(path), path).ok());
  ASSERT_TRUE(owner.Write(owner.UriOf("inputs/own.pt"), "own").ok());
  for (const spec::TaskKind kind : {spec::TaskKind::kFeaturize, spec::TaskKind::kTrainExpert}) {
    for (const std::string name :
         {others[0], others[1], others[2], std::string("inputs/../") + others[0],
          std::string("inputs/%2e%2e/") + others[1], std::string("inputs/*"), std::string("inputs/own.pt")}) {
      spec::TaskGrant grant;
      grant.job_id = "a";
      grant.kind = kind;
      grant.dataset_manifest_uri = owner.UriOf("datasets/d/manifest.json");
      grant.write_prefix = owner.UriOf("jobs/a/task/1-1");
      grant.spec.features = {.kind = "torchscript", .encoder_uri = owner.UriOf(name)};
      grant.spec.frozen = {{.name = "e", .output = "latent", .torchscript = {owner.UriOf(name)}}};
      const spec::StorageGrant access = jobs::StorageAccessOf(grant, owner.root());
      const auto opened = BlobStore::OpenForGrants(Uri());
      ASSERT_TRUE(opened.ok()) << opened.status();
      ASSERT_TRUE((*opened)->UseKeys(Make(owner.root(), access.reads, access.writes)).ok());
      for (const std::string& path : others) {
        ExpectDenied((*opened)->Read(owner.UriOf(path)).status(), owner.UriOf(path));
      }
      EXPECT_EQ((*opened)->Read(owner.UriOf("inputs/own.pt")).ok(), name == "inputs/own.pt") << name;
    }
  }
}

TEST_F(S3GrantsTest, AWholeJobIsTrainedByAnIslandWithoutKeysOfItsOwn) {
  // Without keys there is nothing to see.
  const std::vector<std::string> worker = {testing_cluster::Program("atoll-worker"),
                                           "--blob-store",
                                           Uri(),
                                           "--island-id",
                                           "none",
                                           "--rank",
                                           "0",
                                           "--ranks",
                                           "1",
                                           "--leader",
                                           "127.0.0.1:0"};
  testing_cluster::Process keyless(worker, folder_ + "/keyless.log", NoKeys());
  EXPECT_EQ(keyless.Wait(absl::Seconds(60)), 1);
  EXPECT_THAT(keyless.Log(), HasSubstr("the S3 server refuses: "));

  // The first attempt of the training stands still for longer than its keys are good: without new ones on both ranks it
  // could write nothing.
  std::vector<std::string> environment = NoKeys();
  environment.push_back("ATOLL_FAILPOINTS=attempt.after_ready=delay:6s@1");
  Cluster cluster({.islands = 1,
                   .ranks = 2,
                   .coordinator_flags = {"--storage-grant-command", Command(), "--storage-grant-lifetime", "5s",
                                         "--audit-log", folder_ + "/audit.log", "--log-level", "debug"},
                   .worker_flags = {"--granted-storage", "--log-level", "debug"},
                   .worker_environment = environment,
                   .blob_store = Uri()});
  cluster.WriteDataset();
  const std::string job_id =
      cluster.Submit(testing_cluster::SmallJob(/*experts=*/1, /*steps=*/6, /*checkpoint_every=*/3));
  ASSERT_TRUE(cluster.AwaitSuccess(job_id, absl::Minutes(3)));
  EXPECT_EQ(cluster.FinalCheckpoint(job_id, 0).manifest().step, 6);
  const job::Job finished = cluster.GetJob(job_id);
  const auto attempts = [&](job::TaskKind kind) { return testing_cluster::TaskOf(finished, kind).attempt(); };
  EXPECT_EQ(attempts(job::TASK_KIND_TRAIN_EXPERT), 1);
  EXPECT_EQ(attempts(job::TASK_KIND_TRAIN_ROUTER), 1);

  std::map<std::string, int> made;  // grants by task
  const std::vector<json> grants = Grants();
  for (const json& grant : grants) ++made[grant["request"]["task_id"]];
  EXPECT_EQ(made.size(), static_cast<size_t>(finished.tasks_size()));
  EXPECT_GE(std::max(made[job_id + "/train_expert-0"], made[job_id + "/train_router"]), 2) << "renewed";
  EXPECT_THAT(ReadFile(cluster.rank(0, 0).log_path()), HasSubstr("its keys of the blob store are renewed"));
  const std::string audit = ReadFile(folder_ + "/audit.log");
  EXPECT_THAT(audit, HasSubstr("RenewStorage"));

  // The newest keys still open what their task wrote; nothing of another job.
  const auto store = BlobStore::OpenForGrants(Uri());
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_TRUE((*store)->UseKeys(KeysOf(grants.back(), absl::InfiniteFuture())).ok());
  EXPECT_THAT((*store)->List((*store)->UriOf("jobs/" + job_id + "/train_expert-0")).value(), Not(IsEmpty()));
  const std::string elsewhere = (*store)->UriOf("jobs/another-job/train_expert-0/1-1/x");
  ExpectDenied((*store)->Write(elsewhere, "x").status(), elsewhere);

  // Keys stay out of logs, errors, command lines and the store.
  std::vector<std::string> texts = {audit};
  for (const auto& entry : std::filesystem::recursive_directory_iterator(cluster.folder())) {
    if (entry.is_regular_file()) texts.push_back(ReadFile(entry.path()));
  }
  for (const pid_t pid : {cluster.coordinator().pid(), cluster.rank(0, 0).pid(), cluster.rank(0, 1).pid()}) {
    texts.push_back(ReadFile(fmt::format("/proc/{}/cmdline", pid)));
  }
  for (const int rank : {0, 1}) texts.push_back(ReadFile(fmt::format("/proc/{}/environ", cluster.rank(0, rank).pid())));
  for (const std::string& text : texts) {
    for (const json& grant : grants) {
      EXPECT_EQ(text.find(grant["keys"]["SecretAccessKey"].get<std::string>()), std::string::npos);
    }
  }
  for (const int rank : {0, 1}) {
    const std::string variables = ReadFile(fmt::format("/proc/{}/environ", cluster.rank(0, rank).pid()));
    EXPECT_THAT(variables, Not(HasSubstr(S3Server::kSecretKey)));
    EXPECT_THAT(variables, HasSubstr("AWS_EC2_METADATA_DISABLED=true"));
  }
}

}  // namespace
}  // namespace atl::testing_s3
