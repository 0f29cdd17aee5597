// Certificates and keys for tests, made in code and never stored: an authority, its certificates, and token signing
// keys.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace atl::testing {

// Both as PEM.
struct Certificate {
  std::string certificate;
  std::string key;
};

struct CertificateRequest {
  std::string common_name;
  std::vector<std::string> dns_names;
  std::vector<std::string> addresses;  // IP addresses
  std::vector<std::string> emails;
  absl::Time not_before = absl::Now() - absl::Hours(1);
  absl::Time not_after = absl::Now() + absl::Hours(24);
};

// A certificate authority with an EC P-256 key. Aborts if OpenSSL fails. Thread-safe except for its moves.
class CertificateAuthority {
 public:
  explicit CertificateAuthority(const std::string& common_name = "atoll tests");
  ~CertificateAuthority();
  CertificateAuthority(CertificateAuthority&&) noexcept;
  CertificateAuthority& operator=(CertificateAuthority&&) noexcept;

  // PEM.
  const std::string& certificate() const { return certificate_; }

  // Makes a certificate for server and client use, because every program of a cluster is both.
  Certificate Issue(const CertificateRequest& request) const;
  // Makes a certificate for localhost, 127.0.0.1 and ::1.
  Certificate IssueServer(const std::string& common_name) const;
  // Makes a certificate without any address.
  Certificate IssueClient(const std::string& common_name) const;
  // Like IssueServer, but expired an hour ago.
  Certificate IssueExpired(const std::string& common_name) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
  std::string certificate_;
};

// Writes tls.crt, tls.key and ca.crt into `folder` the way Kubernetes does: into a new folder behind a link that one
// rename swaps, so that a reader never sees the key of another certificate. Another call replaces all three.
void WriteTlsFolder(const std::string& folder, const Certificate& certificate, const std::string& authority);

// Keys that sign tokens, both halves as PEM.
struct SigningKey {
  std::string private_pem;
  std::string public_pem;
};
SigningKey MakeEcSigningKey();                  // P-256, for ES256
SigningKey MakeRsaSigningKey(int bits = 2048);  // for RS256

// Makes a JSON Web Token of these two JSON objects, signed with SHA-256 by the key, whatever `header` says.
std::string SignJwt(const SigningKey& key, const std::string& header, const std::string& claims);
// Joins the three parts of a JWT; encodes each, also the signature's bytes.
std::string JoinJwt(const std::string& header, const std::string& claims, const std::string& signature);

}  // namespace atl::testing
