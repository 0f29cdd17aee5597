#include "tests/pki.h"

#include <openssl/pem.h>
#include <openssl/x509.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "gtest/gtest.h"

namespace atl::testing {
namespace {

X509* Read(const std::string& pem) {
  BIO* const bio = BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()));
  X509* const certificate = PEM_read_bio_X509(bio, nullptr, nullptr, nullptr);
  BIO_free(bio);
  return certificate;
}

// X509_V_OK, or what OpenSSL has against `certificate` under `authority`.
int Verify(const std::string& certificate, const std::string& authority) {
  X509_STORE* const store = X509_STORE_new();
  X509* const root = Read(authority);
  X509* const leaf = Read(certificate);
  X509_STORE_add_cert(store, root);
  X509_STORE_CTX* const context = X509_STORE_CTX_new();
  X509_STORE_CTX_init(context, store, leaf, nullptr);
  X509_verify_cert(context);
  const int error = X509_STORE_CTX_get_error(context);
  X509_STORE_CTX_free(context);
  X509_free(leaf);
  X509_free(root);
  X509_STORE_free(store);
  return error;
}

std::string Contents(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(PkiTest, CertificatesAreWhatTheirNamesSay) {
  const CertificateAuthority authority;
  const CertificateAuthority other("other");
  EXPECT_EQ(Verify(authority.IssueServer("a").certificate, authority.certificate()), X509_V_OK);
  EXPECT_EQ(Verify(authority.IssueClient("a").certificate, authority.certificate()), X509_V_OK);
  EXPECT_EQ(Verify(authority.IssueExpired("a").certificate, authority.certificate()), X509_V_ERR_CERT_HAS_EXPIRED);
  EXPECT_NE(Verify(other.IssueServer("a").certificate, authority.certificate()), X509_V_OK);
}

TEST(PkiTest, AFolderIsReplacedAsOne) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "pki_test_folder";
  std::filesystem::remove_all(folder);
  const CertificateAuthority authority;
  const Certificate first = authority.IssueServer("first");
  const Certificate second = authority.IssueServer("second");
  WriteTlsFolder(folder, first, authority.certificate());
  EXPECT_EQ(Contents(folder / "tls.crt"), first.certificate);
  EXPECT_EQ(Contents(folder / "ca.crt"), authority.certificate());
  WriteTlsFolder(folder, second, authority.certificate());
  EXPECT_EQ(Contents(folder / "tls.crt"), second.certificate);
  EXPECT_EQ(Contents(folder / "tls.key"), second.key);
  std::filesystem::remove_all(folder);
}

TEST(PkiTest, SigningKeysArePem) {
  EXPECT_EQ(MakeEcSigningKey().public_pem.rfind("-----BEGIN PUBLIC KEY-----", 0), 0u);
  EXPECT_EQ(MakeRsaSigningKey().private_pem.rfind("-----BEGIN PRIVATE KEY-----", 0), 0u);
}

}  // namespace
}  // namespace atl::testing
