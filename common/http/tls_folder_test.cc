#include "common/http/tls_folder.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "common/base/errors.h"
#include "common/base/fake_clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "openssl/bio.h"
#include "openssl/pem.h"
#include "openssl/x509.h"
#include "tests/pki.h"

namespace atl::http {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class TlsFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) / ("tls_folder_test." + std::to_string(getpid()));
    std::filesystem::remove_all(folder_);
    testing::WriteTlsFolder(folder_, authority_.IssueServer("one"), authority_.certificate());
  }

  // Replaces one of the files by itself.
  void Put(const std::string& name, const std::string& text) {
    std::filesystem::remove(folder_ / name);
    std::ofstream(folder_ / name) << text;
  }
  absl::Status Open(bool require = false) {
    return TlsFolder::Open({.folder = folder_, .require_client_certificate = require}).status();
  }

  const testing::CertificateAuthority authority_;
  std::filesystem::path folder_;
};

TEST_F(TlsFolderTest, FilesOfNoUseAreNamed) {
  const testing::Certificate other = authority_.IssueServer("two");
  struct Case {
    std::string file;
    std::string text;
    std::string expected;
  };
  const std::vector<Case> cases = {
      {"tls.crt", "not a certificate", "tls.crt: expected a certificate"},
      {"tls.key", other.key, "tls.key: expected the key of tls.crt"},
      {"tls.key", "", "tls.key: expected the key of tls.crt"},
      {"ca.crt", "not a certificate", "ca.crt: expected certificates"},
  };
  for (const Case& test : cases) {
    SetUp();
    Put(test.file, test.text);
    const absl::Status status = Open();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << test.file;
    EXPECT_EQ(ErrorReason(status), "TLS_FILES_INVALID");
    EXPECT_THAT(std::string(status.message()), HasSubstr(test.expected));
    EXPECT_EQ(status.message().find("PRIVATE"), std::string::npos);
  }
}

TEST_F(TlsFolderTest, AnAuthorityIsNeededOnlyWhereClientsMustProveThemselves) {
  std::filesystem::remove(folder_ / "ca.crt");
  EXPECT_TRUE(Open().ok());
  const absl::Status status = Open(/*require=*/true);
  EXPECT_EQ(ErrorReason(status), "TLS_FILES_INVALID");
  EXPECT_THAT(std::string(status.message()), HasSubstr("ca.crt"));
}

TEST_F(TlsFolderTest, ChangedFilesAreReadWhenTheLastLookIsOld) {
  FakeClock clock;
  const auto folder = TlsFolder::Open({.folder = folder_, .max_age = absl::Seconds(5)}, &clock);
  ASSERT_TRUE(folder.ok()) << folder.status();
  const auto first = (*folder)->Current();
  testing::WriteTlsFolder(folder_, authority_.IssueServer("two"), authority_.certificate());
  clock.Advance(absl::Seconds(4));
  EXPECT_EQ((*folder)->Current(), first);
  clock.Advance(absl::Seconds(1));
  const auto second = (*folder)->Current();
  EXPECT_NE(second, first);
  clock.Advance(absl::Seconds(5));
  EXPECT_EQ((*folder)->Current(), second) << "nothing changed";
}

TEST_F(TlsFolderTest, ChangedFilesOfNoUseLeaveWhatWasThere) {
  FakeClock clock;
  const auto folder = TlsFolder::Open({.folder = folder_, .max_age = absl::ZeroDuration()}, &clock);
  ASSERT_TRUE(folder.ok()) << folder.status();
  const auto first = (*folder)->Current();
  const testing::CertificateAuthority other("other");
  Put("ca.crt", authority_.certificate() + other.certificate().substr(0, 200));
  EXPECT_EQ((*folder)->Current(), first) << "a second authority that is cut off";
  Put("tls.crt", "half a file");
  EXPECT_EQ((*folder)->Current(), first);
  testing::WriteTlsFolder(folder_, authority_.IssueServer("two"), authority_.certificate());
  std::filesystem::remove(folder_ / "tls.crt");
  EXPECT_EQ((*folder)->Current(), first);
}

// As where a process has no descriptor left at the moment in which a certificate is renewed.
TEST_F(TlsFolderTest, ChangedFilesThatCouldNotBeReadAreReadLater) {
  FakeClock clock;
  const auto folder = TlsFolder::Open({.folder = folder_, .max_age = absl::ZeroDuration()}, &clock);
  ASSERT_TRUE(folder.ok()) << folder.status();
  const auto first = (*folder)->Current();
  testing::WriteTlsFolder(folder_, authority_.IssueServer("two"), authority_.certificate());
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto without = (*folder)->Current();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(without, first);
  EXPECT_NE((*folder)->Current(), first);
}

TEST(NamesOfTest, AllNamesOfACertificateAreThere) {
  EXPECT_THAT(NamesOf(nullptr), IsEmpty());
  const testing::CertificateAuthority authority;
  const std::string pem = authority
                              .Issue({.common_name = "node-a",
                                      .dns_names = {"node-a.example.org"},
                                      .addresses = {"10.0.0.1", "2001:db8::1"},
                                      .emails = {"ann@example.org"}})
                              .certificate;
  BIO* const bio = BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()));
  X509* const certificate = PEM_read_bio_X509(bio, nullptr, nullptr, nullptr);
  BIO_free(bio);
  ASSERT_NE(certificate, nullptr);
  EXPECT_THAT(NamesOf(certificate),
              UnorderedElementsAre("node-a", "node-a.example.org", "10.0.0.1", "2001:db8::1", "ann@example.org"));
  X509_free(certificate);
}

}  // namespace
}  // namespace atl::http
