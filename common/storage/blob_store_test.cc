#include "common/storage/blob_store.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "common/base/errors.h"
#include "common/base/files.h"
#include "common/storage/local_files.h"
#include "common/storage/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/s3/s3_server.h"

namespace atl::storage {
namespace {

using ::testing::HasSubstr;

// Every store behaves alike: a local folder, and S3, where a server is installed; ATOLL_TEST_S3_URI names a prefix of
// another.
constexpr char kS3Variable[] = "ATOLL_TEST_S3_URI";
enum class Kind { kLocal, kS3 };

bool HasS3() {
  return std::getenv(kS3Variable) != nullptr || testing_s3::MissingS3Server().empty();
}

// One server for all tests of this process.
std::string S3Uri() {
  if (const char* uri = std::getenv(kS3Variable); uri != nullptr) return uri;
  static const testing_s3::S3Server server;
  return server.Uri("store");
}

std::string NameOf(Kind kind) {
  return kind == Kind::kLocal ? "Local" : "S3";
}

class BlobStoreTest : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    switch (GetParam()) {
      case Kind::kLocal:
        store_ = BlobStore::Open("file://" + folder_.path()).value();
        return;
      case Kind::kS3:
        // A prefix of its own, before the options.
        std::string uri = S3Uri();
        uri.insert(std::min(uri.find('?'), uri.size()), "/" + RandomSuffix());
        auto store = BlobStore::Open(uri);
        ASSERT_TRUE(store.ok()) << store.status();
        store_ = *std::move(store);
    }
  }

  void TearDown() override {
    if (GetParam() != Kind::kS3 || store_ == nullptr) return;
    const auto files = store_->List(store_->root());
    if (!files.ok()) return;
    for (const FileInfo& file : *files) (void)store_->Delete(file.uri);
  }

  std::string Uri(std::string_view name) const { return store_->UriOf(name); }
  std::vector<std::string> Names(std::string_view prefix) {
    std::vector<std::string> names;
    const std::vector<FileInfo> files = store_->List(store_->UriOf(prefix)).value();
    for (const FileInfo& file : files) {
      names.push_back(file.uri.substr(store_->root().size() + 1));
    }
    return names;
  }

  TemporaryFolder folder_;
  std::unique_ptr<BlobStore> store_;
};

TEST_P(BlobStoreTest, WrittenFileReadsBackWithItsSizeAndHash) {
  const auto written = store_->Write(Uri("a/b/c.bin"), "hello");
  ASSERT_TRUE(written.ok()) << written.status();
  EXPECT_EQ(written->uri, Uri("a/b/c.bin"));
  EXPECT_EQ(written->bytes, 5);
  EXPECT_EQ(written->sha256, "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824");
  EXPECT_EQ(store_->Read(Uri("a/b/c.bin")).value(), "hello");
  EXPECT_EQ(store_->ReadVerified(Uri("a/b/c.bin"), written->sha256).value(), "hello");
  EXPECT_EQ(store_->MapVerified(Uri("a/b/c.bin"), written->sha256).value().bytes, "hello");
  ASSERT_TRUE(store_->Write(Uri("a/b/c.bin"), "").ok());
  EXPECT_EQ(store_->Read(Uri("a/b/c.bin")).value(), "");
  EXPECT_TRUE(store_->Exists(Uri("a/b/c.bin")).value());
  EXPECT_FALSE(store_->Exists(Uri("a/b/d.bin")).value());
  EXPECT_FALSE(store_->Exists(Uri("a/b")).value());
}

TEST_P(BlobStoreTest, MissingTooLargeAndChangedFilesAreNamed) {
  const auto missing = store_->Read(Uri("nowhere/x"));
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound) << missing.status();
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("nowhere/x"));
  ASSERT_TRUE(store_->Write(Uri("x"), "12345").ok());
  EXPECT_EQ(store_->Read(Uri("x"), 4).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReason(store_->MapVerified(Uri("x"), Sha256("other")).status()), "HASH_MISMATCH");
  EXPECT_EQ(store_->MapVerified(Uri("absent"), Sha256("other")).status().code(), absl::StatusCode::kNotFound);
  const auto changed = store_->ReadVerified(Uri("x"), Sha256("other"));
  EXPECT_EQ(changed.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ErrorReason(changed.status()), "HASH_MISMATCH");
  EXPECT_THAT(std::string(changed.status().message()), HasSubstr(Sha256("12345")));
}

TEST_P(BlobStoreTest, PathsOutsideTheRootAreRefused) {
  const std::string root = store_->root();
  for (const std::string& uri :
       {root + "/../x", root + "/a/../../x", root + "/a/..", root + "/./x", root + "//x", root + "x", root + "-2/x",
        std::string("file:///etc/passwd"), std::string("s3://other/x"), std::string("x"), std::string(""), root,
        root + "/", root + std::string("/a\0b", 4)}) {
    EXPECT_EQ(store_->Write(uri, "x").status().code(), absl::StatusCode::kInvalidArgument) << uri;
    EXPECT_EQ(store_->CreateOnce(uri, "x").status().code(), absl::StatusCode::kInvalidArgument) << uri;
    EXPECT_EQ(store_->Read(uri).status().code(), absl::StatusCode::kInvalidArgument) << uri;
    EXPECT_EQ(store_->Delete(uri).code(), absl::StatusCode::kInvalidArgument) << uri;
    EXPECT_EQ(store_->DeleteTree(uri).code(), absl::StatusCode::kInvalidArgument) << uri;
    EXPECT_EQ(store_->LocalPath(uri).status().code(), absl::StatusCode::kInvalidArgument) << uri;
  }
}

TEST_P(BlobStoreTest, ListIsSortedRecursiveAndEmptyWhereNothingIs) {
  EXPECT_THAT(Names("nothing"), ::testing::IsEmpty());
  for (const char* name : {"t/b", "t/a/2", "t/a/1", "u"}) ASSERT_TRUE(store_->Write(Uri(name), "x").ok());
  EXPECT_THAT(Names("t"), ::testing::ElementsAre("t/a/1", "t/a/2", "t/b"));
  EXPECT_THAT(Names("t/"), ::testing::ElementsAre("t/a/1", "t/a/2", "t/b"));
  EXPECT_THAT(Names("u"), ::testing::ElementsAre("u"));
  const std::vector<FileInfo> all = store_->List(store_->root()).value();
  ASSERT_EQ(all.size(), 4U);
  EXPECT_EQ(all[0].bytes, 1);
  EXPECT_LT(absl::AbsDuration(all[0].modified - absl::Now()), absl::Minutes(10));
}

TEST_P(BlobStoreTest, DeletingIsIdempotent) {
  ASSERT_TRUE(store_->Write(Uri("t/a"), "x").ok());
  ASSERT_TRUE(store_->Write(Uri("t/b/c"), "x").ok());
  EXPECT_TRUE(store_->Delete(Uri("t/a")).ok());
  EXPECT_TRUE(store_->Delete(Uri("t/a")).ok());
  EXPECT_TRUE(store_->Delete(Uri("t/x/y")).ok());
  EXPECT_TRUE(store_->DeleteTree(Uri("t")).ok());
  EXPECT_TRUE(store_->DeleteTree(Uri("t")).ok());
  EXPECT_THAT(Names("t"), ::testing::IsEmpty());
}

TEST_P(BlobStoreTest, AFileComesBackAsALocalPath) {
  std::string content(3'000'000, 'q');
  content[2'999'999] = 'z';
  const auto written = store_->Write(Uri("up/loaded"), content);
  ASSERT_TRUE(written.ok()) << written.status();
  EXPECT_EQ(written->sha256, Sha256(content));
  const auto path = store_->LocalPath(Uri("up/loaded"), written->sha256);
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_EQ(ReadFile(*path).value(), content);
  EXPECT_EQ(store_->LocalPath(Uri("up/loaded"), written->sha256).value(), *path);
  EXPECT_EQ(store_->LocalPath(Uri("up/loaded"), Sha256("no")).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(store_->LocalPath(Uri("up/none")).status().code(), absl::StatusCode::kNotFound);
}

TEST_P(BlobStoreTest, ADamagedCopyIsNoDamagedFile) {
  const auto written = store_->Write(Uri("weights"), "weights");
  ASSERT_TRUE(written.ok()) << written.status();
  const auto path = store_->LocalPath(Uri("weights"), written->sha256);
  ASSERT_TRUE(path.ok()) << path.status();
  std::ofstream(*path, std::ios::binary) << "weighus";
  const auto mapped = store_->MapVerified(Uri("weights"), written->sha256);
  if (GetParam() == Kind::kLocal) {  // there the path is the file's own
    EXPECT_EQ(ErrorReason(mapped.status()), "HASH_MISMATCH");
    return;
  }
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  EXPECT_EQ(mapped->bytes, "weights");
}

TEST_P(BlobStoreTest, AbandonedWriterLeavesTheFileAsItWas) {
  {
    auto writer = store_->OpenWriter(Uri("p/fresh")).value();
    ASSERT_TRUE(writer->Append("half").ok());
  }
  EXPECT_FALSE(store_->Exists(Uri("p/fresh")).value());
  EXPECT_THAT(Names("p"), ::testing::IsEmpty());
}

TEST_P(BlobStoreTest, CreateOnceRefusesWhatIsThere) {
  ASSERT_TRUE(store_->CreateOnce(Uri("once"), "first").ok());
  const auto second = store_->CreateOnce(Uri("once"), "second");
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("once"));
  EXPECT_EQ(store_->Read(Uri("once")).value(), "first");
  EXPECT_THAT(Names(""), ::testing::ElementsAre("once"));
}

TEST_P(BlobStoreTest, OfManyThatCreateOnceAtMostOneWins) {
  constexpr int kThreads = 8;
  constexpr int kRounds = 20;
  for (int round = 0; round < kRounds; ++round) {
    const std::string uri = Uri("raced/" + std::to_string(round));
    std::atomic<int> waiting{kThreads};
    std::atomic<int> wins{0};
    std::vector<std::string> results(kThreads);
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        --waiting;
        while (waiting > 0) std::this_thread::yield();
        const auto created = store_->CreateOnce(uri, std::string(1000, static_cast<char>('a' + i)));
        if (created.ok()) ++wins;
        results[i] = created.ok() ? "" : std::string(absl::StatusCodeToString(created.status().code()));
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wins, 1);
    for (const std::string& result : results) {
      EXPECT_TRUE(result.empty() || result == "ALREADY_EXISTS") << result;
    }
    const std::string content = store_->Read(uri).value();
    EXPECT_EQ(content, std::string(1000, content[0]));
    EXPECT_EQ(store_->CreateOnce(uri, "late").status().code(), absl::StatusCode::kAlreadyExists);
  }
}

std::vector<Kind> Kinds() {
  std::vector<Kind> kinds = {Kind::kLocal};
  if (HasS3()) kinds.push_back(Kind::kS3);
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(Stores, BlobStoreTest, ::testing::ValuesIn(Kinds()),
                         [](const auto& info) { return NameOf(info.param); });

TEST(BlobStoreS3Test, IsAmongTheStoresThatAreTested) {
  if (std::getenv(kS3Variable) == nullptr) ATOLL_REQUIRE_S3_SERVER();
  EXPECT_THAT(Kinds(), ::testing::Contains(Kind::kS3));
}

TEST(BlobStoreOpenTest, UnknownSchemesAndUnusableRootsAreRefused) {
  TemporaryFolder folder;
  std::ofstream(folder.File("plain")) << "x";
  for (const std::string& root : {std::string("http://x/y"), std::string("/tmp/x"), std::string(""),
                                  std::string("s3://"), std::string("file://relative"), std::string("file:///"),
                                  std::string("ftp"), "file://" + folder.File("plain")}) {
    const auto store = BlobStore::Open(root);
    EXPECT_EQ(store.status().code(), absl::StatusCode::kInvalidArgument) << root << ": " << store.status();
    EXPECT_EQ(ErrorReason(store.status()), "INVALID_STORE_URI") << root;
  }
  EXPECT_EQ(BlobStore::Open("file://" + folder.path() + "/deep/er/").value()->root(),
            "file://" + folder.path() + "/deep/er");
}

TEST(BlobStoreOpenTest, ErrorsKeepCredentialsToThemselves) {
  const auto store = BlobStore::Open("s3://key:hidden@bucket/prefix?nonsense=1");
  EXPECT_EQ(store.status().code(), absl::StatusCode::kInvalidArgument) << store.status();
  EXPECT_THAT(std::string(store.status().message()), HasSubstr("s3://bucket/prefix"));
  EXPECT_THAT(std::string(store.status().message()), ::testing::Not(HasSubstr("hidden")));
}

TEST(BlobStoreCrashTest, ProcessKilledWhileWritingLeavesNothingVisible) {
  TemporaryFolder folder;
  auto store = BlobStore::Open("file://" + folder.path()).value();
  ASSERT_TRUE(store->Write(store->UriOf("m/kept"), "old").ok());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto writer = store->OpenWriter(store->UriOf("m/kept"));
    auto other = store->OpenWriter(store->UriOf("m/new"));
    if (!(*writer)->Append(std::string(100'000, 'x')).ok() || !(*other)->Append("y").ok()) _exit(1);
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  EXPECT_EQ(store->Read(store->UriOf("m/kept")).value(), "old");
  const std::vector<FileInfo> files = store->List(store->root()).value();
  ASSERT_EQ(files.size(), 1U) << files.back().uri;

  // Files in the parts folder are removed once they are a day old.
  const std::string parts = folder.File(kPartsFolder);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(parts), {}), 2);
  RemoveStaleParts(parts, absl::Now() - absl::Hours(24));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(parts), {}), 2);
  RemoveStaleParts(parts, absl::Now() + absl::Hours(1));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(parts), {}), 0);
}

TEST(BlobStoreAtomicityTest, ReaderSeesOldOrNewContentWhileWritersOverwrite) {
  TemporaryFolder folder;
  auto store = BlobStore::Open("file://" + folder.path()).value();
  const std::string uri = store->UriOf("x");
  const std::string a(50'000, 'a');
  const std::string b(70'000, 'b');
  ASSERT_TRUE(store->Write(uri, a).ok());
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (int i = 0; i < 50; ++i) EXPECT_TRUE(store->Write(uri, i % 2 == 0 ? b : a).ok());
    done = true;
  });
  int reads = 0;
  while (!done || reads == 0) {
    const std::string seen = store->Read(uri).value();
    ASSERT_TRUE(seen == a || seen == b) << seen.size();
    ++reads;
  }
  writer.join();
}

}  // namespace
}  // namespace atl::storage
