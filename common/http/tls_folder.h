// A server's certificate, its key and its trusted authority, read from a folder that may change while it serves.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "openssl/types.h"

namespace atl::http {

struct TlsFolderOptions {
  // Contains tls.crt (with the chain), tls.key and, if clients may send certificates, ca.crt: the names of Kubernetes'
  // secrets. Swap all three with one rename of a link, as Kubernetes does.
  std::string folder;
  // Clients without a certificate of ca.crt are refused.
  bool require_client_certificate = false;
  // Largest age of the files' contents when they are used.
  absl::Duration max_age = absl::Seconds(1);
};

// TLS 1.2 and newer. Not thread-safe.
class TlsFolder {
 public:
  // FAILED_PRECONDITION, reason TLS_FILES_INVALID, names the file that cannot be used.
  static absl::StatusOr<std::unique_ptr<TlsFolder>> Open(TlsFolderOptions options, Clock* clock = Clock::Real());

  // Returns the context for new connections. If changed files cannot be used, it logs that once and keeps the last one.
  std::shared_ptr<SSL_CTX> Current();

 private:
  TlsFolder(TlsFolderOptions options, Clock* clock) : options_(std::move(options)), clock_(clock) {}
  std::string Stamp() const;

  const TlsFolderOptions options_;
  Clock* const clock_;
  std::shared_ptr<SSL_CTX> context_;
  std::string stamp_;      // of the files that context_ was read from
  std::string complaint_;  // of files that changed since; empty: none
  absl::Duration looked_;
};

// Returns a certificate's names in gRPC's order: its common name, then its DNS names, e-mail addresses, URIs and IP
// addresses ("10.0.0.1", "::1"). Empty for null.
std::vector<std::string> NamesOf(X509* certificate);

}  // namespace atl::http
