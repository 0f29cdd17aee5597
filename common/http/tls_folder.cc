#include "common/http/tls_folder.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstring>
#include <string_view>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"
#include "openssl/err.h"
#include "openssl/ssl.h"
#include "openssl/x509v3.h"
#include "spdlog/spdlog.h"

namespace atl::http {
namespace {

constexpr char kCertificate[] = "tls.crt";
constexpr char kKey[] = "tls.key";
constexpr char kAuthority[] = "ca.crt";

// Uses OpenSSL's first error: later ones only repeat it.
absl::Status Invalid(const std::string& path, std::string_view expected) {
  const unsigned long error = ERR_peek_error();
  const char* why = ERR_SYSTEM_ERROR(error) ? std::strerror(ERR_GET_REASON(error)) : ERR_reason_error_string(error);
  ERR_clear_error();
  return MakeError(
      absl::StatusCode::kFailedPrecondition, "TLS_FILES_INVALID",
      fmt::format("{}: expected {}, found: {}", path, expected, why == nullptr ? "nothing of the kind" : why));
}

bool Exists(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0;
}

// Never asks for a password: a server may have no terminal.
int NoPassword(char*, int, int, void*) {
  return 0;
}

absl::Status TrustClients(SSL_CTX* context, const std::string& folder, bool required) {
  const std::string authority = folder + "/" + kAuthority;
  if (!required && !Exists(authority)) return absl::OkStatus();
  STACK_OF(X509_NAME)* const names = SSL_load_client_CA_file(authority.c_str());
  if (names == nullptr || SSL_CTX_load_verify_file(context, authority.c_str()) != 1) {
    sk_X509_NAME_pop_free(names, X509_NAME_free);
    return Invalid(authority, "certificates, as PEM, that sign those of clients");
  }
  SSL_CTX_set_client_CA_list(context, names);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | (required ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0), nullptr);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<SSL_CTX>> Read(const TlsFolderOptions& options) {
  ERR_clear_error();
  const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  if (context == nullptr) return Invalid(options.folder, "OpenSSL to serve TLS");
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  // Every connection shows its certificate anew: what was believed before a change of the files is not believed on.
  SSL_CTX_set_options(context.get(), SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context.get(), 0);
  SSL_CTX_set_mode(context.get(),
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_default_passwd_cb(context.get(), NoPassword);
  const std::string certificate = options.folder + "/" + kCertificate;
  if (SSL_CTX_use_certificate_chain_file(context.get(), certificate.c_str()) != 1) {
    return Invalid(certificate, "a certificate, as PEM");
  }
  const std::string key = options.folder + "/" + kKey;
  if (SSL_CTX_use_PrivateKey_file(context.get(), key.c_str(), SSL_FILETYPE_PEM) != 1) {
    return Invalid(key, "the key of tls.crt, as PEM and without a password");
  }
  ATOLL_RETURN_IF_ERROR(TrustClients(context.get(), options.folder, options.require_client_certificate));
  return context;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TlsFolder>> TlsFolder::Open(TlsFolderOptions options, Clock* clock) {
  std::unique_ptr<TlsFolder> folder(new TlsFolder(std::move(options), clock));
  folder->looked_ = clock->Monotonic();
  folder->stamp_ = folder->Stamp();
  ATOLL_ASSIGN_OR_RETURN(folder->context_, Read(folder->options_));
  return folder;
}

std::shared_ptr<SSL_CTX> TlsFolder::Current() {
  const absl::Duration now = clock_->Monotonic();
  if (now - looked_ < options_.max_age) return context_;
  looked_ = now;
  std::string stamp = Stamp();
  if (stamp == stamp_) {
    complaint_.clear();
    return context_;
  }
  absl::StatusOr<std::shared_ptr<SSL_CTX>> context = Read(options_);
  if (context.ok()) {
    context_ = *std::move(context);
    stamp_ = std::move(stamp);
    complaint_.clear();
    spdlog::info("read the changed certificate in {}", options_.folder);
    return context_;
  }
  // The next check retries even if the files do not change: a process without a free descriptor cannot read them.
  if (complaint_ != context.status().message()) {
    complaint_ = std::string(context.status().message());
    spdlog::error("the changed certificate is not used, the one before goes on: {}", complaint_);
  }
  return context_;
}

std::string TlsFolder::Stamp() const {
  std::string stamp;
  for (const char* name : {kCertificate, kKey, kAuthority}) {
    struct stat info {};
    if (stat((options_.folder + "/" + name).c_str(), &info) != 0) info = {};
    stamp += fmt::format("{}:{}:{}.{} ", info.st_ino, info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
  }
  return stamp;
}

std::vector<std::string> NamesOf(X509* certificate) {
  std::vector<std::string> names;
  if (certificate == nullptr) return names;
  const auto add = [&names](const ASN1_STRING* text) {
    unsigned char* bytes = nullptr;
    const int size = ASN1_STRING_to_UTF8(&bytes, text);
    if (size < 0) return;
    std::string name(reinterpret_cast<char*>(bytes), size);
    OPENSSL_free(bytes);
    // A name with a zero byte in it is one name to a C program and another one to the authority that signed it.
    if (!name.empty() && name.find('\0') == std::string::npos) names.push_back(std::move(name));
  };
  const auto add_address = [&names](const ASN1_OCTET_STRING* bytes) {
    const int size = ASN1_STRING_length(bytes);
    if (size != 4 && size != 16) return;
    char text[INET6_ADDRSTRLEN];
    const int family = size == 4 ? AF_INET : AF_INET6;
    if (inet_ntop(family, ASN1_STRING_get0_data(bytes), text, sizeof(text)) != nullptr) names.emplace_back(text);
  };
  X509_NAME* const subject = X509_get_subject_name(certificate);
  const int common = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  if (common >= 0) add(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, common)));
  const std::unique_ptr<GENERAL_NAMES, decltype(&GENERAL_NAMES_free)> others(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)),
      GENERAL_NAMES_free);
  for (int i = 0; others != nullptr && i < sk_GENERAL_NAME_num(others.get()); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(others.get(), i);
    if (name->type == GEN_DNS) add(name->d.dNSName);
    if (name->type == GEN_EMAIL) add(name->d.rfc822Name);
    if (name->type == GEN_URI) add(name->d.uniformResourceIdentifier);
    if (name->type == GEN_IPADD) add_address(name->d.iPAddress);
  }
  return names;
}

}  // namespace atl::http
