// Callers: the principals file, which maps tokens, certificates and issuers of JWTs to principals, and the deny list.
// Pure: Authenticator (authenticator.h) reads the files. docs/security.md has both formats.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/auth/jwt.h"
#include "common/auth/roles.h"

namespace atl::rpc {

// Limits of one subject: the most it may have at a time, and for images also per minute; unset: no limit.
struct Quota {
  std::optional<int64_t> open_jobs;
  std::optional<int64_t> images_in_flight;
  std::optional<int64_t> images_per_minute;
  // Registered islands among those that it may act for.
  std::optional<int64_t> islands;
  bool operator==(const Quota&) const = default;
};

// A caller whose credential was checked.
struct Principal {
  std::string subject;
  RoleSet roles;
  // Islands that it may act for, as names or with * for any letters: "eu-*".
  std::vector<std::string> islands;
  // Expert servers that it may act for, likewise; empty: the ones that no other caller acts for.
  std::vector<std::string> expert_servers;
  // Models that its jobs may publish and whose served version it may choose, likewise.
  std::vector<std::string> models = {"*"};
  Quota quota;
  absl::Time expires = absl::InfiniteFuture();
};

// The principal of every caller at a port that asks for no credential: every role, every island. `subject` is
// "anonymous", or the name in the client's certificate.
Principal OpenPrincipal(std::string_view subject);

// OK, or PERMISSION_DENIED with reason ISLAND_NOT_YOURS.
absl::Status CheckIsland(const Principal& principal, std::string_view island_id);
bool MayActForIsland(const Principal& principal, std::string_view island_id);

// Returns whether the principal's entry names the expert server, so that it may replace another caller that acts for
// it. False if the entry names no server. PERMISSION_DENIED (EXPERT_SERVER_NOT_YOURS) if it names only others.
absl::StatusOr<bool> IsNamedForExpertServer(const Principal& principal, std::string_view server_id);

// OK, or PERMISSION_DENIED with reason MODEL_NOT_YOURS.
absl::Status CheckModel(const Principal& principal, std::string_view model);

// Credentials that are always refused. Text with one entry a line: "subject NAME", "jti ID" or "token SHA256"; a line
// that starts with # is a comment. INVALID_ARGUMENT, INVALID_DENY_LIST, names any other line.
struct DenyList {
  std::set<std::string, std::less<>> subjects;
  std::set<std::string, std::less<>> jtis;
  std::set<std::string, std::less<>> tokens;  // SHA-256, lower-case hex; for a JWT, of its SignedPart

  static absl::StatusOr<DenyList> Parse(std::string_view text, std::string_view file_name);
};

// The principals file. Immutable; thread-safe.
class Principals {
 public:
  // `read` returns the contents of a file that the principals file names (keys of an issuer). INVALID_ARGUMENT with
  // file, line and field; errors of `read`.
  using ReadFile = std::function<absl::StatusOr<std::string>(const std::string& path)>;
  static absl::StatusOr<Principals> Parse(std::string_view yaml, std::string_view file_name, const ReadFile& read);

  // Returns the principal of a credential: of the bearer token if there is one, else of the first name in the verified
  // client certificate (common name, then alternative names) that the file knows. UNAUTHENTICATED with reason
  // CREDENTIAL_REQUIRED, TOKEN_* or CERTIFICATE_UNKNOWN. No message repeats a token.
  absl::StatusOr<Principal> Check(std::string_view bearer, std::span<const std::string> certificate_names,
                                  const DenyList& denied, absl::Time now) const;

 private:
  friend class PrincipalsReader;
  // The issuer's part of a JWT subject's principal, besides its claims.
  struct IssuedTo {
    std::string subject_prefix;
    Quota quota;
  };
  absl::StatusOr<Principal> CheckJwt(std::string_view bearer, const DenyList& denied, absl::Time now) const;

  std::vector<Principal> principals_;
  absl::flat_hash_map<std::string, size_t> by_token_;  // SHA-256, lower-case hex
  absl::flat_hash_map<std::string, size_t> by_certificate_;
  std::vector<JwtIssuer> issuers_;
  std::vector<IssuedTo> issued_to_;  // by issuer
};

// Returns the subject of a refused call, for the audit log alone: also if the entry is revoked or has expired (`caller`
// is then the error of Principals::Check). Otherwise the first name in its verified certificate, or "".
std::string SubjectOfRefused(const absl::StatusOr<Principal>& caller, std::span<const std::string> certificate_names);

// A new random token of 256 bits, and its hash for the principals file.
struct NewToken {
  std::string token;
  std::string sha256;  // lower-case hex
};
NewToken MakeToken();
// Returns lower-case hex.
std::string TokenHash(std::string_view token);

}  // namespace atl::rpc
