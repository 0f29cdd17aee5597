#include "tests/pki.h"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/rsa.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/escaping.h"
#include "common/base/handles.h"

namespace atl::testing {
namespace {

namespace fs = std::filesystem;

using Key = Handle<EVP_PKEY, EVP_PKEY_free>;
using X509Ptr = Handle<X509, X509_free>;

void Must(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "pki: %s failed\n", what);
  ERR_print_errors_fp(stderr);
  std::abort();
}

template <typename Write>
std::string Pem(const Write& write) {
  BIO* const bio = BIO_new(BIO_s_mem());
  Must(bio != nullptr && write(bio) == 1, "writing PEM");
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(bio, &bytes);
  std::string text(bytes, static_cast<size_t>(size));
  BIO_free(bio);
  return text;
}

std::string CertificatePem(X509* certificate) {
  return Pem([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate); });
}

std::string PrivatePem(EVP_PKEY* key) {
  return Pem([&](BIO* bio) { return PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr); });
}

std::string PublicPem(EVP_PKEY* key) {
  return Pem([&](BIO* bio) { return PEM_write_bio_PUBKEY(bio, key); });
}

Key NewEcKey() {
  Key key(EVP_EC_gen("P-256"));
  Must(key != nullptr, "EVP_EC_gen");
  return key;
}

void AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  Must(extension != nullptr && X509_add_ext(certificate, extension, -1) == 1, value.c_str());
  X509_EXTENSION_free(extension);
}

X509Ptr Blank(const CertificateRequest& request, EVP_PKEY* key) {
  X509Ptr certificate(X509_new());
  Must(certificate != nullptr && X509_set_version(certificate.get(), 2) == 1, "X509_new");
  uint64_t serial = 0;
  Must(RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof(serial)) == 1, "RAND_bytes");
  Must(ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate.get()), serial >> 1) == 1, "the serial number");
  Must(ASN1_TIME_set(X509_getm_notBefore(certificate.get()), absl::ToTimeT(request.not_before)) != nullptr &&
           ASN1_TIME_set(X509_getm_notAfter(certificate.get()), absl::ToTimeT(request.not_after)) != nullptr,
       "the times");
  X509_NAME* const name = X509_get_subject_name(certificate.get());
  Must(X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8,
                                  reinterpret_cast<const unsigned char*>(request.common_name.c_str()), -1, -1, 0) == 1,
       "the common name");
  Must(X509_set_pubkey(certificate.get(), key) == 1, "X509_set_pubkey");
  return certificate;
}

void WriteFile(const fs::path& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << bytes;
  file.close();
  Must(file.good(), path.c_str());
}

// `name` -> `target`, in place of what was there.
void Link(const fs::path& target, const fs::path& name) {
  const fs::path fresh = name.string() + ".new";
  fs::remove(fresh);
  fs::create_symlink(target, fresh);
  fs::rename(fresh, name);
}

}  // namespace

struct CertificateAuthority::State {
  Key key;
  X509Ptr certificate;
};

CertificateAuthority::CertificateAuthority(const std::string& common_name) : state_(std::make_unique<State>()) {
  state_->key = NewEcKey();
  CertificateRequest request{.common_name = common_name};
  request.not_before = absl::Now() - absl::Hours(48);
  state_->certificate = Blank(request, state_->key.get());
  X509* const own = state_->certificate.get();
  Must(X509_set_issuer_name(own, X509_get_subject_name(own)) == 1, "the issuer");
  AddExtension(own, own, NID_basic_constraints, "critical,CA:TRUE");
  AddExtension(own, own, NID_key_usage, "critical,keyCertSign,cRLSign");
  AddExtension(own, own, NID_subject_key_identifier, "hash");
  Must(X509_sign(own, state_->key.get(), EVP_sha256()) > 0, "X509_sign");
  certificate_ = CertificatePem(own);
}

CertificateAuthority::~CertificateAuthority() = default;
CertificateAuthority::CertificateAuthority(CertificateAuthority&&) noexcept = default;
CertificateAuthority& CertificateAuthority::operator=(CertificateAuthority&&) noexcept = default;

Certificate CertificateAuthority::Issue(const CertificateRequest& request) const {
  const Key key = NewEcKey();
  const X509Ptr certificate = Blank(request, key.get());
  X509* const issuer = state_->certificate.get();
  Must(X509_set_issuer_name(certificate.get(), X509_get_subject_name(issuer)) == 1, "the issuer");
  AddExtension(certificate.get(), issuer, NID_basic_constraints, "critical,CA:FALSE");
  AddExtension(certificate.get(), issuer, NID_key_usage, "critical,digitalSignature");
  AddExtension(certificate.get(), issuer, NID_ext_key_usage, "serverAuth,clientAuth");
  AddExtension(certificate.get(), issuer, NID_authority_key_identifier, "keyid");
  std::string names;
  for (const std::string& name : request.dns_names) names += (names.empty() ? "DNS:" : ",DNS:") + name;
  for (const std::string& address : request.addresses) names += (names.empty() ? "IP:" : ",IP:") + address;
  for (const std::string& email : request.emails) names += (names.empty() ? "email:" : ",email:") + email;
  if (!names.empty()) AddExtension(certificate.get(), issuer, NID_subject_alt_name, names);
  Must(X509_sign(certificate.get(), state_->key.get(), EVP_sha256()) > 0, "X509_sign");
  return {CertificatePem(certificate.get()), PrivatePem(key.get())};
}

Certificate CertificateAuthority::IssueServer(const std::string& common_name) const {
  return Issue({.common_name = common_name, .dns_names = {"localhost"}, .addresses = {"127.0.0.1", "::1"}});
}

Certificate CertificateAuthority::IssueClient(const std::string& common_name) const {
  return Issue({.common_name = common_name});
}

Certificate CertificateAuthority::IssueExpired(const std::string& common_name) const {
  return Issue({.common_name = common_name,
                .dns_names = {"localhost"},
                .addresses = {"127.0.0.1", "::1"},
                .not_before = absl::Now() - absl::Hours(24),
                .not_after = absl::Now() - absl::Hours(1)});
}

void WriteTlsFolder(const std::string& folder, const Certificate& certificate, const std::string& authority) {
  const fs::path root = folder;
  fs::create_directories(root);
  int version = 0;
  while (fs::exists(root / (".." + std::to_string(version)))) ++version;
  const std::string fresh = ".." + std::to_string(version);
  fs::create_directory(root / fresh);
  WriteFile(root / fresh / "tls.crt", certificate.certificate);
  WriteFile(root / fresh / "tls.key", certificate.key);
  WriteFile(root / fresh / "ca.crt", authority);
  Link(fresh, root / "..data");
  for (const char* const name : {"tls.crt", "tls.key", "ca.crt"}) {
    if (!fs::exists(root / name)) Link(fs::path("..data") / name, root / name);
  }
}

SigningKey MakeEcSigningKey() {
  const Key key = NewEcKey();
  return {PrivatePem(key.get()), PublicPem(key.get())};
}

namespace {

std::string Base64Url(const std::string& bytes) {
  std::string text = absl::WebSafeBase64Escape(bytes);
  text.erase(text.find_last_not_of('=') + 1);
  return text;
}

// Returns the form in JWTs, which replaces the DER form: both numbers, 32 bytes each.
std::string RawEcSignature(const std::string& der) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(der.data());
  ECDSA_SIG* const signature = d2i_ECDSA_SIG(nullptr, &bytes, static_cast<long>(der.size()));
  std::string raw(64, '\0');
  auto* const out = reinterpret_cast<unsigned char*>(raw.data());
  Must(signature != nullptr && BN_bn2binpad(ECDSA_SIG_get0_r(signature), out, 32) == 32 &&
           BN_bn2binpad(ECDSA_SIG_get0_s(signature), out + 32, 32) == 32,
       "the EC signature");
  ECDSA_SIG_free(signature);
  return raw;
}

}  // namespace

std::string JoinJwt(const std::string& header, const std::string& claims, const std::string& signature) {
  return Base64Url(header) + "." + Base64Url(claims) + "." + Base64Url(signature);
}

std::string SignJwt(const SigningKey& key, const std::string& header, const std::string& claims) {
  BIO* const bio = BIO_new_mem_buf(key.private_pem.data(), static_cast<int>(key.private_pem.size()));
  const Key signer(PEM_read_bio_PrivateKey(bio, nullptr, nullptr, nullptr));
  BIO_free(bio);
  const std::string text = Base64Url(header) + "." + Base64Url(claims);
  EVP_MD_CTX* const context = EVP_MD_CTX_new();
  const auto* const bytes = reinterpret_cast<const unsigned char*>(text.data());
  size_t size = 0;
  Must(signer != nullptr && EVP_DigestSignInit(context, nullptr, EVP_sha256(), nullptr, signer.get()) == 1 &&
           EVP_DigestSign(context, nullptr, &size, bytes, text.size()) == 1,
       "EVP_DigestSign");
  std::string signature(size, '\0');
  Must(EVP_DigestSign(context, reinterpret_cast<unsigned char*>(signature.data()), &size, bytes, text.size()) == 1,
       "EVP_DigestSign");
  EVP_MD_CTX_free(context);
  signature.resize(size);
  if (EVP_PKEY_is_a(signer.get(), "EC") == 1) signature = RawEcSignature(signature);
  return JoinJwt(header, claims, signature);
}

SigningKey MakeRsaSigningKey(int bits) {
  const Key key(EVP_RSA_gen(static_cast<unsigned>(bits)));
  Must(key != nullptr, "EVP_RSA_gen");
  return {PrivatePem(key.get()), PublicPem(key.get())};
}

}  // namespace atl::testing
