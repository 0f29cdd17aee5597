// Who callers are: the principals file, which says what a token, a certificate or an issuer of JWTs stands for, and the
// deny list. Pure: files are read by Authenticator (authenticator.h). docs/security.md has both formats.
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

// Most that one subject may have at a time, and of images also how many it may ask for in a minute; unset: no limit.
struct Quota {
  std::optional<int64_t> open_jobs;
  std::optional<int64_t> images_in_flight;
  std::optional<int64_t> images_per_minute;
  // Islands that are registered of those that it may act for.
  std::optional<int64_t> islands;
  bool operator==(const Quota&) const = default;
};

// A caller whose credential was checked.
struct Principal {
  std::string subject;
  RoleSet roles;
  // Islands that it may act for, as names or with * for any letters: "eu-*".
  std::vector<std::string> islands;
  // Expert servers that it may act for, likewise; empty: those that nobody else acts for.
  std::vector<std::string> expert_servers;
  // Models that its jobs may publish and whose served version it may choose, likewise.
  std::vector<std::string> models = {"*"};
  Quota quota;
  absl::Time expires = absl::InfiniteFuture();
};

// Whoever reaches a port that asks for no credential: every role, every island. `subject` is "anonymous", or the name
// in the client's certificate.
Principal OpenPrincipal(std::string_view subject);

// OK, or PERMISSION_DENIED with reason ISLAND_NOT_YOURS.
absl::Status CheckIsland(const Principal& principal, std::string_view island_id);
bool MayActForIsland(const Principal& principal, std::string_view island_id);

// Whether the principal is named for the expert server, and may so take the place of who else acts for it; false where
// its entry names none. PERMISSION_DENIED (EXPERT_SERVER_NOT_YOURS) where it names others.
absl::StatusOr<bool> IsNamedForExpertServer(const Principal& principal, std::string_view server_id);

// OK, or PERMISSION_DENIED with reason MODEL_NOT_YOURS.
absl::Status CheckModel(const Principal& principal, std::string_view model);

// Credentials that are refused whatever else is known of them. Text, one entry a line: "subject NAME", "jti ID" or
// "token SHA256"; a line that starts with # is a comment. INVALID_ARGUMENT, INVALID_DENY_LIST, names another line.
struct DenyList {
  std::set<std::string, std::less<>> subjects;
  std::set<std::string, std::less<>> jtis;
  std::set<std::string, std::less<>> tokens;  // SHA-256, lower-case hex; of a JWT that of its SignedPart

  static absl::StatusOr<DenyList> Parse(std::string_view text, std::string_view file_name);
};

// The principals file. Immutable; thread-safe.
class Principals {
 public:
  // `read` returns the contents of a file that the principals file names (keys of an issuer). INVALID_ARGUMENT with
  // file, line and field; errors of `read`.
  using ReadFile = std::function<absl::StatusOr<std::string>(const std::string& path)>;
  static absl::StatusOr<Principals> Parse(std::string_view yaml, std::string_view file_name, const ReadFile& read);

  // Who has this credential: the bearer token where there is one, else the first of the verified client certificate's
  // names (common name, then alternative names) that the file knows. UNAUTHENTICATED with reason CREDENTIAL_REQUIRED,
  // TOKEN_* or CERTIFICATE_UNKNOWN; no message repeats a token.
  absl::StatusOr<Principal> Check(std::string_view bearer, std::span<const std::string> certificate_names,
                                  const DenyList& denied, absl::Time now) const;

 private:
  friend class PrincipalsReader;
  // What a JWT's subject gets beside its claims.
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

// Returns the subject that a refused call is from, for the audit log alone: also where the entry is revoked or has
// expired (`caller` is then the error of Principals::Check). Else the first of the names in its verified certificate,
// or "".
std::string SubjectOfRefused(const absl::StatusOr<Principal>& caller, std::span<const std::string> certificate_names);

// A new random token of 256 bits, and what the principals file keeps of it.
struct NewToken {
  std::string token;
  std::string sha256;  // lower-case hex
};
NewToken MakeToken();
// Lower-case hex.
std::string TokenHash(std::string_view token);

}  // namespace atl::rpc
