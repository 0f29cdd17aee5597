#include "common/auth/security.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/synchronization/mutex.h"
#include "common/auth/identity_watch.h"
#include "common/base/address.h"
#include "common/base/errors.h"
#include "common/base/files.h"
#include "common/base/handles.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"
#include "grpc/grpc_security_constants.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "spdlog/spdlog.h"

namespace atl::rpc {
namespace {

using BioPtr = Handle<BIO, BIO_free_all>;
using KeyPtr = Handle<EVP_PKEY, EVP_PKEY_free>;
using X509Ptr = Handle<X509, X509_free>;

constexpr size_t kMaxTokenBytes = 8 * 1024;  // gRPC's limit of headers

absl::Status BadFile(std::string_view reason, std::string_view file, std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason, fmt::format("{}: {}", file, message));
}

// `what` is in the file, for errors.
absl::StatusOr<std::string> Contents(const std::string& path, std::string_view what) {
  absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return WithContext(text.status(), what);
  return text;
}

BioPtr Reader(const std::string& text) {
  return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

absl::Status NoCertificate(const std::string& path) {
  return BadFile("INVALID_CERTIFICATE", path, "expected a certificate (PEM), found none");
}

absl::Time TimeOf(const ASN1_TIME* time) {
  std::tm parts{};
  ASN1_TIME_to_tm(time, &parts);
  return absl::FromTM(parts, absl::UTCTimeZone());
}

// OK where its time is now.
absl::Status CheckTime(const X509* certificate, const std::string& path) {
  const auto when = [](const ASN1_TIME* time) { return absl::FormatTime(TimeOf(time), absl::UTCTimeZone()); };
  if (const ASN1_TIME* const end = X509_get0_notAfter(certificate); X509_cmp_current_time(end) < 0) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "CERTIFICATE_EXPIRED",
                     fmt::format("{}: the certificate expired at {}", path, when(end)));
  }
  if (const ASN1_TIME* const start = X509_get0_notBefore(certificate); X509_cmp_current_time(start) > 0) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "CERTIFICATE_NOT_YET_VALID",
                     fmt::format("{}: the certificate is valid from {}; is the clock right?", path, when(start)));
  }
  return absl::OkStatus();
}

// The file's next certificate; null behind the last one, and at one that cannot be read.
X509Ptr NextOf(BIO* reader) {
  X509Ptr next(PEM_read_bio_X509(reader, nullptr, nullptr, nullptr));
  ERR_clear_error();
  return next;
}

// OK where one of the file's certificates is in its time: where a new authority takes the place of an old one, that may
// end before it is taken out.
absl::Status CheckAuthorities(const std::string& path) {
  ATOLL_ASSIGN_OR_RETURN(const std::string text, Contents(path, "certificates of authorities"));
  const BioPtr reader = Reader(text);
  absl::Status first;
  while (const X509Ptr certificate = NextOf(reader.get())) {
    const absl::Status status = CheckTime(certificate.get(), path);
    if (status.ok()) return status;
    first.Update(status);
  }
  return first.ok() ? NoCertificate(path) : first;
}

// The first of a chain is the process's own. Sets `end` to when it ends, where it can be read.
absl::Status CheckIdentity(const std::string& certificate_path, const std::string& key_path, absl::Time* end) {
  ATOLL_ASSIGN_OR_RETURN(const std::string chain, Contents(certificate_path, "certificate"));
  const X509Ptr certificate = NextOf(Reader(chain).get());
  if (certificate == nullptr) return NoCertificate(certificate_path);
  *end = TimeOf(X509_get0_notAfter(certificate.get()));
  ATOLL_RETURN_IF_ERROR(CheckTime(certificate.get(), certificate_path));
  ATOLL_ASSIGN_OR_RETURN(const std::string text, Contents(key_path, "private key"));
  // Without a callback OpenSSL would ask the terminal for a password.
  const auto no_password = [](char*, int, int, void*) { return 0; };
  const KeyPtr key(PEM_read_bio_PrivateKey(Reader(text).get(), nullptr, no_password, nullptr));
  const bool fits = key != nullptr && X509_check_private_key(certificate.get(), key.get()) == 1;
  ERR_clear_error();
  if (fits) return absl::OkStatus();
  return BadFile("INVALID_KEY", key_path,
                 key == nullptr ? "expected a private key (PEM, without password), found none"
                                : fmt::format("expected the key of {}, found another", certificate_path));
}

absl::StatusOr<std::string> ReadToken(const std::string& path) {
  ATOLL_ASSIGN_OR_RETURN(const std::string text, Contents(path, "--token-file"));
  const std::string token(absl::StripAsciiWhitespace(text));
  const bool plain =
      std::ranges::all_of(token, [](char c) { return absl::ascii_isgraph(static_cast<unsigned char>(c)); });
  if (!token.empty() && plain && token.size() <= kMaxTokenBytes) return token;
  return BadFile("INVALID_TOKEN_FILE", path, "expected one token on one line, found another text");
}

// Puts the token of a file into every call, and reads it again when it is old: tokens are replaced while we run.
class TokenFromFile final : public grpc::MetadataCredentialsPlugin {
 public:
  TokenFromFile(std::string path, std::string token, Clock* clock)
      : path_(std::move(path)), clock_(clock), token_(std::move(token)), read_(clock->Monotonic()) {}

  bool IsBlocking() const override { return true; }
  const char* GetType() const override { return "atoll-token"; }
  grpc::string DebugString() override { return "token of " + path_; }

  grpc::Status GetMetadata(grpc::string_ref, grpc::string_ref, const grpc::AuthContext&,
                           std::multimap<grpc::string, grpc::string>* metadata) override {
    absl::MutexLock lock(&mutex_);
    if (const absl::Duration now = clock_->Monotonic(); now - read_ >= kReloadInterval) {
      // If the file is briefly missing, the previous token stays.
      absl::StatusOr<std::string> token = ReadToken(path_);
      if (token.ok()) token_ = *std::move(token);
      if (!token.ok() && complaint_ != token.status().message()) {
        spdlog::error("the token from before is shown on: {}", std::string(token.status().message()));
      }
      complaint_ = std::string(token.status().message());
      read_ = now;
    }
    metadata->emplace("authorization", "Bearer " + token_);
    return grpc::Status::OK;
  }

 private:
  const std::string path_;
  Clock* const clock_;
  absl::Mutex mutex_;
  std::string token_ ABSL_GUARDED_BY(mutex_);
  absl::Duration read_ ABSL_GUARDED_BY(mutex_);
  std::string complaint_ ABSL_GUARDED_BY(mutex_);  // of the file as it was read last; empty: none
};

using FileWatcher = grpc::experimental::FileWatcherCertificateProvider;

// Watches the identity in `folder` and `authorities`; an empty path: none.
std::shared_ptr<FileWatcher> WatchFiles(const std::string& folder, const std::string& authorities) {
  const auto seconds = static_cast<unsigned>(absl::ToInt64Seconds(kReloadInterval));
  const bool identity = !folder.empty();
  return std::make_shared<FileWatcher>(identity ? folder + "/tls.key" : "", identity ? folder + "/tls.crt" : "",
                                       authorities, seconds);
}

absl::Status StillLetIn(const Authenticator& authenticator, const CallStart& start) {
  if (const Access* const row = FindAccess(start.method); row != nullptr && row->open) return absl::OkStatus();
  return WhoStill(authenticator, start).status();
}

}  // namespace

struct Security::Tls {
  bool identity = false;                  // tls.crt and tls.key
  std::string authorities;                // of servers that are called: ca.crt, or --ca; empty: the system's
  std::string of_clients;                 // of clients: ca.crt, independent of --ca; empty: none
  std::shared_ptr<FileWatcher> provider;  // of the identity and of `authorities`
  std::unique_ptr<IdentityWatch> watch;   // of all these files where there is an identity; else null
};

Security::Security() = default;
Security::~Security() = default;

absl::StatusOr<std::shared_ptr<const Security>> Security::Make(const SecurityOptions& options, Clock* clock) {
  std::shared_ptr<Security> security(new Security);
  security->options_ = options;
  if (options.require_client_certificate && options.tls_dir.empty()) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "TLS_REQUIRED",
                     "--require-client-certificate: expected --tls-dir beside it, found none");
  }
  ATOLL_RETURN_IF_ERROR(security->LoadTls());
  ATOLL_RETURN_IF_ERROR(security->LoadChannelCredentials(clock));
  if (options.principals.empty()) {
    if (options.deny_list.empty()) return security;
    return MakeError(absl::StatusCode::kInvalidArgument, "PRINCIPALS_REQUIRED",
                     "--deny-list: expected --principals beside it, found none");
  }
  AuthenticatorOptions authenticator{.principals = options.principals, .deny_list = options.deny_list};
  security->open_streams_ = std::make_shared<OpenStreams>();
  authenticator.reloaded = [streams = security->open_streams_](const Authenticator& now) {
    streams->Cut([&now](const CallStart& start) { return StillLetIn(now, start); });
  };
  ATOLL_ASSIGN_OR_RETURN(security->authenticator_, Authenticator::Open(authenticator, clock));
  security->guard_ = std::make_shared<Guard>(security->authenticator_);
  return security;
}

absl::Status Security::LoadTls() {
  const std::string& folder = options_.tls_dir;
  if (folder.empty() && options_.ca.empty()) return absl::OkStatus();
  const std::string certificate = folder + "/tls.crt";
  const std::string key = folder + "/tls.key";
  tls_ = std::make_unique<Tls>();
  tls_->identity = !folder.empty();
  std::error_code ignored;
  if (tls_->identity && std::filesystem::exists(folder + "/ca.crt", ignored)) tls_->of_clients = folder + "/ca.crt";
  tls_->authorities = options_.ca.empty() ? tls_->of_clients : options_.ca;
  absl::Time end = absl::InfiniteFuture();
  if (tls_->identity) ATOLL_RETURN_IF_ERROR(CheckIdentity(certificate, key, &end));
  if (!tls_->authorities.empty()) ATOLL_RETURN_IF_ERROR(CheckAuthorities(tls_->authorities));
  tls_->provider = WatchFiles(folder, tls_->authorities);
  if (tls_->identity) {
    const auto check = [certificate, key, servers = tls_->authorities, clients = tls_->of_clients](absl::Time* ends) {
      absl::Status status = CheckIdentity(certificate, key, ends);
      for (const std::string& file : {servers, clients}) {
        if (!file.empty()) status.Update(CheckAuthorities(file));
      }
      return status;
    };
    tls_->watch = std::make_unique<IdentityWatch>(check, end);
  }
  return absl::OkStatus();
}

absl::Status Security::LoadChannelCredentials(Clock* clock) {
  if (tls_ != nullptr) {
    grpc::experimental::TlsChannelCredentialsOptions tls;
    tls.set_certificate_provider(tls_->provider);
    if (tls_->identity) tls.watch_identity_key_cert_pairs();
    if (!tls_->authorities.empty()) tls.watch_root_certs();  // else those of the system
    channel_credentials_ = grpc::experimental::TlsCredentials(tls);
  }
  if (options_.token_file.empty()) return absl::OkStatus();
  ATOLL_ASSIGN_OR_RETURN(std::string token, ReadToken(options_.token_file));
  // These credentials connect to this machine only, so that no token leaves it in the clear.
  if (tls_ == nullptr) channel_credentials_ = grpc::experimental::LocalCredentials(LOCAL_TCP);
  channel_credentials_ = grpc::CompositeChannelCredentials(
      channel_credentials_, grpc::experimental::MetadataCredentialsFromPlugin(
                                std::make_unique<TokenFromFile>(options_.token_file, std::move(token), clock),
                                tls_ != nullptr ? GRPC_PRIVACY_AND_INTEGRITY : GRPC_SECURITY_NONE));
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> Security::ServerCredentials(std::string_view listen) const {
  const bool here = IsLoopback(listen);
  if (tls_ == nullptr || !tls_->identity) {
    if (!here && !options_.insecure_network) {
      return MakeError(
          absl::StatusCode::kFailedPrecondition, "TLS_REQUIRED",
          fmt::format("{} can be reached from other machines: give --tls-dir DIR, or --insecure-network to "
                      "serve everybody in the clear",
                      listen));
    }
    if (guard_ == nullptr) return nullptr;
    if (!here) {
      return MakeError(absl::StatusCode::kFailedPrecondition, "TLS_REQUIRED",
                       fmt::format("{} can be reached from other machines, where tokens would be read by others: give "
                                   "--tls-dir DIR beside --principals",
                                   listen));
    }
    auto credentials = grpc::experimental::LocalServerCredentials(LOCAL_TCP);
    credentials->SetAuthMetadataProcessor(guard_);
    return credentials;
  }
  if (tls_->of_clients.empty() &&
      (options_.require_client_certificate || (guard_ == nullptr && !here && !options_.insecure_network))) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, "CALLERS_UNKNOWN",
        fmt::format("{}: expected ca.crt in {}, to know clients by their certificates{}", listen, options_.tls_dir,
                    guard_ == nullptr ? ", or --principals FILE, to know them by their tokens" : ""));
  }
  std::shared_ptr<FileWatcher> provider = tls_->provider;
  if (tls_->of_clients != tls_->authorities) {
    if (!tls_->of_clients.empty()) ATOLL_RETURN_IF_ERROR(CheckAuthorities(tls_->of_clients));
    provider = WatchFiles(options_.tls_dir, tls_->of_clients);
  }
  grpc::experimental::TlsServerCredentialsOptions tls(provider);
  tls.watch_identity_key_cert_pairs();
  if (!tls_->of_clients.empty()) {
    tls.watch_root_certs();
    const bool require = options_.require_client_certificate || (guard_ == nullptr && !options_.insecure_network);
    tls.set_cert_request_type(require ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                      : GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  auto credentials = grpc::experimental::TlsServerCredentials(tls);
  if (guard_ != nullptr) credentials->SetAuthMetadataProcessor(guard_);
  return credentials;
}

absl::Time Security::certificate_end() const {
  return tls_ == nullptr || tls_->watch == nullptr ? absl::InfiniteFuture() : tls_->watch->end();
}

absl::Status Security::CheckTarget(std::string_view address) const {
  const std::vector<std::string> all = SplitAddresses(address);
  const bool here = std::all_of(all.begin(), all.end(), [](const std::string& one) { return IsLoopback(one); });
  if (tls_ != nullptr || options_.token_file.empty() || here) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition, "TOKEN_NEEDS_TLS",
                   fmt::format("the token of {} would go to {} in the clear: give --ca FILE or --tls-dir DIR",
                               options_.token_file, address));
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentialsOf(const Security* security,
                                                                             std::string_view listen) {
  if (security == nullptr) return nullptr;
  return security->ServerCredentials(listen);
}

std::shared_ptr<OpenStreams> OpenStreamsOf(const Security* security) {
  return security == nullptr ? nullptr : security->open_streams();
}

std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(const Security* security) {
  return security == nullptr ? nullptr : security->channel_credentials();
}

}  // namespace atl::rpc
